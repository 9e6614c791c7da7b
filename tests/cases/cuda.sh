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
LD_LIBRARY_PATH=$stub "$DG_BUILD/tests/cuda_turns_emulated" models/mini || [ $? -eq 1 ] || echo "not ok - turns: ended with a signal"

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
least() { # what the refusal in $tmp/err says is needed, and a MiB
    sed -n 's/.*in host memory \([0-9]*\)[0-9.]* MiB are needed.*/\1 + 2/p' "$tmp/err" | head -n 1
}
dg bench step -m models/mini --backend cuda --gpu-memory 1M --repeat 1 --no-ops --steps 1 >"$tmp/csv" 2>"$tmp/err"
budget=$(($(least)))M
dg bench step -m models/mini --backend cuda --gpu-memory "$budget" --repeat 1 --no-ops --steps 1 >"$tmp/csv" 2>"$tmp/err"
said "bench within $budget says what is streamed" $? 0 'the experts of 6 of 6 layers, 18 MiB, stay in host memory and are streamed'
if grep -q '^# streamed a step: experts of 6 layers, 18.9 MB; host to device [0-9.]* GB/s: at least [0-9.]* ms a step$' "$tmp/csv" &&
    grep -q '^step_sparse,' "$tmp/csv"; then
    echo "ok - bench of streamed experts: bytes a step and the probed rate"
else
    echo "not ok - bench of streamed experts: $(grep -m 1 streamed "$tmp/csv")"
fi

# --energy: rows of numbers that agree with each other and with what the stub's cards draw, an idle one last; and no figure where there is none
energy() { # OPTION...
    LD_LIBRARY_PATH=$stub:$stub/nvml DG_STUB_NO_RUN=1 "$DG_BUILD/tests/diffgemma_emulated" bench step -m models/mini --backend cuda --brief \
        --repeat 1 --energy 0.1 "$@" >"$tmp/csv" 2>"$tmp/err"
}
rows() { # NAME STATUS ROWS WATTS: of so many ops and the step
    wrong=$(awk -F, -v rows="$3" -v watts="$4" '
        function near(a, b, part) { return a > 0 && b > 0 && a - b <= part * b && b - a <= part * b }
        /^# energy,what/ { if ($0 != "# energy,what,launches,ms_each,W,mJ_each,s,J,SM_MHz") print "the header"; next }
        !/^# energy,/ { next }
        { what = $2; n++ }
        NF != 9 || !near($5, watts, 0.4) || !near($5 * $7, $8, 0.001) || $7 < 0.1 || $9 != 1500 { print $0 }
        what == "idle" { if ($3 $4 $6 != "") print $0; next }
        $3 < 1 || !near($4 * $5, $6, 0.000001 * $5 / $6 + 0.001) { print $0 }
        END { if (n != rows + 1 || what != "idle") print n " rows, the last is " what }' "$tmp/csv")
    if [ "$2" -eq 0 ] && [ -z "$wrong" ]; then
        echo "ok - $1"
    else
        echo "not ok - $1: status $2, $(echo "$wrong" | head -n 1) $(head -c 200 "$tmp/err")"
    fi
}
energy
rows "bench --energy: joules are watts by seconds, op by op" $? 22 250
DG_STUB_DEVICES=2 energy --no-ops --device 1
rows "bench --energy --device 1 reads that card" $? 1 1000
DG_STUB_NVML=uncounted energy --no-ops
rows "bench --energy without a counter: by power" $? 1 250
DG_STUB_NVML=still energy --no-ops
said "bench --energy with a counter that stands still" $? 1 "step_sparse: the card's energy counter did not move"
if grep -q '^# energy,step' "$tmp/csv"; then echo "not ok - bench --energy: a row of a counter that stands still"; fi
DG_STUB_NVML=blind energy
said "bench --energy of a card without counter and power" $? 1 'reading the power: Not Supported'
DG_STUB_NVML=broken energy
said "bench --energy with a library that does not start" $? 1 "needs the driver's libnvidia-ml.so.1: .*Driver Not Loaded"
if ldconfig -p 2>/dev/null | grep -q libnvidia-ml.so.1; then
    echo "ok - bench --energy without the library # SKIP this machine has one"
else
    dg bench step -m models/mini --energy >"$tmp/csv" 2>"$tmp/err"
    said "bench --energy without the library" $? 1 "needs the driver's libnvidia-ml.so.1: it cannot be opened"
fi

# random weights: as many survivors a row drawn on the device as in a pack, the 16 ids of a token's group; or
# as the draw has it, which in so small a shape is not 16
left() { # HOW OPTION...
    how=$1
    shift
    LD_LIBRARY_PATH=$stub "$DG_BUILD/tests/diffgemma_emulated" bench step --synth models/mini/config.json --ctx 3 --rows 4 --repeat 1 --no-ops \
        --brief "$@" >"$tmp/csv" 2>"$tmp/err"
    grep -q "^# random weights: $how survivors a row" "$tmp/csv" && sed -n 's/^# survivors a row: mean \([0-9]*\).*/\1/p' "$tmp/csv"
}
few=$(left few --layers 1 --backend cuda) pack=$(left few --layers 1 --backend cpu) many=$(left many --layers 1 --backend cuda --spread 5)
if [ "$few" = 16 ] && [ "$pack" = 16 ] && [ "${many:-16}" != 16 ]; then
    echo "ok - drawn weights have the survivors of a pack, unless asked for many"
else
    echo "not ok - survivors of drawn weights: '$few', of a pack '$pack', of many '$many': $(head -c 200 "$tmp/err")"
fi

# golden holds a backend without a table to the reference's tokens, and each case to itself; replay takes streamed experts too
dg golden -m models/mini --backend cuda --exact --case short >"$tmp/out" 2>"$tmp/err"
status=$?
if [ $status -eq 1 ] && grep -q '^short  *DIFFERS (.*, a second run too)$' "$tmp/out"; then
    echo "ok - golden on a GPU that computes nothing differs from the reference, twice the same"
else
    echo "not ok - golden on a GPU that computes nothing: status $status, $(head -n 1 "$tmp/out")$(head -c 200 "$tmp/err")"
fi
dg ask -m models/mini --backend cuda -p hi --steps 3 -n 70 --log-dir "$tmp/log" >/dev/null 2>&1
dg ask -m models/mini --backend cuda -p hi --gpu-memory 1M >/dev/null 2>"$tmp/err"
for budget in '' "$(($(least)))M"; do
    dg replay -m models/mini --backend cuda ${budget:+--gpu-memory $budget} "$tmp/log/ops.jsonl" >"$tmp/out" 2>"$tmp/err"
    if [ $? -eq 0 ] && grep -q 'no difference' "$tmp/out" && { [ -z "$budget" ] || grep -q streamed "$tmp/err"; }; then
        echo "ok - replay on a GPU${budget:+ with streamed experts}"
    else
        echo "not ok - replay on a GPU ${budget}: $(head -n 2 "$tmp/out")$(head -c 200 "$tmp/err")"
    fi
done
if [ "${DG_LONG:-0}" = 1 ]; then
    if LD_LIBRARY_PATH=$stub "$DG_BUILD/tests/diffgemma_emulated" golden -m models/mini --backend cuda --exact --case short >"$tmp/out" 2>&1; then
        echo "ok - golden in the emulator: $(tail -n 1 "$tmp/out")"
    else
        echo "not ok - golden in the emulator: $(tail -n 3 "$tmp/out")"
    fi
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
*asan* | *tsan* | *ubsan*) echo "ok - highest of long rows # SKIP the emulator carries no sanitizer" ;;
*) "$DG_BUILD/tests/cuda_top_rows" || [ $? -eq 1 ] || echo "not ok - highest of long rows: ended with a signal" ;;
esac

# compiling at run time: with a stub of the compiler, and with the real one where it is
DG_STUB_NVRTC_LOG='head.cu(1): error: as planned' LD_LIBRARY_PATH=$stub/nvrtc "$DG_BUILD/tests/cuda_nvrtc" | sed 's/$/ (stub compiler)/'
if [ -n "${DG_SOAK:-}" ]; then
    # shellcheck disable=SC2046
    "$DG_BUILD/tests/cuda_nvrtc" rows -- $(for f in src/ops/cuda/kernels/*.cu; do basename "$f" .cu; done)
else
    "$DG_BUILD/tests/cuda_nvrtc" rows
fi

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
