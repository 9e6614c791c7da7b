# The op tests of the CPU backend on processors that are not here, under qemu's user-mode emulation: `make test-emulated` builds the programs.
set -u
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
one() { # NAME PROGRAM LEVELS QEMU...
    name=$1 prog=$2 levels=$3
    shift 3
    if [ ! -x "$prog" ]; then
        echo "ok - ops on $name # SKIP make test-emulated builds $prog"
    elif ! command -v "$1" >/dev/null 2>&1; then
        echo "ok - ops on $name # SKIP no $1 (qemu-user)"
    else
        for level in $levels; do
            # qemu reads whole vectors where AVX2's masked loads, and so this machine's own run of the table, read their lanes alone
            [ "$level" = avx2 ] && guard=--no-guard || guard=
            # shellcheck disable=SC2086
            # the emulated program runs the kernels; one at full speed checks what they leave
            out=$({ "$@" "$prog" --record --emulated --quick $guard --cpu "$level" 2>"$tmp/emulated"; echo $? >"$tmp/status"; } |
                "$DG_BUILD/tests/cpu_ops" --replay --emulated --quick --cpu "$level" 2>&1)
            status=$?
            { echo "$out" | grep '^FAILED'; grep '^FAILED' "$tmp/emulated"; } >&2
            echo "$out" | sed -n "s/^\(not \)\{0,1\}ok - /&$name, /p"
            theirs=$(cat "$tmp/status")
            if [ $status -ne 0 ] || [ "$theirs" != 0 ]; then
                tail -n 5 "$tmp/emulated" >&2
                echo "not ok - ops on $name at level $level: ended with status $theirs, the check with $status"
            fi
        done
    fi
}
one "a processor with SSE only" "$DG_BUILD/tests/cpu_ops_static" scalar qemu-x86_64 -cpu Nehalem
one "a processor with AVX2 only" "$DG_BUILD/tests/cpu_ops_static" avx2 qemu-x86_64 -cpu Haswell
one "arm64" "$DG_BUILD/arm64/tests/cpu_ops_static" "scalar neon neonbf16" qemu-aarch64 -cpu max
