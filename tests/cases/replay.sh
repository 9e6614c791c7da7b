#!/bin/sh
# ask --log-dir and replay, as a user runs them.
dg=$DG_BUILD/diffgemma
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
log=$tmp/log/ops.jsonl

check() { # NAME WANTED-STATUS PATTERN: the last command's output is in $tmp/out
    status=$?
    if [ $status -eq "$2" ] && grep -q -- "$3" "$tmp/out"; then
        echo "ok - $1"
    else
        echo "not ok - $1: status $status, $(head -c 400 "$tmp/out" | tr '\n' '|')"
    fi
}

"$dg" ask -p "What is the capital of Norway?" --log-dir "$tmp/log" >"$tmp/out" 2>/dev/null
check "an answer is logged" 0 '^Oslo'
"$dg" ask -p "What sound does a dog make?" --seed 18446744073709551615 --steps 6 -n 20 --log-dir "$tmp/log" --log-sync >"$tmp/out" 2>/dev/null
check "a second session goes into the same file" 0 .
"$dg" replay "$log" >"$tmp/out" 2>&1
check "both replay" 0 'no difference'
[ "$(grep -c 'no difference' "$tmp/out")" -eq 2 ] && echo "ok - two sessions" || echo "not ok - two sessions: $(cat "$tmp/out")"
id=$(sed -n 's/^session \([0-9a-f]*\):.*/\1/p' "$tmp/out" | tail -n 1)
"$dg" replay --session "$id" --threads 1 "$log" >"$tmp/out" 2>&1
check "one session, on one thread" 0 "session $id: 2 ops"
"$dg" replay --session none "$log" >"$tmp/out" 2>&1
check "a session that is not there" 2 'no session none'

# --view: shown again, without computing; the model is needed for its tokenizer only
"$dg" replay --view "$log" >"$tmp/out" 2>/dev/null
check "replay --view shows the answers" 0 '^Oslo'
mkdir "$tmp/words" && cp models/mini/tokenizer.json models/mini/config.json "$tmp/words"
"$dg" replay --view -m "$tmp/words" "$log" >"$tmp/out2" 2>/dev/null
cmp -s "$tmp/out" "$tmp/out2" && echo "ok - replay --view with a folder that has no weights" || echo "not ok - replay --view without weights"
"$dg" replay --view --session "$id" "$log" >"$tmp/out2" 2>/dev/null
[ -s "$tmp/out2" ] && ! grep -q Oslo "$tmp/out2" && echo "ok - replay --view of one session" || echo "not ok - replay --view of one session: $(cat "$tmp/out2")"
"$dg" replay --view --session none "$log" >"$tmp/out" 2>&1
check "replay --view of a session that is not there" 2 'holds no session none'
"$dg" replay --view "$tmp/nothing" >"$tmp/out" 2>&1
check "replay --view of a file that is not there" 1 'cannot open'
"$dg" replay --view models/mini/config.json >"$tmp/out" 2>&1
check "replay --view of what is no log" 1 'holds no session of an op log'
head -c 20000 "$log" >"$tmp/cut.jsonl"
"$dg" replay --view --fps 0 "$tmp/cut.jsonl" >"$tmp/out" 2>/dev/null
[ $? -eq 0 ] && echo "ok - replay --view of a log cut in a line" || echo "not ok - replay --view of a log cut in a line"

# Ctrl-C in a story: the turn is cancelled, logged, and cancelled again at the same step
"$dg" ask -p "Tell me a story about a cat." --no-early-stop --log-dir "$tmp/int" >"$tmp/o" 2>/dev/null &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ "$(grep -c '"t":"step"' "$tmp/int/ops.jsonl" 2>/dev/null)" -gt 3 ] 2>/dev/null && break
    sleep 0.3
done
kill -INT $pid
wait $pid
[ $? -eq 130 ] && echo "ok - an interrupted answer ends with 130" || echo "not ok - an interrupted answer"
grep -q '"status":"cancelled"' "$tmp/int/ops.jsonl" && echo "ok - its end is logged" || echo "not ok - its end is logged"
"$dg" replay "$tmp/int/ops.jsonl" >"$tmp/out" 2>&1
check "an interrupted answer replays" 0 'no difference'

# kill -9: what was answered replays
"$dg" ask -p "Tell me a story about a cat." --no-early-stop --log-dir "$tmp/kill" >"$tmp/o" 2>/dev/null &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ "$(grep -c '"t":"step"' "$tmp/kill/ops.jsonl" 2>/dev/null)" -gt 3 ] 2>/dev/null && break
    sleep 0.3
done
kill -KILL $pid
wait $pid 2>/dev/null
"$dg" replay "$tmp/kill/ops.jsonl" >"$tmp/out" 2>&1
check "a killed session replays up to its last answer" 0 '1 ops.*no difference; the log ends inside an op'

sed 's/"accepted":\([0-9]*\)/"accepted":1\1/' "$log" >"$tmp/changed.jsonl"
"$dg" replay "$tmp/changed.jsonl" >"$tmp/out" 2>&1
check "a difference ends with status 1" 1 '^recorded: "t":"step"'
check2=$(grep -c '^replayed: "t":"step"' "$tmp/out")
[ "$check2" -eq 1 ] && echo "ok - both sides are shown" || echo "not ok - both sides are shown: $(cat "$tmp/out")"
sed 's/"model_id":"./"model_id":"x/' "$log" >"$tmp/changed.jsonl"
"$dg" replay "$tmp/changed.jsonl" >"$tmp/out" 2>&1
check "a head that makes no sense" 1 "'model_id' is missing or not"
sed 's/"model_id":"[0-9a-f]\{4\}/"model_id":"0000/' "$log" >"$tmp/changed.jsonl"
"$dg" replay "$tmp/changed.jsonl" >"$tmp/out" 2>&1
check "another model's log" 2 'made with another model'
sed 's/"v":1,"time"/"v":9,"time"/' "$log" >"$tmp/changed.jsonl"
"$dg" replay "$tmp/changed.jsonl" >"$tmp/out" 2>&1
check "a form of the future" 1 'form version 9'
"$dg" replay "$tmp/nothing" >"$tmp/out" 2>&1
check "a file that is not there" 1 'cannot open'
"$dg" ask -p x --log-dir /proc/nowhere >"$tmp/out" 2>&1
check "a folder that cannot be made" 1 'log folder'
