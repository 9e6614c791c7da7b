# The CPU backend: every op at every level, emulated ones too; the oracle folders and whole turns through every level of this machine; caps.
set -u
dg=$DG_BUILD/diffgemma
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

for prog in cpu_ops cpu_ops_emulated; do
    if [ -x "$DG_BUILD/tests/$prog" ]; then
        # under a sanitizer once over every kernel: bits on one thread and on three are the plain build's, bf16 planes run in turns below
        case $prog:$DG_BUILD in
        cpu_ops_emulated:* | *asan* | *ubsan* | *tsan*) quick=--quick ;;
        *) quick= ;;
        esac
        # shellcheck disable=SC2086
        "$DG_BUILD/tests/$prog" --small $quick >"$tmp/out" 2>&1
        status=$?
        grep '^FAILED' "$tmp/out" >&2
        grep -E '^(not )?ok' "$tmp/out"
        [ $status -eq 0 ] || echo "not ok - $prog ended with status $status"
    else
        echo "ok - $prog # SKIP not built for this architecture"
    fi
done

# attention on tile registers: its kernels one by one, its bits, its error in f32
if [ ! -x "$DG_BUILD/tests/cpu_tiles_emulated" ]; then
    echo "ok - cpu_tiles_emulated # SKIP not built for this architecture"
elif CMOCKA_MESSAGE_OUTPUT=TAP "$DG_BUILD/tests/cpu_tiles_emulated" >"$tmp/out" 2>"$tmp/err" && ! grep -q '^not ok' "$tmp/out"; then
    echo "ok - attention on emulated tile registers: $(grep -c '^ok' "$tmp/out") tests"
else
    grep '^not ok' "$tmp/out" >&2
    tail -n 20 "$tmp/err" >&2
    echo "not ok - attention on emulated tile registers: $(grep -m 1 '^not ok' "$tmp/out")"
fi

# what the op table and the sessions promise, on this backend
for prog in ops_test session_test; do
    if DG_TEST_BACKEND=cpu "$DG_BUILD/tests/$prog" >"$tmp/out" 2>"$tmp/err" && grep -q '^ok' "$tmp/out" && ! grep -q '^not ok' "$tmp/out"; then
        echo "ok - $prog on the CPU backend: $(grep -c '^ok' "$tmp/out") tests"
    else
        grep '^not ok' "$tmp/out" >&2
        tail -n 20 "$tmp/err" >&2
        echo "not ok - $prog on the CPU backend: $(grep -m 1 '^not ok' "$tmp/out")"
    fi
done

# the error of an unknown level names those there are
"$dg" ask --backend cpu --cpu nonesuch -m "$DG_ROOT/models/mini" -p x >"$tmp/out" 2>&1
status=$?
levels=$(sed -n 's/.*"nonesuch": this machine has //p' "$tmp/out" | tr -d ,)
if [ $status -eq 2 ] && [ -n "$levels" ]; then
    echo "ok - an unknown level is refused with the names of those there are"
else
    echo "not ok - --cpu nonesuch: status $status, $(tail -n 1 "$tmp/out")"
fi
if DGQ_CPU=nonesuch "$dg" ask --backend cpu -m "$DG_ROOT/models/mini" -p x >"$tmp/out" 2>&1; then
    echo "not ok - DGQ_CPU=nonesuch is taken"
else
    echo "ok - DGQ_CPU is checked likewise"
fi

# the stricter of both caps counts, whichever it is
for level in $levels; do
    for first in scalar "$level"; do
        second=$level
        [ "$first" = scalar ] || second=scalar
        got=$(DGQ_CPU=$first "$dg" probe-device --cpu "$second" --quick 2>&1 | sed -n 's/^level *//p')
        [ "${got%% *}" = scalar ] && echo "ok - DGQ_CPU=$first and --cpu $second: scalar" ||
            echo "not ok - DGQ_CPU=$first and --cpu $second run on '$got'"
    done
done

. "$DG_ROOT/tests/support/oracle_data.sh"
case $DG_BUILD in
*asan* | *ubsan* | *tsan*) every=40 ;;
*) every=5 ;;
esac
for level in $levels; do
    # shellcheck disable=SC2086
    if "$DG_BUILD/tests/oracle_parity" --backend cpu --cpu "$level" $dirs >"$tmp/out" 2>&1; then
        echo "ok - oracle folders at level $level: $(tail -n 1 "$tmp/out")"
    else
        grep FAILED "$tmp/out" >&2
        echo "not ok - oracle folders at level $level: $(tail -n 1 "$tmp/out")"
    fi
    if "$DG_BUILD/tests/turn_oracle" --backend cpu --cpu "$level" --exact-only --every $every "$DG_ROOT/models/mini" \
        "$DG_ROOT/tests/data/turns_open.json" >"$tmp/out" 2>&1; then
        echo "ok - turns at level $level: $(tail -n 1 "$tmp/out")"
    else
        grep differ "$tmp/out" >&2
        echo "not ok - turns at level $level: $(tail -n 1 "$tmp/out")"
    fi
done

# bf16 planes: what they cost the bundled model, as a mean divergence of its first steps' logits
"$DG_BUILD/tests/pack_kl" --cases 8 --turns 0 --backend cpu --planes bf16 "$DG_ROOT/models/mini" "$DG_ROOT/tests/data/turns_open.json" \
    "$DG_ROOT/models/mini" >"$tmp/out" 2>&1
kl=$(sed -n 's/.* mean \([0-9.e+-]*\).*/\1/p' "$tmp/out")
if [ -n "$kl" ] && awk -v k="$kl" 'BEGIN { exit !(k > 0 && k <= 1e-4) }'; then
    echo "ok - bf16 planes: mean KL $kl, at most 1e-4"
else
    echo "not ok - bf16 planes: mean KL '$kl', at most 1e-4 expected: $(tail -n 1 "$tmp/out")"
fi
