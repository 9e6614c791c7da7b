#!/bin/sh
# Damaged tokenizer.json files and odd texts: the file itself, then mutations of it with a fixed seed.
run() { # name, arguments
    name=$1
    shift
    out=$("$DG_BUILD/tests/fuzz_tokenizer" "$@" 2>&1) && echo "ok - $name" || echo "not ok - $name: $(echo "$out" | tail -n 3 | tr '\n' ' ')"
}
tiny=$DG_ROOT/tests/data/tiny_tokenizer.json
run "the file itself" "$tiny"
run "2000 mutations of tokenizer.json" --mutate 1 2000 "$tiny"
run "300 mutations of text" --mutate 2 300 "$DG_ROOT/Makefile" "$tiny"
