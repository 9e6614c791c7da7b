#!/bin/sh
# The refactor gate: token ids and KV cache of fixed cases on the bundled model, byte for byte as in tests/data/golden.json; and a
# changed file is noticed.
dg=$DG_BUILD/diffgemma file=$DG_ROOT/tests/data/golden.json
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
case $DG_BUILD in
*asan* | *tsan* | *ubsan*)
    echo "ok - golden # SKIP under a sanitizer other tests run the same paths on a smaller model"
    exit 0
    ;;
esac

if "$dg" golden --backend ref "$file" >"$tmp/out" 2>"$tmp/err"; then
    while read -r name what rest; do
        [ "$what" = same ] && echo "ok - $name: $what $rest" || echo "not ok - $name: $what $rest"
    done <"$tmp/out"
    [ "$(grep -c ' same ' "$tmp/out")" -ge 14 ] || echo "not ok - golden: only $(grep -c ' same ' "$tmp/out") cases ran"
else
    cat "$tmp/out" "$tmp/err" >&2
    echo "not ok - golden: $(grep -m 1 DIFFERS "$tmp/out" || tail -n 1 "$tmp/err")"
fi

# a backend without a table of its own: ref's tokens and ends, and the same cache in two runs
if "$dg" golden --backend cpu --exact --case medium "$file" >"$tmp/out" 2>/dev/null && grep -q '^medium  *same (.*, a second run too)$' "$tmp/out"; then
    echo "ok - medium on the CPU backend, twice"
else
    echo "not ok - medium on the CPU backend: $(head -n 2 "$tmp/out")"
fi

# a changed digit of the cache's hash, and of a token
for what in 's/"kv": "./"kv": "x/' 's/\[$/[ 1,/'; do
    sed "$what" "$file" >"$tmp/changed.json"
    "$dg" golden --backend ref --case short "$tmp/changed.json" >"$tmp/out" 2>&1
    status=$?
    if [ $status -eq 1 ] && grep -q 'short *DIFFERS' "$tmp/out"; then
        echo "ok - a change by $what is noticed"
    else
        echo "not ok - a change by $what: status $status, $(cat "$tmp/out")"
    fi
done
mkfifo "$tmp/pipe"
if timeout 60 "$dg" golden --backend ref --case short --bless "$tmp/pipe" >/dev/null 2>"$tmp/err" </dev/null || [ ! -p "$tmp/pipe" ]; then
    echo "not ok - blessing into a pipe"
else
    echo "ok - nothing is blessed into a pipe"
fi
if "$dg" golden --backend ref --case short --bless "$tmp/new.json" >/dev/null 2>&1 && "$dg" golden --backend ref --case short "$tmp/new.json" >/dev/null 2>&1; then
    echo "ok - what is blessed is then the same"
else
    echo "not ok - blessing a new file"
fi
