/* Which format each tensor of a pack gets: a profile's fixed rules, changed class by class with --set (seed sections 8 and 8.2,
 * reference.md section 5). */
#ifndef DG_PACK_POLICY_H
#define DG_PACK_POLICY_H

#include "core/faults.h"
#include "formats/encode.h"

enum dg_class {
    DG_CLASS_GATE_UP, /* experts.gate_up_proj stacks */
    DG_CLASS_DOWN,    /* experts.down_proj stacks */
    DG_CLASS_ATTN,    /* the decoder's q, k, v, o projections */
    DG_CLASS_DENSE,   /* the decoder's dense gate, up, down projections */
    DG_CLASS_SC,      /* the self-conditioning MLP */
    DG_CLASS_VISION,  /* the vision tower's linear layers and its projection */
    DG_CLASS_COUNT,
    DG_CLASS_LOCKED = DG_CLASS_COUNT /* embedding, router, norms, scalars and everything else: always as they are */
};

/* Formats are DG_FMT_Q4_BLOCK..DG_FMT_NVFP4_BLOCK, or DG_FMT_COUNT for raw. */
struct dg_policy {
    const char *profile; /* as the manifest has it: a literal */
    enum dg_format format[DG_CLASS_COUNT];
    bool set[DG_CLASS_COUNT]; /* by --set */
    int codes[DG_CLASS_COUNT]; /* enum dg_codes, or -1: the default of class and format */
};

/* The rules of q4, q6, nvfp4 or nvfp4x, which is q4 with experts=nvfp4. Errors: DG_E_ARG, for q5 with the reason. */
enum dg_status dg_policy_init(struct dg_policy *p, const char *profile, struct dg_error *err) DG_MUST_CHECK;
/* Applies one CLASS=FORMAT. Errors: DG_E_ARG: unknown or locked class, a format that the class does not take; the message says why. */
enum dg_status dg_policy_set(struct dg_policy *p, const char *rule, struct dg_error *err) DG_MUST_CHECK;
/* Applies one HOW or CLASS=HOW, HOW being plain or fit. Errors: DG_E_ARG. */
enum dg_status dg_policy_set_codes(struct dg_policy *p, const char *rule, struct dg_error *err) DG_MUST_CHECK;
/* To be called after the last dg_policy_set: both expert stacks must have one format. */
enum dg_status dg_policy_check(const struct dg_policy *p, struct dg_error *err) DG_MUST_CHECK;

/* Class of a tensor by name and rank. */
enum dg_class dg_class_of(const char *name, size_t n, int rank);
/* "experts.gate_up", "attn" etc. A literal; of the locked class "locked". */
const char *dg_class_name(enum dg_class c);
/* Format of a tensor; DG_FMT_COUNT = raw. */
enum dg_format dg_policy_format(const struct dg_policy *p, const char *name, size_t n, int rank);
/* How its codes are chosen. */
enum dg_codes dg_policy_codes(const struct dg_policy *p, enum dg_class c, enum dg_format fmt);
/* Adds a fault naming the tensor when its shape does not suit the format. */
void dg_policy_check_shape(struct dg_faults *f, const char *name, size_t n, enum dg_format fmt, int rank, const int64_t *shape);

#endif
