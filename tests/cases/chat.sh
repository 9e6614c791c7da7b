#!/bin/sh
# chat as its user meets it through a pipe; on a terminal: chat_terminal.sh.
. "$DG_ROOT/tests/support/chat.sh"

# --- through a pipe ---

printf 'What is the capital of Norway?\n' | talk
same "pipe: the reply alone is on standard output" "Oslo" "$(cat "$work/out")"
if grep -q "$esc" "$work/out" "$work/err"; then bad "pipe: no escape sequence" "there is one"; else ok "pipe: no escape sequence"; fi
printf 'What is the capital of Norway?' | NO_COLOR=1 TERM=dumb talk --view
same "pipe: a last line without line end, --view without a terminal" "Oslo" "$(cat "$work/out")"

cat >"$work/in" <<'END'
/seed 7
What is the capital \
of Norway?
/save SAVED
/undo
/system Answer briefly.
"""
Which day comes

after /Friday?
"""
//help
/save SECOND
/reset
/save THIRD
/load SAVED
/stats
END
sed -i "s|SAVED|$work/saved|; s|SECOND|$work/second|; s|THIRD|$work/third|" "$work/in"
talk --steps 4 <"$work/in"
same "pipe: a session of commands ends well" 0 "$(status)"
has "pipe: a line goes on behind a backslash" "$work/saved" '"content": "What is the capital \nof Norway?"' '"role": "assistant"'
has "pipe: text between quotes, // and the system text" "$work/second" '"content": "Which day comes\n\nafter /Friday?"' '"content": "/help"' \
    '"role": "system"' '"content": "Answer briefly."'
if grep -q Norway "$work/second"; then bad "pipe: /undo" "the message is still there"; else ok "pipe: /undo"; fi
if grep -q Friday "$work/third"; then bad "pipe: /reset" "a message is still there"; else has "pipe: /reset keeps the system text" "$work/third" "Answer briefly."; fi
has "pipe: what commands say is on standard error" "$work/err" "next seed 7" "took back" "forgotten" "read 2 messages" "conversation: 2 messages"

printf '/bogus\n/load /nonexistent\n/save\n/seed x\n/undo\n/retry\n/view on\nWhat is the capital of Norway?\n' | talk
same "pipe: faulty commands do not stop it" "Oslo" "$(cat "$work/out")"
same "pipe: but its status tells" 1 "$(status)"
has "pipe: each fault has its words" "$work/err" "no command /bogus" "/nonexistent" "name of a file" "/seed x" "/undo: there is no message" \
    "no message to send again" "no terminal"
printf '"""\nnever ended\n' | talk
same "pipe: an open quote at the end is not sent" "1:" "$(status):$(cat "$work/out")"
printf 'Hello!\n' | talk --seed x
same "pipe: a wrong option" 2 "$(status)"
printf 'What is the capital of Norway?\n/retry\n/stats\n' | talk
has "pipe: /retry takes the next seed" "$work/err" "seed 43"
printf '\377\nWhat is the capital of Norway?\n' | talk
same "pipe: bytes that are no text are refused, the next line is not" "1:Oslo" "$(status):$(cat "$work/out")"
if [ -e /dev/full ]; then
    printf 'What is the capital of Norway?\nHello!\n' | $chat >/dev/full 2>"$work/err"
    same "pipe: an output that is full" 1 $?
fi
(printf 'Tell me a story about a cat.\n'; sleep 60) | $chat --no-such 2>/dev/null
same "pipe: an unknown option" 2 $?

mkfifo "$work/fifo"
$chat <"$work/fifo" >"$work/out" 2>"$work/err" &
pid=$!
exec 9>"$work/fifo"
printf 'Tell me a story about a cat.\n' >&9
sleep 2
kill -INT $pid
wait $pid
same "pipe: an interrupt ends it with status 130" 130 $?
exec 9>&-

# --- thoughts ---

printf 'What is the capital of Norway?\n' | talk --think
same "thinking: only the answer is on standard output (B07)" "Oslo" "$(cat "$work/out")"
has "thinking: the thought is on standard error" "$work/err" "Its capital is Oslo."
printf 'What is the capital of Norway?\n/save %s\n' "$work/saved" | talk --think --max-tokens 6
same "thinking: a thought that takes all tokens leaves no answer (B15)" "" "$(cat "$work/out")"
has "thinking: and the reason is said" "$work/err" "cut inside its thought"
has "thinking: and what there is of it is kept" "$work/saved" '"reasoning_content": "The user'

# Terse questions: each has a visible answer, or a reason is given. (A05)
for c in France Germany Italy Spain Japan Egypt Kenya Sweden Finland Poland; do
    echo "What is the capital of $c? Reply with only the city name."
done >"$work/terse"
for a in hot big up happy fast light open wet young early; do
    echo "The opposite of the word '$a' is what? Reply with one lowercase word."
done >>"$work/terse"
for a in 1 2 3 4 5 6 7; do
    echo "What is $a plus 1$a? Reply with only the number."
done >>"$work/terse"
printf 'How many days are in a week? Reply with only a number.\nYes or no?\nOne word.\n' >>"$work/terse"
rounds=${DG_LONG:+5} # seeds of each question
for think in off on; do
    awk -v rounds="${rounds:-1}" '{ for (r = 0; r < rounds; r++) { print "/reset"; print "/seed " NR + 1000 * r; print } }' "$work/terse" |
        $chat --steps 6 $([ $think = on ] && echo --think) >"$work/both" 2>&1
    silent=$(awk '/next seed/ { if (n && !said) silent++; n++; said = 0; next } /conversation is forgotten|using the/ { next } NF { said = 1 }
        END { if (!said) silent++; print n + 0 ":" silent + 0 }' "$work/both")
    same "terse: 30 questions, thinking $think: none is met with silence" "$((30 * ${rounds:-1})):0" "$silent"
    if grep -qE '<\||\|>' "$work/both"; then bad "terse: thinking $think: no control token" "there is one"; else ok "terse: thinking $think: no control token"; fi
done

# --- tools ---

with_tools
printf 'What is the weather in Paris?\n' | talk --harness "$work/tools.json" --yes
same "tools: the call is answered and the answer is content (B02)" "The weather in Paris is rainy, 7 C." "$(cat "$work/out")"
same "tools: the argument reached the command" "Paris" "$(cat "$work/ran")"
has "tools: call and result are on standard error" "$work/err" 'call get_weather {"city":"Paris"}' "rainy, 7 C"
rm "$work/ran"
printf 'What is the weather in Paris?\n' | talk --harness "$work/tools.json"
if [ -e "$work/ran" ]; then bad "tools: nothing runs unasked" "it ran"; else has "tools: nothing runs unasked" "$work/err" "--yes"; fi
# calls that lack a required argument: validator and repair, by option and by switch
sed 's/"required": \["city"\]/"required": ["city", "unit"]/' "$work/tools.json" >"$work/strict.json"
ask_strict() { printf 'What is the weather in Paris?\n' | talk --harness "$work/strict.json" --yes --tool-rounds 1 --steps 12 "$@"; }
ask_strict --tool-retries 1
has "tools: --tool-retries" "$work/err" "1 invalid tool call: the turn is generated again with the next seed" "no attempt is left, the turn stands"
DGQ_TOOL_VALIDATE=1
export DGQ_TOOL_VALIDATE
ask_strict
has "tools: DGQ_TOOL_VALIDATE" "$work/err" "1 invalid tool call: the turn is generated again with the next seed"
ask_strict --tool-retries 0
if grep -q 'invalid tool call' "$work/err"; then bad "tools: --tool-retries 0 before the switch" "it was checked"; else ok "tools: --tool-retries 0 before the switch"; fi
unset DGQ_TOOL_VALIDATE
ask_strict --tool-repair
has "tools: --tool-repair" "$work/err" "1 invalid tool call: repaired in a draft"
DGQ_TOOL_REPAIR=1
export DGQ_TOOL_REPAIR
ask_strict
has "tools: DGQ_TOOL_REPAIR" "$work/err" "1 invalid tool call: repaired in a draft"
unset DGQ_TOOL_REPAIR
# --tool-choice is obeyed or refused, never passed over (B16)
rm -f "$work/ran"
printf 'What is the weather in Paris?\n' | talk --harness "$work/tools.json" --yes --tool-choice none
if [ -e "$work/ran" ] || grep -q 'call get_weather' "$work/err"; then bad "tools: --tool-choice none" "it called"; else same "tools: --tool-choice none" 0 "$(status)"; fi
printf 'What is the weather in Paris?\n' | talk --harness "$work/tools.json" --yes --tool-choice required
same "tools: --tool-choice required" "0:The weather in Paris is rainy, 7 C." "$(status):$(cat "$work/out")"
printf 'What is the weather in Paris?\n' | talk --harness "$work/tools.json" --yes --tool-choice get_weather
same "tools: --tool-choice NAME" "0:The weather in Paris is rainy, 7 C." "$(status):$(cat "$work/out")"
rm -f "$work/ran"
printf 'What is the weather in Paris?\n/stats\n' | talk --harness "$work/tools.json" --tool 'other:Something else.=echo' --yes --tool-choice other --steps 12
same "tools: a required call that does not come" 1 "$(status)"
has "tools: is tried again and then refused" "$work/err" "1 invalid tool call: the turn is generated again" "does not call other, so it is not kept" \
    "conversation: 1 messages"
if [ -e "$work/ran" ]; then bad "tools: the wrong call does not run" "it ran"; else ok "tools: the wrong call does not run"; fi
printf 'Hello!\n' | talk --tool-choice required
same "tools: a choice without tools" 2 "$(status)"
printf 'Hello!\n' | talk --harness "$work/tools.json" --tool-choice nothing
same "tools: a choice of no tool" 2 "$(status)"
# what is reused of the cache
reuse() { printf 'What is the capital of Norway?\n/stats\nWhat is the capital of Peru?\n/stats\n' | DGQ_KV_REUSE=$1 $chat --steps 6 2>&1 >"$work/out$1" |
    sed -n 's/.*prompt \([0-9]*\) tokens, \([0-9]*\) computed/\1 \2/p' | tail -n 1; }
with=$(reuse 1) without=$(reuse 0)
if [ "${with#* }" -lt "${with% *}" ] && [ "${without#* }" -ge "${without% *}" ] && cmp -s "$work/out0" "$work/out1"; then
    ok "DGQ_KV_REUSE: the same replies, ${with#* } tokens computed of a prompt of ${with% *}, ${without#* } without"
else
    bad "DGQ_KV_REUSE" "with '$with', without '$without', $(cat "$work/out0" "$work/out1" | tr '\n' '|')"
fi
printf 'Hello!\n' | talk --harness "$work/none.json"
same "tools: a harness that is not there" 1 "$(status)"
printf 'Hello!\n' | talk --tool nonsense
same "tools: a tool without a command" 2 "$(status)"

# What was recorded runs again without a difference, and is shown again without running.
printf 'What is the weather in Paris?\n/retry\n/system Answer briefly.\nHello!\n' | talk --harness "$work/tools.json" --yes --log-dir "$work/log" --steps 12
"$DG_BUILD/diffgemma" replay "$work/log/ops.jsonl" >"$work/replay" 2>&1
same "log: a replay of a session with tools" 0 $?
has "log: no difference" "$work/replay" "no difference"
"$DG_BUILD/diffgemma" replay --view "$work/log/ops.jsonl" >"$work/shown" 2>/dev/null
same "log: replay --view shows the same text" "$(cat "$work/out")" "$(cat "$work/shown")"

# a save replaces files only, and the file behind a link
mkfifo "$work/pipe" && echo old >"$work/real" && ln -s real "$work/link"
printf '/save %s\n/save %s\n' "$work/pipe" "$work/link" | timeout 60 "$DG_BUILD/diffgemma" chat >"$work/out" 2>"$work/err"
has "save: a pipe is no file" "$work/err" "cannot save to $work/pipe: that is not a file"
same "save: the pipe is still there, and the link" "pipe link" "$([ -p "$work/pipe" ] && printf pipe; [ -L "$work/link" ] && printf ' link')"
has "save: the file behind the link" "$work/real" '"form": "diffgemma chat"'
