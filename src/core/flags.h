/* The registry of DGQ_* switches: one table says name, type, range, default and help of each, and everything that reads, checks
 * or prints a switch goes through it (reference.md section 8).
 *
 * The engine never reads the environment itself: a program loads the flags once and passes the record down. A switch that is set
 * but invalid, or whose name the registry does not know, is refused, since a mistyped switch that is silently ignored looks like
 * a result. A set but empty value counts as unset. */
#ifndef DG_CORE_FLAGS_H
#define DG_CORE_FLAGS_H

#include "core/buf.h"
#include "core/status.h"

#define DG_FLAGS_PREFIX "DGQ_"
#define DG_FLAGS_TEXT_MAX 4096    /* bytes of a string value */
#define DG_FLAGS_REPORT_MAX 16384 /* bytes of an error that names every offender */

enum dg_fast_prefill { DG_FAST_PREFILL_UNSET = 0, DG_FAST_PREFILL_AUTO, DG_FAST_PREFILL_0, DG_FAST_PREFILL_1 };
enum dg_first_step { DG_FIRST_STEP_SEED = 0, DG_FIRST_STEP_NONE };

/* Values. Strings are owned by the record, NULL when unset. */
struct dg_flags {
    /* attention and cache */
    bool attn_window, attn_topk, attn_topk_dyn, attn_topk_decode;
    int32_t attn_topk_k;
    int32_t kv_ring; /* a power of two */
    bool kv_q8;
    int32_t fast_prefill; /* enum dg_fast_prefill */
    int32_t fast_prefill_max;
    bool kv_reuse;
    /* self-conditioning */
    bool sc_sparse;
    bool check_logits;
    int32_t first_step_sc; /* enum dg_first_step */
    /* sampler */
    bool denoiser_argmax, freeze, reference_stops;
    double early_stop_mean_ent;
    /* what is kept of a block */
    double commit_conf_trim, commit_conf_hard;
    bool continue_past_stop, ws_block_stop;
    int32_t empty_reply_retry;
    /* tool calls of a chat, and what its text is searched for */
    bool tool_validate, tool_repair, delim_check;
    /* where things are */
    char *hf_home, *model;
    char *cpu; /* strongest CPU level to use */
    char *cuda_kernels; /* which kernels of the CUDA backend */
    /* traces */
    char *trace_pmax_jsonl, *delim_check_jsonl;
};

/* Fills caller storage with the defaults. Allocates nothing. */
void dg_flags_default(struct dg_flags *f);
/* Applies every DGQ_* entry of envp ("NAME=value", NULL-terminated, as in environ; NULL is allowed) over what f holds; a name
 * that occurs twice takes the later value. Entries with other names are ignored. f must have been filled by dg_flags_default.
 * Errors: DG_E_ARG with every offender and what it may be; the valid entries are applied even so. DG_E_NOMEM. */
enum dg_status dg_flags_load(struct dg_flags *f, const char *const *envp, struct dg_error *err) DG_MUST_CHECK;
/* Frees the strings and returns to the defaults. A zeroed record is allowed. */
void dg_flags_deinit(struct dg_flags *f);
/* Appends the table for `diffgemma flags`: name, type, range, default, help in aligned columns, one line each under a heading.
 * Returns the buffer's status. */
enum dg_status dg_flags_print(struct dg_buf *out);

/* The n-th switch's name without prefix, type, range, default and help, for tests and documents: string literals or the
 * registry's own storage. false past the end. */
struct dg_flag_info {
    const char *name, *type, *range, *def, *help;
};
bool dg_flags_info(size_t i, struct dg_flag_info *out);

#endif
