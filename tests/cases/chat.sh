#!/bin/sh
# chat as its user meets it: through a pipe, and on a terminal of 80x24 and 40x10 held by tmux.
# alone
work=$(mktemp -d) || exit 1
server=dg$$
export LC_ALL=C.UTF-8
unset NO_COLOR COLORTERM
trap 'tmux -L $server kill-server 2>/dev/null; rm -rf "$work"' EXIT
chat="$DG_BUILD/diffgemma chat -m $DG_ROOT/models/mini --history= -t 2"

ok() { echo "ok - $1"; }
bad() { # NAME WHY
    echo "not ok - $1: $2"
}
same() { # NAME WANT GOT
    if [ "$2" = "$3" ]; then ok "$1"; else bad "$1" "got '$3', not '$2'"; fi
}
has() { # NAME FILE WORDS...: the file holds each
    name=$1 file=$2
    shift 2
    for words; do
        grep -qF -e "$words" "$file" || { bad "$name" "no '$words' in: $(tr '\n' '|' <"$file" | cut -c 1-300)"; return; }
    done
    ok "$name"
}
talk() { # OPTIONS...: runs a chat on standard input into $work/out, $work/err and $work/status
    $chat "$@" >"$work/out" 2>"$work/err"
    echo $? >"$work/status"
}
status() { cat "$work/status"; }
esc=$(printf '\033')

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

cat >"$work/tools.json" <<'END'
{"prompt": "{{tone}}", "variables": {"tone": {"file": "tone.txt"}},
 "tools": [{"name": "get_weather", "description": "Get the current weather in a city.",
   "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]},
   "command": ["./weather", "{city}"]}]}
END
printf 'You are a helpful assistant.' >"$work/tone.txt"
printf '#!/bin/sh\necho "$1" >>ran\necho "rainy, 7 C"\n' >"$work/weather"
chmod +x "$work/weather"
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

# --- on a terminal ---

case $DG_BUILD in
*asan* | *ubsan* | *tsan*)
    echo "ok - terminal: everything # SKIP under a sanitizer a step takes longer than the screen is waited for"
    exit 0
    ;;
esac
if ! command -v tmux >/dev/null 2>&1; then
    echo "ok - terminal: everything # SKIP no tmux"
    exit 0
fi
tm() { tmux -L $server "$@"; }
start() { # WIDTH HEIGHT COMMAND
    tm kill-server 2>/dev/null
    server=$server. # one that is going takes no new session
    # Ctrl-C reaches the shell too, which must not end of it
    cat >"$work/run" <<END
trap : INT
$3
echo "status \$?"
stty -a | grep -o ' -*echo \| -*icanon'
exec sleep 1000
END
    tm -u -f /dev/null new-session -d -x "$1" -y "$2" "sh '$work/run'"
}
screen() { tm capture-pane -p >"$work/screen" 2>/dev/null; }
wait_for() { # NAME PATTERN [ROWS]: the screen, or its last ROWS with text, holds it within a minute
    tries=0
    until screen && grep . "$work/screen" | tail -n "${3:-1000}" | grep -qE -e "$2"; do
        tries=$((tries + 1))
        [ $tries -gt 600 ] && { bad "$1" "no /$2/ on the screen: $(tr '\n' '|' <"$work/screen")"; return 1; }
        sleep 0.1
    done
    ok "$1"
}
keys() { tm send-keys "$@"; }
prompt='^> *$'

terminal() { # WIDTH HEIGHT STATUS-PATTERN OPTIONS
    at="terminal $1x$2"
    start "$1" "$2" "$chat --view $4"
    wait_for "$at: the prompt" "$prompt" || return
    keys -l "What is the capital of Norwax?"
    keys Left BSpace y Enter
    wait_for "$at: an edited line is answered" '^Oslo$'
    wait_for "$at: the prompt after it" "$prompt" || return
    keys Up
    wait_for "$at: history" '^> What is the capital of Norway\?$' 1
    keys C-c
    wait_for "$at: Ctrl-C clears the line" 'Ctrl-C once more'
    keys -l "Tell me a story about a cat."
    keys Enter
    wait_for "$at: the view's status line" "$3" || return
    longest=$(awk '{ n = length($0); if (n > m) m = n } END { print m }' "$work/screen")
    if [ "$longest" -le "$1" ]; then ok "$at: rows fit"; else bad "$at: rows fit" "$longest columns"; fi
    same "$at: the cursor is hidden" 0 "$(tm display-message -p '#{cursor_flag}')"
    keys C-c
    wait_for "$at: Ctrl-C cancels the reply" 'cancelled'
    keys -l "/undo"
    keys Enter
    wait_for "$at: and keeps the session" 'took back the last message; 0'
    keys -l "Tell me a story about a cat."
    keys Enter
    wait_for "$at: a second reply" "$3"
    if [ "$1" = 80 ]; then
        tm capture-pane -p -e >"$work/colours"
        if grep -q "38;5;" "$work/colours"; then ok "$at: coloured by confidence"; else bad "$at: coloured by confidence" "no colour"; fi
        tm resize-window -x 60 -y 20
        wait_for "$at: drawn anew after a new size" "$3"
        tm resize-window -x "$1" -y "$2"
    fi
    wait_for "$at: the reply's end and the prompt" "$prompt"
    if grep -qE "$3" "$work/screen"; then bad "$at: the view is gone" "it is there"; else ok "$at: the view is gone"; fi
    has "$at: the text stays" "$work/screen" "cat"
    same "$at: the cursor is back" 1 "$(tm display-message -p '#{cursor_flag}')"
    keys -l "/stats"
    keys Enter
    wait_for "$at: /stats" 'view: [0-9]+ frames'
    keys C-d
    wait_for "$at: Ctrl-D leaves" 'status 0'
    wait_for "$at: the terminal reads lines again" '^ icanon'
    wait_for "$at: and echoes" '^ echo'
    if [ "$1" = 80 ]; then
        tr '\n' ' ' <"$work/screen" >"$work/flat"
        us=$(sed -n 's/.*frames, \([0-9]*\) us each.*/\1/p' "$work/flat")
        step=$(sed -n 's/.*tokens in \([0-9.]*\) s .* \([0-9]*\) steps.*/\1 \2/p' "$work/flat" | awk '{ printf "%d", $1 / $2 * 1e6 }')
        if [ -n "$us" ] && [ -n "$step" ] && [ $((us * 50)) -lt "$step" ]; then
            ok "$at: a frame costs less than 2 % of a step ($us us of $step us)"
        else
            bad "$at: a frame costs less than 2 % of a step" "'$us' us of '$step' us"
        fi
    fi
}
terminal 80 24 'block 1 .*step [0-9]+/48 .*T 0.* accepted [0-9]+/64  entropy' ""
terminal 40 10 '^b1 s[0-9]+/16 T0\.[0-9]+ [0-9]+/64 H' "--steps 16"

start 80 24 "NO_COLOR=1 $DG_BUILD/diffgemma ask -m $DG_ROOT/models/mini --view -p \"Tell me a story about a dog.\""
if wait_for "terminal: ask --view" 'block 1 .*step'; then
    tm capture-pane -p -e >"$work/colours"
    if grep -q "$esc\[[0-9;]*m" "$work/colours"; then bad "terminal: NO_COLOR" "there is colour"; else ok "terminal: NO_COLOR"; fi
    keys C-c
    wait_for "terminal: ask --view is interrupted" 'status 130'
    wait_for "terminal: and leaves the terminal as it was" '^ echo'
    same "terminal: its cursor too" 1 "$(tm display-message -p '#{cursor_flag}')"
fi

start 40 10 "$DG_BUILD/diffgemma replay --view --fps 2 $work/log/ops.jsonl"
wait_for "terminal: replay --view shows the canvas" '^b1 s[0-9]+/12 T0'
wait_for "terminal: and ends" 'status 0'

start 80 24 "$chat --view"
if wait_for "terminal: a chat to be killed" "$prompt"; then
    keys -l "Tell me a story about a cat."
    keys Enter
    wait_for "terminal: it writes" 'block 1 .*step'
    kill -TERM "$(pgrep -P "$(tm list-panes -F '#{pane_pid}')")"
    wait_for "terminal: killed by SIGTERM" 'status 143'
    wait_for "terminal: it leaves the terminal as it was" '^ echo'
    same "terminal: with its cursor" 1 "$(tm display-message -p '#{cursor_flag}')"
fi

start 80 24 "$chat --harness $work/tools.json"
if wait_for "terminal: a chat with tools" "$prompt"; then
    rm -f "$work/ran"
    keys -l "What is the weather in Paris?"
    keys Enter
    wait_for "terminal: a command is shown and asked about" 'run it\? '
    has "terminal: it is shown as one would type it" "$work/screen" "command: ./weather Paris"
    if [ -e "$work/ran" ]; then bad "terminal: it has not run yet" "it ran"; else ok "terminal: it has not run yet"; fi
    keys n Enter
    wait_for "terminal: a refusal reaches the model" 'did not allow'
    wait_for "terminal: and the reply ends" "$prompt"
    if [ -e "$work/ran" ]; then bad "terminal: a refused command" "it ran"; else ok "terminal: a refused command does not run"; fi
    keys -l "/reset"
    keys Enter
    keys -l "What is the weather in Paris?"
    keys Enter
    wait_for "terminal: asked again" 'lways this tool: *$'
    keys y Enter
    wait_for "terminal: and answered" 'The weather in Paris is rainy, 7 C\.'
    wait_for "terminal: the prompt after it" "$prompt"
    keys C-c
    wait_for "terminal: Ctrl-C at the prompt" 'Ctrl-C once more'
    keys C-c
    wait_for "terminal: twice leaves" 'status 0'
fi

# An interrupt between two waits for input is not lost. (a command's work is such a moment)
start 80 24 "$chat"
if wait_for "terminal: a chat of quick commands" "$prompt"; then
    lost=0
    for i in 1 2 3 4 5 6 7 8; do
        keys -l "/stats"
        keys Enter
        keys C-c
        wait_for "quick" 'Ctrl-C once more' >"$work/quick"
        grep -q '^ok' "$work/quick" || lost=$((lost + 1))
        keys -l "/seed $i"
        keys Enter
        wait_for "quick" "next seed $i" >"$work/quick"
        keys -R
    done
    same "terminal: interrupts lost behind a command" 0 $lost
fi
