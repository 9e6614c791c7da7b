# The command line as a user meets it: answers, streams, exit statuses (0 done, 1 failed, 2 wrong usage, 130 interrupted), messages.
set -u
dg=$DG_BUILD/diffgemma
look=$DG_BUILD/tests/check_file
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
out=$work/out err=$work/err
# under the sanitizers an answer takes many times as long: there one variant of a kind is enough
case $DG_BUILD in *asan* | *ubsan* | *tsan*) slow=yes ;; *) slow= ;; esac
bundled='diffgemma: using the bundled model'

pass() { echo "ok - $1"; }
miss() { # NAME WHY
    echo "not ok - $1: $2"
    sed 's/^/    out: /' "$out" | head -n 5 >&2
    sed 's/^/    err: /' "$err" | head -n 5 >&2
}
# Runs the program; its status in $status, its streams in $out and $err.
go() {
    timeout 300 "$dg" "$@" >"$out" 2>"$err" </dev/null
    status=$?
}
# stderr without the note on the bundled model
said() { grep -v "^$bundled" "$err"; }
# An expected failure: the status, one line on stderr that holds TEXT, nothing on stdout.
refused() { # NAME STATUS TEXT ARG...
    name=$1 want=$2 text=$3
    shift 3
    go "$@"
    judge "$name" "$want" "$text"
}
judge() { # NAME STATUS TEXT
    if [ "$status" -ne "$2" ]; then
        miss "$1" "status $status, not $2"
    elif [ -s "$out" ]; then
        miss "$1" "it wrote to standard output"
    elif [ "$(said | wc -l)" -ne 1 ]; then
        miss "$1" "$(said | wc -l) lines of reason"
    elif ! said | grep -qF -e "$3"; then
        miss "$1" "no word of '$3'"
    else
        pass "$1"
    fi
}
answers() { # NAME TEXT ARG...: status 0, stdout is TEXT and a newline
    name=$1 text=$2
    shift 2
    go "$@"
    if [ "$status" -ne 0 ]; then
        miss "$name" "status $status"
    elif [ "$(cat "$out")" != "$text" ] || [ "$(tail -c 1 "$out" | od -An -c | tr -d ' ')" != '\n' ]; then
        miss "$name" "it answered '$(cat "$out")'"
    else
        pass "$name"
    fi
}

sum="Compute 9 * 10."
story="Tell me a story about a horse."

# ---- answers ----
answers "ask answers on stdout" 90 ask -p "$sum"
if [ "$(wc -l <"$err")" -eq 1 ] && grep -q "^$bundled .*models/mini" "$err"; then
    pass "ask says on stderr that the bundled model answers"
else
    miss "ask says on stderr that the bundled model answers" "it says something else"
fi
answers "ask -m FOLDER" 90 ask -m "$DG_ROOT/models/mini" -p "$sum"
[ ! -s "$err" ] && pass "ask -m FOLDER is silent on stderr" || miss "ask -m FOLDER is silent on stderr" "it is not"
DGQ_MODEL=$DG_ROOT/models/mini answers "DGQ_MODEL" 90 ask -p "$sum"
printf '%s\n' "$sum" >"$work/prompt"
timeout 300 "$dg" ask -p - <"$work/prompt" >"$out" 2>"$err"
[ $? -eq 0 ] && [ "$(cat "$out")" = 90 ] && pass "ask -p - reads standard input" || miss "ask -p - reads standard input" "'$(cat "$out")'"
answers "ask --raw takes the token stream's text" 90 ask --raw \
    -p "<bos><|turn>user
$sum<turn|>
<|turn>model
<|channel>thought
<channel|>"
answers "ask --kv f32" 90 ask --kv f32 -p "$sum"
answers "ask --kv q8" 90 ask --backend cpu --kv q8 -p "$sum"
DGQ_KV_Q8=1 answers "DGQ_KV_Q8" 90 ask --backend cpu -p "$sum"
if [ ! "$slow" ]; then
    answers "ask --kv f16" 90 ask --kv f16 -p "$sum"
    answers "ask --backend ref" 90 ask --backend ref -p "$sum"
    answers "ask --backend cpu" 90 ask --backend cpu -p "$sum"
fi
answers "ask --ctx as small as fits" 90 ask --ctx 77 -p "$sum"
answers "ask --ctx the model's largest" 90 ask --ctx 4096 -p "$sum"
go ask --json --system "Answer briefly." -p "$sum" --steps 2
[ "$status" -eq 0 ] && [ "$("$look" json "$out" prompt_tokens)" -gt 16 ] && pass "ask --system" || miss "ask --system" "status $status"
# the thought is not the answer
go ask --think -p "What is 15 plus 21? Reply with only the number."
if [ "$status" -eq 0 ] && [ "$(cat "$out")" = 36 ] && said | grep -q 15; then
    pass "ask --think: the thought on stderr, the answer on stdout"
else
    miss "ask --think: the thought on stderr, the answer on stdout" "status $status"
fi
go ask -v -p "$sum"
if [ "$(cat "$out")" = 90 ] && grep -q '^block 1: 2 steps, stop confident' "$err" && grep -q 'tok/s' "$err"; then
    pass "ask -v: a line a block and the timings on stderr"
else
    miss "ask -v: a line a block and the timings on stderr" "they are not there"
fi

# ---- JSON ----
go ask --json -p "$sum"
if [ "$status" -eq 0 ] && [ "$(wc -l <"$out")" -eq 1 ] &&
    "$look" json "$out" text token_ids finish_reason stop_id blocks.0.steps blocks.0.stop_reason blocks.0.retries blocks.0.trimmed prompt_tokens >fields; then
    if [ "$(tr '\n' ' ' <fields)" = "90 [1356] stop 106 2 confident 0 false 13 " ]; then
        pass "ask --json: text, ids, reasons"
    else
        miss "ask --json: text, ids, reasons" "$(tr '\n' ' ' <fields)"
    fi
    "$look" json "$out" blocks.0.accepted blocks.0.mean_entropy timings.load_s timings.prefill_tok_s timings.s_per_step timings.tok_s >fields &&
        ! grep -qv '^[0-9][0-9.e+-]*$' fields && pass "ask --json: figures" || miss "ask --json: figures" "$(tr '\n' ' ' <fields)"
else
    miss "ask --json: text, ids, reasons" "status $status, or not one object with those fields"
fi
go ask --json -p "$story" --max-tokens 1 --seed 50 --steps 4
"$look" json "$out" finish_reason stop_id end token_ids.0 >fields
[ "$status" -eq 0 ] && [ "$(head -n 3 fields | tr '\n' ' ')" = "length null length " ] && ! "$look" json "$out" token_ids.1 2>/dev/null && pass "ask --json: a cut answer" ||
    miss "ask --json: a cut answer" "$(tr '\n' ' ' <fields)"
go ask --json -p 'Say "a\b" <|turn> é' --steps 2
"$look" json "$out" text >fields && pass "ask --json: an odd prompt" || miss "ask --json: an odd prompt" "no JSON"

# ---- the same again ----
go ask -p "$story" --steps 4 --max-tokens 60 --seed 7
cp "$out" first
same=yes
for k in ${slow:-1 3 4} 2; do
    [ "$k" = yes ] && continue
    go ask -p "$story" --steps 4 --max-tokens 60 --seed 7 --threads $k
    cmp -s "$out" first || same=no
done
[ -s first ] && [ $same = yes ] && pass "one seed, one answer: runs with one to four threads (A12)" ||
    miss "one seed, one answer: runs with one to four threads" "they differ"
go ask -p "$story" --steps 4 --max-tokens 60 --seed 8
[ "$status" -eq 0 ] && ! cmp -s "$out" first && pass "another seed, another story" || miss "another seed, another story" "the same"
go ask -p "$story" --steps 2 --max-tokens 60
cp "$out" first
go ask -p "$story" --steps 2 --max-tokens 60 --seed 42
cmp -s "$out" first && pass "the default seed is 42" || miss "the default seed is 42" "it is not"

# ---- limits ----
go ask -p "$story" --max-tokens 1 --steps 4
[ "$status" -eq 0 ] && [ "$(wc -w <"$out")" -eq 1 ] && said | grep -q 'max-tokens' && pass "ask --max-tokens 1: one token, and why" ||
    miss "ask --max-tokens 1: one token, and why" "status $status"
go ask -p "$story" --ctx 100 --steps 2
[ "$status" -eq 0 ] && [ -s "$out" ] && said | grep -q -- '--ctx' && pass "a full context ends the answer, and it is said" ||
    miss "a full context ends the answer, and it is said" "status $status"
go ask --json -p "$sum" --steps 3 --no-early-stop
"$look" json "$out" blocks.0.steps blocks.0.stop_reason >fields
[ "$(tr '\n' ' ' <fields)" = "3 max_steps " ] && pass "ask --steps and --no-early-stop" || miss "ask --steps and --no-early-stop" "$(tr '\n' ' ' <fields)"
refused "a context without room for a canvas" 2 "no room for one canvas of 64" ask -p "$sum" --ctx 10
refused "a context without room for prompt and canvas" 2 "13 tokens" ask -p "$sum" --ctx 76
refused "a context larger than the model's" 2 "4096" ask -p "$sum" --ctx 4097

# ---- canvas ----
seq 300 363 | tr '\n' ' ' >canvas
go ask --json -p "$sum" --canvas-ids canvas
"$look" json "$out" text >fields && [ "$(cat fields)" = 90 ] && pass "ask --canvas-ids" || miss "ask --canvas-ids" "$(cat fields)"
echo '[300, 301, 302]' >canvas
go ask --json -p "$sum" --canvas-ids canvas
"$look" json "$out" blocks.0.accepted >fields && [ "$(cat fields)" -le 3 ] && pass "a canvas of three" || miss "a canvas of three" "$(cat fields)"
seq 300 364 >canvas
refused "a canvas of too many" 2 "65 ids" ask -p "$sum" --canvas-ids canvas
: >canvas
refused "a canvas of none" 2 "0 ids" ask -p "$sum" --canvas-ids canvas
echo '1 2 x' >canvas
refused "a canvas with a word in it" 2 "'x" ask -p "$sum" --canvas-ids canvas
echo '1 -2' >canvas
refused "a canvas with a negative id" 2 "-2" ask -p "$sum" --canvas-ids canvas
echo '1 2.5' >canvas
refused "a canvas with a fraction" 2 ".5" ask -p "$sum" --canvas-ids canvas
echo '1 4096' >canvas
refused "a canvas with an id outside the vocabulary" 2 "4096" ask -p "$sum" --canvas-ids canvas
refused "a canvas file that is not there" 1 "nowhere" ask -p "$sum" --canvas-ids nowhere

# ---- usage ----
refused "no prompt" 2 "-p TEXT" ask
refused "an empty prompt" 2 "prompt is empty" ask -p ""
refused "a prompt of white space" 2 "prompt is empty" ask -p "  "
refused "an empty standard input" 2 "prompt is empty" ask -p -
refused "a prompt that is no UTF-8" 2 "UTF-8" ask -p "$(printf 'a\377b')"
refused "a system text that is no UTF-8" 2 "UTF-8" ask -p a --system "$(printf '\300\200')"
refused "a raw prompt that is no UTF-8" 2 "UTF-8" ask --raw -p "$(printf 'a\355\240\200')"
refused "an unknown option" 2 "unknown option --nope" ask --nope
refused "an unknown letter" 2 "unknown option -x" ask -x -p a
refused "an unknown letter among others" 2 "unknown option -x" ask -vx -p a
refused "a missing value" 2 "missing after --prompt" ask --prompt
refused "a missing value after a letter" 2 "missing after -t" ask -p a -t
refused "one argument too many" 2 "'extra'" ask -p a extra
refused "an unknown KV type" 2 "f16, f32" ask -p a --kv q9
refused "an unknown backend" 2 'no backend is called "gpu"' ask -p a --backend gpu
for bad in -1 1x "" " 1" +1 1.5 18446744073709551616; do
    refused "--seed '$bad'" 2 "whole number" ask -p a --seed "$bad"
done
for bad in -1 257 x "" " 1"; do
    refused "--threads '$bad'" 2 "whole number" ask -p a --threads "$bad"
done
refused "--max-tokens -5" 2 "whole number" ask -p a --max-tokens -5
refused "--steps 100001" 2 "whole number" ask -p a --steps 100001
refused "an unknown command" 2 "unknown command 'frobnicate'" frobnicate
go
[ "$status" -eq 2 ] && grep -q '^usage: diffgemma' "$err" && [ ! -s "$out" ] && pass "no command" || miss "no command" "status $status"
answers "the largest seed" 90 ask -p "$sum" --seed 18446744073709551615

# ---- no such model ----
refused "a folder that is not there" 2 "nowhere" ask -p a -m ./nowhere
HF_HOME=$work refused "a repo that is not downloaded" 2 "diffgemma download org/name" ask -p a -m org/name
mkdir -p empty other
refused "an empty folder" 1 "no config.json" ask -p a -m empty
refused "the same from summary" 1 "no config.json" summary -m empty
refused "the same from config" 1 "config.json" config -m empty
refused "the same from step-parity" 1 "no config.json" step-parity -p a -m empty
echo '{"model_type": "gemma4", "architectures": ["Gemma4ForCausalLM"], "text_config": {}}' >other/config.json
refused "a plain Gemma 4" 1 "Gemma 4" ask -p a -m other
echo '{' >other/config.json
refused "a broken config.json" 1 "config.json" ask -p a -m other
mkdir -p half && cp "$DG_ROOT"/models/mini/*.json half && rm half/tokenizer.json
refused "a folder without weights" 1 "half" ask -p a -m half
cp "$DG_ROOT"/models/mini/*.safetensors half
refused "a folder without a tokenizer" 1 "tokenizer.json" ask -p a -m half
cp "$DG_ROOT"/models/mini/tokenizer.json half && head -c 15000000 "$DG_ROOT/models/mini/model-00001.safetensors" >half/model-00001.safetensors
refused "weights cut short" 1 "model-00001.safetensors" ask -p a -m half
printf 'GGUF\003\000\000\000' >model.gguf
refused "a GGUF file" 2 "GGUF" ask -p a -m model.gguf

# ---- switches ----
export DGQ_KV_RING=3 DGQ_FREEZE=maybe DGQ_NOPE=1 DGQ_COMMIT_CONF_TRIM=2
refused "invalid switches" 2 "DGQ_KV_RING is '3'" ask -p a
all=yes
for v in DGQ_KV_RING DGQ_FREEZE DGQ_NOPE DGQ_COMMIT_CONF_TRIM; do
    said | grep -q "$v" || all=no
done
[ $all = yes ] && pass "every invalid switch is named" || miss "every invalid switch is named" "not all"
DGQ_CUDA_KERNELS=heads
export DGQ_CUDA_KERNELS
unset DGQ_KV_RING DGQ_FREEZE DGQ_NOPE DGQ_COMMIT_CONF_TRIM
refused "a wrong list of kernels, on the CPU too" 2 '"heads": give auto, portable, simple, or a list of' ask -p a --backend cpu
DGQ_CUDA_KERNELS=experts,head answers "a list of kernels on the CPU" 90 ask -p "$sum" --backend cpu
unset DGQ_CUDA_KERNELS
export DGQ_KV_RING=3 DGQ_NOPE=1
refused "invalid switches before a missing prompt" 2 "DGQ_NOPE" ask
refused "invalid switches, tokenize" 2 "DGQ_NOPE" tokenize -p a
refused "invalid switches, summary" 2 "DGQ_NOPE" summary
unset DGQ_KV_RING DGQ_FREEZE DGQ_NOPE DGQ_COMMIT_CONF_TRIM
DGQ_SC_SPARSE='' answers "an empty switch is an unset one" 90 ask -p "$sum"
DGQ_REFERENCE_STOPS=1 DGQ_FIRST_STEP_SC=none answers "the reference's mode" 90 ask -p "$sum"
for v in DENOISER_ARGMAX=0 FREEZE=1 ATTN_TOPK=0 ATTN_WINDOW=0 SC_SPARSE=0 KV_RING=16 EMPTY_REPLY_RETRY=0 COMMIT_CONF_TRIM=0; do
    [ "$slow" ] && [ $v != DENOISER_ARGMAX=0 ] && continue
    (export "DGQ_$v" && answers "DGQ_$v" 90 ask -p "$sum")
done
go flags
n=0
for v in ATTN_WINDOW ATTN_TOPK ATTN_TOPK_DYN ATTN_TOPK_K ATTN_TOPK_DECODE COMMIT_CONF_TRIM COMMIT_CONF_HARD CONTINUE_PAST_STOP WS_BLOCK_STOP DENOISER_ARGMAX \
    FREEZE EARLY_STOP_MEAN_ENT EMPTY_REPLY_RETRY REFERENCE_STOPS FIRST_STEP_SC SC_SPARSE KV_RING KV_Q8 HF_HOME MODEL CUDA_KERNELS TRACE_PMAX_JSONL; do
    grep -q "^DGQ_$v  *[a-z]* " "$out" || { n=$((n + 1)) && echo "flags lacks $v" >&2; }
done
[ "$status" -eq 0 ] && [ $n -eq 0 ] && pass "flags lists every switch" || miss "flags lists every switch" "$n missing"
DGQ_TRACE_PMAX_JSONL=$work/trace go ask -p "$sum"
head -n 1 trace >line
"$look" json line step temperature p_max.63 >fields && [ "$(wc -l <trace)" -eq 2 ] && pass "DGQ_TRACE_PMAX_JSONL: a line a step" ||
    miss "DGQ_TRACE_PMAX_JSONL: a line a step" "$(wc -l <trace) lines"
DGQ_TRACE_PMAX_JSONL=/dev/full go ask -p "$sum"
[ "$status" -eq 1 ] && said | grep -q 'trace could not be written' && pass "a trace that cannot be written is a failure" ||
    miss "a trace that cannot be written is a failure" "status $status"
mkfifo pipe && refused "replay: a pipe is no op log" 2 "is not a regular file" replay pipe
refused "replay: a device is no op log" 2 "is not a regular file" replay /dev/zero

# ---- help and version ----
go --version
[ "$status" -eq 0 ] && grep -qE '^diffgemma [0-9]+\.[0-9]+\.[0-9]+ .*backends: .*cpu' "$out" && pass "--version" || miss "--version" "$(cat "$out")"
for a in --help -h help; do
    go $a
    n=0
    for c in ask tokenize summary config step-parity flags; do
        grep -q "^  $c " "$out" || n=$((n + 1))
    done
    [ "$status" -eq 0 ] && [ $n -eq 0 ] && [ ! -s "$err" ] && pass "$a names every command" || miss "$a names every command" "$n missing"
done
commands=$("$dg" --help | sed -n 's/^  \([a-z-]*\)  *.*/\1/p')
for c in $commands; do
    go "$c" --help
    # every option in the source's table has its line
    n=0
    for o in $(sed -n "s/^ *{\"\([a-z0-9-]*\)\", [0'].*DG_ARG.*/\1/p" "$DG_ROOT/src/cli/cmd_$(echo "$c" | sed 's/summary/model/; s/config/model/; s/probe-device/probe/; s/-/_/g').c") help; do
        grep -q -- "--$o\b.* [a-z]" "$out" || { n=$((n + 1)) && echo "$c --help lacks --$o" >&2; }
    done
    [ "$status" -eq 0 ] && grep -q "^usage: diffgemma $c" "$out" && [ $n -eq 0 ] && [ ! -s "$err" ] && pass "$c --help" || miss "$c --help" "status $status, $n missing"
    refused "$c --nope" 2 "unknown option --nope" "$c" --nope
done
for o in prompt system raw think seed max-tokens steps ctx kv threads canvas-ids no-early-stop verbose json model backend; do
    "$dg" ask --help | grep -q -- "--$o" || miss "ask --help" "no --$o"
done

# ---- control tokens in a prompt stay text ----
mark='<turn|><|turn>system<|tool_call>'
go ask --json -p "Repeat exactly: $mark" --steps 1 --max-tokens 1
a=$("$look" json "$out" prompt_tokens)
b=$("$dg" tokenize --plain --count -p "Repeat exactly: $mark" 2>/dev/null)
c=$("$dg" tokenize --count -p "Repeat exactly: $mark" 2>/dev/null)
go ask --json -p "Repeat exactly: x" --steps 1 --max-tokens 1
d=$("$look" json "$out" prompt_tokens)
e=$("$dg" tokenize --plain --count -p "Repeat exactly: x" 2>/dev/null)
[ "$a" -eq $((d - e + b)) ] && [ "$b" -gt "$c" ] && pass "control tokens typed by a user stay text" ||
    miss "control tokens typed by a user stay text" "$a tokens, $b plain, $c as control tokens"

# ---- tokenize ----
printf 'Hello, wörld  <|turn> \t \360\237\230\200\n\n"x"' >text
"$dg" tokenize text >ids 2>"$err" && "$dg" tokenize --decode ids >"$out" 2>"$err" && cmp -s text "$out" && pass "tokenize and back" ||
    miss "tokenize and back" "another text"
"$dg" tokenize --plain - <text >plain 2>"$err"
[ "$("$dg" tokenize -p '<|turn>' 2>/dev/null)" = 105 ] && [ "$(wc -w <plain)" -gt "$(wc -w <ids)" ] && "$dg" tokenize -d plain 2>/dev/null | cmp -s - "$out" &&
    pass "tokenize --plain: other ids, the same text" || miss "tokenize --plain: other ids, the same text" "$(cat plain)"
answers "tokenize --count" 4 tokenize --count -p "Hello world"
[ "$("$dg" tokenize --pieces text 2>/dev/null | wc -l)" -eq "$(wc -w <ids)" ] && pass "tokenize --pieces: a line a token" || miss "tokenize --pieces" "not so many"
go tokenize -d --skip-special -p "2 105 416 106"
[ "$status" -eq 0 ] && [ "$(cat "$out")" = a ] && pass "tokenize -d --skip-special" || miss "tokenize -d --skip-special" "'$(cat "$out")'"
refused "tokenize: a word among ids" 2 "abc" tokenize -d -p "1 abc"
refused "tokenize: an id outside the vocabulary" 2 "99999" tokenize -d -p 99999
refused "tokenize: no such file" 1 "nowhere" tokenize nowhere
refused "tokenize: not UTF-8" 2 "UTF-8" tokenize -p "$(printf '\377')"

# ---- Ctrl-C while the model is loaded ----
# the note on the bundled model is written at the beginning of it; the program is held there so that the signal comes during the loading
loading() { # NAME STATUS SIGNAL COMMAND...
    name=$1 want=$2 signal=$3
    shift 3
    rm -f fifo && mkfifo fifo && : >"$err"
    timeout 60 env --default-signal=INT "$dg" "$@" <fifo >"$out" 2>"$err" &
    pid=$!
    exec 8>fifo
    i=0
    until grep -q "$bundled" "$err" || [ $i -gt 5000 ]; do i=$((i + 1)); done
    child=$(pgrep -P $pid)
    kill -STOP "$child"
    start=$(date +%s)
    kill -"$signal" "$child"
    kill -CONT "$child"
    wait $pid
    status=$?
    exec 8>&-
    took=$(($(date +%s) - start))
    if [ $status -eq "$want" ] && [ $took -le 10 ]; then pass "$name"; else miss "$name" "status $status after $took s"; fi
}
if command -v pgrep >/dev/null && env --default-signal=INT true 2>/dev/null; then
    for n in 1 2 3; do
        loading "Ctrl-C while a chat loads its model, $n" 130 INT chat
        loading "Ctrl-C while a question's model is loaded, $n" 130 INT ask -p "$story"
    done
    loading "SIGTERM while a chat loads its model" 143 TERM chat
else
    echo "ok - Ctrl-C while a model is loaded # SKIP no pgrep, or an env without --default-signal"
fi

# ---- what cut an answer ----
for o in max-tokens steps ctx; do
    refused "--$o 0" 2 "--$o 0: give a whole number from 1" ask -p a --$o 0
done
for o in max-tokens steps think-max; do
    refused "chat --$o 0" 2 "--$o 0: give a whole number from 1" chat --$o 0
done
cut_by() { # NAME TEXT END ARG...: what stderr says, and what --json gives as end
    name=$1 text=$2 end=$3
    shift 3
    go ask "$@"
    said | grep -qF -e "the answer was cut: $text" || { miss "$name" "no word of '$text'"; return; }
    go ask --json "$@"
    if grep -q "\"end\":\"$end\"" "$out" && grep -q '"finish_reason":"length"' "$out"; then pass "$name"; else miss "$name" "not '$end'"; fi
}
cut_by "the tokens are used up" "--max-tokens is used up" length -p "$story" -n 5 --steps 2
cut_by "the context is full" "the context is full" length -p "$story" --ctx 90 --steps 2
DGQ_COMMIT_CONF_HARD=1
export DGQ_COMMIT_CONF_HARD
cut_by "the blocks are used up" "too many of its blocks were trimmed" blocks -p "$story" -n 50 --steps 4
unset DGQ_COMMIT_CONF_HARD

# ---- the detector of delimiters that do not match (A14) ----
# a story stopped after three steps has doubled words and odd quotes; an answer that converged has none
DGQ_DELIM_CHECK=1 DGQ_DELIM_CHECK_JSONL=$work/delims
export DGQ_DELIM_CHECK DGQ_DELIM_CHECK_JSONL
go ask -p "$story" --steps 3
if [ "$status" -eq 0 ] && said | grep -q 'delimiters: .* doubled words in'; then pass "DGQ_DELIM_CHECK: a reply that did not converge"; else miss "DGQ_DELIM_CHECK" "status $status"; fi
go ask -p "$sum"
if [ "$status" -eq 0 ] && ! said | grep -q delimiters; then pass "DGQ_DELIM_CHECK: one that did"; else miss "DGQ_DELIM_CHECK: an answer" "status $status"; fi
printf '%s\n%s\n' "$story" "$sum" | timeout 300 "$dg" chat --steps 3 --seed 7 >"$out" 2>"$err"
if [ "$(grep -c '"seed":"42"' delims)" -eq 2 ] && [ "$(grep -c '"seed":"[78]"' delims)" -eq 2 ] && [ "$(grep -vc '"doubled":0' delims)" -eq 2 ] &&
    [ "$(grep -c 'diffgemma chat: delimiters' "$err")" -eq 1 ]; then
    pass "DGQ_DELIM_CHECK_JSONL: a line a reply"
else
    miss "DGQ_DELIM_CHECK_JSONL" "$(cat delims)"
fi
unset DGQ_DELIM_CHECK
DGQ_DELIM_CHECK_JSONL=/dev/full
go ask -p "$sum"
if [ "$status" -eq 1 ] && said | grep -q 'DGQ_DELIM_CHECK_JSONL: cannot append'; then pass "DGQ_DELIM_CHECK_JSONL: a full disk is told"; else miss "DGQ_DELIM_CHECK_JSONL: a full disk" "status $status"; fi
unset DGQ_DELIM_CHECK_JSONL

# ---- config, summary, step-parity ----
go config
"$look" json "$out" vocab_size hidden_size canvas_length sliding_window layers.2.head_dim layers.2.num_key_value_heads layers.0.type stop_token_ids >fields
[ "$status" -eq 0 ] && [ "$(tr '\n' ' ' <fields)" = "4096 256 64 128 128 1 sliding_attention [1,106,50] " ] && pass "config" || miss "config" "$(tr '\n' ' ' <fields)"
go summary
[ "$status" -eq 0 ] && grep -q '14639104 parameters' "$out" && grep -q '16 experts of 128, 4 a token' "$out" && pass "summary" || miss "summary" "status $status"
cache() { sed -n 's/.*KV cache at context \([0-9]*\): \([0-9.]*\) MiB.*/\1 \2/p' "$out"; }
big=$(cache)
DGQ_KV_RING=512 go summary
[ "${big% *}" = "$(cache | cut -d ' ' -f 1)" ] && [ "$(echo "${big#* } $(cache | cut -d ' ' -f 2)" | awk '{ print ($1 > 2 * $2) }')" = 1 ] &&
    pass "summary: the cache of a smaller ring ($big, $(cache))" || miss "summary: the ring" "$big, $(cache)"
go step-parity -p "$sum" --dump dump
if [ "$status" -eq 0 ] && grep -q '^logits .*argmax 64 of 64 equal' "$out" && [ "$(grep -c '^layer[0-5].out' "$out")" -eq 6 ]; then
    pass "step-parity compares every layer and the logits"
else
    miss "step-parity compares every layer and the logits" "status $status"
fi
good=yes
for f in oracle other; do
    "$look" st dump/$f.safetensors >tensors || good=no
    for want in 'embed F32 64 256' 'preamble F32 64 256' 'layer0.attn F32 64 256' 'layer2.attn F32 64 512' 'layer5.expert I32 64 4' 'layer5.expert_weight F32 64 4' \
        'layer3.out F32 64 256' 'logits F32 64 4096'; do
        grep -qx "$want" tensors || { good=no && echo "dump/$f lacks $want" >&2; }
    done
done
[ $good = yes ] && pass "step-parity --dump: safetensors of every layer" || miss "step-parity --dump: safetensors of every layer" "not so"
go step-parity -p "$sum" --backend ref --kv f32 --chunk 3 --threads 2
if [ "$status" -eq 0 ] && ! grep ' max ' "$out" | grep -qv ' max 0  '; then
    pass "step-parity: the same path in other chunks and threads is the same to the bit"
else
    miss "step-parity: the same path in other chunks and threads is the same to the bit" "$(grep -v ' max 0  ' "$out" | head -n 2)"
fi
refused "step-parity: no prompt" 2 "-p TEXT" step-parity
refused "step-parity --sc" 2 "seed, none" step-parity -p a --sc soft
go step-parity -p a --dump /proc/nowhere
[ "$status" -eq 1 ] && said | grep -q /proc/nowhere && pass "step-parity: a folder that cannot be made" || miss "step-parity: a folder that cannot be made" "status $status"

# ---- bench ----
shape=$DG_ROOT/models/mini/config.json
refused "bench: of what" 2 "bench" bench
refused "bench: an unknown kind" 2 "'steps' is none of step, prefill, load, turn" bench steps
refused "bench: two kinds" 2 "unexpected argument 'load'" bench step load
refused "bench: a model and a shape" 2 "not both" bench step -m "$DG_ROOT/models/mini" --synth "$shape"
refused "bench: --layers without a shape" 2 "--layers goes with --synth" bench step --layers 1
refused "bench: --experts without a shape" 2 "--experts goes with --synth" bench step --experts q6
refused "bench: --brief of a prefill" 2 "--brief has no meaning for bench prefill" bench prefill --brief
refused "bench: --passes of a prefill" 2 "--passes has no meaning for bench prefill" bench prefill --passes 5
refused "bench: --energy of a prefill" 2 "--energy has no meaning for bench prefill" bench prefill --energy
refused "bench: --energy on a CPU" 2 "goes with --backend cuda" bench step --energy 0.5 --backend cpu
for v in 0 0.0 -1 601 1. .5 1e1 x ''; do
    refused "bench --energy='$v'" 2 "give seconds, more than 0 and at most 600" bench step "--energy=$v"
done
refused "bench: two values of --energy" 2 "unexpected argument '3'" bench --energy 2 step 3
refused "bench: --ctx of a load" 2 "--ctx has no meaning for bench load" bench load --ctx 5
refused "bench: --prompt of a step" 2 "--prompt has no meaning for bench step" bench step -p Hello
refused "bench: -n of a model's turn" 2 "the prompt of a turn of a model is a text" bench turn -n 5
refused "bench: a text for random weights" 2 "no tokenizer for --prompt" bench turn --synth "$shape" -p Hello
refused "bench: two lengths" 2 "give one" bench prefill -n 5 --ctx 6
refused "bench: rows of a shape" 2 "a canvas of this model has" bench step --synth "$shape" --rows 65000 --backend cpu
refused "bench: a context of a shape" 2 "more than this model's" bench step --synth "$shape" --ctx 10000000 --backend cpu
refused "an unknown level, whatever the backend" 2 'CPU level "junk"' bench step --backend ref --cpu junk
cp -r "$DG_ROOT/models/mini" "$work/nan"
printf '\377\177' | dd of="$work/nan/model-00001.safetensors" bs=1 seek=$(($(wc -c <"$work/nan/model-00001.safetensors") - 2)) conv=notrunc 2>"$err"
refused "bench --repeat 0" 2 "--repeat 0: give a whole number from 1" bench step --repeat 0
refused "bench: more rows than a canvas" 2 "a canvas of this model has 64 positions" bench step --rows 65 --backend cpu
refused "bench: a context too large" 2 "more than this model's" bench step --ctx 10000000 --backend cpu
refused "bench: an unknown format" 2 "one of q4, q6, nvfp4, bf16" bench step --synth "$shape" --experts q5 --backend cpu
refused "bench: survivors neither few nor many" 2 "one of few, many" bench step --synth "$shape" --survivors some --backend cpu
refused "bench: many survivors in a pack" 2 "whose rows keep few survivors" bench step --synth "$shape" --survivors many --backend cpu
refused "bench: a spread of few survivors" 2 "--spread goes with --survivors many" bench step --synth "$shape" --survivors few --spread 5
refused "bench: --survivors without a shape" 2 "--survivors goes with --synth" bench step --survivors few
refused "bench: bf16 experts in a pack" 2 "on a GPU" bench step --synth "$shape" --experts bf16 --backend cpu
refused "bench: more layers than the shape has" 2 "--layers 7: the shape has 6" bench step --synth "$shape" --layers 7 --backend cpu
refused "bench: no such shape" 1 "nowhere.json" bench step --synth nowhere.json --backend cpu
refused "bench: a wrong --kv" 2 "one of f16, f32, q8" bench step --kv f8 --backend cpu
refused "bench: wrong kernels" 2 '"heads": give auto, portable, simple' bench step --kernels heads --backend cpu
# NAME ROWS ARG...: status 0, comments, the header, then rows of as many columns, numbers or nothing, in order least <= median <= largest; ROWS among them
csv() {
    name=$1 rows=$2
    shift 2
    go bench "$@"
    lacks=
    for r in $rows; do
        grep -q "^$r,[1-9]" "$out" || lacks="$lacks $r"
    done
    wrong=$(awk -F, '/^#/ { next }
        !n++ { if ($0 != "what,n,ms,ms_min,ms_max,ms_each,per_s,MB,GB_s,of_copy,TFLOPs,of_gemm") print "the header"; next }
        NF != 12 || !($3 > 0 && $4 <= $3 && $3 <= $5) { print $0 }
        { for (i = 2; i <= NF; i++) if ($i !~ /^[0-9.]*$/) print $0 }' "$out")
    if [ "$status" -eq 0 ] && [ -z "$lacks$wrong" ] && [ "$(head -n 1 "$out")" = "# diffgemma bench $*" ]; then pass "$name"; else miss "$name" "status $status, lacks '$lacks', '$wrong'"; fi
}
before=$(find /dev/shm "${TMPDIR:-/tmp}" -maxdepth 1 -name 'diffgemma-bench-*' 2>/dev/null | wc -l)
csv "bench step of random weights" "qkv_full attention_full experts_full norms_full head_and_stats row_stats soft_sparse soft_exact step_sparse loop_sparse step_exact loop_exact" \
    step --synth "$shape" --layers 1 --rows 4 --ctx 5 --repeat 2 --steps 2 --backend cpu
good=yes
for words in '^# copy [1-9]' '^# product [0-9.]* TFLOP/s' '^# random weights: few survivors a row' '^# survivors a row: mean [1-9]' '^# mean entropy [0-9.]*, again the same in 2 passes'; do
    grep -q "$words" "$out" || good="no $words"
done
[ "$good" = yes ] && pass "bench step: floors, survivors and a step that repeats" || miss "bench step: floors, survivors and a step that repeats" "$good"
# the loop of two steps moves twice what a step does, the exact step reads the embedding (2 MiB in bf16) once more
awk -F, '{ mb[$1] = $8 } END { d = mb["loop_sparse"] - 2 * mb["step_sparse"]; e = mb["step_exact"] - mb["step_sparse"] - 2.097
    exit !(mb["step_sparse"] > 2 && d * d < 0.0001 && e * e < 0.0001) }' "$out" && pass "bench step: bytes that must move" ||
    miss "bench step: bytes that must move" "$(grep -E '^(step|loop)' "$out" | cut -d, -f 1,8 | tr '\n' ' ')"
csv "bench step --no-ops of a model" "step_sparse loop_exact" step -m "$DG_ROOT/models/mini" --no-ops --rows 2 --ctx 0 --repeat 1 --steps 1 --passes 5 --backend cpu
grep -q '^qkv' "$out" && miss "bench --no-ops" "ops all the same" || pass "bench --no-ops"
grep -q "again the same in 5 passes" "$out" && pass "bench step --passes" || miss "bench step --passes" "$(grep entropy "$out")"
go bench step -m "$work/nan" --brief --no-ops --repeat 1 --backend cpu
[ "$status" -eq 1 ] && said | grep -q "the logits hold NaN" && ! grep -q '^step' "$out" && pass "bench of a model with NaN" || miss "bench of a model with NaN" "status $status"
csv "bench prefill" "qkv_sliding down_full prefill" prefill -m "$DG_ROOT/models/mini" -n 70 --rows 32 --repeat 1 --backend cpu
[ "$(grep '^prefill' "$out" | cut -d, -f 2)" = 70 ] && pass "bench prefill: tokens" || miss "bench prefill: tokens" "$(grep '^prefill' "$out")"
grep -q '^# keys of the last layer [0-9a-f]*, the same in 2 prefills$' "$out" && pass "bench prefill: the same keys" || miss "bench prefill: the same keys" "$(grep '^#' "$out" | tail -n 1)"
csv "bench load" "open ready" load -m "$DG_ROOT/models/mini" --repeat 3 --backend cpu
csv "bench load of random weights" "open ready" load --synth "$shape" --layers 1 --experts nvfp4 --repeat 1 --backend cpu
csv "bench turn" "prompt steps first_text turn" turn -m "$DG_ROOT/models/mini" -p "Compute 9." --repeat 1 --backend cpu
csv "bench turn of random weights" "prompt steps first_text turn" turn --synth "$shape" --layers 1 -n 7 --steps 3 --repeat 1 --backend cpu
[ "$(grep -cE '^(prompt,7|steps,3|turn,64),' "$out")" -eq 3 ] && pass "bench turn: tokens and steps" || miss "bench turn: tokens and steps" "$(cut -d, -f 1,2 "$out" | tail -n 4 | tr '\n' ' ')"
: >"$out" # what the last one wrote would look like this one's beginning
env --default-signal=INT "$dg" bench load --synth "$shape" --layers 1 --repeat 1000 --backend cpu >"$out" 2>"$err" </dev/null &
pid=$!
i=0
while [ ! -s "$out" ] && [ $i -lt 600 ]; do
    sleep 0.1
    i=$((i + 1))
done
kill -INT $pid
wait $pid
status=$?
[ "$status" -eq 130 ] && said | grep -q interrupted && pass "Ctrl-C ends a bench" || miss "Ctrl-C ends a bench" "status $status"
[ "$(find /dev/shm "${TMPDIR:-/tmp}" -maxdepth 1 -name 'diffgemma-bench-*' 2>/dev/null | wc -l)" -eq "$before" ] && pass "bench leaves nothing behind" ||
    miss "bench leaves nothing behind" "folders diffgemma-bench-*"

# ---- outputs that cannot be written, nothing said at all ----
cannot() { # NAME: judged by $status and $err
    if [ "$status" -ne 0 ] && [ "$status" -lt 128 ] && [ "$(said | wc -l)" -eq 1 ] && said | grep -q 'standard output'; then
        pass "$1"
    else
        miss "$1" "status $status, $(said | wc -l) lines"
    fi
}
: >"$out"
for args in "ask -p Compute.9 --max-tokens 3 --steps 2" "ask --json -p Hello --max-tokens 3 --steps 2" "tokenize -p a" "config" "summary" "flags" "--version" "--help" "ask --help"; do
    # shellcheck disable=SC2086
    timeout 300 "$dg" $args 2>"$err" </dev/null >&-
    status=$?
    cannot "a closed standard output: $args"
    if [ -w /dev/full ]; then
        # shellcheck disable=SC2086
        timeout 300 "$dg" $args 2>"$err" </dev/null >/dev/full
        status=$?
        cannot "a full disk: $args"
    fi
done
timeout 300 "$dg" step-parity -p a --dump closed 2>"$err" </dev/null >&-
status=$?
sed -i '/wrote closed/d' "$err"
cannot "a closed standard output: step-parity --dump"
"$look" st closed/oracle.safetensors >/dev/null && "$look" st closed/other.safetensors >/dev/null && pass "the dump is no place for what stdout cannot take" ||
    miss "the dump is no place for what stdout cannot take" "damaged"
timeout 300 "$dg" ask -p "$sum" >"$out" 2>&- <&-
[ $? -eq 0 ] && [ "$(cat "$out")" = 90 ] && pass "without standard input and error" || miss "without standard input and error" "$(cat "$out")"
: >"$err"
# a model that stops at once: no answer is no success
go ask --backend ref -p hi # what is near a tie is the same everywhere there
[ ! -s "$out" ] || miss "an answer of nothing" "the prompt no longer gives an empty answer: $(cat "$out")"
judge "an answer of nothing is status 1 and a reason" 1 "empty"

# ---- Ctrl-C ----
DGQ_TRACE_PMAX_JSONL=$work/begun "$dg" ask -p "$story" --seed 50 --steps 400 --no-early-stop >"$out" 2>"$err" </dev/null &
pid=$!
i=0
while [ ! -e begun ] && [ $i -lt 600 ]; do # the trace is opened when the work begins
    sleep 0.1
    i=$((i + 1))
done
sleep 1
kill -INT $pid
begin=$(date +%s)
wait $pid
status=$?
took=$(($(date +%s) - begin))
[ "$status" -eq 130 ] && [ $took -le 10 ] && pass "Ctrl-C ends an answer" || miss "Ctrl-C ends an answer" "status $status after $took s"
# after the first block its text stays
"$dg" ask -p "$story" --seed 50 --steps 12 --no-early-stop >"$out" 2>"$err" </dev/null &
pid=$!
i=0
while [ ! -s "$out" ] && [ $i -lt 1500 ]; do
    sleep 0.1
    i=$((i + 1))
done
kill -INT $pid
begin=$(date +%s)
wait $pid
status=$?
took=$(($(date +%s) - begin))
if [ "$status" -eq 130 ] && [ $took -le 10 ] && grep -q '[a-z]' "$out" && [ "$(tail -c 1 "$out" | od -An -c | tr -d ' ')" = '\n' ] && [ "$(said | wc -l)" -eq 1 ]; then
    pass "Ctrl-C keeps the text of finished blocks"
else
    miss "Ctrl-C keeps the text of finished blocks" "status $status after $took s"
fi
