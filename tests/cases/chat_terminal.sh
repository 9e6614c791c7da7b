#!/bin/sh
# chat on a terminal of 80x24 and 40x10 held by tmux.
# alone
. "$DG_ROOT/tests/support/chat.sh"
server=dg$$
trap 'tmux -L $server kill-server 2>/dev/null; rm -rf "$work"' EXIT

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
with_tools
# a session to be shown again
printf 'What is the weather in Paris?\n/retry\n/system Answer briefly.\nHello!\n' | talk --harness "$work/tools.json" --yes --log-dir "$work/log" --steps 12
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
    keys -l "/sta"
    wait_for "$at: a line half typed" '^> /sta$'
    tm resize-window -x $(($1 - 13)) -y "$2"
    tm resize-window -x "$1" -y "$2"
    wait_for "$at: stays one line in new sizes" '^> /sta$'
    keys -l "ts"
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
