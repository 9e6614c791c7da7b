# The oracle folders of tests/data, unpacked once into the build folder; sourced. $dirs: their folders, empty when there are none. Several
# scripts may ask at a time: one unpacks, the others wait.
out=$DG_BUILD/test-data/oracle
unpack() { # SOURCE TARGET
    dst=$2
    mkdir -p "$dst" || return 1
    for f in "$1"/*; do
        base=$(basename "$f")
        to=$dst/${base%.xz}
        [ "$to" -nt "$f" ] && continue
        # under another name first: a cut file must never look unpacked
        case $base in
        *.xz) xz -dc "$f" >"$to.part" ;;
        *) cat "$f" >"$to.part" ;;
        esac && mv "$to.part" "$to" || return 1
    done
}

dirs=
mkdir -p "$out" && exec 8>"$out.lock" && flock 8
for src in "$DG_ROOT"/tests/data/oracle/*/; do
    name=$(basename "$src")
    if unpack "${src%/}" "$out/$name"; then
        dirs="$dirs $out/$name"
    else
        echo "not ok - unpack $name: see the messages above (xz-utils installed?)"
    fi
done
exec 8>&-
