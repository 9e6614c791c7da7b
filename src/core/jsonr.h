/* Pull reader for large JSON files: tokenizer.json (32 MB), safetensors headers, shard indexes.
 *
 * It allocates nothing and keeps no tree, so a hostile file costs no memory, and it is several times as fast as a general library
 * (which is used wherever a document is small: configs, messages, requests). Strict RFC 8259 grammar; strings must be valid UTF-8;
 * nesting is limited to DG_JSONR_DEPTH_MAX. Duplicate keys are the caller's to notice. */
#ifndef DG_CORE_JSONR_H
#define DG_CORE_JSONR_H

#include "core/status.h"

#define DG_JSONR_DEPTH_MAX 64

enum dg_json_token {
    DG_JSON_ERROR = 0, /* see dg_jsonr.what and .at */
    DG_JSON_END,       /* the document is complete and only white space follows */
    DG_JSON_OBJECT,    /* { */
    DG_JSON_OBJECT_END,
    DG_JSON_ARRAY, /* [ */
    DG_JSON_ARRAY_END,
    DG_JSON_KEY, /* member name: str, len, escaped; its value comes next */
    DG_JSON_STRING,
    DG_JSON_NUMBER, /* str, len: the spelling */
    DG_JSON_TRUE,
    DG_JSON_FALSE,
    DG_JSON_NULL
};

struct dg_jsonr {
    const uint8_t *begin, *p, *end;
    const char *str; /* token text inside the document (between the quotes for strings), valid while the document is */
    size_t len;
    bool escaped;     /* the text holds backslash escapes: use dg_jsonr_unescape */
    const char *what; /* reason of DG_JSON_ERROR, a string literal */
    size_t at;        /* byte offset of the error */
    int depth;
    uint8_t state;
    uint8_t stack[DG_JSONR_DEPTH_MAX];
};

/* Starts reading n bytes (borrowed until the last call). */
void dg_jsonr_init(struct dg_jsonr *r, const void *data, size_t n);
/* Next token. After DG_JSON_ERROR or DG_JSON_END every call returns the same. */
enum dg_json_token dg_jsonr_next(struct dg_jsonr *r);
/* Skips the value that comes next, whatever it is. Returns false on an error (then the next token is DG_JSON_ERROR). */
bool dg_jsonr_skip(struct dg_jsonr *r);
/* Skips the rest of a value whose first token `t` was already read. */
bool dg_jsonr_skip_from(struct dg_jsonr *r, enum dg_json_token t);
/* Marks an error of the caller's own (wrong type, range); returns DG_JSON_ERROR. what: a string literal. */
enum dg_json_token dg_jsonr_fail(struct dg_jsonr *r, const char *what);
/* Decodes the current string's escapes into dst (at least len bytes; the result is never longer). Returns the length, or SIZE_MAX for
 * a lone surrogate. */
size_t dg_jsonr_unescape(const struct dg_jsonr *r, char *dst);
/* Compares the current string (escapes decoded) with a C string. */
bool dg_jsonr_is(const struct dg_jsonr *r, const char *s);
/* Current number as a non-negative integer; false when it is not one or exceeds max. */
bool dg_jsonr_u64(const struct dg_jsonr *r, uint64_t max, uint64_t *out);

#endif
