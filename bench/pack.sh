#!/bin/sh
# Measures the pack commands at the shape of the 26B model; prints CSV with the command beside each row: bench/pack.sh BUILD FOLDER
#
# FOLDER: where 25 GB may be written; it is emptied again. Source and output lie in the page cache as far as memory allows. Rates are of
# source bytes a second of processor time (user and system), so that other work on the machine counts little, and of wall time.
set -eu
build=${1:?usage: bench/pack.sh BUILD FOLDER}
dir=${2:?usage: bench/pack.sh BUILD FOLDER}
D=$build/diffgemma
work=$dir/diffgemma-bench-pack
mkdir "$work"
trap 'rm -rf "$work"' EXIT
bytes() { find "$1" -type f -name "$2" -exec stat -Lc %s {} + | awk '{ s += $1 } END { print s }'; }
echo "what,figure,unit,command"

timed() { # SOURCE_BYTES command...: sets $wall $cpu $peak
    n=$1
    shift
    command time -f '%e %U %S %M' -o "$work/time" "$@" >"$work/out"
    read -r wall user system peak <"$work/time"
    cpu=$(echo "$user $system" | awk '{ print $1 + $2 }')
}
rows() { # WHAT SOURCE_BYTES COMMAND
    echo "$2 $wall $cpu" | awk -v w="$1" -v c="$3" '{ printf "%s per core,%.0f,MB/s,%s\n%s wall,%.0f,MB/s,%s\n", w, $1 / 1e6 / $3, c, w, $1 / 1e6 / $2, c }'
    echo "$1 peak memory,$((peak / 1024)),MiB,$3"
}

"$D" synth -q --shape 26b-a4b --layers 2 --checkpoint --shards 4 -o "$work/src" >/dev/null
n=$(bytes "$work/src" '*.safetensors')
cat "$work"/src/*.safetensors >/dev/null
for p in q4 q6 nvfp4; do
    timed "$n" "$D" quantize -q -m "$work/src" -o "$work/$p" --profile $p -t 1
    rows "quantize $p one thread" "$n" "diffgemma quantize --profile $p -t 1 (26B shape; 2 layers in 4 shards)"
    rm -rf "${work:?}/$p"
done
timed "$n" "$D" quantize -q -m "$work/src" -o "$work/q4" --profile q4
rows "quantize q4 all threads" "$n" "diffgemma quantize --profile q4 (26B shape; 2 layers in 4 shards)"
timed "$n" "$D" verify -q -m "$work/q4" --source "$work/src"
rows "verify q4 against source" "$n" "diffgemma verify --source (26B shape; 2 layers)"
rm -rf "$work/q4" "$work/src"

timed 0 "$D" synth -q --shape 26b-a4b --profile q4 -o "$work/real"
b=$(stat -c %s "$work/real/model.dgq.bin")
echo "26B shape 30 layers q4 blob,$(echo "$b" | awk '{ printf "%.3f", $1 / 1073741824 }'),GiB,diffgemma synth --shape 26b-a4b --profile q4"
echo "26B shape 30 layers q4 synth,$wall,s,diffgemma synth --shape 26b-a4b --profile q4"
timed 0 "$D" summary -m "$work/real"
echo "26B shape 30 layers q4 open,$wall,s,diffgemma summary"
echo "26B shape 30 layers q4 open peak memory,$((peak / 1024)),MiB,diffgemma summary"
