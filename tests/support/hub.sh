# For the cases of diffgemma download, which source it: starts the suite's own hub on loopback, ends it at exit; $work, $dg, and the functions below.
set -u
work=$(mktemp -d "${TMPDIR:-/tmp}/diffgemma-download-XXXXXX") || exit 1
dg=$DG_BUILD/diffgemma
server=
clean() {
    [ -n "$server" ] && kill "$server" 2>/dev/null
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM HUP
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY HF_HOME HF_TOKEN
export HOME="$work/home" no_proxy='*'
mkdir -p "$HOME" "$work/data" "$work/out"
"$DG_BUILD/tests/hub_server" make "$work/data" || { echo "not ok - hub_server cannot make its data"; exit 1; }
"$DG_BUILD/tests/hub_server" serve "$work/data" "$work/ports" "$work/requests" 2>"$work/server.err" &
server=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ -s "$work/ports" ] && break
    sleep 0.1
done
[ -s "$work/ports" ] || { echo "not ok - hub_server does not start: $(cat "$work/server.err")"; exit 1; }
read -r port cdn <"$work/ports"
export HF_ENDPOINT="http://127.0.0.1:$port"

ok() { echo "ok - $1"; }
bad() {
    echo "not ok - $1"
    { echo "--- $1"; cat "$work/err" "$work/log"; } >&2
}
# get REPO [options]: into $work/out/NAME; stdout in log, stderr in err
name_of() { echo "$1" | tr / _; }
get() {
    repo=$1
    shift
    dir=$work/out/$(name_of "$repo")
    timeout 60 "$dg" download "$repo" -o "$dir" --chunk 1 --timeout 2 --retries 4 "$@" >"$work/log" 2>"$work/err" </dev/null
    status=$?
}
whole() { # DIR: byte for byte what the hub has
    for f in config.json generation_config.json tokenizer.json model.safetensors.index.json model-00001-of-00003.safetensors \
        model-00002-of-00003.safetensors model-00003-of-00003.safetensors; do
        cmp -s "$1/$f" "$work/data/ckpt/$f" || return 1
    done
}
same() { # DIR: the same, and nothing else
    whole "$1" && [ "$(ls "$1" | wc -l)" -eq 7 ]
}
opens() { "$dg" summary -m "$1" >/dev/null 2>&1; }
succeeds() { # WHAT REPO [options]
    what=$1
    shift
    get "$@"
    if [ $status -eq 0 ] && same "$dir" && [ ! -e "$dir.part" ] && [ "$(wc -l <"$work/log")" -eq 1 ]; then ok "$what"; else bad "$what: status $status"; fi
}
fails() { # WHAT PATTERN REPO [options]: says PATTERN in the last line, one line when there are no notes; no folder that opens
    what=$1 pattern=$2
    shift 2
    get "$@"
    last=$(tail -n 1 "$work/err")
    if [ $status -ne 1 ] && [ $status -ne 2 ]; then
        bad "$what: status $status"
    elif ! echo "$last" | grep -q "$pattern"; then
        bad "$what: says '$last'"
    elif [ -e "$dir" ] || opens "$dir" || opens "$dir.part" || [ -s "$work/log" ]; then
        bad "$what: leaves something that opens, or a result line"
    else
        ok "$what: $(echo "$last" | sed "s|$work|...|g; s|diffgemma download: ||; s|:$port||g; s|:$cdn||g" | cut -c 1-150)"
    fi
}

until_more() { # N COMMAND: until the command prints more than N, 10 s at most
    limit=$1
    shift
    for _ in $(seq 200); do
        now=$("$@" 2>/dev/null)
        [ "${now:-0}" -gt "$limit" ] && return
        sleep 0.05
    done
}
bytes() { wc -c <"$1"; }
fetched() { grep -c "/t/$1/resolve/.*safetensors range" "$work/requests"; }
