/* Status codes and the error record: how every function that can fail says so.
 *
 * A function that can fail returns enum dg_status (0 = success, checked by the compiler) and takes an optional
 * `struct dg_error *err` as its last parameter. The library never exits and never prints; the text travels in the record. */
#ifndef DG_CORE_STATUS_H
#define DG_CORE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dg_status {
    DG_OK = 0,
    DG_E_ARG,         /* the caller or user asked for something that makes no sense */
    DG_E_NOMEM,       /* memory could not be had */
    DG_E_IO,          /* a file or socket operation failed */
    DG_E_FORMAT,      /* a file's content is damaged or hostile */
    DG_E_UNSUPPORTED, /* well-formed, but not something this engine does */
    DG_E_LIMIT,       /* a stated maximum was exceeded */
    DG_E_BACKEND,     /* a device or driver failed */
    DG_E_NUMERIC,     /* NaN or Inf where numbers decide text */
    DG_E_CANCELLED,   /* the caller asked to stop */
    DG_E_INTERNAL     /* our own mistake */
};
#define DG_MUST_CHECK __attribute__((warn_unused_result))
#define DG_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* A zeroed record is valid and empty. `text` holds a message too long for `fixed` (heap, owned by the record). */
struct dg_error {
    enum dg_status code;
    const char *file; /* where it was raised: a string literal */
    int line;
    char *text;
    char fixed[512];
};

/* Message of the record, never NULL. Borrowed until the record changes. */
const char *dg_error_text(const struct dg_error *err);
/* Empties the record and frees its text. NULL is allowed. */
void dg_error_clear(struct dg_error *err);
/* Sets code and message; returns code. err may be NULL (then only the code travels). */
enum dg_status dg_error_set(struct dg_error *err, enum dg_status code, const char *file, int line, const char *fmt, ...)
    DG_PRINTF(5, 6);
/* Puts "<prefix>: " before the message that is there; returns the record's code. err may be NULL. */
void dg_error_prefix(struct dg_error *err, const char *fmt, ...) DG_PRINTF(2, 3);
/* Short name of a code, e.g. "format". A string literal. */
const char *dg_status_name(enum dg_status code);

#define DG_FAIL(err, code, ...) dg_error_set((err), (code), __FILE__, __LINE__, __VA_ARGS__)
/* Forwards a failure to the caller. */
#define DG_TRY(call)                          \
    do {                                      \
        enum dg_status dg_try_s_ = (call);    \
        if (dg_try_s_ != DG_OK)               \
            return dg_try_s_;                 \
    } while (0)
/* Forwards a failure to the function's clean-up label `done` through its variable `st`. */
#define DG_GO(call)                           \
    do {                                      \
        st = (call);                          \
        if (st != DG_OK)                      \
            goto done;                        \
    } while (0)

#endif
