/* The writing side of the manifest, and what is derived from its contents. */
#include "pack/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool dg_manifest_layered(const struct dg_manifest *m) {
    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i].source != DG_SOURCE_BLOB)
            return true;
    return false;
}

uint64_t dg_manifest_total(const struct dg_manifest *m) {
    uint64_t end = 0;
    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i].offset + m->tensor[i].bytes > end)
            end = m->tensor[i].offset + m->tensor[i].bytes;
    return end;
}

int dg_manifest_version(const struct dg_manifest *m) {
    int version = 1;
    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i].kind == DG_FMT_NVFP4_BLOCK)
            version = 2;
    if (dg_manifest_layered(m))
        version = 3;
    return m->n_classes ? 4 : version;
}

const char *dg_manifest_kind(const struct dg_manifest_tensor *t) { return t->raw ? "raw" : dg_format_traits(t->kind)->name; }

/* A JSON string. The texts are UTF-8: they come from JSON, from safetensors names or from the command line. */
static void put_text(struct dg_buf *b, const char *s) {
    dg_buf_chr(b, '"');
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            dg_buf_fmt(b, "\\%c", c);
        else if (c < 0x20)
            dg_buf_fmt(b, "\\u%04x", c);
        else
            dg_buf_chr(b, (char)c);
    }
    dg_buf_chr(b, '"');
}

static void put_member(struct dg_buf *b, const char *name, const char *value) {
    dg_buf_fmt(b, ",\n \"%s\": ", name);
    put_text(b, value);
}

static void put_tensor(struct dg_buf *b, const struct dg_manifest *m, const struct dg_manifest_tensor *t) {
    dg_buf_str(b, "{\"name\": ");
    put_text(b, t->name);
    dg_buf_fmt(b, ", \"kind\": \"%s\", \"dtype\": \"%s\", \"shape\": [", dg_manifest_kind(t), t->dtype);
    for (int i = 0; i < t->rank; i++)
        dg_buf_fmt(b, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    dg_buf_fmt(b, "], \"offset\": %" PRIu64 ", \"byte_len\": %" PRIu64, t->offset, t->bytes);
    if (t->source == DG_SOURCE_LOCAL)
        dg_buf_fmt(b, ", \"source\": {\"kind\": \"local\", \"local_offset\": %" PRIu64 "}", t->at);
    else if (t->source == DG_SOURCE_EXTERNAL) {
        dg_buf_str(b, ", \"source\": {\"kind\": \"external\", \"file\": ");
        put_text(b, m->external[t->external].key);
        dg_buf_fmt(b, ", \"offset\": %" PRIu64 "}", t->at);
    }
    if (t->hashed)
        dg_buf_fmt(b, ", \"xxh3\": \"%016" PRIx64 "\"", t->xxh3);
    dg_buf_chr(b, '}');
}

static void put_externals(struct dg_buf *b, const struct dg_manifest *m) {
    dg_buf_str(b, ",\n \"external_files\": {");
    for (int i = 0; i < m->n_external; i++) {
        const struct dg_manifest_external *x = &m->external[i];
        dg_buf_str(b, i ? ",\n  " : "\n  ");
        put_text(b, x->key);
        dg_buf_fmt(b, ": {\"role\": \"%s\", \"path\": ", x->pack_bin ? "pack_bin" : "hf_safetensors");
        put_text(b, x->path);
        dg_buf_fmt(b, ", \"expected_size\": %" PRIu64, x->size);
        if (x->sha256)
            dg_buf_fmt(b, ", \"header_sha256\": \"%s\"", x->sha256);
        dg_buf_chr(b, '}');
    }
    dg_buf_chr(b, '}');
}

enum dg_status dg_manifest_print(const struct dg_manifest *m, struct dg_buf *b) {
    dg_buf_fmt(b, "{\n \"version\": %d", m->version);
    put_member(b, "profile", m->profile);
    put_member(b, "source_model", m->source_model ? m->source_model : "");
    put_member(b, "blob_file", m->blob_file);
    if (m->has_split)
        dg_buf_fmt(b, ",\n \"expert_split\": %" PRIu64, m->split);
    if (m->has_local_split)
        dg_buf_fmt(b, ",\n \"local_expert_split\": %" PRIu64, m->local_split);
    if (m->repo) {
        dg_buf_str(b, ",\n \"base_model\": {\"repo\": ");
        put_text(b, m->repo);
        dg_buf_str(b, ", \"revision\": ");
        put_text(b, m->revision);
        dg_buf_chr(b, '}');
    }
    if (m->n_external)
        put_externals(b, m);
    if (m->n_classes) {
        dg_buf_str(b, ",\n \"custom_classes\": {");
        for (int i = 0; i < m->n_classes; i++) {
            dg_buf_str(b, i ? ", " : "");
            put_text(b, m->classes[i].name);
            dg_buf_str(b, ": ");
            put_text(b, m->classes[i].format);
        }
        dg_buf_chr(b, '}');
    }
    dg_buf_str(b, ",\n \"tensors\": [");
    for (size_t i = 0; i < m->n_tensors; i++) {
        dg_buf_str(b, i ? ",\n  " : "\n  ");
        put_tensor(b, m, &m->tensor[i]);
    }
    return dg_buf_str(b, "\n ]\n}\n");
}
