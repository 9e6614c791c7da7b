/* What the build embeds: one compiled image a kernel file, and the sources for compiling at run time. */
#ifndef DG_OPS_CUDA_IMAGES_H
#define DG_OPS_CUDA_IMAGES_H

#include <stddef.h>

struct dg_cuda_blob {
    const char *name; /* of an image: its file without folder and ending, or "*" for any; of a source: the path it is included under */
    const unsigned char *data, *end;
};

extern const struct dg_cuda_blob dg_cuda_images[];
extern const size_t dg_cuda_n_images; /* 0 when the build had no nvcc */
extern const struct dg_cuda_blob dg_cuda_sources[];
extern const size_t dg_cuda_n_sources;

#endif
