# The ids of every rendered template vector, with the full-size tokenizer that tokenizer_big.sh (which runs before) left behind.
# alone
file=$DG_ROOT/.cache/tokenizer/tokenizer.json
if [ ! -f "$file" ]; then
    echo "ok - ids of the template vectors # SKIP the full-size tokenizer could not be built"
elif out=$("$DG_BUILD/tests/template_vectors" "$DG_ROOT/tests/data/template_vectors.json" --tokenizer "$file"); then
    echo "ok - ids of the template vectors: $(echo "$out" | tail -n 1)"
else
    echo "$out" | tail -n 40 >&2
    echo "not ok - ids of the template vectors: $(echo "$out" | tail -n 1)"
fi
