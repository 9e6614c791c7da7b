#include "pack/manifest.h"

#include "core/jsonr.h"
#include "core/map.h"
#include "core/mem.h"
#include "pack/dtype.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_CHUNK ((size_t)64 << 10)

/* Storage of texts: a list of chunks that never move. */
struct dg_manifest_text {
    struct dg_manifest_text *next;
    size_t used, size;
    char bytes[];
};

struct reader {
    struct dg_manifest *m;
    struct dg_jsonr json;
    struct dg_faults faults;
    size_t text_bytes, cap_tensors;
    int cap_external, last_external;
    bool in_tensors; /* second pass: tensors only; their sources name files that the first pass has read */
    struct dg_error *err;
    enum dg_status st; /* what ends the work: memory, limits */
};

/* Members of one object, by name; a member that occurs twice is a fault. */
typedef void member_fn(struct reader *rd, void *object);
struct member {
    const char *name;
    member_fn *read;
    bool needed;
};

static void fault(struct reader *rd, const char *where, const char *what) {
    dg_faults_add(&rd->faults, DG_E_FORMAT, "%s%s%s", where, *where ? " " : "", what);
}

static void stop(struct reader *rd, enum dg_status st, const char *what) {
    if (rd->st == DG_OK)
        rd->st = DG_FAIL(rd->err, st, "%s", what);
}

/* Room for n bytes of text; NULL ends the work. */
static char *text_room(struct reader *rd, size_t n) {
    struct dg_manifest_text *c = rd->m->text;
    rd->text_bytes += n;
    if (rd->text_bytes > DG_MANIFEST_TEXT_MAX) {
        stop(rd, DG_E_LIMIT, "the names and paths of the manifest take more than 16 MiB");
        return NULL;
    }
    if (!c || c->size - c->used < n) {
        size_t size = n > TEXT_CHUNK ? n : TEXT_CHUNK;
        c = dg_calloc(1, sizeof *c + size);
        if (!c) {
            stop(rd, DG_E_NOMEM, "out of memory");
            return NULL;
        }
        c->size = size;
        c->next = rd->m->text;
        rd->m->text = c;
    }
    char *p = c->bytes + c->used;
    c->used += n;
    return p;
}

/* The string that comes next, NUL-terminated; NULL after a fault (a wrong type, a NUL or a lone surrogate in it, more than max bytes). */
static const char *read_text(struct reader *rd, const char *what, size_t max) {
    struct dg_jsonr *r = &rd->json;
    enum dg_json_token t = dg_jsonr_next(r);
    if (t != DG_JSON_STRING) {
        if (dg_jsonr_skip_from(r, t))
            fault(rd, what, "must be text");
        return NULL;
    }
    if (r->len > max) {
        fault(rd, what, "is too long");
        return NULL;
    }
    char *s = text_room(rd, r->len + 1);
    if (!s)
        return NULL;
    size_t n = dg_jsonr_unescape(r, s);
    if (n == SIZE_MAX || memchr(s, 0, n)) {
        fault(rd, what, "holds a character that no name may have");
        return NULL;
    }
    s[n] = 0;
    return s;
}

static bool read_u64(struct reader *rd, const char *what, uint64_t *out) {
    struct dg_jsonr *r = &rd->json;
    enum dg_json_token t = dg_jsonr_next(r);
    if (t == DG_JSON_NUMBER && dg_jsonr_u64(r, INT64_MAX, out))
        return true;
    if (dg_jsonr_skip_from(r, t))
        fault(rd, what, "must be a whole number");
    return false;
}

/* Reads the members of the object whose opening brace has been read. name: whose they are, for messages; it may be read with them. */
static void read_members(struct reader *rd, const struct member *table, size_t n, void *object, const char *const *name) {
    struct dg_jsonr *r = &rd->json;
    uint32_t seen = 0;
    while (rd->st == DG_OK && dg_jsonr_next(r) == DG_JSON_KEY) {
        size_t i = 0;
        while (i < n && !dg_jsonr_is(r, table[i].name))
            i++;
        if (i == n)
            (void)dg_jsonr_skip(r);
        else {
            if (seen >> i & 1)
                dg_faults_add(&rd->faults, DG_E_FORMAT, "%s is given twice", table[i].name);
            seen |= 1u << i;
            table[i].read(rd, object);
        }
    }
    const char *whose = *name ? *name : "a tensor without a name";
    for (size_t i = 0; i < n && !r->what && rd->st == DG_OK; i++)
        if (table[i].needed && !(seen >> i & 1))
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%s%s%s is missing", dg_clip(whose, strlen(whose)).s, *whose ? ": " : "", table[i].name);
}

/* An object comes next and is read; anything else is a fault, null the same as nothing. */
static bool read_object(struct reader *rd, const struct member *table, size_t n, void *object, const char *where) {
    enum dg_json_token t = dg_jsonr_next(&rd->json);
    if (t == DG_JSON_NULL)
        return false;
    if (t != DG_JSON_OBJECT) {
        if (dg_jsonr_skip_from(&rd->json, t))
            fault(rd, where, "must be an object");
        return false;
    }
    read_members(rd, table, n, object, &where);
    return true;
}

/* A tensor while it is read. */
struct entry {
    struct dg_manifest_tensor t;
    const char *kind, *source_kind, *source_file;
    uint64_t local_offset, offset;
    bool has_source, has_local, has_offset;
};

static void e_name(struct reader *rd, void *o) {
    struct entry *e = o;
    e->t.name = read_text(rd, "a tensor's name", DG_TENSOR_NAME_MAX);
    if (e->t.name && !*e->t.name)
        fault(rd, "", "a tensor has no name");
}
static void e_kind(struct reader *rd, void *o) { ((struct entry *)o)->kind = read_text(rd, "kind", 64); }
static void e_dtype(struct reader *rd, void *o) {
    const char *s = read_text(rd, "dtype", 64);
    char upper[64] = "";
    for (size_t i = 0; s && s[i] && i + 1 < sizeof upper; i++)
        upper[i] = (char)(s[i] >= 'a' && s[i] <= 'z' ? s[i] - 32 : s[i]);
    const struct dg_dtype_info *d = dg_dtype_find(upper, strlen(upper));
    ((struct entry *)o)->t.dtype = d ? d->name : "";
}
static void e_offset(struct reader *rd, void *o) { (void)read_u64(rd, "offset", &((struct entry *)o)->t.offset); }
static void e_bytes(struct reader *rd, void *o) { (void)read_u64(rd, "byte_len", &((struct entry *)o)->t.bytes); }

static void e_shape(struct reader *rd, void *o) {
    struct entry *e = o;
    struct dg_jsonr *r = &rd->json;
    enum dg_json_token t = dg_jsonr_next(r);
    bool bad = t != DG_JSON_ARRAY;
    if (bad && !dg_jsonr_skip_from(r, t))
        return;
    while (!bad && (t = dg_jsonr_next(r)) != DG_JSON_ARRAY_END) {
        uint64_t v;
        if (t == DG_JSON_NUMBER && e->t.rank < DG_TENSOR_RANK_MAX && dg_jsonr_u64(r, INT64_MAX, &v)) {
            e->t.shape[e->t.rank++] = (int64_t)v;
            continue;
        }
        bad = true;
        while (t != DG_JSON_ARRAY_END) {
            if (!dg_jsonr_skip_from(r, t))
                return;
            t = dg_jsonr_next(r);
        }
    }
    if (bad)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "shape must be a list of at most %d whole numbers", DG_TENSOR_RANK_MAX);
}

static void s_kind(struct reader *rd, void *o) { ((struct entry *)o)->source_kind = read_text(rd, "source kind", 64); }
static void s_file(struct reader *rd, void *o) { ((struct entry *)o)->source_file = read_text(rd, "source file", DG_TENSOR_NAME_MAX); }
static void s_local(struct reader *rd, void *o) {
    struct entry *e = o;
    e->has_local = read_u64(rd, "local_offset", &e->local_offset);
}
static void s_offset(struct reader *rd, void *o) {
    struct entry *e = o;
    e->has_offset = read_u64(rd, "source offset", &e->offset);
}
static void e_source(struct reader *rd, void *o) {
    static const struct member table[] = {
        {"kind", s_kind, true}, {"local_offset", s_local, false}, {"file", s_file, false}, {"offset", s_offset, false}};
    ((struct entry *)o)->has_source = read_object(rd, table, sizeof table / sizeof *table, o, "source");
}
static void e_xxh3(struct reader *rd, void *o) {
    struct entry *e = o;
    const char *s = read_text(rd, "xxh3", 64);
    if (!s)
        return;
    e->t.hashed = strlen(s) == 16 && strspn(s, "0123456789abcdef") == 16;
    if (e->t.hashed)
        e->t.xxh3 = strtoull(s, NULL, 16);
    else
        fault(rd, "xxh3", "must be 16 lower-case hexadecimal digits");
}

/* The kind's name to the format; false after a fault. */
static bool resolve_kind(struct reader *rd, struct entry *e, const char *name) {
    e->t.raw = strcmp(e->kind, "raw") == 0;
    if (e->t.raw) {
        const struct dg_dtype_info *d = dg_dtype_find(e->t.dtype, strlen(e->t.dtype));
        if (!d)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: a raw tensor needs the dtype of its elements", name);
        e->t.kind = d ? (uint8_t)d->kind : DG_FMT_COUNT;
        return d != NULL;
    }
    for (int f = DG_FMT_Q4_BLOCK; f < DG_FMT_COUNT; f++)
        if (strcmp(e->kind, dg_format_traits((enum dg_format)f)->name) == 0) {
            e->t.kind = (uint8_t)f;
            return true;
        }
    dg_faults_add(&rd->faults, DG_E_UNSUPPORTED, "%s: kind %s is none that this engine knows", name, dg_clip(e->kind, strlen(e->kind)).s);
    return false;
}

uint64_t dg_manifest_bytes(enum dg_format kind, int rank, const int64_t *shape) {
    if (kind >= DG_FMT_COUNT)
        return 0;
    const struct dg_format_traits *t = dg_format_traits(kind);
    bool raw = kind < DG_FMT_Q4_BLOCK;
    if (!raw && (rank < 2 || shape[rank - 1] % t->block))
        return 0;
    uint64_t mats = 1, rows = 1, k = rank ? (uint64_t)shape[rank - 1] : 1, bytes;
    bool over = k >> 48;
    for (int i = 0; i < rank - 1; i++)
        over |= __builtin_mul_overflow(i < rank - 2 ? mats : rows, (uint64_t)shape[i], i < rank - 2 ? &mats : &rows);
    over |= __builtin_mul_overflow(rows, (uint64_t)t->row_extra + k / (uint64_t)t->block * (uint64_t)t->block_bytes, &bytes);
    over |= __builtin_add_overflow(bytes, (uint64_t)t->mat_extra, &bytes);
    over |= __builtin_mul_overflow(bytes, mats, &bytes);
    return over || bytes > INT64_MAX ? 0 : bytes;
}

/* Bytes of a raw tensor of an element type that is no weight's; SIZE_MAX on overflow. */
static uint64_t other_bytes(const struct dg_manifest_tensor *t) {
    uint64_t n = (uint64_t)dg_dtype_find(t->dtype, strlen(t->dtype))->bits;
    bool over = false;
    for (int i = 0; i < t->rank; i++)
        over |= __builtin_mul_overflow(n, (uint64_t)t->shape[i], &n);
    return over || n % 8 ? UINT64_MAX : n / 8;
}

static void resolve_source(struct reader *rd, struct entry *e, const char *name) {
    const struct dg_manifest *m = rd->m;
    bool local = strcmp(e->source_kind, "local") == 0;
    e->t.source = local ? DG_SOURCE_LOCAL : DG_SOURCE_EXTERNAL;
    e->t.at = local ? e->local_offset : e->offset;
    if (e->t.at > INT64_MAX - e->t.bytes)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: ends beyond any file", name);
    if (!local && strcmp(e->source_kind, "external") != 0)
        dg_faults_add(&rd->faults, DG_E_UNSUPPORTED, "%s: source kind %s is none that this engine knows", name,
                      dg_clip(e->source_kind, strlen(e->source_kind)).s);
    else if (local ? !e->has_local : !e->has_offset || !e->source_file)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: its source needs %s", name, local ? "local_offset" : "file and offset");
    else if (!local) {
        int i = rd->last_external;
        if (i >= m->n_external || strcmp(m->external[i].key, e->source_file) != 0)
            for (i = 0; i < m->n_external && strcmp(m->external[i].key, e->source_file) != 0;)
                i++;
        if (i == m->n_external)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: external_files has no %s", name, dg_clip(e->source_file, strlen(e->source_file)).s);
        e->t.external = (uint16_t)(rd->last_external = i);
    }
}

/* Checks one entry in itself and adds it. */
static void accept(struct reader *rd, struct entry *e) {
    struct dg_manifest *m = rd->m;
    struct dg_clip c = dg_clip(e->t.name, strlen(e->t.name));
    if (!resolve_kind(rd, e, c.s))
        return;
    bool over = false, empty = false;
    uint64_t count = 1, want = 0;
    for (int i = 0; i < e->t.rank; i++) {
        over |= __builtin_mul_overflow(count, (uint64_t)e->t.shape[i], &count);
        empty |= e->t.shape[i] == 0;
    }
    if (over || empty)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: its shape has %s elements", c.s, empty ? "no" : "too many");
    else if ((want = e->t.kind == DG_FMT_COUNT ? other_bytes(&e->t) : dg_manifest_bytes(e->t.kind, e->t.rank, e->t.shape)) == 0)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: its shape does not suit %s: it needs rows, their length a multiple of %d", c.s,
                      dg_manifest_kind(&e->t), dg_format_traits(e->t.kind)->block);
    else if (want != e->t.bytes)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: shape and kind make %" PRIu64 " bytes, byte_len says %" PRIu64, c.s, want, e->t.bytes);
    if (e->t.offset % DG_PACK_ALIGN)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: offset %" PRIu64 " is no multiple of %d; this pack must be made again", c.s, e->t.offset,
                      DG_PACK_ALIGN);
    if (e->t.offset > INT64_MAX - e->t.bytes)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: ends beyond any file", c.s);
    if (e->has_source)
        resolve_source(rd, e, c.s);
    if (m->n_tensors == DG_MANIFEST_TENSORS_MAX) {
        stop(rd, DG_E_LIMIT, "the manifest lists more than 32768 tensors");
        return;
    }
    if (m->n_tensors == rd->cap_tensors) {
        size_t cap = rd->cap_tensors ? 2 * rd->cap_tensors : 256;
        struct dg_manifest_tensor *p = dg_realloc(m->tensor, m->n_tensors, cap, sizeof *p);
        if (!p) {
            stop(rd, DG_E_NOMEM, "out of memory");
            return;
        }
        m->tensor = p;
        rd->cap_tensors = cap;
    }
    m->tensor[m->n_tensors++] = e->t;
}

static void m_tensors(struct reader *rd, void *o) {
    static const struct member table[] = {{"name", e_name, true},   {"kind", e_kind, true},      {"dtype", e_dtype, false},
                                          {"shape", e_shape, true}, {"offset", e_offset, true},  {"byte_len", e_bytes, true},
                                          {"source", e_source, false}, {"xxh3", e_xxh3, false}};
    (void)o;
    struct dg_jsonr *r = &rd->json;
    enum dg_json_token t = dg_jsonr_next(r);
    if (t != DG_JSON_ARRAY) {
        if (dg_jsonr_skip_from(r, t))
            fault(rd, "tensors", "must be a list");
        return;
    }
    while (rd->st == DG_OK && (t = dg_jsonr_next(r)) != DG_JSON_ARRAY_END && t != DG_JSON_ERROR) {
        struct entry e = {.t.dtype = ""};
        if (t != DG_JSON_OBJECT) {
            if (dg_jsonr_skip_from(r, t))
                fault(rd, "tensors", "must hold objects");
            continue;
        }
        size_t before = rd->faults.n;
        read_members(rd, table, sizeof table / sizeof *table, &e, &e.t.name);
        if (rd->st == DG_OK && !r->what && rd->faults.n == before)
            accept(rd, &e);
    }
}

static void x_role(struct reader *rd, void *o) {
    const char *s = read_text(rd, "role", 64);
    ((struct dg_manifest_external *)o)->pack_bin = s && strcmp(s, "pack_bin") == 0;
    if (s && strcmp(s, "pack_bin") != 0 && strcmp(s, "hf_safetensors") != 0)
        dg_faults_add(&rd->faults, DG_E_UNSUPPORTED, "role %s is none that this engine knows", dg_clip(s, strlen(s)).s);
}
static void x_path(struct reader *rd, void *o) {
    struct dg_manifest_external *x = o;
    x->path = read_text(rd, "path", 4000);
    if (x->path && !*x->path)
        fault(rd, "path", "is empty");
}
static void x_size(struct reader *rd, void *o) { (void)read_u64(rd, "expected_size", &((struct dg_manifest_external *)o)->size); }
static void x_sha256(struct reader *rd, void *o) {
    struct dg_manifest_external *x = o;
    x->sha256 = read_text(rd, "header_sha256", 64);
    if (x->sha256 && (strlen(x->sha256) != 64 || strspn(x->sha256, "0123456789abcdef") != 64))
        fault(rd, "header_sha256", "must be 64 lower-case hexadecimal digits");
}

/* A shard is a plain name in the snapshot; a pack's blob may lie anywhere. */
static void check_external(struct reader *rd, const struct dg_manifest_external *x) {
    if (x->path && !x->pack_bin && (strchr(x->path, '/') || x->path[0] == '.'))
        dg_faults_add(&rd->faults, DG_E_FORMAT, "external file %s: the path %s is not a plain file name", dg_clip(x->key, strlen(x->key)).s,
                      dg_clip(x->path, strlen(x->path)).s);
    for (int i = 0; i < rd->m->n_external; i++)
        if (strcmp(rd->m->external[i].key, x->key) == 0)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "external file %s is given twice", dg_clip(x->key, strlen(x->key)).s);
}

/* The key of a member of a map from keys to things, as a text of the manifest's. */
static const char *read_key(struct reader *rd, const char *what) {
    struct dg_jsonr *r = &rd->json;
    char *s = r->len <= DG_TENSOR_NAME_MAX ? text_room(rd, r->len + 1) : NULL;
    size_t n = s ? dg_jsonr_unescape(r, s) : SIZE_MAX;
    if (n == SIZE_MAX || memchr(s, 0, n)) {
        if (rd->st == DG_OK)
            fault(rd, what, "has a key that no name may have");
        return NULL;
    }
    s[n] = 0;
    return s;
}

static void m_externals(struct reader *rd, void *o) {
    static const struct member table[] = {
        {"role", x_role, true}, {"path", x_path, true}, {"expected_size", x_size, true}, {"header_sha256", x_sha256, false}};
    (void)o;
    struct dg_manifest *m = rd->m;
    struct dg_jsonr *r = &rd->json;
    enum dg_json_token t = dg_jsonr_next(r);
    if (t != DG_JSON_OBJECT) {
        if (t != DG_JSON_NULL && dg_jsonr_skip_from(r, t))
            fault(rd, "external_files", "must be an object");
        return;
    }
    while (rd->st == DG_OK && dg_jsonr_next(r) == DG_JSON_KEY) {
        struct dg_manifest_external x = {.key = read_key(rd, "external_files")};
        if (!x.key) {
            (void)dg_jsonr_skip(r);
            continue;
        }
        if (!read_object(rd, table, sizeof table / sizeof *table, &x, x.key) || rd->st != DG_OK)
            continue;
        check_external(rd, &x);
        if (m->n_external == DG_MANIFEST_EXTERNALS_MAX) {
            stop(rd, DG_E_LIMIT, "the manifest names more than 1000 external files");
            return;
        }
        if (m->n_external == rd->cap_external) {
            int cap = rd->cap_external ? 2 * rd->cap_external : 16;
            struct dg_manifest_external *p = dg_realloc(m->external, (size_t)m->n_external, (size_t)cap, sizeof *p);
            if (!p) {
                stop(rd, DG_E_NOMEM, "out of memory");
                return;
            }
            m->external = p;
            rd->cap_external = cap;
        }
        m->external[m->n_external++] = x;
    }
}

/* Descriptive only: nothing is decided by it, so what is beyond the table is dropped. */
static void m_classes(struct reader *rd, void *o) {
    (void)o;
    struct dg_manifest *m = rd->m;
    struct dg_jsonr *r = &rd->json;
    enum dg_json_token t = dg_jsonr_next(r);
    if (t != DG_JSON_OBJECT) {
        (void)dg_jsonr_skip_from(r, t);
        return;
    }
    while (rd->st == DG_OK && dg_jsonr_next(r) == DG_JSON_KEY) {
        const char *key = m->n_classes < DG_MANIFEST_CLASSES_MAX ? read_key(rd, "custom_classes") : NULL;
        const char *format = key ? read_text(rd, "custom_classes", 64) : NULL;
        if (!key)
            (void)dg_jsonr_skip(r);
        if (format) {
            m->classes[m->n_classes].name = key;
            m->classes[m->n_classes++].format = format;
        }
    }
}

static void b_repo(struct reader *rd, void *o) { ((struct dg_manifest *)o)->repo = read_text(rd, "repo", 256); }
static void b_revision(struct reader *rd, void *o) { ((struct dg_manifest *)o)->revision = read_text(rd, "revision", 256); }
static void m_base(struct reader *rd, void *o) {
    static const struct member table[] = {{"repo", b_repo, true}, {"revision", b_revision, true}};
    (void)read_object(rd, table, 2, o, "base_model");
}
static void m_version(struct reader *rd, void *o) {
    uint64_t v;
    if (!read_u64(rd, "version", &v))
        return;
    if (v < 1 || v > 4)
        dg_faults_add(&rd->faults, DG_E_UNSUPPORTED, "version %" PRIu64 " is none that this engine reads (1 to 4): use a newer diffgemma", v);
    else
        ((struct dg_manifest *)o)->version = (int)v;
}
static void m_profile(struct reader *rd, void *o) { ((struct dg_manifest *)o)->profile = read_text(rd, "profile", 64); }
static void m_source(struct reader *rd, void *o) { ((struct dg_manifest *)o)->source_model = read_text(rd, "source_model", 4096); }
static void m_blob(struct reader *rd, void *o) {
    const char *s = read_text(rd, "blob_file", 255);
    ((struct dg_manifest *)o)->blob_file = s;
    if (s && (!*s || strchr(s, '/') || s[0] == '.'))
        dg_faults_add(&rd->faults, DG_E_FORMAT, "blob_file %s is not a plain file name", dg_clip(s, strlen(s)).s);
}

/* null is the same as absent. */
static bool read_split(struct reader *rd, const char *what, uint64_t *v) {
    struct dg_jsonr look = rd->json;
    if (dg_jsonr_next(&look) == DG_JSON_NULL) {
        rd->json = look;
        return false;
    }
    if (!read_u64(rd, what, v))
        return false;
    if (*v % DG_PACK_ALIGN)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "%s %" PRIu64 " is no multiple of %d", what, *v, DG_PACK_ALIGN);
    return true;
}
static void m_split(struct reader *rd, void *o) {
    struct dg_manifest *m = o;
    m->has_split = read_split(rd, "expert_split", &m->split);
}
static void m_local_split(struct reader *rd, void *o) {
    struct dg_manifest *m = o;
    m->has_local_split = read_split(rd, "local_expert_split", &m->local_split);
}

static void skip_member(struct reader *rd, void *o) {
    (void)o;
    (void)dg_jsonr_skip(&rd->json);
}

/* One pass over the document. */
static void read_document(struct reader *rd, const char *text, size_t n) {
    static const struct member first[] = {
        {"version", m_version, true},          {"profile", m_profile, true},   {"source_model", m_source, false},
        {"blob_file", m_blob, true},           {"expert_split", m_split, false}, {"local_expert_split", m_local_split, false},
        {"base_model", m_base, false},         {"external_files", m_externals, false}, {"custom_classes", m_classes, false},
        {"tensors", skip_member, true}};
    static const struct member second[] = {{"tensors", m_tensors, true}};
    static const char *const nobody = "";
    struct dg_jsonr *r = &rd->json;
    dg_jsonr_init(r, text, n);
    enum dg_json_token t = dg_jsonr_next(r);
    if (t == DG_JSON_OBJECT) {
        if (rd->in_tensors)
            read_members(rd, second, 1, rd->m, &nobody);
        else
            read_members(rd, first, sizeof first / sizeof *first, rd->m, &nobody);
        t = rd->st == DG_OK ? dg_jsonr_next(r) : DG_JSON_END;
    } else if (t != DG_JSON_ERROR)
        dg_jsonr_fail(r, "the manifest must be an object");
    if (r->what)
        dg_faults_add(&rd->faults, DG_E_FORMAT, "damaged at byte %zu: %s", r->at, r->what);
}

static int by_offset(const void *a, const void *b) {
    const struct dg_manifest_tensor *x = *(const struct dg_manifest_tensor *const *)a, *y = *(const struct dg_manifest_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x > y) - (x < y);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const struct dg_manifest_tensor *const *)a)->name, (*(const struct dg_manifest_tensor *const *)b)->name);
}

/* No two tensors share a name or a byte of the canonical space; local experts lie where local_expert_split says. */
static void check_together(struct reader *rd) {
    const struct dg_manifest *m = rd->m;
    const struct dg_manifest_tensor **p = dg_calloc(m->n_tensors, sizeof *p);
    if (!p) {
        stop(rd, DG_E_NOMEM, "out of memory");
        return;
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct dg_manifest_tensor *t = p[i] = &m->tensor[i];
        if (m->has_split && m->has_local_split && t->source == DG_SOURCE_LOCAL && t->offset >= m->split &&
            t->at != t->offset - m->split + m->local_split)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%s: local_offset and local_expert_split disagree", dg_clip(t->name, strlen(t->name)).s);
    }
    if (m->n_tensors)
        qsort(p, m->n_tensors, sizeof *p, by_name);
    for (size_t i = 1; i < m->n_tensors; i++)
        if (strcmp(p[i]->name, p[i - 1]->name) == 0)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%s is listed twice", dg_clip(p[i]->name, strlen(p[i]->name)).s);
    if (m->n_tensors)
        qsort(p, m->n_tensors, sizeof *p, by_offset);
    for (size_t i = 1; i < m->n_tensors; i++)
        if (p[i]->offset < p[i - 1]->offset + p[i - 1]->bytes)
            dg_faults_add(&rd->faults, DG_E_FORMAT, "%s overlaps %s", dg_clip(p[i]->name, strlen(p[i]->name)).s,
                          dg_clip(p[i - 1]->name, strlen(p[i - 1]->name)).s);
    dg_free(p);
}

enum dg_status dg_manifest_parse(struct dg_manifest *m, const char *text, size_t n, struct dg_error *err) {
    memset(m, 0, sizeof *m);
    if (n > DG_MANIFEST_FILE_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "has %zu bytes, at most %zu are read", n, DG_MANIFEST_FILE_MAX);
    struct reader rd = {.m = m, .err = err};
    dg_faults_init(&rd.faults);
    read_document(&rd, text, n);
    /* a manifest of a later version may mean its tensors in another way */
    if (rd.st == DG_OK && !rd.json.what && rd.faults.code != DG_E_UNSUPPORTED) {
        rd.in_tensors = true;
        read_document(&rd, text, n);
        if (rd.st == DG_OK && rd.faults.n == 0 && m->n_tensors == 0)
            fault(&rd, "tensors", "is empty");
        if (rd.st == DG_OK && rd.faults.n == 0)
            check_together(&rd);
    }
    enum dg_status st = rd.st;
    if (st == DG_OK)
        st = dg_faults_result(&rd.faults, "the pack's manifest", err);
    dg_faults_deinit(&rd.faults);
    if (st != DG_OK)
        dg_manifest_deinit(m);
    return st;
}

enum dg_status dg_manifest_load(struct dg_manifest *m, const char *dir, struct dg_error *err) {
    memset(m, 0, sizeof *m);
    char path[4096];
    if (snprintf(path, sizeof path, "%s/" DG_MANIFEST_NAME, dir) >= (int)sizeof path)
        return DG_FAIL(err, DG_E_LIMIT, "path too long");
    struct dg_map map;
    DG_TRY(dg_map_open(&map, path, err));
    enum dg_status st = dg_manifest_parse(m, (const char *)map.data, map.size, err);
    if (st != DG_OK)
        dg_error_prefix(err, "%s", path);
    dg_map_close(&map);
    return st;
}

void dg_manifest_deinit(struct dg_manifest *m) {
    for (struct dg_manifest_text *c = m->text, *next; c; c = next) {
        next = c->next;
        dg_free(c);
    }
    dg_free(m->external);
    dg_free(m->tensor);
    memset(m, 0, sizeof *m);
}
