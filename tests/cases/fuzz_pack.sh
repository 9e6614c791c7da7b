# Replays the fuzz targets of the pack reader over fixed mutations. DG_FUZZ_N: how many of each (4000).
n=${DG_FUZZ_N:-4000}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
D=$DG_BUILD/diffgemma
# seeds: packs of a tiny shape, self-contained and layered, of all kinds
cat >"$dir/shape.json" <<'JSON'
{"architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma", "canvas_length": 8, "text_config":
 {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 8, "num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 32, "sliding_window": 4,
  "max_position_embeddings": 64, "layer_types": ["full_attention"]}}
JSON
seed() { # NAME: manifest, NUL, blob
    { cat "$dir/$1/model.dgq.json" && printf '\0' && cat "$dir/$1/model.dgq.bin"; } >"$dir/$1.seed" && cp "$dir/$1/model.dgq.json" "$dir/$1.manifest"
}
"$D" synth -q --shape "$dir/shape.json" --set attn=q8 --set dense=q4 -o "$dir/a" >/dev/null && seed a &&
    "$D" synth -q --shape "$dir/shape.json" --profile nvfp4 --set experts=q6 -o "$dir/b" >/dev/null 2>&1 && seed b &&
    mkdir -p "$dir/hub/models--o--b/snapshots" &&
    "$D" synth -q --shape "$dir/shape.json" --checkpoint -o "$dir/hub/models--o--b/snapshots/r" >/dev/null &&
    DGQ_HF_HOME=$dir "$D" quantize -q -m o/b --profile q4 --overlay -o "$dir/c" >/dev/null && seed c ||
    { echo "not ok - seeds could not be made"; exit 1; }

fuzz() { # name count files...
    name=$1 count=$2
    shift 2
    if out=$("$DG_BUILD/tests/fuzz_$name" "$@" 2>&1 && "$DG_BUILD/tests/fuzz_$name" --mutate 1 "$count" "$@" 2>&1); then
        echo "ok - $name: $(echo "$out" | tail -n 1)"
    else
        echo "not ok - $name: $(echo "$out" | tail -n 3 | tr '\n' ' ')"
    fi
}
fuzz manifest "$n" "$dir"/*.manifest
fuzz pack "$n" "$dir"/*.seed
