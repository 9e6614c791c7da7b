#include "pack/safetensors.h"

#include "core/faults.h"
#include "core/jsonr.h"
#include "pack/dtype.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A cut file has one fault, not one for each tensor in the part that is gone. */
#define BEYOND_NAMED_MAX 3

static const struct dg_dtype_info unknown = {"unknown", 0, DG_FMT_COUNT};

/* State of reading one header. */
struct reader {
    struct dg_store *store;
    struct dg_faults faults;
    struct dg_jsonr json;
    const uint8_t *data; /* first byte after the header */
    uint64_t data_bytes;
    uint64_t n_beyond; /* tensors that end beyond the data */
    int file;
};

/* A list of whole numbers of at most max elements. */
struct ints {
    uint64_t v[DG_TENSOR_RANK_MAX];
    int n, times;
    bool bad; /* not such a list, or too long */
};

/* Reads the value that comes next; false on a grammar error. */
static bool read_ints(struct dg_jsonr *r, struct ints *l, int max) {
    l->times++;
    l->n = 0;
    enum dg_json_token t = dg_jsonr_next(r);
    if (t != DG_JSON_ARRAY) {
        l->bad = true;
        return dg_jsonr_skip_from(r, t);
    }
    while ((t = dg_jsonr_next(r)) != DG_JSON_ARRAY_END) {
        uint64_t v;
        if (t == DG_JSON_NUMBER && l->n < max && dg_jsonr_u64(r, INT64_MAX, &v))
            l->v[l->n++] = v;
        else {
            l->bad = true;
            if (!dg_jsonr_skip_from(r, t))
                return false;
        }
    }
    return true;
}

struct entry {
    const struct dg_dtype_info *dtype; /* NULL = absent or not a string */
    int n_dtype;
    struct ints shape, offsets;
};

static bool read_dtype(struct dg_jsonr *r, struct entry *e) {
    e->n_dtype++;
    enum dg_json_token t = dg_jsonr_next(r);
    if (t != DG_JSON_STRING)
        return dg_jsonr_skip_from(r, t);
    char name[16];
    const struct dg_dtype_info *d = NULL;
    size_t n = r->len <= sizeof name ? dg_jsonr_unescape(r, name) : SIZE_MAX;
    if (n != SIZE_MAX)
        d = dg_dtype_find(name, n);
    e->dtype = d ? d : &unknown;
    return true;
}

/* Checks what the entry says and adds its row; faults go into the list. */
static enum dg_status accept_entry(struct reader *rd, struct dg_tensor *t, const struct entry *e, struct dg_error *err) {
    const char *name = t->name;
    struct dg_clip c = dg_clip(name, t->name_len);
    size_t before = rd->faults.n;
    if (!e->dtype || e->n_dtype != 1)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: needs one dtype", c.s);
    if (e->shape.bad || e->shape.times != 1)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: shape must be one list of at most %d whole numbers", c.s,
                      DG_TENSOR_RANK_MAX);
    if (e->offsets.bad || e->offsets.times != 1 || e->offsets.n != 2)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: data_offsets must be two whole numbers", c.s);
    if (rd->faults.n > before)
        return DG_OK;

    uint64_t begin = e->offsets.v[0], end = e->offsets.v[1], count = 1, bits = 0;
    if (begin > end)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: ends (%" PRIu64 ") before it begins (%" PRIu64 ")", c.s, end, begin);
    else if (end > rd->data_bytes && rd->n_beyond++ < BEYOND_NAMED_MAX)
        dg_faults_add(&rd->faults, DG_E_FORMAT,
                      "%s: ends at byte %" PRIu64 " of a data section of %" PRIu64 " (is the file cut?)", c.s, end,
                      rd->data_bytes);
    bool over = false;
    for (int i = 0; i < e->shape.n; i++) {
        t->shape[i] = (int64_t)e->shape.v[i];
        over |= __builtin_mul_overflow(count, e->shape.v[i], &count);
    }
    over |= __builtin_mul_overflow(count, (uint64_t)e->dtype->bits, &bits);
    if (over || count > INT64_MAX)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: its shape has too many elements", c.s);
    else if (begin <= end && e->dtype->bits && (bits % 8 || bits / 8 != end - begin))
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: shape and %s make %" PRIu64 " bytes, its offsets say %" PRIu64, c.s,
                      e->dtype->name, bits / 8 + (bits % 8 != 0), end - begin);
    if (rd->faults.n > before || end > rd->data_bytes)
        return DG_OK;
    t->file = (uint16_t)rd->file;
    t->kind = (uint8_t)e->dtype->kind;
    t->rank = (uint8_t)e->shape.n;
    t->dtype = e->dtype->name;
    t->data = rd->data + begin;
    t->bytes = end - begin;
    return dg_store_add(rd->store, t, err);
}

/* Takes the current key as a tensor's name; an unusable one is a fault. */
static enum dg_status take_name(struct reader *rd, struct dg_tensor *t, bool *usable, struct dg_error *err) {
    struct dg_jsonr *r = &rd->json;
    struct dg_clip c = dg_clip(r->str, r->len);
    size_t n = r->len;
    t->name = r->str;
    *usable = false;
    if (n > DG_TENSOR_NAME_MAX) {
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: a name of more than %d bytes", c.s, DG_TENSOR_NAME_MAX);
        return DG_OK;
    }
    if (r->escaped) {
        void *copy;
        DG_TRY(dg_store_alloc(rd->store, &copy, n, err));
        n = dg_jsonr_unescape(r, copy);
        t->name = copy;
    }
    if (n == 0 || n == SIZE_MAX) {
        dg_faults_add(&rd->faults, DG_E_FORMAT, n ? "%s: a lone surrogate in a name" : "%sa tensor has no name", c.s);
        return DG_OK;
    }
    t->name_len = (uint16_t)n;
    *usable = true;
    return DG_OK;
}

/* The member whose key is current. */
static enum dg_status read_member(struct reader *rd, struct dg_error *err) {
    struct dg_jsonr *r = &rd->json;
    if (dg_jsonr_is(r, "__metadata__")) {
        (void)dg_jsonr_skip(r);
        return DG_OK;
    }
    struct dg_tensor t = {0};
    struct entry e = {0};
    bool usable;
    DG_TRY(take_name(rd, &t, &usable, err));
    enum dg_json_token k = dg_jsonr_next(r);
    if (k != DG_JSON_OBJECT) {
        if (dg_jsonr_skip_from(r, k) && usable)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: is not described by an object", dg_clip(t.name, t.name_len).s);
        return DG_OK;
    }
    while ((k = dg_jsonr_next(r)) == DG_JSON_KEY) {
        bool ok;
        if (dg_jsonr_is(r, "dtype"))
            ok = read_dtype(r, &e);
        else if (dg_jsonr_is(r, "shape"))
            ok = read_ints(r, &e.shape, DG_TENSOR_RANK_MAX);
        else if (dg_jsonr_is(r, "data_offsets"))
            ok = read_ints(r, &e.offsets, 2);
        else
            ok = dg_jsonr_skip(r);
        if (!ok)
            return DG_OK; /* the reader keeps the grammar error; read_header reports it */
    }
    return k == DG_JSON_OBJECT_END && usable ? accept_entry(rd, &t, &e, err) : DG_OK;
}

static enum dg_status read_header(struct reader *rd, const uint8_t *text, size_t n, struct dg_error *err) {
    struct dg_jsonr *r = &rd->json;
    dg_jsonr_init(r, text, n);
    enum dg_json_token t = dg_jsonr_next(r);
    if (t != DG_JSON_OBJECT && t != DG_JSON_ERROR)
        dg_jsonr_fail(r, "the header must be an object");
    else
        while ((t = dg_jsonr_next(r)) == DG_JSON_KEY)
            DG_TRY(read_member(rd, err));
    if (t == DG_JSON_OBJECT_END)
        t = dg_jsonr_next(r);
    if (rd->n_beyond > BEYOND_NAMED_MAX)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%" PRIu64 " more tensors end beyond it: the file is cut, download it again",
                      rd->n_beyond - BEYOND_NAMED_MAX);
    if (t != DG_JSON_END)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "damaged header at byte %zu: %s", r->at + 8,
                      r->what ? r->what : "unexpected value");
    return DG_OK;
}

static int by_place(const void *a, const void *b) {
    const struct dg_tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The rows from `first` on must tile the data section: no overlap, no byte left over. */
static void check_tiling(struct reader *rd, size_t first) {
    size_t n = dg_store_count(rd->store) - first;
    struct dg_tensor *t = n ? dg_store_at(rd->store, first) : NULL;
    if (n)
        qsort(t, n, sizeof *t, by_place);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)(t[i].data - rd->data);
        if (begin < at)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%s overlaps %s", dg_clip(t[i].name, t[i].name_len).s,
                          dg_clip(t[i - 1].name, t[i - 1].name_len).s);
        else if (begin > at)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%" PRIu64 " bytes before %s belong to no tensor", begin - at,
                          dg_clip(t[i].name, t[i].name_len).s);
        at = begin + t[i].bytes > at ? begin + t[i].bytes : at;
    }
    if (at < rd->data_bytes)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%" PRIu64 " bytes at the end of the file belong to no tensor",
                      rd->data_bytes - at);
}

/* What a file that is no safetensors file most often is. NULL = no idea. */
static const char *known_stranger(const uint8_t *p, size_t n) {
    static const struct {
        const char *magic, *what;
    } known[] = {
        {"version https://git-lfs",
         "it is a Git LFS pointer, not the weights: run `git lfs pull`, or fetch them with `diffgemma download`"},
        {"GGUF", "it is a GGUF file; this engine reads safetensors checkpoints"},
        {"PK\x03\x04", "it is a zip archive (a PyTorch file?); this engine reads safetensors checkpoints"},
        {"<!DOCTYPE", "it is a web page, not the weights: download it again"},
        {"<html", "it is a web page, not the weights: download it again"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (n >= strlen(known[i].magic) && memcmp(p, known[i].magic, strlen(known[i].magic)) == 0)
            return known[i].what;
    return NULL;
}

enum dg_status dg_safetensors_add(struct dg_store *s, int file, struct dg_error *err) {
    size_t size;
    const uint8_t *p = dg_store_bytes(s, file, &size);
    const char *path = dg_store_path(s, file);
    const char *stranger = known_stranger(p, size);
    if (stranger)
        return DG_FAIL(err, DG_E_FORMAT, "%s: %s", path, stranger);
    if (size < 8)
        return DG_FAIL(err, DG_E_FORMAT, "%s: %zu bytes are too few for a safetensors file; download it again", path, size);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | p[i];
    if (header > DG_SAFETENSORS_HEADER_MAX)
        return DG_FAIL(err, DG_E_FORMAT,
                       "%s: a header of %" PRIu64 " bytes is more than the format's %" PRIu64 "; this is no safetensors file",
                       path, header, DG_SAFETENSORS_HEADER_MAX);
    if (header > size - 8)
        return DG_FAIL(err, DG_E_FORMAT,
                       "%s: its header of %" PRIu64 " bytes goes beyond the file's %zu; the file is cut, download it again", path,
                       header, size);
    struct reader rd = {.store = s, .file = file, .data = p + 8 + header, .data_bytes = size - 8 - header};
    dg_faults_init(&rd.faults);
    size_t first = dg_store_count(s);
    enum dg_status st = read_header(&rd, p + 8, (size_t)header, err);
    if (st == DG_OK && rd.faults.n == 0)
        check_tiling(&rd, first);
    if (st == DG_OK)
        st = dg_faults_result(&rd.faults, path, err);
    dg_faults_deinit(&rd.faults);
    return st;
}
