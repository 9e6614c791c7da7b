#!/bin/sh
# The CUDA backend on this machine's GPU: `make gpu-check`, or tests/gpu_check.sh BUILD where everything is built. One line a check, its output in
# BUILD/gpu-check; status 1 when one failed, 2 when there is no GPU. DG_QUICK=1 leaves out the ops' large shapes and the sanitizer.
DG_BUILD=${1:-build}
DG_ROOT=$(cd "$(dirname "$0")/.." && pwd) || exit 2
DG_BUILD=$(cd "$DG_BUILD" && pwd) || exit 2
export DG_ROOT DG_BUILD
cd "$DG_ROOT" || exit 2
dg=${DG_GPU_PROGRAM:-$DG_BUILD/diffgemma} ops=${DG_GPU_OPS:-$DG_BUILD/tests/cuda_ops}
[ -x "$dg" ] && [ -x "$ops" ] || { echo "no diffgemma and tests/cuda_ops in $DG_BUILD: run make gpu-check" >&2; exit 2; }
logs=$DG_BUILD/gpu-check
rm -rf "$logs" && mkdir -p "$logs" || exit 2
passed=0 failed=0 skipped=0
small=${DG_QUICK:+--small}

row() { # NAME VERDICT SECONDS DETAIL
    printf '%-34s %-4s %4s s  %s\n' "$1" "$2" "$3" "$(printf '%s' "$4" | head -n 1 | cut -c1-180)"
    case $2 in
    ok) passed=$((passed + 1)) ;;
    SKIP) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
}

# The command's output goes to $log, its seconds to $took.
start() { # NAME COMMAND...
    name=$1
    shift
    log=$logs/$(printf '%s' "$name" | tr ' ,/' '___').log
    began=$(date +%s)
    timeout 600 "$@" >"$log" 2>&1
    status=$?
    took=$(($(date +%s) - began))
}

# Passes when the command ends with 0 and its last line of output is like the pattern.
check() { # NAME PATTERN COMMAND...
    pattern=$2
    n=$1
    shift 2
    start "$n" "$@"
    if [ $status -eq 0 ] && tail -n 1 "$log" | grep -q -- "$pattern"; then
        row "$n" ok "$took" "$(tail -n 1 "$log")"
    else
        row "$n" FAIL "$took" "status $status: $(grep -m 1 -E 'FAILED|DIFFERS|differ|diffgemma' "$log" || tail -n 1 "$log")"
    fi
}

start "a GPU" "$ops" --bf16 --small --filter add
if grep -qE 'no CUDA driver|sees no device' "$log"; then
    echo "no GPU here: $(grep -m 1 -E 'no CUDA driver|sees no device' "$log")"
    exit 2
fi
sed -n 's/^# \(.*\), seed.*/# \1/p' "$log"

# ops against double precision, by kind of planes and of kernels
for kernels in auto portable; do
    for planes in f32 bf16; do
        check "ops, $planes planes, $kernels" ' 0 failed$' "$ops" --$planes --kernels $kernels $small
    done
done
# keys of a row in many parts, and rows in chunks, which a default part is too long for
check "attention in parts, bf16 planes" ' 0 failed$' "$ops" --bf16 --kernels auto,split=64,split_full=128 --filter attention $small

# other implementations' planes and turns
. tests/support/oracle_data.sh >"$logs/unpack.log"
if [ -n "$dirs" ]; then
    # shellcheck disable=SC2086
    check "oracle folders, f32 planes" ' 0 failed' "$DG_BUILD/tests/oracle_parity" --backend cuda $dirs
else
    row "oracle folders, f32 planes" FAIL 0 "$(head -n 1 "$logs/unpack.log")"
fi
check "turns, f32 planes" ' 0 failed' "$DG_BUILD/tests/turn_oracle" --backend cuda --planes f32 --exact-only models/mini tests/data/turns_open.json
start "turns, bf16 planes" "$DG_BUILD/tests/turn_oracle" --backend cuda --planes bf16 --exact-only models/mini tests/data/turns_open.json
seeds=$(sed -n 's/.*seed \([0-9]*\) .*differ.*/\1/p' "$log" | sort -u | tr '\n' ' ')
if [ $status -eq 0 ]; then # what differs hangs on a rounding: a margin of 0.05 at most
    row "turns, bf16 planes" ok "$took" "$(tail -n 1 "$log")${seeds:+; fragile, seeds $seeds}"
else
    row "turns, bf16 planes" FAIL "$took" "$(tail -n 1 "$log"); seeds $seeds differ"
fi

# golden: ref's tokens and ends; the same cache in two runs and across rewinds
check "golden, f32 planes" 'same .*a second run too' "$dg" golden -m models/mini --backend cuda --exact
start "golden, bf16 planes" "$dg" golden -m models/mini --backend cuda
ran=$(grep -cE ' (same|DIFFERS) ' "$log") same=$(grep -c ' same ' "$log") settled=0
for name in short thinking tool_turn kv_f32_exact small_chunks; do # answers, whose tokens the model is sure of; the others are stories
    grep -q "^$name  *same " "$log" && settled=$((settled + 1))
done
if [ $status -le 1 ] && [ "$ran" -ge 14 ] && [ $settled -eq 5 ] && ! grep -q 'NOT THE SAME' "$log"; then
    row "golden, bf16 planes" ok "$took" "$ran cases twice, each the same both times; $same of them as with the reference"
else
    row "golden, bf16 planes" FAIL "$took" "status $status: $(grep -m 1 -E 'NOT THE SAME|diffgemma golden|DIFFERS' "$log" || tail -n 1 "$log")"
fi

start "parity of a step" "$dg" step-parity -m models/mini --backend cuda -p "What is 3 plus 4?"
line=$(grep '^logits ' "$log")
if [ $status -eq 0 ] && printf '%s\n' "$line" | sed 's/,//g' |
    awk '{ for (i = 1; i < NF; i++) { if ($i == "cosine") c = $(i + 1); if ($i == "argmax") { a = $(i + 1); n = $(i + 3) }
           if ($i == "KL") k = $(i + 1) } exit !(c >= 0.999 && a == n && n > 0 && k <= 1e-4) }'; then
    row "parity of a step" ok "$took" "$line"
else
    row "parity of a step" FAIL "$took" "status $status: $line"
fi

# an answer, replayed; the same with most experts in host memory; the same from kernels compiled now
ask() { # FILE ARGUMENTS...: the answer's text
    to=$1
    shift
    timeout 300 "$dg" ask -m models/mini --backend cuda -p "Tell me a story about a dog." -n 150 "$@" >"$to" 2>"$to.err"
}
began=$(date +%s)
if ask "$logs/answer" --log-dir "$logs/oplog" && [ -s "$logs/answer" ]; then
    row "an answer" ok $(($(date +%s) - began)) "$(head -n 1 "$logs/answer")"
else
    row "an answer" FAIL $(($(date +%s) - began)) "$(tail -n 1 "$logs/answer.err")"
fi
check "its log replayed" 'no difference' "$dg" replay -m models/mini --backend cuda "$logs/oplog/ops.jsonl"

ask "$logs/refused" --gpu-memory 1M
least=$(sed -n 's/.*in host memory \([0-9]*\)[0-9.]* MiB are needed.*/\1/p' "$logs/refused.err")
began=$(date +%s)
if [ -n "$least" ] && ask "$logs/streamed" --gpu-memory $((least + 2))M && grep -q 'are streamed' "$logs/streamed.err" &&
    cmp -s "$logs/answer" "$logs/streamed"; then
    row "experts streamed, the same answer" ok $(($(date +%s) - began)) "$(grep streamed "$logs/streamed.err")"
    check "the log replayed with streaming" 'no difference' "$dg" replay -m models/mini --backend cuda --gpu-memory $((least + 2))M "$logs/oplog/ops.jsonl"
else
    row "experts streamed, the same answer" FAIL $(($(date +%s) - began)) "$(cat "$logs/refused.err" "$logs/streamed.err" 2>/dev/null | tail -n 1)"
fi

began=$(date +%s)
if DGQ_CUDA_KERNELS=experts,dense,head,soft,chain,attention,nvfp4,branch,topk ask "$logs/host_sampler" --log-dir "$logs/host_oplog" &&
    cmp -s "$logs/answer" "$logs/host_sampler"; then
    row "sampler on the host, the same answer" ok $(($(date +%s) - began)) ""
    check "its log replayed with the device's" 'no difference' "$dg" replay -m models/mini --backend cuda "$logs/host_oplog/ops.jsonl"
else
    row "sampler on the host, the same answer" FAIL $(($(date +%s) - began)) "$(tail -n 1 "$logs/host_sampler.err")"
fi

began=$(date +%s)
if XDG_CACHE_HOME=$logs DGQ_CUDA_KERNELS=auto,compile ask "$logs/compiled" && cmp -s "$logs/answer" "$logs/compiled"; then
    row "compiled at run time, the same answer" ok $(($(date +%s) - began)) "$(find "$logs/diffgemma" -name '*.cubin' | wc -l) files compiled"
elif grep -q 'libnvrtc' "$logs/compiled.err"; then
    row "compiled at run time, the same answer" SKIP 0 "$(tail -n 1 "$logs/compiled.err")"
else
    row "compiled at run time, the same answer" FAIL $(($(date +%s) - began)) "$(tail -n 1 "$logs/compiled.err")"
fi

# a race in a kernel shows as other numbers in one of many passes of the real shape: over a canvas, whose kernels prompts do not run, and over prompts
repeats() { # NAME WORDS LINE COMMAND...: passes where the output has WORDS; shows its line like LINE
    n=$1 words=$2 line=$3
    shift 3
    if [ -n "$DG_QUICK" ]; then
        row "$n" SKIP 0 "left out"
        return
    fi
    start "$n" "$@"
    if [ $status -eq 0 ] && grep -q "$words" "$log"; then
        row "$n" ok "$took" "$(grep "$line" "$log")"
    else
        row "$n" FAIL "$took" "status $status: $(grep -m 1 '^diffgemma' "$log")"
    fi
}
repeats "2000 steps from one canvas" 'the same in 2001 passes' '^# mean entropy' \
    "$dg" bench step --synth 26b-a4b --passes 2000 --backend cuda --no-ops --brief -r 1
repeats "30 prefills of 32768 tokens" 'the same in 30 prefills' '^prefill' \
    env DGQ_ATTN_TOPK=0 "$dg" bench prefill --synth 26b-a4b --tokens 32768 --backend cuda --no-ops -r 29

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$sanitizer" ] || [ -n "$DG_QUICK" ]; then
    row "memcheck of small ops" SKIP 0 "${DG_QUICK:+left out; }${sanitizer:-no compute-sanitizer}"
else
    start "memcheck of small ops" "$sanitizer" --tool memcheck "$ops" --bf16 --small
    if [ "$status" -eq 0 ] && grep -q 'ERROR SUMMARY: 0 errors' "$log" && grep -q ' 0 failed' "$log"; then
        row "memcheck of small ops" ok "$took" "0 errors"
    else
        row "memcheck of small ops" FAIL "$took" "$(grep -m 1 -E 'Invalid|ERROR SUMMARY' "$log" || tail -n 1 "$log")"
    fi
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
