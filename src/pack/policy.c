#include "pack/policy.h"

#include <inttypes.h>
#include <string.h>

#define RAW DG_FMT_COUNT
#define BIT(f) (1u << (f))
#define LINEAR (BIT(RAW) | BIT(DG_FMT_Q8_ROW) | BIT(DG_FMT_Q4_BLOCK) | BIT(DG_FMT_NVFP4_BLOCK))

static const struct {
    const char *name;
    unsigned formats; /* bit per format */
    const char *why;  /* why not the others */
} classes[DG_CLASS_COUNT] = {
    [DG_CLASS_GATE_UP] = {"experts.gate_up", BIT(DG_FMT_Q4_BLOCK) | BIT(DG_FMT_Q6_BLOCK) | BIT(DG_FMT_NVFP4_BLOCK),
                          "experts take q4, q6 or nvfp4: the grouped expert product has no kernel for the others"},
    [DG_CLASS_DOWN] = {"experts.down", BIT(DG_FMT_Q4_BLOCK) | BIT(DG_FMT_Q6_BLOCK) | BIT(DG_FMT_NVFP4_BLOCK),
                       "experts take q4, q6 or nvfp4: the grouped expert product has no kernel for the others"},
    [DG_CLASS_ATTN] = {"attn", LINEAR, "attn takes raw, q8, q4 or nvfp4: q6 is a format of expert stacks only"},
    [DG_CLASS_DENSE] = {"dense", LINEAR, "dense takes raw, q8, q4 or nvfp4: q6 is a format of expert stacks only"},
    [DG_CLASS_SC] = {"sc", LINEAR, "sc takes raw, q8, q4 or nvfp4: q6 is a format of expert stacks only"},
    [DG_CLASS_VISION] = {"vision", LINEAR | BIT(DG_FMT_Q6_BLOCK), ""},
};

static const struct {
    const char *name;
    enum dg_format format;
} formats[] = {
    {"raw", RAW}, {"q4", DG_FMT_Q4_BLOCK}, {"q6", DG_FMT_Q6_BLOCK}, {"q8", DG_FMT_Q8_ROW}, {"nvfp4", DG_FMT_NVFP4_BLOCK},
};

static const struct {
    const char *name, *why;
} locked[] = {
    {"embed", "the embedding is also the output head and the self-conditioning table, and rare tokens need its full precision"},
    {"embed_tokens", "the embedding is also the output head and the self-conditioning table, and rare tokens need its full precision"},
    {"router", "routing decides which experts run, a small error there picks another expert, and its tensors are tiny"},
    {"norm", "norm weights are tiny and scale whole activations"},
    {"norms", "norm weights are tiny and scale whole activations"},
    {"scalar", "layer scalars are single numbers that scale whole layers"},
    {"scalars", "layer scalars are single numbers that scale whole layers"},
    {"layer_scalar", "layer scalars are single numbers that scale whole layers"},
};
#define N_OF(t) (sizeof(t) / sizeof *(t))

const char *dg_class_name(enum dg_class c) { return c < DG_CLASS_COUNT ? classes[c].name : "locked"; }

enum dg_status dg_policy_init(struct dg_policy *p, const char *profile, struct dg_error *err) {
    static const struct {
        const char *name, *written;
        enum dg_format experts, linear;
    } profiles[] = {
        {"q4", "q4", DG_FMT_Q4_BLOCK, RAW},
        {"q6", "q6", DG_FMT_Q6_BLOCK, RAW},
        {"nvfp4", "nvfp4", DG_FMT_NVFP4_BLOCK, DG_FMT_NVFP4_BLOCK},
        {"nvfp4x", "q4", DG_FMT_Q4_BLOCK, RAW},
    };
    memset(p, 0, sizeof *p);
    for (int i = 0; i < DG_CLASS_COUNT; i++)
        p->codes[i] = -1;
    if (strcmp(profile, "q5") == 0)
        return DG_FAIL(err, DG_E_ARG, "profile q5 has no format of its own (packs that name it hold q4 blocks): use q4 or q6");
    for (size_t i = 0; i < N_OF(profiles); i++) {
        if (strcmp(profile, profiles[i].name) != 0)
            continue;
        p->profile = profiles[i].written;
        p->format[DG_CLASS_GATE_UP] = p->format[DG_CLASS_DOWN] = profiles[i].experts;
        p->format[DG_CLASS_ATTN] = p->format[DG_CLASS_DENSE] = profiles[i].linear;
        p->format[DG_CLASS_SC] = DG_FMT_Q8_ROW;
        p->format[DG_CLASS_VISION] = RAW;
        return strcmp(profile, "nvfp4x") == 0 ? dg_policy_set(p, "experts=nvfp4", err) : DG_OK;
    }
    return DG_FAIL(err, DG_E_ARG, "profile %s: one of q4, q6, nvfp4, nvfp4x", dg_clip(profile, strlen(profile)).s);
}

/* Whether the n characters at s name class i; "experts" names both stacks. */
static bool names_class(const char *s, size_t n, int i) {
    static const char *const experts = "experts";
    if (n == strlen(experts) && memcmp(s, experts, n) == 0)
        return i == DG_CLASS_GATE_UP || i == DG_CLASS_DOWN;
    return strlen(classes[i].name) == n && memcmp(classes[i].name, s, n) == 0;
}

enum dg_status dg_policy_set_codes(struct dg_policy *p, const char *rule, struct dg_error *err) {
    const char *eq = strchr(rule, '='), *how = eq ? eq + 1 : rule;
    bool found = false;
    int codes = strcmp(how, dg_codes_name(DG_CODES_PLAIN)) == 0 ? DG_CODES_PLAIN : strcmp(how, dg_codes_name(DG_CODES_FIT)) == 0 ? DG_CODES_FIT : -1;
    for (int i = 0; i < DG_CLASS_COUNT && codes >= 0; i++)
        if (!eq || names_class(rule, (size_t)(eq - rule), i)) {
            p->codes[i] = codes;
            found = true;
        }
    return found ? DG_OK : DG_FAIL(err, DG_E_ARG, "--codes %s: give plain or fit, or CLASS=plain or CLASS=fit", dg_clip(rule, strlen(rule)).s);
}

enum dg_status dg_policy_set(struct dg_policy *p, const char *rule, struct dg_error *err) {
    const char *eq = strchr(rule, '=');
    size_t n = eq ? (size_t)(eq - rule) : 0;
    struct dg_clip c = dg_clip(rule, strlen(rule));
    if (n == 0 || !eq[1])
        return DG_FAIL(err, DG_E_ARG, "--set %s: give CLASS=FORMAT, for instance attn=q8", c.s);
    for (size_t i = 0; i < N_OF(locked); i++)
        if (strlen(locked[i].name) == n && memcmp(locked[i].name, rule, n) == 0)
            return DG_FAIL(err, DG_E_ARG, "--set %s: this class is locked and stays as it is: %s", c.s, locked[i].why);
    enum dg_format fmt = DG_FMT_BF16;
    for (size_t i = 0; i < N_OF(formats); i++)
        if (strcmp(formats[i].name, eq + 1) == 0)
            fmt = formats[i].format;
    if (fmt == DG_FMT_BF16)
        return DG_FAIL(err, DG_E_ARG, "--set %s: the format is one of raw, q4, q6, q8, nvfp4", c.s);
    bool found = false;
    for (int i = 0; i < DG_CLASS_COUNT; i++) {
        if (!names_class(rule, n, i))
            continue;
        found = true;
        if (!(classes[i].formats & BIT(fmt)))
            return DG_FAIL(err, DG_E_ARG, "--set %s: %s", c.s, classes[i].why);
        p->format[i] = fmt;
        p->set[i] = true;
    }
    return found ? DG_OK
                 : DG_FAIL(err, DG_E_ARG, "--set %s: the class is one of experts, experts.gate_up, experts.down, attn, dense, sc, vision", c.s);
}

enum dg_status dg_policy_check(const struct dg_policy *p, struct dg_error *err) {
    if (p->format[DG_CLASS_GATE_UP] == p->format[DG_CLASS_DOWN])
        return DG_OK;
    return DG_FAIL(err, DG_E_ARG, "--set: experts.gate_up would be %s and experts.down %s, but both must have one format: set experts=FORMAT",
                   dg_format_traits(p->format[DG_CLASS_GATE_UP])->name, dg_format_traits(p->format[DG_CLASS_DOWN])->name);
}

static bool ends(const char *s, size_t n, const char *tail) {
    size_t m = strlen(tail);
    return n >= m && memcmp(s + n - m, tail, m) == 0;
}

static bool starts(const char *s, size_t n, const char *head) {
    size_t m = strlen(head);
    return n >= m && memcmp(s, head, m) == 0;
}

enum dg_class dg_class_of(const char *name, size_t n, int rank) {
    static const struct {
        const char *tail;
        int rank;
        enum dg_class c;
    } layer[] = {
        {".experts.gate_up_proj", 3, DG_CLASS_GATE_UP},       {".experts.down_proj", 3, DG_CLASS_DOWN},
        {".self_attn.q_proj.weight", 2, DG_CLASS_ATTN},       {".self_attn.k_proj.weight", 2, DG_CLASS_ATTN},
        {".self_attn.v_proj.weight", 2, DG_CLASS_ATTN},       {".self_attn.o_proj.weight", 2, DG_CLASS_ATTN},
        {".mlp.gate_proj.weight", 2, DG_CLASS_DENSE},         {".mlp.up_proj.weight", 2, DG_CLASS_DENSE},
        {".mlp.down_proj.weight", 2, DG_CLASS_DENSE},
    };
    static const char *const sc[] = {"model.decoder.self_conditioning.gate_proj.weight", "model.decoder.self_conditioning.up_proj.weight",
                                     "model.decoder.self_conditioning.down_proj.weight"};
    if (starts(name, n, "model.decoder.layers."))
        for (size_t i = 0; i < N_OF(layer); i++)
            if (rank == layer[i].rank && ends(name, n, layer[i].tail))
                return layer[i].c;
    for (size_t i = 0; i < N_OF(sc); i++)
        if (rank == 2 && strlen(sc[i]) == n && memcmp(sc[i], name, n) == 0)
            return DG_CLASS_SC;
    if (rank == 2 && (starts(name, n, "model.encoder.vision_tower.") || starts(name, n, "model.encoder.embed_vision.")) &&
        (ends(name, n, ".linear.weight") || ends(name, n, ".embedding_projection.weight")))
        return DG_CLASS_VISION;
    return DG_CLASS_LOCKED;
}

enum dg_format dg_policy_format(const struct dg_policy *p, const char *name, size_t n, int rank) {
    enum dg_class c = dg_class_of(name, n, rank);
    return c == DG_CLASS_LOCKED ? RAW : p->format[c];
}

enum dg_codes dg_policy_codes(const struct dg_policy *p, enum dg_class c, enum dg_format fmt) {
    if (c >= DG_CLASS_COUNT)
        return DG_CODES_PLAIN;
    if (p->codes[c] >= 0)
        return (enum dg_codes)p->codes[c];
    /* measured: docs/quantisation.md. Self-conditioning in nvfp4 is the one case where the plain way came closer. */
    return c == DG_CLASS_SC && fmt == DG_FMT_NVFP4_BLOCK ? DG_CODES_PLAIN : DG_CODES_FIT;
}

void dg_policy_check_shape(struct dg_faults *f, const char *name, size_t n, enum dg_format fmt, int rank, const int64_t *shape) {
    if (fmt == RAW)
        return;
    const struct dg_format_traits *t = dg_format_traits(fmt);
    struct dg_clip c = dg_clip(name, n);
    if (rank < 2 || (fmt == DG_FMT_Q8_ROW && rank != 2))
        dg_faults_add(f, DG_E_UNSUPPORTED, "%s: %s needs a matrix, this has %d dimensions", c.s, t->name, rank);
    else if (shape[rank - 1] % t->block)
        dg_faults_add(f, DG_E_UNSUPPORTED, "%s: %s needs rows of a multiple of %d values, these have %" PRId64, c.s, t->name, t->block,
                      shape[rank - 1]);
}
