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
