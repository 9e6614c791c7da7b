/* Collects every fault of a file, so that one error names them all. */
#ifndef DG_CORE_FAULTS_H
#define DG_CORE_FAULTS_H

#include "core/buf.h"
#include "core/status.h"

#define DG_FAULTS_TEXT_MAX ((size_t)64 << 10) /* room for every tensor of the 30-layer model */
#define DG_CLIP_MAX 120

/* A zeroed record is not valid: dg_faults_init. Not thread-safe. */
struct dg_faults {
    struct dg_buf text; /* faults joined by "; "; those beyond DG_FAULTS_TEXT_MAX are counted only */
    size_t n, n_unsaid;
    /* DG_OK while there is none; DG_E_UNSUPPORTED when every fault is of that kind; else the first other code */
    enum dg_status code;
};

void dg_faults_init(struct dg_faults *f);
void dg_faults_deinit(struct dg_faults *f);
/* Adds one fault (no final full stop). */
void dg_faults_add(struct dg_faults *f, enum dg_status code, const char *fmt, ...) DG_PRINTF(3, 4);
/* DG_OK when there is none, else fills err: "WHAT: a" for one, "WHAT: 3 faults: a; b; c" for more. what: borrowed. */
enum dg_status dg_faults_result(const struct dg_faults *f, const char *what, struct dg_error *err);

/* n bytes that a file controls, made fit for a message: one line, printable ASCII (anything else becomes '?'), at most
 * DG_CLIP_MAX characters with "..." where cut. Returned by value: `dg_clip(s, n).s`. */
struct dg_clip {
    char s[DG_CLIP_MAX + 4];
};
struct dg_clip dg_clip(const char *s, size_t n);

#endif
