#!/bin/sh
# Rules of style that a machine can see. Each fault is a line FILE:LINE: WHY on stderr; docs/testing.md lists the rules.
cd "$DG_ROOT" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

verdict() { # NAME: the rule's faults are in $work/faults
    if [ -s "$work/faults" ]; then
        cat "$work/faults" >&2
        echo "not ok - $1: $(wc -l <"$work/faults") faults, first: $(head -n 1 "$work/faults")"
    else
        echo "ok - $1"
    fi
}

library=$(find src include -name '*.[ch]' 2>/dev/null | LC_ALL=C sort)
code=$(find src include tests bench tools \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | LC_ALL=C sort)
scripts=$(find tests tools bench -name '*.sh' 2>/dev/null | LC_ALL=C sort)
[ -n "$library" ] || { echo "not ok - no source found"; exit 0; }

# shellcheck disable=SC2086
awk '
/\t/ && FILENAME !~ /\.sh$/ { print FILENAME ":" FNR ": a tab" }
/[ \t\r]$/ { print FILENAME ":" FNR ": a blank at the end" }
length > 150 && FILENAME !~ /\.sh$/ { print FILENAME ":" FNR ": " length " columns, at most 150" }
' $code $scripts >"$work/faults"
verdict "no tabs, no blanks at the end, code in at most 150 columns"

for f in $code $scripts; do
    [ -z "$(tail -c 1 "$f")" ] || echo "$f:$(($(wc -l <"$f") + 1)): no newline at the end"
done >"$work/faults"
verdict "files end with a newline"

# Comments and literals are blanked first. Only core/mem.c and the error record, which must work without it, may allocate by themselves.
# shellcheck disable=SC2086
awk '
function calls(names) { return match(text, "[^A-Za-z0-9_.>](" names ")[ ]*\\(") }
function found(why) {
    name = substr(text, RSTART + 1, RLENGTH - 1)
    sub(/[ ]*\($/, "", name)
    print FILENAME ":" FNR ": " name ": " why
}
FNR == 1 { comment = 0 }
{
    text = " " $0
    gsub(/\\./, "", text)
    gsub(/\047"\047/, "", text) # the quote as a character would pair with that of a string
    gsub(/"[^"]*"/, "\"\"", text)
    if (comment) {
        if (!index(text, "*/"))
            next
        sub(/^.*\*\//, " ", text)
        comment = 0
    }
    while (match(text, /\/\*/)) {
        end = index(substr(text, RSTART), "*/")
        if (!end) {
            text = substr(text, 1, RSTART - 1)
            comment = 1
        } else
            text = substr(text, 1, RSTART - 1) " " substr(text, RSTART + end + 1)
    }
    if (calls("strcpy|stpcpy|strcat|sprintf|vsprintf|gets|strtok|alloca"))
        found("writes without a bound; use dg_buf or snprintf")
    if (calls("atoi|atol|atoll|atof"))
        found("cannot say that its text is no number; use strtol and its kind")
    if (calls("system|popen"))
        found("runs a shell")
    if (calls("rand|srand|random"))
        found("is not the stream of a seed; use sampler/rng.h")
    if (FILENAME !~ /^src\/core\/(mem|status)\.c$/ && calls("malloc|calloc|realloc|strdup|strndup|asprintf|getline"))
        found("allocates past core/mem.h")
    if (FILENAME !~ /^src\/cli\// && calls("exit|_exit|abort|assert|printf|puts|putchar|perror"))
        found("the library never prints, exits or asserts")
}' $library >"$work/faults"
verdict "no banned call"

# shellcheck disable=SC2086
awk '
function report() {
    if (!first)
        print name ":1: no comment at the top that says what it is"
    if (guard == "" || defined != guard)
        print name ":1: no include guard"
    else if (guard in seen)
        print name ":1: its include guard " guard " is also that of " seen[guard]
    seen[guard] = name
}
FNR == 1 {
    if (name != "")
        report()
    name = FILENAME
    guard = defined = ""
    first = $0 ~ /^\/\*/
}
guard == "" && /^#ifndef DG_[A-Z0-9_]*_H$/ { guard = $2; next }
guard != "" && defined == "" && /^#define/ { defined = $2 }
END { report() }' $(echo "$library" | grep '\.h$') >"$work/faults"
verdict "headers begin with a comment and have a guard of their own"

# shellcheck disable=SC2086
awk 'FNR == 801 { print FILENAME ":801: more than 800 lines" }' $library >"$work/faults"
verdict "library files have at most 800 lines"

# Each header on its own, as the only thing a file includes.
if command -v "${CC:-cc}" >/dev/null 2>&1; then
    echo "$library" | grep '\.h$' |
        xargs -P 2 -n 8 "${CC:-cc}" -std=c17 -D_GNU_SOURCE -fsyntax-only -Wall -Wextra -Werror -Wno-unused-function -Isrc -Iinclude -x c \
            >"$work/log" 2>&1
    grep -E ':[0-9]+:([0-9]+:)? (fatal )?error' "$work/log" >"$work/faults"
    [ -s "$work/faults" ] || grep 'No such file' "$work/log" >"$work/faults"
    verdict "headers compile alone"
else
    echo "ok - headers compile alone # SKIP no C compiler ${CC:-cc}"
fi
