#!/bin/sh
# The rooms of src/ include downwards only, and the check itself notices an arrow that points up and a room it does not know.
tree=$(mktemp -d) || exit 1
trap 'rm -rf "$tree"' EXIT

if out=$("$DG_ROOT/tools/check_layers.sh" "$DG_ROOT"); then
    echo "ok - $out"
else
    echo "$out" >&2
    echo "not ok - arrows of src/: $(echo "$out" | head -n 1) ($(echo "$out" | wc -l) in all)"
fi

planted() { # NAME FILE INCLUDED WORDS: a tree of this one file must be refused in these words
    rm -rf "$tree/src"
    mkdir -p "$tree/src/$(dirname "$2")"
    printf '/* x */\n#include "%s"\n' "$3" >"$tree/src/$2"
    out=$("$DG_ROOT/tools/check_layers.sh" "$tree") && out="accepted: $out"
    case $out in
    *"src/$2:"*"$4"*) echo "ok - $1 is refused" ;;
    *) echo "not ok - $1: $out" ;;
    esac
}
planted "an arrow that points up" core/buf.c session/session.h "core must not include \"session/session.h\""
planted "an op that opens files" ops/ref/ref.c pack/store.h "ops must not include"
planted "a forward pass in the sampler" sampler/commit.h model/forward.h "sampler must not include"
planted "a header of the model's shape that sees the files" model/model.h pack/store.h "shape must not include"
planted "an unknown room" attic/old.c core/buf.h "not in the table"
