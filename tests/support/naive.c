#include "support/naive.h"

#include "support/st_read.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *name) {
    fprintf(stderr, "naive model: %s: %s\n", what, name);
    exit(3);
}

double *nv_new(int64_t n) {
    double *p = calloc((size_t)n + 1, sizeof *p);
    if (!p)
        die("no memory", "");
    return p;
}

double nv_random(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(*s >> 11) / 4503599627370496.0 - 1.0;
}

double nv_bf16(uint16_t h) {
    int e = h >> 7 & 255, f = h & 127;
    double v = e == 255 ? f ? NAN : INFINITY : e ? ldexp(128 + f, e - 127 - 7) : ldexp(f, -126 - 7);
    return h >> 15 ? -v : v;
}

double nv_f16(uint16_t h) {
    int e = h >> 10 & 31, f = h & 1023;
    double v = e == 31 ? f ? NAN : INFINITY : e ? ldexp(1024 + f, e - 15 - 10) : ldexp(f, -14 - 10);
    return h >> 15 ? -v : v;
}

static double number(json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    if (!json_is_number(v))
        die("config.json has no number", key);
    return json_number_value(v);
}

void nv_open(struct nv_model *m, const char *dir, int ctx) {
    char path[4096];
    memset(m, 0, sizeof *m);
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *j = json_load_file(path, 0, NULL), *t = json_object_get(j, "text_config"), *types = json_object_get(t, "layer_types");
    if (!t)
        die("cannot read", path);
    m->canvas = (int)number(j, "canvas_length");
    m->hidden = (int)number(t, "hidden_size");
    m->layers = (int)number(t, "num_hidden_layers");
    m->heads = (int)number(t, "num_attention_heads");
    m->vocab = (int)number(t, "vocab_size");
    m->experts = (int)number(t, "num_experts");
    m->topk = (int)number(t, "top_k_experts");
    m->moe = (int)number(t, "moe_intermediate_size");
    m->inter = (int)number(t, "intermediate_size");
    m->window = (int)number(t, "sliding_window");
    m->eps = number(t, "rms_norm_eps");
    m->cap = number(t, "final_logit_softcapping");
    json_t *rope = json_object_get(t, "rope_parameters"), *full = json_object_get(rope, "full_attention");
    m->theta[0] = number(json_object_get(rope, "sliding_attention"), "rope_theta");
    m->theta[1] = number(full, "rope_theta");
    m->factor[0] = 1;
    m->factor[1] = number(full, "partial_rotary_factor");
    m->ctx = ctx;
    for (int l = 0; l < m->layers; l++) {
        m->full[l] = !strcmp(json_string_value(json_array_get(types, (size_t)l)), "full_attention");
        m->hd[l] = (int)number(t, m->full[l] ? "global_head_dim" : "head_dim");
        m->kv[l] = (int)number(t, m->full[l] ? "num_global_key_value_heads" : "num_key_value_heads");
        m->k[l] = nv_new((int64_t)ctx * m->kv[l] * m->hd[l]);
        m->v[l] = nv_new((int64_t)ctx * m->kv[l] * m->hd[l]);
    }
    json_decref(j);
    for (int i = 1; i <= 16; i++) {
        snprintf(path, sizeof path, "%s/model-%05d.safetensors", dir, i);
        FILE *f = fopen(path, "rb");
        if (!f)
            break;
        fclose(f);
        if (!(m->file[m->n_files++] = st_open(path)))
            die("cannot read", path);
    }
    if (!m->n_files)
        die("no shards in", dir);
}

void nv_close(struct nv_model *m) {
    for (int i = 0; i < m->n_files; i++)
        st_close(m->file[i]);
    for (int l = 0; l < m->layers; l++) {
        free(m->k[l]);
        free(m->v[l]);
    }
    for (int i = 0; i < m->n_kept; i++) {
        free(m->kept[i].name);
        free(m->kept[i].v);
    }
    free(m->kept);
    memset(m, 0, sizeof *m);
}

const double *nv_tensor(struct nv_model *m, const char *name, int64_t n) {
    for (int i = 0; i < m->n_kept; i++)
        if (!strcmp(m->kept[i].name, name)) {
            if (n >= 0 && m->kept[i].n != n)
                die("another number of elements", name);
            return m->kept[i].v;
        }
    const void *raw = NULL;
    enum st_dtype type = ST_U8;
    int64_t count = 0;
    for (int i = 0; i < m->n_files && !raw; i++) {
        raw = st_get(m->file[i], name, &type, NULL, NULL);
        count = st_numel(m->file[i], name);
    }
    if (!raw || (n >= 0 && count != n))
        die("tensor missing or of another size", name);
    double *v = nv_new(count);
    for (int64_t i = 0; i < count; i++)
        v[i] = type == ST_BF16 ? nv_bf16(((const uint16_t *)raw)[i])
               : type == ST_F16 ? nv_f16(((const uint16_t *)raw)[i])
               : type == ST_F32 ? (double)((const float *)raw)[i]
                                : NAN;
    m->kept = realloc(m->kept, (size_t)(m->n_kept + 1) * sizeof *m->kept);
    if (!m->kept)
        die("no memory", name);
    m->kept[m->n_kept].name = strdup(name);
    m->kept[m->n_kept].v = v;
    m->kept[m->n_kept++].n = count;
    return v;
}

const double *nv_layer_tensor(struct nv_model *m, int l, const char *what, int64_t n) {
    char name[256];
    snprintf(name, sizeof name, "model.decoder.layers.%d.%s", l, what);
    return nv_tensor(m, name, n);
}

void nv_norm(const double *x, const double *w, int n, double eps, double *y) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    double r = 1 / sqrt(sum / n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * r * (w ? w[i] : 1);
}

void nv_matvec(const double *w, int n, int k, const double *x, double *y) {
    for (int r = 0; r < n; r++) {
        double s = 0;
        for (int i = 0; i < k; i++)
            s += w[(int64_t)r * k + i] * x[i];
        y[r] = s;
    }
}

double nv_gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

void nv_rope(double *head, int hd, int64_t pos, double theta, double factor) {
    for (int i = 0; i < hd / 2; i++) {
        double freq = i < factor * hd / 2 ? pow(theta, -2.0 * i / hd) : 0, a = (double)pos * freq;
        double x = head[i], y = head[i + hd / 2];
        head[i] = x * cos(a) - y * sin(a);
        head[i + hd / 2] = y * cos(a) + x * sin(a);
    }
}

void nv_attend(const double *q, int hd, const double *k, const double *v, int64_t stride, int64_t t, int64_t keys, double *out) {
    double *s = nv_new(t), top = -INFINITY, sum = 0;
    bool *use = calloc((size_t)t + 1, sizeof *use);
    for (int64_t i = 0; i < t; i++)
        for (int d = 0; d < hd; d++)
            s[i] += q[d] * k[i * stride + d];
    for (int64_t picked = 0; picked < keys && picked < t; picked++) {
        int64_t best = -1;
        for (int64_t i = 0; keys < t && i < t; i++)
            if (!use[i] && (best < 0 || (float)s[i] > (float)s[best]))
                best = i;
        use[best < 0 ? picked : best] = true;
    }
    for (int64_t i = 0; i < t; i++)
        if (use[i] && s[i] > top)
            top = s[i];
    memset(out, 0, (size_t)hd * sizeof *out);
    for (int64_t i = 0; i < t; i++)
        if (use[i]) {
            double p = exp(s[i] - top);
            sum += p;
            for (int d = 0; d < hd; d++)
                out[d] += p * v[i * stride + d];
        }
    for (int d = 0; d < hd; d++)
        out[d] /= sum;
    free(s);
    free(use);
}

void nv_route(const double *logits, int experts, int topk, const double *scale, int *id, double *weight) {
    double top = logits[0], sum = 0, kept = 0, *p = nv_new(experts);
    for (int e = 0; e < experts; e++)
        top = logits[e] > top ? logits[e] : top;
    for (int e = 0; e < experts; e++)
        sum += p[e] = exp(logits[e] - top);
    for (int i = 0; i < topk; i++) {
        int best = -1;
        for (int e = 0; e < experts; e++) {
            bool taken = false;
            for (int k = 0; k < i; k++)
                taken |= id[k] == e;
            if (!taken && (best < 0 || p[e] > p[best]))
                best = e;
        }
        id[i] = best;
        weight[i] = p[best] / sum;
        kept += weight[i];
    }
    for (int i = 0; i < topk; i++)
        weight[i] = weight[i] / kept * scale[id[i]];
    free(p);
}

void nv_expert(const double *w_gate_up, const double *w_down, int moe, int hidden, const double *x, double weight, double *y) {
    double *gu = nv_new(2 * moe), *d = nv_new(hidden);
    nv_matvec(w_gate_up, 2 * moe, hidden, x, gu);
    for (int i = 0; i < moe; i++)
        gu[i] = nv_gelu(gu[i]) * gu[moe + i];
    nv_matvec(w_down, hidden, moe, gu, d);
    for (int i = 0; i < hidden; i++)
        y[i] += weight * d[i];
    free(gu);
    free(d);
}

double nv_stats(const double *z, int n, double inv_t, double *p, int *argmax, double *p_max) {
    int best = 0;
    double sum = 0, h = 0;
    for (int i = 1; i < n; i++)
        if (z[i] > z[best])
            best = i;
    for (int i = 0; i < n; i++)
        sum += p[i] = exp((z[i] - z[best]) * inv_t);
    for (int i = 0; i < n; i++) {
        p[i] /= sum;
        h -= p[i] > 0 ? p[i] * log(p[i]) : 0;
    }
    *argmax = best;
    *p_max = p[best];
    return h;
}

/* Keys, values and queries of the rows: the heads one by one. */
static void project(struct nv_model *m, int l, const double *x, int n, int64_t pos0, double *q) {
    int hd = m->hd[l], qn = m->heads * hd, kn = m->kv[l] * hd, full = m->full[l], h = m->hidden;
    const double *wq = nv_layer_tensor(m, l, "self_attn.q_proj.weight", (int64_t)qn * h);
    const double *wk = nv_layer_tensor(m, l, "self_attn.k_proj.weight", (int64_t)kn * h);
    const double *wv = full ? wk : nv_layer_tensor(m, l, "self_attn.v_proj.weight", (int64_t)kn * h);
    const double *q_norm = nv_layer_tensor(m, l, "self_attn.q_norm.weight", hd), *k_norm = nv_layer_tensor(m, l, "self_attn.k_norm.weight", hd);
    const double *norm = nv_layer_tensor(m, l, "input_layernorm.weight", h);
    double *t = nv_new(h);
    for (int i = 0; i < n; i++) {
        double *qi = q + (int64_t)i * qn, *k = m->k[l] + (pos0 + i) * kn, *v = m->v[l] + (pos0 + i) * kn;
        nv_norm(x + (int64_t)i * h, norm, h, m->eps, t);
        nv_matvec(wq, qn, h, t, qi);
        nv_matvec(wk, kn, h, t, k);
        nv_matvec(wv, kn, h, t, v);
        for (int head = 0; head < m->heads; head++) {
            nv_norm(qi + head * hd, q_norm, hd, m->eps, qi + head * hd);
            nv_rope(qi + head * hd, hd, pos0 + i, m->theta[full], m->factor[full]);
        }
        for (int head = 0; head < m->kv[l]; head++) {
            nv_norm(k + head * hd, k_norm, hd, m->eps, k + head * hd);
            nv_rope(k + head * hd, hd, pos0 + i, m->theta[full], m->factor[full]);
            nv_norm(v + head * hd, NULL, hd, m->eps, v + head * hd);
        }
    }
    free(t);
}

static void attention(struct nv_model *m, int l, bool encoder, double *x, int n, int64_t pos0, const struct nv_look *look) {
    int hd = m->hd[l], qn = m->heads * hd, kn = m->kv[l] * hd, h = m->hidden;
    double *q = nv_new((int64_t)n * qn), *a = nv_new(qn), *t = nv_new(h);
    project(m, l, x, n, pos0, q);
    for (int i = 0; i < n; i++) {
        /* causal: up to the row's own position, and on a sliding layer the last `window`; else the whole canvas and what lies before it, on
         * a sliding layer the last window - 1 of that */
        int64_t hi = encoder ? pos0 + i + 1 : pos0 + n, lo = m->full[l] ? 0 : (encoder ? pos0 + i : pos0) - (m->window - 1);
        if (lo < 0)
            lo = 0;
        for (int head = 0; head < m->heads; head++) {
            int64_t at = lo * kn + (int64_t)(head / (m->heads / m->kv[l])) * hd;
            nv_attend(q + (int64_t)i * qn + head * hd, hd, m->k[l] + at, m->v[l] + at, kn, hi - lo, hi - lo, a + head * hd);
        }
        nv_matvec(nv_layer_tensor(m, l, "self_attn.o_proj.weight", (int64_t)h * qn), h, qn, a, t);
        nv_norm(t, nv_layer_tensor(m, l, "post_attention_layernorm.weight", h), h, m->eps, t);
        for (int d = 0; d < h; d++)
            x[(int64_t)i * h + d] += t[d];
        if (look && look->att)
            memcpy(look->att + (int64_t)i * qn, a, (size_t)qn * sizeof *a);
    }
    if (look && look->q)
        memcpy(look->q, q, (size_t)n * (size_t)qn * sizeof *q);
    free(q);
    free(a);
    free(t);
}

static void feed_forward(struct nv_model *m, int l, double scalar, double *x, double *router) {
    int h = m->hidden, id[64];
    double *t = nv_new(h), *dense = nv_new(h), *moe = nv_new(h), *g = nv_new(m->inter), *u = nv_new(m->inter);
    double *logits = nv_new(m->experts), weight[64];
    nv_norm(x, nv_layer_tensor(m, l, "pre_feedforward_layernorm.weight", h), h, m->eps, t);
    nv_matvec(nv_layer_tensor(m, l, "mlp.gate_proj.weight", (int64_t)m->inter * h), m->inter, h, t, g);
    nv_matvec(nv_layer_tensor(m, l, "mlp.up_proj.weight", (int64_t)m->inter * h), m->inter, h, t, u);
    for (int i = 0; i < m->inter; i++)
        g[i] = nv_gelu(g[i]) * u[i];
    nv_matvec(nv_layer_tensor(m, l, "mlp.down_proj.weight", (int64_t)m->inter * h), h, m->inter, g, dense);

    nv_norm(x, nv_layer_tensor(m, l, "router.scale", h), h, m->eps, t);
    for (int d = 0; d < h; d++)
        t[d] /= sqrt(h);
    nv_matvec(nv_layer_tensor(m, l, "router.proj.weight", (int64_t)m->experts * h), m->experts, h, t, logits);
    nv_route(logits, m->experts, m->topk, nv_layer_tensor(m, l, "router.per_expert_scale", m->experts), id, weight);
    if (router)
        memcpy(router, logits, (size_t)m->experts * sizeof *logits);
    nv_norm(x, nv_layer_tensor(m, l, "pre_feedforward_layernorm_2.weight", h), h, m->eps, t);
    int64_t gu = (int64_t)2 * m->moe * h, dn = (int64_t)h * m->moe;
    for (int k = 0; k < m->topk; k++)
        nv_expert(nv_layer_tensor(m, l, "experts.gate_up_proj", m->experts * gu) + id[k] * gu,
                  nv_layer_tensor(m, l, "experts.down_proj", m->experts * dn) + id[k] * dn, m->moe, h, t, weight[k], moe);

    nv_norm(dense, nv_layer_tensor(m, l, "post_feedforward_layernorm_1.weight", h), h, m->eps, dense);
    nv_norm(moe, nv_layer_tensor(m, l, "post_feedforward_layernorm_2.weight", h), h, m->eps, moe);
    for (int d = 0; d < h; d++)
        t[d] = dense[d] + moe[d];
    nv_norm(t, nv_layer_tensor(m, l, "post_feedforward_layernorm.weight", h), h, m->eps, t);
    for (int d = 0; d < h; d++)
        x[d] = (x[d] + t[d]) * scalar;
    free(t);
    free(dense);
    free(moe);
    free(g);
    free(u);
    free(logits);
}

void nv_layer(struct nv_model *m, int l, bool encoder, double *x, int n, int64_t pos0, const struct nv_look *look) {
    char name[128];
    snprintf(name, sizeof name, encoder ? "model.encoder.language_model.layers.%d.layer_scalar" : "model.decoder.layers.%d.layer_scalar", l);
    double scalar = nv_tensor(m, name, 1)[0];
    attention(m, l, encoder, x, n, pos0, look);
    if (look && look->attention_only)
        return;
    for (int i = 0; i < n; i++)
        feed_forward(m, l, scalar, x + (int64_t)i * m->hidden, look && look->router ? look->router + (int64_t)i * m->experts : NULL);
    if (look && look->out)
        memcpy(look->out, x, (size_t)n * (size_t)m->hidden * sizeof *x);
}

void nv_embed(struct nv_model *m, const int32_t *ids, int n, double *x) {
    const double *e = nv_tensor(m, "model.decoder.embed_tokens.weight", (int64_t)m->vocab * m->hidden);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < m->hidden; d++)
            x[(int64_t)i * m->hidden + d] = e[(int64_t)ids[i] * m->hidden + d] * sqrt(m->hidden);
}

static void final_norm(struct nv_model *m, double *x, int n) {
    for (int i = 0; i < n; i++)
        nv_norm(x + (int64_t)i * m->hidden, nv_tensor(m, "model.decoder.norm.weight", m->hidden), m->hidden, m->eps, x + (int64_t)i * m->hidden);
}

void nv_denoise(struct nv_model *m, const int32_t *ids, int n, int64_t pos0, const double *signal, double *logits) {
    int h = m->hidden;
    int64_t size = (int64_t)m->inter * h;
    double *x = nv_new((int64_t)n * h), *t = nv_new(h), *g = nv_new(m->inter), *u = nv_new(m->inter);
    nv_embed(m, ids, n, x);
    for (int i = 0; i < n; i++) {
        double *row = x + (int64_t)i * h;
        if (signal) {
            nv_norm(signal + (int64_t)i * h, nv_tensor(m, "model.decoder.self_conditioning.pre_norm.weight", h), h, m->eps, t);
            nv_matvec(nv_tensor(m, "model.decoder.self_conditioning.gate_proj.weight", size), m->inter, h, t, g);
            nv_matvec(nv_tensor(m, "model.decoder.self_conditioning.up_proj.weight", size), m->inter, h, t, u);
            for (int k = 0; k < m->inter; k++)
                g[k] = nv_gelu(g[k]) * u[k];
            nv_matvec(nv_tensor(m, "model.decoder.self_conditioning.down_proj.weight", size), h, m->inter, g, t);
            for (int d = 0; d < h; d++)
                row[d] += t[d];
        }
        nv_norm(row, NULL, h, m->eps, row);
    }
    for (int l = 0; l < m->layers; l++)
        nv_layer(m, l, false, x, n, pos0, NULL);
    final_norm(m, x, n);
    for (int i = 0; i < n; i++) {
        double *z = logits + (int64_t)i * m->vocab;
        nv_matvec(nv_tensor(m, "model.decoder.embed_tokens.weight", (int64_t)m->vocab * h), m->vocab, h, x + (int64_t)i * h, z);
        for (int v = 0; v < m->vocab; v++)
            z[v] = m->cap * tanh(z[v] / m->cap);
    }
    free(x);
    free(t);
    free(g);
    free(u);
}

void nv_soft(struct nv_model *m, const double *logits, int n, double inv_t, bool sparse, double *signal, double *dropped) {
    const double *e = nv_tensor(m, "model.decoder.embed_tokens.weight", (int64_t)m->vocab * m->hidden);
    double *p = nv_new(m->vocab), p_max;
    int best;
    for (int i = 0; i < n; i++) {
        double *out = signal + (int64_t)i * m->hidden, lost = 0;
        nv_stats(logits + (int64_t)i * m->vocab, m->vocab, inv_t, p, &best, &p_max);
        memset(out, 0, (size_t)m->hidden * sizeof *out);
        for (int v = 0; v < m->vocab; v++) {
            if (sparse && p[v] < p_max * exp(-10)) {
                lost += p[v];
                continue;
            }
            for (int d = 0; d < m->hidden; d++)
                out[d] += p[v] * e[(int64_t)v * m->hidden + d] * sqrt(m->hidden);
        }
        if (dropped)
            dropped[i] = lost;
    }
    free(p);
}
