# diffgemma download interrupted: by a signal, by kill -9 at random moments (DG_KILLS: how many), by what the disk then holds. Nothing opens as
# a model before it is whole, and a later call goes on where this one ended.
. "$DG_ROOT/tests/support/hub.sh"

# interruptions, at moments that are waited for, not guessed
"$dg" download t/slow-2 -o "$work/out/t_slow-2" --chunk 1 --jobs 2 >"$work/log" 2>"$work/err" &
pid=$!
until_more 5 fetched slow-2
kill -INT $pid
wait $pid
status=$?
[ $status -eq 130 ] && grep -q 'goes on where it was' "$work/err" && [ ! -e "$work/out/t_slow-2" ] && ok "a signal ends it with 130" || bad "signal: status $status"
a=$(fetched slow-2)
"$dg" download t/slow-2 -o "$work/out/t_slow-2" --chunk 1 --jobs 1 >"$work/log.first" 2>"$work/err" &
pid=$!
until_more "$a" fetched slow-2
get t/slow-2
if [ $status -eq 1 ] && grep -q 'another download' "$work/err"; then ok "two downloads of one model do not meet"; else bad "two downloads: status $status"; fi
wait $pid
got=$(sed -n 's/.*fetched \([0-9]* MB\).*/\1/p' "$work/log.first")
get t/slow-2
[ "$a" -gt 2 ] && same "$dir" && ok "the next call goes on: ${a} requests before, ${got:-?} after" || bad "resume: $a before"

# what the disk holds is not trusted either
for how in state byte short; do
    repo=t/slow-$how dir=$work/out/t_slow-$how
    "$dg" download $repo -o "$dir" --chunk 1 --jobs 1 >"$work/log" 2>"$work/err" &
    pid=$!
    part=$dir.part/model-00001-of-00003.safetensors.part
    until_more 1500000 bytes "$part"
    kill -9 $pid
    wait $pid 2>/dev/null
    before=$(wc -c <"$part")
    case $how in
    state) echo '{"files": [{"name": 7}, {"full": [[-1, 99999999]]}' >"$dir.part/.diffgemma.json" ;;
    byte) printf 'wrong' | dd of="$part" bs=1 seek=5000 conv=notrunc 2>/dev/null ;;
    short) : >"$part" ;;
    esac
    get $repo
    [ "$before" -gt 100000 ] && [ $status -eq 0 ] && same "$dir" && ok "what an earlier call left is not trusted: $how" || bad "damaged rest ($how): status $status"
done

case $DG_BUILD in *asan* | *tsan* | *ubsan*) most=${DG_KILLS:-8} ;; *) most=${DG_KILLS:-50} ;; esac
kills=0 rounds=0 wrong=
seed=12345
while [ $kills -lt $most ] && [ $rounds -lt $((4 * most)) ]; do
    rounds=$((rounds + 1))
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    delay=0.$(printf '%03d' $((seed / 65536 % 550 + 5)))
    dir=$work/out/kill
    "$dg" download t/slow-3 -o "$dir" --chunk 1 --jobs 8 >"$work/log" 2>"$work/err" &
    pid=$!
    sleep "$delay"
    if kill -9 $pid 2>/dev/null; then
        wait $pid 2>/dev/null
        kills=$((kills + 1))
        # between the last check and the folder's rename all is there and checked
        if opens "$dir.part" && ! whole "$dir.part"; then wrong="$wrong $delay"; fi
        if [ -e "$dir" ] && ! same "$dir"; then wrong="$wrong differs:$delay"; fi
    else
        wait $pid || wrong="$wrong failed:$delay"
    fi
    if [ -e "$dir" ]; then
        same "$dir" || wrong="$wrong differs:$delay"
        rm -rf "$dir" "$dir.part"
    fi
done
"$dg" download t/slow-3 -o "$dir" --chunk 1 >"$work/log" 2>"$work/err"
[ -z "$wrong" ] && [ $kills -eq $most ] && same "$dir" && [ ! -e "$dir.part" ] && ok "killed at $kills moments: nothing opened, the last call succeeds" ||
    bad "kill -9: $kills kills, wrong at:$wrong"
