/* Tells cpu_ops that the AVX-512 kernels it is linked with run without AVX-512. */
#include <stdbool.h>

extern const bool cpu_ops_emulated;
const bool cpu_ops_emulated = true;
