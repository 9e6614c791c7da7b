# kill -9 at random moments of quantize and repack: nothing that opens as complete and is not, and a rerun succeeds. DG_KILLS: how many
# of each (50).
case $DG_BUILD in *asan*) kills=${DG_KILLS:-8} ;; *) kills=${DG_KILLS:-50} ;; esac
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
D=$DG_BUILD/diffgemma
export DGQ_HF_HOME=$dir
snap=$dir/hub/models--o--b/snapshots/r
cat >"$dir/shape.json" <<'JSON'
{"architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma", "canvas_length": 64, "text_config":
 {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16, "top_k_experts": 2, "moe_intermediate_size": 256, "sliding_window": 128,
  "max_position_embeddings": 4096}}
JSON
mkdir -p "${snap%/*}"
"$D" synth -q --shape "$dir/shape.json" --checkpoint --shards 3 -o "$snap" >/dev/null &&
    "$D" quantize -q -m o/b --profile q4 -o "$dir/whole" >/dev/null &&
    "$D" quantize -q -m o/b --profile q4 --overlay -o "$dir/over" >/dev/null || { echo "not ok - set up"; exit 1; }

now() { date +%s%N; }
random=12345
next() { # a number below $1 in $number
    random=$(((random * 1103515245 + 12345) % 2147483648))
    number=$((random / 65536 % $1))
}

# kills COMMAND... at moments spread over its own running time, start and end included
try() { # NAME command...
    name=$1 killed=0 finished=0 bad=
    shift
    start=$(now)
    "$@" -o "$dir/out" >/dev/null 2>&1 || { echo "not ok - $name: fails by itself"; return; }
    ms=$((($(now) - start) / 1000000 + 1))
    cp -r "$dir/out" "$dir/expected"
    rm -rf "$dir/out"
    i=0
    while [ $i -lt "$kills" ] && [ -z "$bad" ]; do
        i=$((i + 1))
        next $((ms * 11 / 10 + 2))
        "$@" -o "$dir/out" >/dev/null 2>&1 &
        pid=$!
        sleep "$(printf '0.%03d' $((number > 999 ? 999 : number)))"
        kill -9 $pid 2>/dev/null && killed=$((killed + 1)) || finished=$((finished + 1))
        wait $pid 2>/dev/null
        for left in "$dir/out" "$dir/out.part"; do
            # what opens must be the whole pack
            if [ -d "$left" ] && "$D" summary -m "$left" >/dev/null 2>&1 && ! diff -r "$left" "$dir/expected" >/dev/null; then
                bad="kill $i after $number ms: $left opens, but is not the pack"
            fi
        done
        if [ -d "$dir/out" ]; then
            diff -r "$dir/out" "$dir/expected" >/dev/null || bad="kill $i after $number ms: the output is there, but not whole"
            rm -rf "$dir/out"
        fi
    done
    if [ -z "$bad" ] && ! { "$@" -o "$dir/out" >/dev/null 2>&1 && diff -r "$dir/out" "$dir/expected" >/dev/null && [ ! -e "$dir/out.part" ]; }; then
        bad="a rerun does not give the pack"
    fi
    rm -rf "$dir/out" "$dir/out.part" "$dir/expected"
    if [ -n "$bad" ]; then
        echo "not ok - $name: $bad"
    elif [ $killed -lt $((kills / 3)) ]; then
        echo "not ok - $name: only $killed of $kills were still running when they were killed"
    else
        echo "ok - $name: $killed times killed within $ms ms, $finished times too late"
    fi
}
try quantize "$D" quantize -q -m o/b --profile q4
try "quantize --overlay" "$D" quantize -q -m o/b --profile q6 --overlay
try "repack --overlay" "$D" repack -q -m "$dir/whole" --overlay
try "repack --monolithic" "$D" repack -q -m "$dir/over" --monolithic

# Ctrl-C: status 130, nothing left
"$D" quantize -q -m o/b --profile nvfp4 -t 1 -o "$dir/out" >/dev/null 2>"$dir/err" &
pid=$!
sleep 0.05
kill -INT $pid 2>/dev/null
wait $pid
status=$?
if [ $status -eq 130 ] && [ ! -e "$dir/out" ] && [ ! -e "$dir/out.part" ]; then
    echo "ok - interrupted: status 130, nothing left"
elif [ $status -eq 0 ]; then
    echo "ok - interrupted # SKIP it was done before the interrupt"
else
    echo "not ok - interrupted: status $status, left: $(ls "$dir"): $(cat "$dir/err")"
fi
