#include "pack/dtype.h"

#include <string.h>

static const struct dg_dtype_info dtypes[] = {
    {"BF16", 16, DG_FMT_BF16},     {"F16", 16, DG_FMT_F16},       {"F32", 32, DG_FMT_F32},       {"BOOL", 8, DG_FMT_COUNT},
    {"U8", 8, DG_FMT_COUNT},       {"I8", 8, DG_FMT_COUNT},       {"F8_E5M2", 8, DG_FMT_COUNT},  {"F8_E4M3", 8, DG_FMT_COUNT},
    {"F8_E8M0", 8, DG_FMT_COUNT},  {"F4", 4, DG_FMT_COUNT},       {"F6_E2M3", 6, DG_FMT_COUNT},  {"F6_E3M2", 6, DG_FMT_COUNT},
    {"I16", 16, DG_FMT_COUNT},     {"U16", 16, DG_FMT_COUNT},     {"I32", 32, DG_FMT_COUNT},     {"U32", 32, DG_FMT_COUNT},
    {"F64", 64, DG_FMT_COUNT},     {"I64", 64, DG_FMT_COUNT},     {"U64", 64, DG_FMT_COUNT},     {"C64", 64, DG_FMT_COUNT},
};

const struct dg_dtype_info *dg_dtype_find(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strlen(dtypes[i].name) == n && memcmp(dtypes[i].name, name, n) == 0)
            return &dtypes[i];
    return NULL;
}
