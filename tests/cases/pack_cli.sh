# The pack commands as a user meets them: quantize, repack, verify, manifest, synth, summary, config, ask, --list-models; refusals in one
# line, nothing left behind.
set -u
D=$DG_BUILD/diffgemma
mini=$DG_ROOT/models/mini
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export HF_HOME=$work/hf DGQ_HF_HOME=$work/hf HOME=$work
out=$work/out.txt err=$work/err.txt

pass() { echo "ok - $1"; }
miss() { # NAME WHY
    echo "not ok - $1: $2"
    head -n 5 "$out" "$err" >&2
}
go() {
    timeout 300 "$D" "$@" >"$out" 2>"$err" </dev/null
    status=$?
}
works() { # NAME TEXT ARG...
    name=$1 text=$2
    shift 2
    go "$@"
    if [ $status -ne 0 ]; then miss "$name" "status $status"; elif ! grep -qF -e "$text" "$out"; then miss "$name" "no '$text'"; else pass "$name"; fi
}
refused() { # NAME STATUS TEXT ARG...: one line, and neither output nor temporary folder
    name=$1 want=$2 text=$3
    shift 3
    go "$@"
    if [ $status -ne "$want" ]; then miss "$name" "status $status, not $want"
    elif [ "$(grep -vc ': note: ' "$err")" -ne 1 ]; then miss "$name" "$(wc -l <"$err") lines of reason"
    elif ! grep -qF -e "$text" "$err"; then miss "$name" "no word of '$text'"
    elif [ -e new ] || [ -e new.part ]; then miss "$name" "something was left behind"
    else pass "$name"; fi
}

works "quantize q4" "15 of them quantised" quantize -m "$mini" -o q4 --profile q4
works "quantize nvfp4" "55 of them quantised" quantize -m "$mini" -o nvfp4 --profile nvfp4
if grep -q 'note: 4-bit attention or dense layers can cost more denoising steps' "$err"; then pass "4-bit attention is warned of (E01)"; else miss "4-bit attention" "no warning"; fi
works "quantize nvfp4x" "15 of them quantised" quantize -m "$mini" -o nvfp4x --profile nvfp4x
works "quantize q4 with experts=nvfp4" "quantised" quantize -m "$mini" -o same --profile q4 --set experts=nvfp4
if diff -r nvfp4x same >/dev/null; then pass "nvfp4x is q4 with experts=nvfp4"; else echo "not ok - nvfp4x and q4 with experts=nvfp4 differ"; fi
rm -rf same
for t in 1 2 7; do
    go quantize -m "$mini" -o "t$t" --profile q4 -t $t
    if diff -r q4 "t$t" >/dev/null; then pass "$t threads give the same bytes"; else miss "$t threads" "other bytes"; fi
    rm -rf "t$t"
done
# nothing but the tensors of a class changes when it gets another format
go quantize -m "$mini" -o attn --profile q4 --set attn=q8
"$D" manifest -m q4 --json | sed 's/"offset": [0-9]*, //' | grep '"name"' | grep -v self_attn..._proj | grep -v self_attn.._proj | sed 's/,$//' >a.txt
"$D" manifest -m attn --json | sed 's/"offset": [0-9]*, //' | grep '"name"' | grep -v self_attn..._proj | grep -v self_attn.._proj | sed 's/,$//' >b.txt
if [ -s a.txt ] && cmp -s a.txt b.txt; then pass "attn=q8 leaves every other tensor's bytes as they are"; else echo "not ok - attn=q8 changed other tensors"; fi

refused "no output" 2 "give -o" quantize -m "$mini" --profile q4
refused "no profile" 2 "give --profile" quantize -m "$mini" -o new
refused "unknown profile" 2 "one of q4, q6, nvfp4, nvfp4x" quantize -m "$mini" -o new --profile q8
refused "profile q5" 2 "no format of its own" quantize -m "$mini" -o new --profile q5
refused "locked embedding" 2 "locked" quantize -m "$mini" -o new --profile q4 --set embed=q8
refused "locked router" 2 "routing" quantize -m "$mini" -o new --profile q4 --set router=q4
refused "locked norms" 2 "locked" quantize -m "$mini" -o new --profile q4 --set norms=q4
refused "experts in q8" 2 "q4, q6 or nvfp4" quantize -m "$mini" -o new --profile q4 --set experts=q8
refused "attention in q6" 2 "q6 is a format of expert stacks" quantize -m "$mini" -o new --profile q4 --set attn=q6
refused "two formats for experts" 2 "both must have one format" quantize -m "$mini" -o new --profile q4 --set experts.down=q6
refused "no vision tower" 2 "has no vision tower" quantize -m "$mini" -o new --profile q4 --vision
refused "unknown codes" 2 "plain or fit" quantize -m "$mini" -o new --profile q4 --codes best
refused "a pack as source" 2 "is a pack already" quantize -m q4 -o new --profile q4
refused "no such source" 2 "no such folder" quantize -m nowhere -o new --profile q4
refused "no parent folder" 2 "cannot make" quantize -m "$mini" -o none/new --profile q4
# an output inside a model's folder, directly, further down, through a link, of the source or of another
cp -r "$mini" srcdir && mkdir srcdir/sub && ln -s srcdir/sub link
before=$(find srcdir q4 | sort)
refused "an output inside the source" 2 "inside the model folder $work/srcdir:" quantize -m srcdir -o srcdir/new --profile q4
refused "an output below the source" 2 "inside the model folder $work/srcdir:" quantize -m srcdir -o srcdir/sub/new/ --profile q4
refused "an output inside the source through a link" 2 "inside the model folder $work/srcdir:" quantize -m srcdir -o link/new --profile q4
refused "an output inside a pack" 2 "inside the model folder $work/q4:" repack -m q4 -o q4/new --overlay --source srcdir --hf-repo a/b --hf-revision c
refused "a synthetic model inside another" 2 "inside the model folder $work/srcdir:" synth --shape srcdir/config.json -o srcdir/sub/../new
refused "a download inside a model" 2 "inside the model folder $work/srcdir:" download a/b -o srcdir/new
refused "a download below a model, in a folder that is not there" 2 "inside the model folder $work/srcdir:" download a/b -o srcdir/a/b/new
(cd srcdir && timeout 60 "$D" quantize -m . -o new --profile q4 >"$out" 2>"$err")
if [ $? -eq 2 ] && grep -q 'inside the model folder' "$err"; then pass "an output beside the weights, from within"; else miss "from within" "status"; fi
if [ "$before" = "$(find srcdir q4 | sort)" ]; then pass "and nothing was put there"; else miss "something was put there" "$(find srcdir q4 -newer "$out")"; fi
works "an output beside the source" "quantised" quantize -m srcdir -o beside --profile q4
rm -r srcdir link beside
mkdir taken
go quantize -m "$mini" -o taken --profile q4
if [ $status -eq 2 ] && grep -q "exists already" "$err" && [ -z "$(ls taken)" ]; then pass "an output that exists stays as it is"; else miss "an output that exists" "status $status"; fi
rmdir taken
mkdir new.part && echo mine >new.part/notes.txt
go quantize -m "$mini" -o new --profile q4
if [ $status -eq 2 ] && grep -q "not ours" "$err" && [ -f new.part/notes.txt ] && [ ! -e new ]; then pass "a folder in the way stays as it is"; else miss "a folder in the way" "status $status"; fi
rm -r new.part
mkdir new.part && echo x >new.part/model.dgq.bin
works "what a killed run left is cleared" "quantised" quantize -m "$mini" -o new --profile q4
if [ ! -e new.part ] && diff -r new q4 >/dev/null; then pass "and the pack is whole"; else miss "and the pack is whole" "it is not"; fi
rm -r new

# a disk too small: a limit on the size of a file stands for it
(ulimit -f 4000; timeout 60 "$D" quantize -m "$mini" -o new --profile q4 >"$out" 2>"$err")
status=$?
if [ $status -eq 1 ] && [ "$(wc -l <"$err")" -eq 1 ] && grep -q 'cannot write new.part/model.dgq.bin' "$err" && [ ! -e new ] && [ ! -e new.part ]; then
    pass "no room for the blob"
else
    miss "no room for the blob" "status $status"
fi
# a shard that is cut, and one that goes while it is read
mkdir src && cp "$mini"/* src/ && truncate -s 9000000 src/model-00002.safetensors
refused "a source that is cut" 1 "cut" quantize -m src -o new --profile q4
rm src/model-00002.safetensors
refused "a source without a shard" 1 "model-00002.safetensors is missing" quantize -m src -o new --profile q4

for p in q4 nvfp4 nvfp4x attn; do
    works "verify $p" "sound" verify -m $p
done
works "verify against the source" "rel. RMS" verify -m q4 --source "$mini"
go verify -m q4 --source "$mini" --json
if [ $status -eq 0 ] && grep -q '"ok": true' "$out" && [ "$(grep -c relative_rms "$out")" -eq 142 ]; then pass "verify --json"; else miss "verify --json" "status $status"; fi
cp -r q4 broken && printf 'x' | dd of=broken/model.dgq.bin bs=1 seek=12000000 conv=notrunc 2>/dev/null
go verify -m broken
if [ $status -eq 1 ] && grep -q 'experts.*not those its checksum was made from' "$err"; then pass "verify finds a damaged blob"; else miss "verify finds a damaged blob" "status $status"; fi
refused "verify of a checkpoint" 2 "is no pack" verify -m "$mini"

works "manifest" "profile q4, self-contained" manifest -m q4
works "manifest of a custom pack" "class attn is q8_row" manifest -m attn
works "summary of a pack" "q4_block" summary -m q4
go config -m q4 && cp "$out" c1 && go config -m "$mini"
if cmp -s c1 "$out"; then pass "config of a pack is the checkpoint's"; else miss "config of a pack" "differs"; fi
works "ask a pack" "7" ask -m q4 -p "What is 3 plus 4?"
works "step-parity on a pack" "" step-parity -m q4 -p "Hello" --backend ref
"$D" tokenize -m "$mini" -p "What is 3 plus 4?" >c1 2>/dev/null
go tokenize -m q4 -p "What is 3 plus 4?"
if [ $status -eq 0 ] && [ -s c1 ] && cmp -s c1 "$out"; then pass "tokenize with a pack"; else miss "tokenize with a pack" "status $status"; fi
printf 'What is the capital of Norway?\n' | timeout 60 "$D" chat -m q4 --log-dir chatlog >"$out" 2>"$err"
if [ "$(cat "$out")" = Oslo ]; then pass "chat with a pack"; else miss "chat with a pack" "$(cat "$out")"; fi
works "replay of a session with a pack" "no difference" replay chatlog/ops.jsonl
works "replay --view of it" "Oslo" replay --view chatlog/ops.jsonl
go golden -m q4 --backend ref --case short --bless golden.json && go golden -m q4 --backend ref --case short golden.json
if [ $status -eq 0 ] && grep -q 'short *same' "$out"; then pass "golden with a pack"; else miss "golden with a pack" "status $status"; fi
go golden -m "$mini" --backend ref --case short golden.json
if [ $status -eq 1 ]; then pass "whose cache is not the checkpoint's"; else miss "golden of the checkpoint against the pack's" "status $status"; fi
DGQ_MODEL=q4 timeout 60 "$D" summary >"$out" 2>"$err"
if [ $? -eq 0 ] && grep -q '^q4$' "$out"; then pass "DGQ_MODEL names a pack"; else miss "DGQ_MODEL names a pack" "$(head -n 1 "$out")"; fi
# a pack as the original engine publishes it: a manifest of version 1, without splits and checksums
cp -r q4 original && sed -i '/"expert_split"/d; s/, "xxh3": "[0-9a-f]*"//' original/model.dgq.json
if ! grep -q 'xxh3\|split' original/model.dgq.json && grep -q '"version": 1' original/model.dgq.json; then pass "an older manifest"; else miss "an older manifest" "not made"; fi
works "ask a pack with an older manifest" "7" ask -m original -p "What is 3 plus 4?"
works "verify it" "sound" verify -m original
works "repack it" "in the base checkpoint" repack -m original -o original2 --overlay --source "$mini" --hf-repo org/mini --hf-revision 0123abcd
# other people's weights: what they are and what to do (F01)
mkdir gguf && printf 'GGUF\3' >gguf/model-q4.gguf
for c in ask chat summary config quantize tokenize; do
    case $c in
    tokenize) go tokenize -m gguf -p Hello ;;
    ask) go ask -m gguf -p Hello ;;
    quantize) go quantize -m gguf -o new --profile q4 ;;
    *) go $c -m gguf ;;
    esac
    if [ $status -eq 1 ] && [ "$(wc -l <"$err")" -eq 1 ] && grep -q 'gguf: .*it holds a GGUF model.*diffgemma download google' "$err"; then
        pass "$c of a folder that holds a .gguf alone"
    else
        miss "$c of a folder that holds a .gguf alone" "status $status"
    fi
done

# layered packs
mkdir -p hf/hub/models--org--mini/snapshots && cp -r "$mini" hf/hub/models--org--mini/snapshots/0123abcd
works "quantize by repo id" "quantised" quantize -m org/mini -o plain --profile q4
works "quantize --overlay" "quantised" quantize -m org/mini -o over --profile q4 --overlay
works "repack --overlay" "127 of them in the base checkpoint" repack -m plain -o over2 --overlay
works "repack --overlay over a given source" "127 of them" repack -m q4 -o over3 --overlay --source "$mini" --hf-repo org/mini --hf-revision 0123abcd
works "repack --monolithic" "142 tensors" repack -m over2 -o mono --monolithic
works "repack --monolithic of a direct overlay" "142 tensors" repack -m over -o mono2 --monolithic
if diff -r plain mono >/dev/null && diff -r plain mono2 >/dev/null; then pass "the round trip gives the plain pack"; else echo "not ok - the round trip gives another pack"; fi
works "verify a layered pack" "sound" verify -m over2 --source org/mini
works "ask a layered pack" "7" ask -m over3 -p "What is 3 plus 4?"
works "manifest of a layered pack" "over org/mini at revision 0123abcd" manifest -m over
refused "overlay of an unknown source" 2 "give --source" repack -m q4 -o new --overlay
refused "overlay over a folder of no name" 2 "--hf-repo and --hf-revision" repack -m q4 -o new --overlay --source "$mini"
refused "neither way" 2 "--overlay or --monolithic" repack -m q4 -o new
refused "flat already" 2 "self-contained already" repack -m q4 -o new --monolithic
mv hf/hub/models--org--mini/snapshots/0123abcd hf/away
refused "the base is gone" 1 "run: hf download org/mini --revision 0123abcd" repack -m over -o new --monolithic
mv hf/away hf/hub/models--org--mini/snapshots/0123abcd
printf 'Z' | dd of=hf/hub/models--org--mini/snapshots/0123abcd/model-00001.safetensors bs=1 seek=40 conv=notrunc 2>/dev/null
refused "the base has another header" 1 "run: hf download org/mini --revision 0123abcd" repack -m over -o new --monolithic

# what is on this machine
mkdir -p models && cp -r q4 models/good && cp -r q4 models/cut && truncate -s 1000 models/cut/model.dgq.bin && cp -r q4 models/nomanifest.part &&
    rm models/nomanifest.part/model.dgq.json
go --list-models
if [ $status -eq 0 ] && grep -q '^models/good  *pack q4  .*models/good$' "$out" && grep -q '^models/cut .*INCOMPLETE' "$out" &&
    grep -q 'models/nomanifest.part.*INCOMPLETE' "$out" && grep -q 'never chosen' "$out"; then
    pass "--list-models: incomplete ones are shown as such (E08)"
else
    miss "--list-models" "status $status"
fi

# random models
works "synth by a config.json" "142 tensors" synth --shape "$mini/config.json" -o s1 --tokenizer "$mini/tokenizer.json"
works "its pack is sound" "sound" verify -m s1
works "it answers something" "" ask -m s1 -p "Hello" --max-tokens 8
works "synth of a checkpoint" "tensors" synth --shape "$mini/config.json" --layers 2 --checkpoint --shards 2 -o s2
works "which quantises" "quantised" quantize -m s2 -o s3 --profile nvfp4
refused "synth without a shape" 2 "give --shape" synth -o new
refused "synth of an unknown shape" 1 "26b-a4b or a config.json" synth --shape 7b -o new
refused "more layers than there are" 2 "the shape has 6" synth --shape "$mini/config.json" --layers 7 -o new

# memory: peak of a 100 MB checkpoint stays at the buffers
cat >shape.json <<'JSON'
{"architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma", "canvas_length": 64, "text_config":
 {"vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16, "top_k_experts": 2, "moe_intermediate_size": 512, "sliding_window": 128,
  "max_position_embeddings": 4096}}
JSON
"$D" synth -q --shape shape.json --checkpoint --shards 2 -o big >/dev/null
# a source that shrinks while it is read: it is an error of one line, not a signal
timeout 100 "$D" quantize -q -m big -o new --profile nvfp4 -t 1 >"$out" 2>"$err" &
pid=$!
i=0
while [ ! -s new.part/model.dgq.bin ] && [ $i -lt 1000 ] && kill -0 $pid 2>/dev/null; do
    i=$((i + 1))
    sleep 0.01
done
for f in big/*.safetensors; do cp "$f" "$f.whole" && truncate -s 4096 "$f"; done
wait $pid
status=$?
for f in big/*.safetensors; do mv "$f.whole" "$f"; done
if [ $status -eq 0 ]; then echo "ok - a source that shrinks # SKIP it was read before"
elif [ $status -eq 1 ] && [ "$(grep -vc ': note: ' "$err")" -eq 1 ] && grep -q 'ended early' "$err" && [ ! -e new ] && [ ! -e new.part ]; then pass "a source that shrinks"
else miss "a source that shrinks" "status $status"; fi
case $DG_BUILD in
*asan*) echo "ok - memory # SKIP the sanitizer has memory of its own" ;;
*)
    (ulimit -v 300000; timeout 100 "$D" quantize -q -m big -o bigq --profile nvfp4 -t 2 >"$out" 2>"$err")
    status=$?
    if [ $status -eq 0 ]; then pass "200 MB of weights in 300 MB of address space, mappings included"; else miss "memory" "status $status"; fi
    ;;
esac
