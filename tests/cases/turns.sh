# Whole turns of the bundled model against another implementation's: every token and every block's steps. Under the sanitizers a part of
# them, exact settings only, since there a step takes many times as long.
set -u
log=$DG_BUILD/test-logs/turn_oracle.out
mkdir -p "$(dirname "$log")"
case $DG_BUILD in
*asan* | *ubsan* | *tsan*) part="--exact-only --every 11" ;;
*) part= ;;
esac
# shellcheck disable=SC2086
"$DG_BUILD/tests/turn_oracle" $part "$DG_ROOT/models/mini" "$DG_ROOT/tests/data/turns_open.json" >"$log"
status=$?
last=$(tail -n 1 "$log")
sed -n 's/^  same as the file/# with the defaults of users: same as the file/p' "$log"
if [ $status -eq 0 ]; then
    echo "ok - turn_oracle: $last"
else
    grep ': .*differ' "$log" >&2
    echo "not ok - turn_oracle: $last"
fi

# the replay must notice another token, another count of steps, another stop
bad=$DG_BUILD/test-data/turns
mkdir -p "$bad"
wrong() { # NAME SED
    sed "$2" "$DG_ROOT/tests/data/turns_open.json" >"$bad/$1.json"
    if cmp -s "$bad/$1.json" "$DG_ROOT/tests/data/turns_open.json"; then
        echo "not ok - turn_oracle notices a wrong $1: the file was not changed"
    elif "$DG_BUILD/tests/turn_oracle" --exact-only --every 100 "$DG_ROOT/models/mini" "$bad/$1.json" >"$bad/$1.out"; then
        echo "not ok - turn_oracle notices a wrong $1: it passed"
    elif grep -q 'differ' "$bad/$1.out" && grep -q '[1-9] failed' "$bad/$1.out"; then
        echo "ok - turn_oracle notices a wrong $1"
    else
        echo "not ok - turn_oracle notices a wrong $1: $(tail -n 1 "$bad/$1.out")"
    fi
}
wrong token 's/"out_ids": \[[0-9]*/"out_ids": [7/'
wrong step 's/"steps": 2/"steps": 3/'
wrong stop 's/"stop_id": [0-9]*/"stop_id": 999/'
