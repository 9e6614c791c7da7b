#include "core/flags.h"

#include "core/mem.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

enum flag_type { FLAG_BOOL, FLAG_INT, FLAG_POW2, FLAG_FLOAT, FLAG_ENUM, FLAG_TEXT };

static const char *const type_names[] = {"bool", "int", "int", "float", "enum", "string"};

struct flag {
    const char *name;
    enum flag_type type;
    size_t offset; /* of the field in struct dg_flags */
    double min, max;
    const char *range; /* as printed; of an enum the spellings, '|' between, in the order of its values from `first` on */
    int32_t first;
    const char *def; /* as a user would spell it; "" = unset */
    const char *help;
};

#define AT(field) offsetof(struct dg_flags, field)
#define BOOL(name, field, def, help) \
    { name, FLAG_BOOL, AT(field), 0, 1, "0|1", 0, def, help }
#define TEXT(name, field, what, help) \
    { name, FLAG_TEXT, AT(field), 0, 0, what, 0, "", help }

static const struct flag table[] = {
    BOOL("ATTN_WINDOW", attn_window, "1", "sliding layers of a denoise step see only the last window-1 context positions"),
    BOOL("ATTN_TOPK", attn_topk, "1", "full layers attend to the k highest-scoring keys of each query; 0 = all keys"),
    BOOL("ATTN_TOPK_DYN", attn_topk_dyn, "1", "k grows with the context, clamp(t/128, 64, 512); 0 = ATTN_TOPK_K"),
    {"ATTN_TOPK_K", FLAG_INT, AT(attn_topk_k), 1, 4096, "1..4096", 0, "64", "k when ATTN_TOPK_DYN is 0"},
    BOOL("ATTN_TOPK_DECODE", attn_topk_decode, "1", "with ATTN_TOPK: in denoise steps too; 0 = all keys there"),
    {"COMMIT_CONF_TRIM", FLAG_FLOAT, AT(commit_conf_trim), 0, 1, "0..1", 0, "0.9",
     "cut a block at the first row below this probability that copies its neighbour; 0 = off"},
    {"COMMIT_CONF_HARD", FLAG_FLOAT, AT(commit_conf_hard), 0, 1, "0..1", 0, "0",
     "cut a block at the first row below this probability; 0 = off"},
    BOOL("CONTINUE_PAST_STOP", continue_past_stop, "0", "a stop token inside an unfinished tool call does not end the turn"),
    BOOL("WS_BLOCK_STOP", ws_block_stop, "0", "a block of white space or padding only ends the turn"),
    BOOL("DENOISER_ARGMAX", denoiser_argmax, "1", "accepted positions take the likeliest token; 0 = a tempered draw"),
    BOOL("FREEZE", freeze, "0", "legacy: an accepted position keeps its token for the rest of the block"),
    {"EARLY_STOP_MEAN_ENT", FLAG_FLOAT, AT(early_stop_mean_ent), 0, 16, "0..16", 0, "0.05",
     "from step 12 on stop a block below this mean entropy (nats); 0 = off"},
    {"EMPTY_REPLY_RETRY", FLAG_INT, AT(empty_reply_retry), 0, 16, "0..16", 0, "3",
     "new canvases for a first block that says nothing"},
    BOOL("REFERENCE_STOPS", reference_stops, "0", "stop a block only when stable and confident, as the reference does"),
    {"FIRST_STEP_SC", FLAG_ENUM, AT(first_step_sc), 0, 0, "seed|none", DG_FIRST_STEP_SEED, "seed",
     "self-conditioning of a block's first step: the canvas's own embedding, or no signal"},
    BOOL("SC_SPARSE", sc_sparse, "1",
         "soft embedding from tokens of at least e^-10 of a row's largest probability; 0 = from all"),
    BOOL("CHECK_LOGITS", check_logits, "1", "a turn whose logits hold NaN or Inf ends with an error; 0 = it goes on"),
    {"FAST_PREFILL", FLAG_ENUM, AT(fast_prefill), 0, 0, "auto|0|1", DG_FAST_PREFILL_AUTO, "",
     "planes of a prompt: auto = f32 up to 256 tokens, else bf16; 0 = f32, 1 = bf16; later tokens bf16; unset = as all else"},
    {"FAST_PREFILL_MAX", FLAG_INT, AT(fast_prefill_max), 0, 1 << 24, "0..16777216", 0, "0",
     "with FAST_PREFILL: more tokens at once take f32 planes, but for a whole prompt under 1; 0 = no limit"},
    {"KV_RING", FLAG_POW2, AT(kv_ring), 16, 1 << 24, "16..16777216, a power of two", 0, "4096",
     "positions a sliding layer's cache holds (at least window-1 + canvas)"},
    BOOL("KV_Q8", kv_q8, "0", "KV cache in 8 bits where --kv is not given: half the memory, less exact"),
    BOOL("KV_REUSE", kv_reuse, "1", "a chat's prompt continues the cache of the one before; 0 = each is computed whole"),
    BOOL("TOOL_VALIDATE", tool_validate, "0", "generate a turn with an invalid tool call again, as --tool-retries 2 does"),
    BOOL("TOOL_REPAIR", tool_repair, "0", "let the model correct an invalid tool call unseen, as --tool-repair does"),
    BOOL("DELIM_CHECK", delim_check, "0", "search replies for odd quotes, unbalanced brackets and doubled words, and say so"),
    TEXT("HF_HOME", hf_home, "folder", "Hugging Face cache; before HF_HOME and ~/.cache/huggingface"),
    TEXT("MODEL", model, "folder or org/name", "model used when -m is not given"),
    TEXT("CPU", cpu, "level", "strongest instruction-set level of the CPU backend, as --cpu; the stricter of both counts"),
    TEXT("CUDA_KERNELS", cuda_kernels, "auto|portable|simple|LIST",
         "kernels of the CUDA backend: auto, portable, simple, or groups for its generation (a wrong name is answered with the list)"),
    TEXT("DELIM_CHECK_JSONL", delim_check_jsonl, "file", "append what DELIM_CHECK finds in each reply as a JSON line"),
    TEXT("TRACE_PMAX_JSONL", trace_pmax_jsonl, "file", "append each step's largest probabilities as JSON lines"),
};

#define N_FLAGS (sizeof table / sizeof *table)

/* Whole spelling only: sign, digits; no white space, no other base. */
static bool parse_int(const char *s, int32_t *out) {
    const char *d = s + (*s == '-' || *s == '+');
    size_t n = strspn(d, "0123456789");
    if (n == 0 || d[n])
        return false;
    errno = 0;
    long long v = strtoll(s, NULL, 10);
    if (errno || v < INT32_MIN || v > INT32_MAX)
        return false;
    *out = (int32_t)v;
    return true;
}

/* Decimal only, with a point whatever the locale; no inf, nan or hexadecimal. A number too large becomes infinite, which no range
 * allows. */
static bool parse_float(const char *s, double *out) {
    const char *p = s + (*s == '-' || *s == '+');
    size_t whole = strspn(p, "0123456789");
    p += whole;
    size_t frac = 0;
    if (*p == '.') {
        p++;
        frac = strspn(p, "0123456789");
        p += frac;
    }
    if (whole + frac == 0)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        size_t n = strspn(p, "0123456789");
        if (n == 0)
            return false;
        p += n;
    }
    if (*p)
        return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return false;
    *out = strtod_l(s, NULL, c);
    freelocale(c);
    return true;
}

static bool parse_enum(const struct flag *t, const char *s, int32_t *out) {
    size_t n = strlen(s);
    int32_t v = t->first;
    for (const char *p = t->range; n; v++) {
        size_t k = strcspn(p, "|");
        if (k == n && !memcmp(p, s, n)) {
            *out = v;
            return true;
        }
        if (!p[k])
            break;
        p += k + 1;
    }
    return false;
}

/* DG_E_ARG when the value does not fit the flag; nothing is changed then. */
static enum dg_status apply(struct dg_flags *f, const struct flag *t, const char *s) {
    char *field = (char *)f + t->offset;
    int32_t i;
    double d;
    switch (t->type) {
    case FLAG_BOOL:
        if ((s[0] != '0' && s[0] != '1') || s[1])
            return DG_E_ARG;
        *(bool *)field = s[0] == '1';
        return DG_OK;
    case FLAG_INT:
    case FLAG_POW2:
        if (!parse_int(s, &i) || i < t->min || i > t->max || (t->type == FLAG_POW2 && (i & (i - 1))))
            return DG_E_ARG;
        *(int32_t *)field = i;
        return DG_OK;
    case FLAG_FLOAT:
        if (!parse_float(s, &d) || !(d >= t->min && d <= t->max))
            return DG_E_ARG;
        *(double *)field = d;
        return DG_OK;
    case FLAG_ENUM:
        if (!parse_enum(t, s, &i))
            return DG_E_ARG;
        *(int32_t *)field = i;
        return DG_OK;
    case FLAG_TEXT: {
        size_t n = strnlen(s, DG_FLAGS_TEXT_MAX + 1);
        if (n > DG_FLAGS_TEXT_MAX)
            return DG_E_ARG;
        char *copy = dg_strndup(s, n);
        if (!copy)
            return DG_E_NOMEM;
        dg_free(*(char **)field);
        *(char **)field = copy;
        return DG_OK;
    }
    }
    return DG_E_INTERNAL;
}

void dg_flags_default(struct dg_flags *f) {
    memset(f, 0, sizeof *f);
    for (size_t i = 0; i < N_FLAGS; i++)
        if (table[i].def[0])
            (void)apply(f, &table[i], table[i].def); /* a test applies every default */
}

void dg_flags_deinit(struct dg_flags *f) {
    for (size_t i = 0; i < N_FLAGS; i++)
        if (table[i].type == FLAG_TEXT)
            dg_free(*(char **)((char *)f + table[i].offset));
    dg_flags_default(f);
}

static char upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c; }

/* Edits (insert, delete, replace one character, case apart) that turn a into b; names longer than the row never come close to one
 * of ours. */
static int edits(const char *a, size_t na, const char *b) {
    int row[64];
    size_t nb = strlen(b);
    if (nb >= sizeof row / sizeof *row || na >= sizeof row / sizeof *row)
        return 64;
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diag = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int v = diag + (upper(a[i - 1]) != b[j - 1]);
            if (row[j] + 1 < v)
                v = row[j] + 1;
            if (row[j - 1] + 1 < v)
                v = row[j - 1] + 1;
            diag = row[j];
            row[j] = v;
        }
    }
    return row[nb];
}

static const struct flag *closest(const char *name, size_t n) {
    const struct flag *best = table;
    int best_d = 1 << 20;
    for (size_t i = 0; i < N_FLAGS; i++) {
        int d = edits(name, n, table[i].name);
        if (d < best_d) {
            best_d = d;
            best = &table[i];
        }
    }
    return best;
}

/* At most 60 bytes of foreign text, with anything but printable ASCII replaced, so that it cannot break the line it stands in. */
static void add_shown(struct dg_buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n && i < 60; i++)
        (void)dg_buf_chr(out, s[i] >= 0x20 && s[i] < 0x7f ? s[i] : '?');
    if (n > 60)
        (void)dg_buf_str(out, "...");
}

static void report_unknown(struct dg_buf *out, const char *name, size_t n) {
    (void)dg_buf_str(out, DG_FLAGS_PREFIX);
    add_shown(out, name, n);
    (void)dg_buf_fmt(out, " is not a switch (closest: " DG_FLAGS_PREFIX "%s)", closest(name, n)->name);
}

static void report_value(struct dg_buf *out, const struct flag *t, const char *value) {
    (void)dg_buf_fmt(out, DG_FLAGS_PREFIX "%s", t->name);
    if (t->type == FLAG_TEXT) {
        (void)dg_buf_fmt(out, " is longer than %d bytes", DG_FLAGS_TEXT_MAX);
        return;
    }
    (void)dg_buf_str(out, " is '");
    add_shown(out, value, strlen(value));
    (void)dg_buf_fmt(out, "' but must be %s (%s)", t->range, type_names[t->type]);
}

enum dg_status dg_flags_load(struct dg_flags *f, const char *const *envp, struct dg_error *err) {
    struct dg_buf bad;
    size_t n_bad = 0, n_named = 0, prefix = strlen(DG_FLAGS_PREFIX);
    enum dg_status st = DG_OK;
    dg_buf_init(&bad, DG_FLAGS_REPORT_MAX);
    for (; envp && *envp && st == DG_OK; envp++) {
        if (strncmp(*envp, DG_FLAGS_PREFIX, prefix))
            continue;
        const char *name = *envp + prefix, *eq = strchr(name, '=');
        if (!eq || !eq[1])
            continue;
        size_t n = (size_t)(eq - name), i = 0;
        while (i < N_FLAGS && (strlen(table[i].name) != n || memcmp(table[i].name, name, n)))
            i++;
        enum dg_status one = i < N_FLAGS ? apply(f, &table[i], eq + 1) : DG_E_ARG;
        if (one == DG_OK)
            continue;
        if (one != DG_E_ARG) {
            st = DG_FAIL(err, one, "no memory to store " DG_FLAGS_PREFIX "%s", table[i].name);
            break;
        }
        n_bad++;
        if (bad.len > DG_FLAGS_REPORT_MAX - 512) /* room for one more report and never a cut one */
            continue;
        n_named++;
        if (bad.len)
            (void)dg_buf_str(&bad, "; ");
        if (i < N_FLAGS)
            report_value(&bad, &table[i], eq + 1);
        else
            report_unknown(&bad, name, n);
    }
    if (st == DG_OK && n_bad) {
        if (n_bad > n_named)
            (void)dg_buf_fmt(&bad, "; and %zu more", n_bad - n_named);
        st = DG_FAIL(err, DG_E_ARG, "%s. `diffgemma flags` lists every switch.", dg_buf_cstr(&bad));
    }
    dg_buf_deinit(&bad);
    return st;
}

bool dg_flags_info(size_t i, struct dg_flag_info *out) {
    if (i >= N_FLAGS)
        return false;
    const struct flag *t = &table[i];
    *out = (struct dg_flag_info){t->name, type_names[t->type], t->range, t->def[0] ? t->def : "unset", t->help};
    return true;
}

enum dg_status dg_flags_print(struct dg_buf *out) {
    struct dg_flag_info v = {"NAME", "TYPE", "RANGE", "DEFAULT", "WHAT IT DOES"}, w;
    int name = 0, range = 0;
    for (size_t i = 0; dg_flags_info(i, &w); i++) {
        name = (int)strlen(w.name) > name ? (int)strlen(w.name) : name;
        range = (int)strlen(w.range) > range ? (int)strlen(w.range) : range;
    }
    (void)dg_buf_fmt(out, "%-*s  %-6s  %-*s  %-7s  %s\n", name + (int)strlen(DG_FLAGS_PREFIX), v.name, v.type, range, v.range,
                     v.def, v.help);
    for (size_t i = 0; dg_flags_info(i, &v); i++)
        (void)dg_buf_fmt(out, DG_FLAGS_PREFIX "%-*s  %-6s  %-*s  %-7s  %s\n", name, v.name, v.type, range, v.range, v.def,
                         v.help);
    return out->status;
}
