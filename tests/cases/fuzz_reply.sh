# The reply fuzz target over its seeds and 3000 mutations of them.
seeds=$(ls "$DG_ROOT"/tests/data/replies/*.txt)
# shellcheck disable=SC2086
if out=$("$DG_BUILD/tests/fuzz_reply" $seeds); then
    echo "ok - seeds: $(echo "$out" | tail -n 1)"
else
    echo "not ok - seeds"
fi
# shellcheck disable=SC2086
if out=$("$DG_BUILD/tests/fuzz_reply" --mutate 1 3000 $seeds); then
    echo "ok - mutations: $(echo "$out" | tail -n 1)"
else
    echo "not ok - mutations"
fi
