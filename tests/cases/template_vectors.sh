# Every template vector: rendered text, or an error where the template has none (the ids: tokenizer_prompt_ids.sh).
# template_vectors.json holds chosen cases, template_generated.json random ones; both were rendered by the template itself.
for v in template_vectors template_generated; do
    if out=$("$DG_BUILD/tests/template_vectors" "$DG_ROOT/tests/data/$v.json"); then
        echo "ok - $v: $(echo "$out" | tail -n 1)"
    else
        echo "$out" | tail -n 40 >&2
        echo "not ok - $v: $(echo "$out" | tail -n 1)"
    fi
done
