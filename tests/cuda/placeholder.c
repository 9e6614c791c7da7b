/* Stands in for every compiled image: the stub driver has its own kernels. */
#include "ops/cuda/images.h"

static const unsigned char none[1];
const struct dg_cuda_blob dg_cuda_images[] = {{"*", none, none + 1}};
const size_t dg_cuda_n_images = 1;
const struct dg_cuda_blob dg_cuda_sources[] = {{0, 0, 0}};
const size_t dg_cuda_n_sources = 0;
