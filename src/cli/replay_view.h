/* Playing an op log back as a view: what was seen while the model wrote, without computing anything. */
#ifndef DG_CLI_REPLAY_VIEW_H
#define DG_CLI_REPLAY_VIEW_H

#include "core/status.h"
#include "tokenizer/tokenizer.h"

/* Plays the replies of a session of the log, of every session after the other when session is NULL, at `fps` steps a second (0 =
 * without waiting; a terminal's size and colours are those of the live view; without a terminal only the text). tok: of the model
 * the log was made with. Errors: DG_E_IO, DG_E_FORMAT, DG_E_LIMIT, DG_E_NOMEM, DG_E_CANCELLED for Ctrl-C. */
enum dg_status dg_replay_view(const char *path, const char *session, const struct dg_tokenizer *tok, int64_t fps,
                              struct dg_error *err) DG_MUST_CHECK;

/* Model folder of the first session's head; out holds n bytes. Errors: as above. */
enum dg_status dg_replay_view_model(const char *path, char *out, size_t n, struct dg_error *err) DG_MUST_CHECK;

#endif
