# Replays the fuzz targets of the checkpoint readers over fixed mutations. DG_FUZZ_N: how many of each (4000).
n=${DG_FUZZ_N:-4000}
seeds=$(mktemp -d) || exit 1
trap 'rm -rf "$seeds"' EXIT
for m in tiny-a tiny-b; do
    { cat "$DG_ROOT/tests/data/config/$m.config.json"; printf '\0'; cat "$DG_ROOT/tests/data/config/$m.generation_config.json"; } >"$seeds/$m"
done
{ cat "$DG_ROOT/models/mini/config.json"; printf '\0'; cat "$DG_ROOT/models/mini/generation_config.json"; } >"$seeds/mini"

fuzz() { # name count files...
    name=$1 count=$2
    shift 2
    if out=$("$DG_BUILD/tests/fuzz_$name" "$@" 2>&1 && "$DG_BUILD/tests/fuzz_$name" --mutate 1 "$count" "$@" 2>&1); then
        echo "ok - $name: $(echo "$out" | tail -n 1)"
    else
        echo "not ok - $name: $(echo "$out" | tail -n 3 | tr '\n' ' ')"
    fi
}
fuzz safetensors "$((5 * n))" "$DG_ROOT"/tests/data/fuzz/*.safetensors
fuzz index "$n" "$DG_ROOT/tests/data/fuzz/index.json"
fuzz config "$n" "$seeds/tiny-a" "$seeds/tiny-b" "$seeds/mini"
