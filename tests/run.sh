#!/bin/sh
# Runs the whole suite against one build folder: tests/run.sh BUILD [PATTERN]
#
# What counts: every program BUILD/tests/*_test (cmocka, TAP output) and every script tests/cases/*.sh (prints TAP lines itself:
# "ok - name", "not ok - name", "ok - name # SKIP reason"). A program that dies, prints no result or takes longer than DG_TEST_TIMEOUT
# seconds (default 1200) is one failure. DG_TEST_JOBS run at a time (default: one a CPU, at most 4); a script with the line "# alone" is a
# measure of time and waits until nothing else runs. The longest begin first (tests/order names them), so that all CPUs are busy to the end.
# Each line ends with the seconds by the clock and, behind the comma, of the processors.
# The last line is "N passed, N failed, N skipped"; failures and skips are named above it. Exit status 1 when anything failed.
set -u

if [ "${1:-}" = --one ]; then # NAME FILE: one test, its counts in $log/NAME.count
    name=$2 file=$3 log=$DG_BUILD/test-logs
    start=$(date +%s)
    spent() { awk '{ print int(($16 + $17) / 100 + 0.5) }' /proc/$$/stat; } # by processes that have ended
    case $file in *.sh) set -- sh "$file" ;; *) set -- "$file" ;; esac
    timeout -k 10 "${DG_TEST_TIMEOUT:-1200}" "$@" >"$log/$name.out" 2>"$log/$name.err" </dev/null
    status=$?
    sed -n "s/^ok[ 0-9]*-* *\(.*# *[Ss][Kk][Ii][Pp].*\)/\1/p" "$log/$name.out" | sed "s/^/$name: /" >"$log/$name.skipped"
    s=$(grep -ci '^ok.*# *skip' "$log/$name.out")
    p=$(($(grep -c '^ok' "$log/$name.out") - s))
    f=$(grep -c '^not ok' "$log/$name.out")
    sed -n "s/^not ok[ 0-9]*-* *\(.*\)/\1/p" "$log/$name.out" | sed "s/^/$name: /" >"$log/$name.failed"
    [ $status -ne 124 ] && [ $status -ne 137 ] && why="ended with status $status" || why="was stopped after ${DG_TEST_TIMEOUT:-1200} s"
    if [ $status -ne 0 ] && [ "$f" -eq 0 ] || [ $((p + s + f)) -eq 0 ]; then
        f=$((f + 1))
        echo "$name: $why, $((p + s)) results before" >>"$log/$name.failed"
    fi
    {
        printf '%-36s %4d passed, %d failed, %d skipped  (%d s, %d)\n' "$name" "$p" "$f" "$s" $(($(date +%s) - start)) "$(spent)"
        if [ "$f" -gt 0 ]; then
            grep '^not ok' "$log/$name.out" | head -n 20
            tail -n 25 "$log/$name.err"
        fi
    } >"$log/$name.report"
    cat "$log/$name.report"
    echo "$p $f $s" >"$log/$name.count"
    exit 0
fi

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
cpus=$(nproc)
jobs=${DG_TEST_JOBS:-$((cpus < 4 ? cpus : 4))}

for t in $(for t in tests/cases/*.sh "$build"/tests/*_test; do echo "$(basename "$t" .sh) $t"; done |
    awk 'NR == FNR { rank[$1] = NR; next } { print $1 in rank ? rank[$1] : 1000, $2 }' tests/order - | sort -s -n -k 1,1 | cut -d ' ' -f 2); do
    name=$(basename "$t" .sh)
    [ -f "$t" ] || continue
    case $name in *$pattern*) ;; *) continue ;; esac
    case $t in
    *.sh) grep -q '^# alone$' "$t" && list=alone || list=together ;;
    *) list=together ;;
    esac
    printf '%s\n%s\n' "$name" "$t" >>"$log/$list"
    echo "$name" >>"$log/expected"
done
[ -s "$log/together" ] && xargs -n 2 -P "$jobs" sh tests/run.sh --one <"$log/together"
[ -s "$log/alone" ] && xargs -n 2 -P 1 sh tests/run.sh --one <"$log/alone"

for name in $(cat "$log/expected" 2>/dev/null); do
    [ -s "$log/$name.count" ] || { echo "0 1 0" >"$log/$name.count"; echo "$name: gave no result" >"$log/$name.failed"; }
done
cat "$log"/*.count 2>/dev/null | awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' >"$log/counts"
read -r passed failed skipped <"$log/counts"
for list in skipped failed; do
    cat "$log"/*."$list" >"$log/$list" 2>/dev/null
    [ -s "$log/$list" ] && { echo "$list:"; sed 's/^/  /' "$log/$list"; }
done
[ $((passed + failed)) -gt 0 ] || { echo "no test ran"; failed=1; }
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
