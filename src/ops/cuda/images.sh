#!/bin/sh
# Writes the C file that embeds compiled kernels and their sources: images.sh SOURCE... -- [FATBIN...]
# Sources are named by their path below src/.
set -eu
list=sources images= sources= n=0 n_images=0 n_sources=0
echo '#include "ops/cuda/images.h"'
for f in "$@"; do
    if [ "$f" = -- ]; then
        list=images
        continue
    fi
    sym=dg_cuda_blob_$n
    n=$((n + 1))
    printf '__asm__(".section .rodata\\n.balign 64\\n.global %s\\n%s:\\n.incbin \\"%s\\"\\n.global %s_end\\n%s_end:\\n.byte 0\\n.previous");\n' \
        $sym $sym "$f" $sym $sym
    echo "extern const unsigned char $sym[], ${sym}_end[];"
    if [ $list = images ]; then
        name=$(basename "$f" .fatbin)
        images="$images    {\"$name\", $sym, ${sym}_end},
" n_images=$((n_images + 1))
    else
        sources="$sources    {\"${f#src/}\", $sym, ${sym}_end},
" n_sources=$((n_sources + 1))
    fi
done
printf 'const struct dg_cuda_blob dg_cuda_images[] = {\n%s    {0, 0, 0},\n};\nconst size_t dg_cuda_n_images = %d;\n' "$images" $n_images
printf 'const struct dg_cuda_blob dg_cuda_sources[] = {\n%s    {0, 0, 0},\n};\nconst size_t dg_cuda_n_sources = %d;\n' "$sources" $n_sources
