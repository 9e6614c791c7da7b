#!/bin/sh
# All figures of the CPU backend on this machine, in about a minute and a half: bench/machine.sh [BUILD], or the machine.sh of an unpacked
# `make bench-pack`, which brings its libraries along and needs neither sources nor a compiler.
#
#   CPUS=0,1     the processors to measure on (default: the first two this process may use); one thread on each
#   STEP=0       leave out the denoise step at the real shape, which takes 16 GB in /dev/shm and half the time
#   LAYERS=N     only the first N layers of it, for little memory
#
# Prints what it runs, how long it took, and everything that comes out. Exit status 1: something failed, its name is at the end.
set -u
here=$(cd "$(dirname "$0")" && pwd)
if [ -d "$here/lib" ]; then
    bin=$here/bin mini=$here/mini
    loader=$(echo "$here"/lib/ld-*)
    run() { # PROGRAM ARGS... on the processors to measure on
        prog=$1
        shift
        taskset -c "$CPUS" "$loader" --library-path "$here/lib" "$bin/$prog" "$@"
    }
    free_run() {
        prog=$1
        shift
        "$loader" --library-path "$here/lib" "$bin/$prog" "$@"
    }
else
    root=$(cd "$here/.." && pwd)
    build=${1:-$root/build} mini=$root/models/mini
    find_prog() {
        for d in "$build" "$build/bench" "$build/tests"; do
            [ -x "$d/$1" ] && [ -f "$d/$1" ] && { echo "$d/$1"; return; }
        done
    }
    run() {
        prog=$(find_prog "$1")
        shift
        taskset -c "$CPUS" "$prog" "$@"
    }
    free_run() {
        prog=$(find_prog "$1")
        shift
        "$prog" "$@"
    }
    [ -n "$(find_prog diffgemma)" ] && [ -n "$(find_prog cpu_ops)" ] || { echo "no programs in $build: run make tests bench" >&2; exit 2; }
fi
allowed() { awk '/^Cpus_allowed_list/ { n = split($2, part, ","); for (i = 1; i <= n; i++) { m = split(part[i], e, "-"); for (c = e[1]; c <= e[m]; c++) print c } }' /proc/self/status; }
CPUS=${CPUS:-$(allowed | head -n 2 | paste -sd, -)}
threads=$(echo "$CPUS" | tr , '\n' | grep -c .)
tmp=$(mktemp -d) || exit 2
pack=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) || exit 2
synth=
trap '[ -z "$synth" ] || kill "$synth" 2>/dev/null; rm -rf "$tmp" "$pack"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
trap 'exit 141' PIPE
failed=
begin() { start=$(date +%s%N); echo "== $*"; }
end() { # NAME STATUS
    echo "== $1: status $2, $((($(date +%s%N) - start) / 1000000)) ms"
    [ "$2" -eq 0 ] || failed="$failed $1"
}

grep -m 1 '^model name' /proc/cpuinfo
grep -m 1 '^flags' /proc/cpuinfo | tr ' ' '\n' | grep -E '^(avx2|fma|f16c|avx512|amx|avx_vnni|avx10)' | paste -sd' ' -
echo "processors $CPUS of $(allowed | grep -c .), load $(cut -d' ' -f1-3 /proc/loadavg), $(grep MemAvailable /proc/meminfo)"

begin "probe-device"
run diffgemma probe-device
end probe-device $?

# random weights of the real shape are drawn, and the ops checked, on all processors, while nothing is measured
begin "kcheck at every level of this machine"
if [ "${STEP:-1}" != 0 ]; then
    # shellcheck disable=SC2086
    free_run diffgemma synth --shape 26b-a4b ${LAYERS:+--layers "$LAYERS"} -o "$pack/model" -q >"$tmp/synth" 2>&1 &
    synth=$!
fi
free_run cpu_ops --small --quick >"$tmp/kcheck" 2>&1
status=$?
grep -E '^(not ok|ok|FAILED)' "$tmp/kcheck"
grep -q '^not ok' "$tmp/kcheck" && status=1
end kcheck $status
begin "attention's kernels on tile registers, where there are any"
CMOCKA_MESSAGE_OUTPUT=TAP free_run cpu_tiles_test 2>&1
end tiles $?
if [ "${STEP:-1}" != 0 ]; then
    begin "drawing weights"
    wait $synth
    end synth $?
    synth=
    cat "$tmp/synth"
fi

# beside a level without tile registers oneDNN has none either
level=$(run diffgemma probe-device --quick | sed -n 's/^level *\([^ ]*\).*/\1/p')
[ "$level" = amx ] && isa=DEFAULT || isa=AVX512_CORE_BF16
begin "dense products, M = 256, oneDNN's instruction set $isa beside them"
ONEDNN_MAX_CPU_ISA=$isa run cpu --threads "$threads" --repeat 7 "256x2816x2816|256x4096x2816|scaling"
end dense $?
begin "oneDNN with all that this processor has"
run cpu --threads "$threads" --repeat 7 "onednn"
end onednn $?
begin "M = 1 and 8, decoding in the cache, experts, head"
run cpu --threads "$threads" --repeat 5 "linear bf16 1x|linear q8_row 1x|linear q4_block 1x|linear q6_block 1x|linear nvfp4_block 1x|8x65536|decode|experts|head"
end small $?
begin "f32 planes"
run cpu --threads "$threads" --repeat 5 --planes f32 "256x2816x2816|experts q4"
end f32 $?
begin "attention: 8k and 32k, top-k against dense"
run cpu_attention --threads "$threads" --attention
end attention $?
begin "the bundled model: ask, process start to last byte, five times"
for i in 1 2 3 4 5; do
    t=$(date +%s%N)
    run diffgemma ask -m "$mini" -p "What is the capital of Norway?" >"$tmp/ask" 2>&1 || failed="$failed ask"
    echo "ask,$((($(date +%s%N) - t) / 1000000)),ms,$(tail -n 1 "$tmp/ask")"
done
end ask 0
if [ "${STEP:-1}" != 0 ]; then
    begin "one denoise step, ${LAYERS:-30} layers, q4 experts, context 512, sparse self-conditioning"
    run diffgemma bench step -m "$pack/model" --backend cpu -t "$threads" -r 2 --brief >"$tmp/step"
    status=$?
    grep -v '^# argmax' "$tmp/step"
    awk -F, '$1 ~ /^(qkv|out|experts|gate_up|down|router)_/ || $1 == "head_and_stats" { gemm += $3 } $1 ~ /^attention_/ { att += $3 }
        $1 == "step_sparse" { step = $3 } END { if (gemm > 0 && step > 0)
        printf "step %.0f ms, its products %.0f ms, ratio %.3f; attention %.0f ms, %.1f %% of the step\n", step, gemm, step / gemm, att, 100 * att / step }' \
        "$tmp/step"
    end step $status
fi
[ -z "$failed" ] || echo "failed:$failed"
[ -z "$failed" ]
