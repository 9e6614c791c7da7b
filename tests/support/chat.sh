# What the cases of chat share: a folder, a reporter of results, a harness with one tool. Sourced.
work=$(mktemp -d) || exit 1
export LC_ALL=C.UTF-8
unset NO_COLOR COLORTERM
trap 'rm -rf "$work"' EXIT
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

# a tool that answers, and writes down that it ran
with_tools() {
    cat >"$work/tools.json" <<'END'
{"prompt": "{{tone}}", "variables": {"tone": {"file": "tone.txt"}},
 "tools": [{"name": "get_weather", "description": "Get the current weather in a city.",
   "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]},
   "command": ["./weather", "{city}"]}]}
END
    printf 'You are a helpful assistant.' >"$work/tone.txt"
    printf '#!/bin/sh\necho "$1" >>ran\necho "rainy, 7 C"\n' >"$work/weather"
    chmod +x "$work/weather"
}
