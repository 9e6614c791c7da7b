#!/bin/sh
# Measures; prints CSV with the command beside each row: bench/run.sh BUILD
# Times are medians over repeats on the machine as it is; compare rows of one run only.
set -eu
build=${1:-build}
root=$(cd "$(dirname "$0")/.." && pwd)
case $build in /*) ;; *) build=$root/$build ;; esac
cd "$root"
echo "what,figure,unit,command"
for b in "$build"/bench/*; do
    if [ -x "$b" ] && [ -f "$b" ]; then "$b"; fi
done
