#!/bin/sh
# The CUDA backend without a GPU: kernels compile and keep to their resources, and the host code runs on the stub driver, whose kernels are
# the real ones in a CPU emulator.
cd "$DG_ROOT" || exit 1
stub=$DG_BUILD/tests/stub
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

if ldconfig -p 2>/dev/null | grep -q libcuda.so.1; then
    echo "ok - no driver # SKIP this machine has one"
else
    "$DG_BUILD/tests/cuda_host_emulated" no-driver || [ $? -eq 1 ] || echo "not ok - no driver: ended with a signal"
fi

LD_LIBRARY_PATH=$stub "$DG_BUILD/tests/cuda_host_emulated" models/mini || [ $? -eq 1 ] || echo "not ok - host code: ended with a signal"

# --gpu-memory as a user gives it: the driver's kernels do nothing here, what counts is what is said and taken
dg() {
    DG_STUB_NO_RUN=1 LD_LIBRARY_PATH=$stub "$DG_BUILD/tests/diffgemma_emulated" "$@"
}
said() { # NAME STATUS WANTED PATTERN
    lines=$(wc -l <"$tmp/err")
    if [ "$2" -eq "$3" ] && grep -q -- "$4" "$tmp/err" && [ "$lines" -le 2 ]; then
        echo "ok - $1"
    else
        echo "not ok - $1: status $2, $lines lines, $(head -c 300 "$tmp/err" | tr '\n' '|')"
    fi
}
for v in 16 0G -1G 1.5.5G 12X abc '' 1e3G 99999999999T 5GG .5G 0x10G ' 5G' 5iB 2e9T; do
    dg ask -m models/mini --backend cuda --gpu-memory "$v" -p hi >"$tmp/out" 2>"$tmp/err"
    said "--gpu-memory '$v' is refused" $? 2 'give a number and a unit'
done
for v in 1M 1.5MiB 40MB; do
    dg ask -m models/mini --gpu-memory "$v" -p hi >"$tmp/out" 2>"$tmp/err"
    said "--gpu-memory $v is too little" $? 1 'not enough GPU memory for the weights: .* may be used: allow more (--gpu-memory)'
done
dg bench step -m models/mini --backend cuda --gpu-memory 37M --repeat 1 --no-ops --steps 1 >"$tmp/csv" 2>"$tmp/err"
said "bench within 37M says what is streamed" $? 0 'the experts of 6 of 6 layers, 18 MiB, stay in host memory and are streamed'
if grep -q '^# streamed a step: experts of 6 layers, 18.9 MB; host to device [0-9.]* GB/s: at least [0-9.]* ms a step$' "$tmp/csv" &&
    grep -q '^step_sparse,' "$tmp/csv"; then
    echo "ok - bench of streamed experts: bytes a step and the probed rate"
else
    echo "not ok - bench of streamed experts: $(grep -m 1 streamed "$tmp/csv")"
fi

# every op of the table, emulated
case $DG_BUILD in
*asan* | *tsan* | *ubsan*) echo "ok - ops in the emulator # SKIP kernels carry no sanitizer, and the host code around them has run above" ;;
*)
    LD_LIBRARY_PATH=$stub "$DG_BUILD/tests/cuda_ops_emulated" --small >"$tmp/ops" 2>&1
    if tail -n 1 "$tmp/ops" | grep -q '^[1-9][0-9]* passed, 0 failed$'; then
        echo "ok - ops in the emulator: $(tail -n 1 "$tmp/ops")"
    else
        echo "not ok - ops in the emulator: $(grep -m 1 FAILED "$tmp/ops" || tail -n 1 "$tmp/ops")"
        cat "$tmp/ops" >&2
    fi
    ;;
esac

case $DG_BUILD in
*asan* | *tsan* | *ubsan*) ;;
*) "$DG_BUILD/tests/cuda_top_rows" || [ $? -eq 1 ] || echo "not ok - highest of long rows: ended with a signal" ;;
esac

# compiling at run time: with a stub of the compiler, and with the real one where it is
DG_STUB_NVRTC_LOG='head.cu(1): error: as planned' LD_LIBRARY_PATH=$stub/nvrtc "$DG_BUILD/tests/cuda_nvrtc" | sed 's/$/ (stub compiler)/'
"$DG_BUILD/tests/cuda_nvrtc" rows

# The build folders of sanitizers share one set of compiled kernels: they are the same.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
if [ -z "$nvcc" ]; then
    echo "ok - kernels compile # SKIP no nvcc"
    echo "ok - kernels keep to their resources # SKIP no nvcc"
    exit 0
fi
k=$DG_ROOT/build/kernels
if make -s cuda-kernels B="$k" NVCC="$nvcc" CUDA_ARCHS=90a CUDA_PTX= >"$tmp/make" 2>&1; then
    echo "ok - kernels compile"
else
    echo "not ok - kernels compile: $(grep -m 1 -i error "$tmp/make")"
    cat "$tmp/make" >&2
    exit 0
fi
# Spills and arrays in local memory both show as a stack frame or spill bytes. None is allowed.
awk '/Function properties for/ { name = $NF }
     /bytes stack frame/ { n++; if ($1 + $5 + $9 > 0) print FILENAME ": " name ": " $0 }
     END { if (n < 40) print "only " n " kernels reported" }' "$k"/cuda/*.ptxas.txt >"$tmp/over"
if [ -s "$tmp/over" ]; then
    echo "not ok - kernels keep to their resources: $(head -n 1 "$tmp/over")"
    cat "$tmp/over" >&2
else
    echo "ok - kernels keep to their resources: no stack, no spills"
fi
