/* DGQ_DELIM_CHECK and DGQ_DELIM_CHECK_JSONL: what message/delims.h finds in a reply, told and recorded. */
#ifndef DG_CLI_DELIM_REPORT_H
#define DG_CLI_DELIM_REPORT_H

#include "core/buf.h"
#include "core/flags.h"

/* Whether the switches ask for anything. */
bool dg_delim_report_wanted(const struct dg_flags *f);
/* Looks through a reply of n bytes. note: one line for the user, appended, nothing when there is nothing to say. The record is appended to the
 * file whatever is found: seed, bytes, lines, the counts and the line of the first finding. Errors: DG_E_IO, DG_E_NOMEM. */
enum dg_status dg_delim_report(const struct dg_flags *f, uint64_t seed, const char *text, size_t n, struct dg_buf *note, struct dg_error *err)
    DG_MUST_CHECK;

#endif
