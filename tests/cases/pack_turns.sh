# Field failure E01. What quantising costs the bundled model: whole turns with the checkpoint's own tokens (41 of 44 in q6, 40 in the 4-bit profiles) in at
# most 15 % more steps; divergence of the logits from bf16 for each, mixed packs included. Under the sanitizers
# a few turns of one pack.
set -u
D=$DG_BUILD/diffgemma
mini=$DG_ROOT/models/mini
turns=$DG_ROOT/tests/data/turns_open.json
pack_kl="$DG_BUILD/tests/pack_kl --backend cpu" # f32 planes: five times as fast as the reference backend
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
make_pack() { # NAME arguments...
    name=$1
    shift
    "$D" quantize -q -m "$mini" -o "$work/$name" "$@" >/dev/null 2>&1
}
judge() { # NAME LEAST: one line of pack_kl
    line=$(grep "^$work/$1 " "$work/log")
    same=$(echo "$line" | sed -n 's/.*turns \([0-9]*\) of.*/\1/p') more=$(echo "$line" | sed -n 's/.*(\([-+0-9.]*\) %).*/\1/p')
    said=$(echo "$line" | sed "s|^$work/||")
    if [ -n "$same" ] && [ "$same" -ge "$2" ] && [ "$(echo "$more" | awk '{ print ($1 <= 15) }')" = 1 ]; then
        echo "ok - $said"
    else
        echo "not ok - $1: wanted $2 turns alike, at most +15 % steps: $said"
        cat "$work/log" >&2
    fi
}
case $DG_BUILD in
*asan* | *ubsan* | *tsan*)
    make_pack q4 --profile q4
    $pack_kl --cases 2 --turns 3 "$mini" "$turns" "$work/q4" >"$work/log" 2>&1
    judge q4 3
    exit
    ;;
esac
for p in q6 q4 nvfp4 nvfp4x; do
    make_pack $p --profile $p
done
make_pack mixed1 --profile q4 --set attn=q8 --set dense=q8
make_pack mixed2 --profile q6 --set attn=nvfp4 --set dense=q4 --set sc=nvfp4
$pack_kl --cases 8 "$mini" "$turns" "$work/q6" "$work/q4" "$work/nvfp4" "$work/nvfp4x" >"$work/log" 2>&1
judge q6 41
for p in q4 nvfp4 nvfp4x; do
    judge $p 40
done
$pack_kl --cases 8 --turns 8 "$mini" "$turns" "$work/mixed1" "$work/mixed2" >"$work/log" 2>&1
judge mixed1 7
judge mixed2 6
