#!/bin/sh
# Shows that arrows between the rooms of src/ point down only: tools/check_layers.sh [ROOT]
#
# A room is a folder of src/. Each `#include "ROOM/..."` is an arrow; the table below says which arrows a room may have besides those
# to itself. A room that is not in the table, and an arrow that is not in its row, is printed as FILE:LINE: WHY. Status 1 when any was
# found. docs/architecture.md draws the same picture.
#
# The folder model/ holds three rooms, told apart by file:
#   shape    model/config.h, model/model.h: what a model is, as plain data. The op table is written in these terms.
#   binding  model/config.c, model/model.c: how that data comes out of files.
#   model    the rest: the forward pass, its planes, the KV cache, written over the op table.
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
files=$(find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort)
[ -n "$files" ] || { echo "no source under $(pwd)/src"; exit 2; }

# shellcheck disable=SC2086
awk '
BEGIN {
    may["core"] = ""
    may["formats"] = "core"
    may["tokenizer"] = "core"
    may["template"] = "core"
    may["net"] = "core"
    may["pack"] = "core formats net"
    may["shape"] = "core formats"
    may["binding"] = "core formats pack shape"
    may["convert"] = "core formats pack shape"
    may["ops"] = "core formats shape"
    may["sampler"] = "core shape"
    may["model"] = "core formats shape ops"
    may["session"] = "core shape ops sampler model"
    may["pipeline"] = "core formats shape ops sampler model session"
    may["message"] = "core tokenizer template sampler session pipeline"
    may["chat"] = "core tokenizer template sampler session pipeline message"
    may["cli"] = "*"
}
# room of a path below src/
function room(path) {
    if (path == "model/config.h" || path == "model/model.h")
        return "shape"
    if (path == "model/config.c" || path == "model/model.c")
        return "binding"
    return substr(path, 1, index(path, "/") - 1)
}
function fault(why) {
    print FILENAME ":" FNR ": " why
    n_faults++
}
FNR == 1 {
    own = substr(FILENAME, 5)
    from = room(own)
    if (!(from in may))
        fault("the room " from "/ is not in the table of tools/check_layers.sh: add it with what it may include")
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, part, "\"")
    to = index(part[2], "/") ? room(part[2]) : from # no folder in it: a neighbour
    n_arrows++
    if (to == from || !(from in may) || may[from] == "*")
        next
    if (index(" " may[from] " ", " " to " ") == 0)
        fault(from " must not include \"" part[2] "\": it may see " (may[from] == "" ? "nothing above the C library" : may[from]))
}
END {
    if (n_faults)
        exit 1
    print n_arrows " includes, every arrow points down"
}' $files
