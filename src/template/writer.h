/* What render.c and declare.c share: the writer that keeps template text and client text apart, and the value printer. */
#ifndef DG_TEMPLATE_WRITER_H
#define DG_TEMPLATE_WRITER_H

#include "template/pyval.h"
#include "template/render.h"

struct dg_writer {
    struct dg_prompt *out; /* remembers a failed append */
    struct dg_error *err;
};

/* Template text, a literal. */
void dg_writer_lit(struct dg_writer *w, const char *s);
/* Client text. */
void dg_writer_client(struct dg_writer *w, const char *s, size_t n);
/* str(v) as client text. Errors: DG_E_LIMIT. */
enum dg_status dg_writer_value(struct dg_writer *w, const json_t *v) DG_MUST_CHECK;
/* One iterated element, printed. */
enum dg_status dg_writer_item(struct dg_writer *w, const struct dg_py_item *item) DG_MUST_CHECK;
/* str(v).upper() as client text. */
enum dg_status dg_writer_upper(struct dg_writer *w, const json_t *v) DG_MUST_CHECK;
/* A value in the prompt's notation: text between string markers, {k:v}, [v,...]; keys between markers too when quote_keys. */
enum dg_status dg_writer_format(struct dg_writer *w, const json_t *v, bool quote_keys, int depth) DG_MUST_CHECK;
/* {k:v,...} of an object in that notation, keys bare, without the braces. */
enum dg_status dg_writer_fields(struct dg_writer *w, const json_t *object, bool quote_keys, int depth) DG_MUST_CHECK;
/* One tool between its markers. where: index in `tools`, for messages. */
enum dg_status dg_writer_tool(struct dg_writer *w, const json_t *tool, size_t where) DG_MUST_CHECK;

#endif
