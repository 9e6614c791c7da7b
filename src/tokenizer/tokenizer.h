/* Text to token ids and back, from a tokenizer.json of the Gemma 4 family.
 *
 * Model: byte-pair encoding over Unicode characters. U+0020 becomes U+2581; a character without an entry becomes the tokens of
 * its UTF-8 bytes; of all neighbours that have a merge the one of lowest rank goes first, leftmost on a tie. Nothing splits
 * words, so the merges run over whole lines; time is near-linear in the text whatever it holds. The "added tokens" of the file
 * are the control tokens: where they are matched, they are matched in the raw text before anything else.
 *
 * A file that asks for anything else (another model, normalizer, decoder, a template that adds tokens) is refused by name. A
 * tokenizer never changes after opening and any number of threads may use it. Sources: the tokenizer.json format, version "1.0";
 * ids, plain ids and decodes are pinned by tests/data/tokenizer_vectors.json. */
#ifndef DG_TOKENIZER_TOKENIZER_H
#define DG_TOKENIZER_TOKENIZER_H

#include "core/buf.h"
#include "core/ids.h"
#include "core/span.h"
#include "core/status.h"

/* Largest tokenizer.json read, and largest text encoded at once, in bytes. */
#define DG_TOKENIZER_FILE_MAX ((size_t)1 << 28)
#define DG_TOKENIZER_TEXT_MAX ((size_t)1 << 28)

struct dg_tokenizer;

/* Reads the file at path. *out is NULL on failure. Errors: DG_E_IO, DG_E_FORMAT (damaged), DG_E_UNSUPPORTED (names the part),
 * DG_E_LIMIT, DG_E_NOMEM. Memory: a small multiple of the file's size at most. Owner: the caller, dg_tokenizer_close. */
enum dg_status dg_tokenizer_open(struct dg_tokenizer **out, const char *path, struct dg_error *err) DG_MUST_CHECK;
/* The same from n bytes of JSON, which are not needed afterwards. */
enum dg_status dg_tokenizer_create(struct dg_tokenizer **out, const void *json, size_t n, struct dg_error *err) DG_MUST_CHECK;
void dg_tokenizer_close(struct dg_tokenizer *t); /* NULL is allowed */

/* Number of entries; ids are 0 .. size - 1. */
int32_t dg_tokenizer_size(const struct dg_tokenizer *t);
/* Id of the entry spelled `piece` (as in the file: a space is U+2581), or -1. */
int32_t dg_tokenizer_find(const struct dg_tokenizer *t, const char *piece);
/* Whether id is a control token; false for an id out of range. */
bool dg_tokenizer_is_control(const struct dg_tokenizer *t, int32_t id);
/* Spelling of an entry as in the file, *len bytes of UTF-8 without a NUL after them, borrowed from t; NULL for an id out of
 * range. */
const char *dg_tokenizer_piece(const struct dg_tokenizer *t, int32_t id, size_t *len);

/* Appends the ids of n bytes of UTF-8 (NUL is a character like any other) to out. control: whether spellings of control tokens
 * become those tokens; without it they are ordinary text. On failure out holds what it held before. Errors: DG_E_ARG for invalid
 * UTF-8 (with the byte offset), DG_E_LIMIT, DG_E_NOMEM. */
enum dg_status dg_tokenizer_encode(const struct dg_tokenizer *t, const char *text, size_t n, bool control, struct dg_ids *out,
                                   struct dg_error *err) DG_MUST_CHECK;

/* Like dg_tokenizer_encode with control tokens, except that a spelling which touches any byte of a client span stays ordinary
 * text, merging with its neighbours as such. So text that holds no such spelling gets the ids of the plain call, and untrusted
 * text can neither contain a control token nor complete one together with what surrounds it. client: n_client spans in ascending
 * order that do not overlap and end inside the text (else DG_E_ARG); empty ones protect nothing. */
enum dg_status dg_tokenizer_encode_spans(const struct dg_tokenizer *t, const char *text, size_t n, const struct dg_span *client,
                                         size_t n_client, struct dg_ids *out, struct dg_error *err) DG_MUST_CHECK;

/* Appends the text of n ids to out: always valid UTF-8. A run of byte tokens is the text it spells when the whole run is valid
 * UTF-8, otherwise one U+FFFD per byte. skip_control drops control tokens first, so byte runs on both sides of one join. On
 * failure out holds what it held before. Errors: DG_E_ARG for an id out of range, DG_E_LIMIT (out's maximum), DG_E_NOMEM. */
enum dg_status dg_tokenizer_decode(const struct dg_tokenizer *t, const int32_t *ids, size_t n, bool skip_control,
                                   struct dg_buf *out, struct dg_error *err) DG_MUST_CHECK;

/* Decodes ids as they come. What all calls append together is what dg_tokenizer_decode gives for all ids, and each call appends
 * valid UTF-8: a run of byte tokens is held back until another token or the end shows that it is complete. One thread at a time.
 */
struct dg_decoder {
    const struct dg_tokenizer *t;
    bool skip_control;
    struct dg_buf held; /* bytes of the open run */
};

/* t is borrowed until dg_decoder_deinit. Allocates nothing. */
void dg_decoder_init(struct dg_decoder *d, const struct dg_tokenizer *t, bool skip_control);
void dg_decoder_deinit(struct dg_decoder *d);
/* Takes one id. An id out of range is DG_E_ARG and changes nothing. */
enum dg_status dg_decoder_push(struct dg_decoder *d, int32_t id, struct dg_buf *out, struct dg_error *err) DG_MUST_CHECK;
/* Appends what is held back. The decoder is then as new. */
enum dg_status dg_decoder_finish(struct dg_decoder *d, struct dg_buf *out, struct dg_error *err) DG_MUST_CHECK;

#endif
