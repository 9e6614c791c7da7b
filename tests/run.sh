#!/bin/sh
# Runs the whole suite against one build folder: tests/run.sh BUILD [PATTERN]
#
# What counts: every program BUILD/tests/*_test (cmocka, TAP output) and every script tests/cases/*.sh (prints TAP lines itself:
# "ok - name", "not ok - name", "ok - name # SKIP reason"). A program that dies or prints no result is one failure.
# The last line is "N passed, N failed, N skipped"; failures and skips are named above it. Exit status 1 when anything failed.
set -u
build=${1:?usage: tests/run.sh BUILD [PATTERN]}
pattern=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
case $build in /*) ;; *) build=$root/$build ;; esac
cd "$root" || exit 2
log=$build/test-logs
rm -rf "$log" && mkdir -p "$log" || exit 2
export DG_BUILD="$build" DG_ROOT="$root" CMOCKA_MESSAGE_OUTPUT=TAP
# the suite decides its own settings; the caller's must not leak in
for v in $(env | sed -n 's/^\(DGQ_[A-Z0-9_]*\)=.*/\1/p'); do unset "$v"; done
passed=0 failed=0 skipped=0
: >"$log/failed"
: >"$log/skipped"

one() { # name command...
    name=$1
    shift
    [ -z "$pattern" ] || case $name in *$pattern*) ;; *) return ;; esac
    start=$(date +%s)
    "$@" >"$log/$name.out" 2>"$log/$name.err" </dev/null
    status=$?
    sed -n "s/^ok[ 0-9]*-* *\(.*# *[Ss][Kk][Ii][Pp].*\)/\1/p" "$log/$name.out" | sed "s/^/$name: /" >>"$log/skipped"
    s=$(grep -ci '^ok.*# *skip' "$log/$name.out")
    p=$(($(grep -c '^ok' "$log/$name.out") - s))
    f=$(grep -c '^not ok' "$log/$name.out")
    sed -n "s/^not ok[ 0-9]*-* *\(.*\)/\1/p" "$log/$name.out" | sed "s/^/$name: /" >>"$log/failed"
    if [ $status -ne 0 ] && [ "$f" -eq 0 ] || [ $((p + s + f)) -eq 0 ]; then
        f=$((f + 1))
        echo "$name: ended with status $status after $((p + s)) results" >>"$log/failed"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-36s %4d passed, %d failed, %d skipped  (%d s)\n' "$name" "$p" "$f" "$s" $(($(date +%s) - start))
    if [ "$f" -gt 0 ]; then
        grep '^not ok' "$log/$name.out" | head -n 20
        tail -n 25 "$log/$name.err"
    fi
}

for t in "$build"/tests/*_test; do
    [ -x "$t" ] && one "$(basename "$t")" "$t"
done
for t in tests/cases/*.sh; do
    [ -f "$t" ] && one "$(basename "$t" .sh)" sh "$t"
done

[ -s "$log/skipped" ] && { echo "skipped:"; sed 's/^/  /' "$log/skipped"; }
[ -s "$log/failed" ] && { echo "failed:"; sed 's/^/  /' "$log/failed"; }
[ $((passed + failed)) -gt 0 ] || { echo "no test ran"; failed=1; }
echo "$passed $failed $skipped" >"$log/counts"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
