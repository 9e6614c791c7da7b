/* config.json and generation_config.json: both spellings, defaults, and what is refused in which words. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/config.h"
#include "support/mkckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_text(const struct dg_error *err, const char *part) {
    const char *text = dg_error_text(err);
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
    if (strchr(text, '\n') || !*text)
        fail_msg("\"%s\" is not one line", text);
}

static struct dg_config good(const char *text, const char *gen) {
    struct dg_config c;
    struct dg_error err = {0};
    if (dg_config_parse(&c, text, strlen(text), gen, gen ? strlen(gen) : 0, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    return c;
}

static void bad(const char *text, const char *gen, enum dg_status want, const char *part) {
    struct dg_config c;
    struct dg_error err = {0};
    enum dg_status st = dg_config_parse(&c, text, strlen(text), gen, gen ? strlen(gen) : 0, &err);
    expect_text(&err, part);
    if (st != want)
        fail_msg("%s instead of %s: %s", dg_status_name(st), dg_status_name(want), dg_error_text(&err));
    dg_error_clear(&err);
}

/* The tiny shape's config with one edit. */
static void edited(const char *old, const char *new, enum dg_status want, const char *part) {
    struct mk_ckpt c;
    mk_build(&c, &mk_tiny, "BF16", false, 1);
    c.config = mk_edit(c.config, old, new);
    bad(c.config, c.generation, want, part);
    mk_free(&c);
}

static void reads_the_oracle_folders(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int vocab, hidden, layers, heads, inter, experts, topk, moe, canvas, window, full_from, hd, kv, full_hd, full_kv;
    } want[] = {{"tiny-a", 512, 64, 6, 4, 96, 8, 2, 32, 32, 16, 5, 16, 2, 32, 1},
                {"tiny-b", 600, 96, 7, 6, 160, 8, 3, 32, 40, 24, 5, 32, 3, 64, 2}};
    for (int i = 0; i < 2; i++) {
        char path[256];
        size_t n, m;
        snprintf(path, sizeof path, "tests/data/config/%s.config.json", want[i].name);
        char *text = mk_slurp(path, &n);
        snprintf(path, sizeof path, "tests/data/config/%s.generation_config.json", want[i].name);
        char *gen = mk_slurp(path, &m);
        struct dg_config c = good(text, gen);
        assert_int_equal(c.vocab, want[i].vocab);
        assert_int_equal(c.hidden, want[i].hidden);
        assert_int_equal(c.layers, want[i].layers);
        assert_int_equal(c.heads, want[i].heads);
        assert_int_equal(c.inter, want[i].inter);
        assert_int_equal(c.experts, want[i].experts);
        assert_int_equal(c.topk, want[i].topk);
        assert_int_equal(c.moe, want[i].moe);
        assert_int_equal(c.canvas, want[i].canvas);
        assert_int_equal(c.window, want[i].window);
        assert_int_equal(c.ctx_max, 4096);
        assert_int_equal(c.pad, 0);
        assert_int_equal(c.bos, 2);
        for (int l = 0; l < c.layers; l++) {
            assert_int_equal(c.layer[l].full, l >= want[i].full_from);
            assert_int_equal(c.layer[l].hd, l >= want[i].full_from ? want[i].full_hd : want[i].hd);
            assert_int_equal(c.layer[l].kv_heads, l >= want[i].full_from ? want[i].full_kv : want[i].kv);
        }
        assert_true(c.theta_sliding == 1e4 && c.theta_full == 1e6 && c.rotary_full == 0.25 && c.rotary_sliding == 1);
        assert_true(c.eps == 1e-6f && c.softcap == 30.0f);
        /* every sampler field of these files is null: the seed's defaults; no stop ids: config.json's list, not text_config's 1
         */
        assert_true(c.entropy_bound == 0.1 && c.t_min == 0.4 && c.t_max == 0.8 && c.confidence == 0.005);
        assert_int_equal(c.steps_max, 48);
        assert_int_equal(c.stability, 1);
        assert_int_equal(c.n_stops, 2);
        assert_int_equal(c.stops[0], 1);
        assert_int_equal(c.stops[1], 106);
        free(text);
        free(gen);
    }
}

static void both_spellings_mean_the_same(void **state) {
    (void)state;
    struct mk_ckpt a, b;
    mk_build(&a, &mk_tiny, "BF16", false, 1);
    mk_build(&b, &mk_tiny, "BF16", true, 1);
    assert_non_null(strstr(a.config, "global_head_dim"));
    assert_non_null(strstr(b.config, "per_layer_config"));
    struct dg_config x = good(a.config, a.generation), y = good(b.config, b.generation);
    assert_memory_equal(&x, &y, sizeof x);
    assert_int_equal(x.layer[2].hd, 16);
    assert_int_equal(x.layer[2].kv_heads, 1);
    assert_int_equal(x.layer[1].hd, 8);
    assert_true(x.entropy_bound == 0.2 && x.t_min == 0.3 && x.t_max == 0.9 && x.confidence == 0.01);
    assert_int_equal(x.steps_max, 12);
    assert_int_equal(x.stability, 2);
    /* a field absent from an entry takes the base value, and an entry may name any layer */
    b.config = mk_edit(b.config, "\"head_dim\": 16, \"num_key_value_heads\": 1}",
                       "\"num_key_value_heads\": 4}, \"0\": {\"head_dim\": 4}");
    y = good(b.config, b.generation);
    assert_int_equal(y.layer[2].hd, 8);
    assert_int_equal(y.layer[2].kv_heads, 4);
    assert_int_equal(y.layer[0].hd, 4);
    assert_int_equal(y.layer[0].kv_heads, 2);
    mk_free(&a);
    mk_free(&b);
}

/* What real files leave out takes the seed's values. */
static void defaults_of_the_seed(void **state) {
    (void)state;
    struct dg_config c =
        good("{\"model_type\": \"diffusion_gemma\", \"text_config\": {\"vocab_size\": 262144, \"hidden_size\": 2816, "
             "\"num_hidden_layers\": 30, \"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 256, "
             "\"global_head_dim\": 512, \"num_global_key_value_heads\": 2, \"intermediate_size\": 2112, \"num_experts\": 128, "
             "\"top_k_experts\": 8, \"moe_intermediate_size\": 704}}",
             NULL);
    assert_int_equal(c.canvas, 256);
    assert_int_equal(c.window, 1024);
    assert_int_equal(c.ctx_max, 262144);
    assert_int_equal(c.pad, 0);
    assert_int_equal(c.bos, 2);
    assert_int_equal(c.n_stops, 3);
    assert_int_equal(c.stops[0], 1);
    assert_int_equal(c.stops[1], 106);
    assert_int_equal(c.stops[2], 50);
    assert_true(c.eps == 1e-6f && c.softcap == 30.0f && c.theta_sliding == 1e4 && c.theta_full == 1e6);
    assert_true(c.rotary_full == 0.25 && c.rotary_sliding == 1);
    for (int l = 0; l < 30; l++) {
        assert_int_equal(c.layer[l].full, l == 5 || l == 11 || l == 17 || l == 23 || l == 29);
        assert_int_equal(c.layer[l].hd, c.layer[l].full ? 512 : 256);
        assert_int_equal(c.layer[l].kv_heads, c.layer[l].full ? 2 : 8);
    }
    assert_int_equal(c.steps_max, 48);
}

static void stop_ids(void **state) {
    (void)state;
    struct mk_ckpt k;
    mk_build(&k, &mk_tiny, "BF16", false, 1);
    struct dg_config c = good(k.config, k.generation); /* the generation file wins */
    assert_int_equal(c.n_stops, 3);
    assert_int_equal(c.stops[2], 50);
    c = good(k.config, "{}");
    assert_int_equal(c.n_stops, 2);
    c = good(k.config, "{\"eos_token_id\": 7}"); /* a number is a list of one */
    assert_int_equal(c.n_stops, 1);
    assert_int_equal(c.stops[0], 7);
    c = good(k.config, "{\"eos_token_id\": [7, 7, 160, 999999, 3]}"); /* twice, and beyond the vocabulary of 160 */
    assert_int_equal(c.n_stops, 2);
    assert_int_equal(c.stops[0], 7);
    assert_int_equal(c.stops[1], 3);
    k.config = mk_edit(k.config, "\"eos_token_id\": [1, 106], ", "");
    c = good(k.config, NULL); /* then text_config's */
    assert_int_equal(c.n_stops, 1);
    assert_int_equal(c.stops[0], 1);
    bad(k.config, "{\"eos_token_id\": []}", DG_E_FORMAT, "eos_token_id must be 1 to 16 ids");
    bad(k.config, "{\"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", DG_E_FORMAT, "has 17");
    bad(k.config, "{\"eos_token_id\": -1}", DG_E_FORMAT, "eos_token_id is -1");
    bad(k.config, "{\"eos_token_id\": [\"1\"]}", DG_E_FORMAT, "eos_token_id must be a whole number");
    bad(k.config, "{\"eos_token_id\": [1, 2.5]}", DG_E_FORMAT, "eos_token_id must be a whole number");
    mk_free(&k);
}

static void refuses_hostile_numbers(void **state) {
    (void)state;
    static const struct {
        const char *field, *value;
    } keys[] = {{"vocab_size", "160"},
                {"hidden_size", "32"},
                {"num_hidden_layers", "3"},
                {"num_attention_heads", "4"},
                {"intermediate_size", "48"},
                {"num_experts", "4"},
                {"top_k_experts", "2"},
                {"moe_intermediate_size", "16"},
                {"sliding_window", "8"},
                {"canvas_length", "16"},
                {"num_key_value_heads", "2"},
                {"head_dim", "8"},
                {"max_position_embeddings", "4096"},
                {"global_head_dim", "16"},
                {"num_global_key_value_heads", "1"}};
    static const char *const values[] = {"-1", "0", "1e300", "2147483648", "9223372036854775807", "\"8\"", "[8]", "true", "1.5"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char old[80], new[120];
            snprintf(old, sizeof old, "\"%s\": %s,", keys[k].field, keys[k].value);
            snprintf(new, sizeof new, "\"%s\": %s,", keys[k].field, values[v]);
            edited(old, new, DG_E_FORMAT, keys[k].field);
        }
    edited("\"vocab_size\": 160", "\"vocab_size\": 9223372036854775808", DG_E_FORMAT, "damaged JSON");
    edited("\"vocab_size\": 160", "\"vocab_size\": 1e999", DG_E_FORMAT, "damaged JSON");
    edited("\"vocab_size\": 160", "\"vocab_size\": NaN", DG_E_FORMAT, "damaged JSON");
    edited("\"vocab_size\": 160, ", "", DG_E_FORMAT, "vocab_size is missing");
    edited("\"top_k_experts\": 2", "\"top_k_experts\": 5", DG_E_FORMAT, "top_k_experts (5) exceeds num_experts (4)");
    edited("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 16", DG_E_FORMAT,
           "max_position_embeddings (16) leaves no room beside a canvas of 16");
    edited("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", DG_E_FORMAT, "3 key-value heads do not divide 4 heads");
    edited("\"head_dim\": 8", "\"head_dim\": 7", DG_E_FORMAT, "head dimension 7 must be even");
    edited("\"pad_token_id\": 0", "\"pad_token_id\": 160", DG_E_FORMAT, "pad_token_id is 160");
    edited("\"bos_token_id\": 2", "\"bos_token_id\": -3", DG_E_FORMAT, "bos_token_id is -3");
    edited("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0", DG_E_FORMAT, "rms_norm_eps");
    edited("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e300", DG_E_FORMAT, "rms_norm_eps");
    edited("\"final_logit_softcapping\": 30.0", "\"final_logit_softcapping\": -30.0", DG_E_FORMAT, "final_logit_softcapping");
    edited("\"rope_theta\": 10000.0", "\"rope_theta\": 0", DG_E_FORMAT, "rope_parameters.sliding_attention.rope_theta");
    edited("\"rope_theta\": 1000000.0", "\"rope_theta\": \"x\"", DG_E_FORMAT, "rope_parameters.full_attention.rope_theta");
    edited("\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 1.25", DG_E_FORMAT, "partial_rotary_factor");
    edited("\"layer_types\": [\"sliding_attention\", ", "\"layer_types\": [", DG_E_FORMAT,
           "layer_types must be a list of num_hidden_layers (3)");
    edited("[\"sliding_attention\", ", "[7, ", DG_E_FORMAT, "layer_types[0]");
    edited("\"text_config\": {", "\"text_confit\": {", DG_E_FORMAT, "text_config is missing");
    edited("\"pad_token_id\": 0,", "\"pad_token_id\": 0, \"pad_token_id\": 0,", DG_E_FORMAT, "damaged JSON");
}

static void refuses_hostile_generation(void **state) {
    (void)state;
    struct mk_ckpt k;
    mk_build(&k, &mk_tiny, "BF16", false, 1);
    bad(k.config, "", DG_E_FORMAT, "generation_config.json: damaged JSON");
    bad(k.config, "[]", DG_E_FORMAT, "generation_config.json: must be a JSON object");
    bad(k.config, "{\"t_min\": 0}", DG_E_FORMAT, "generation_config.json: t_min is 0");
    bad(k.config, "{\"t_min\": 0.9}", DG_E_FORMAT, "t_min (0.9) exceeds t_max (0.8)");
    bad(k.config, "{\"t_max\": 1e300}", DG_E_FORMAT, "t_max is 1e+300");
    bad(k.config, "{\"max_denoising_steps\": 0}", DG_E_FORMAT, "max_denoising_steps is 0");
    bad(k.config, "{\"max_denoising_steps\": 48.5}", DG_E_FORMAT, "max_denoising_steps must be");
    bad(k.config, "{\"stability_threshold\": -1}", DG_E_FORMAT, "stability_threshold is -1");
    bad(k.config, "{\"confidence_threshold\": -0.1}", DG_E_FORMAT, "confidence_threshold is -0.1");
    bad(k.config, "{\"sampler_config\": 7}", DG_E_FORMAT, "sampler_config must be an object");
    bad(k.config, "{\"sampler_config\": {\"entropy_bound\": \"x\"}}", DG_E_FORMAT, "entropy_bound must be a number");
    bad(k.config, "{\"sampler_config\": {\"_cls_name\": \"OtherConfig\"}}", DG_E_UNSUPPORTED, "OtherConfig");
    struct dg_config c = good(k.config, "{\"sampler_config\": {\"entropy_bound\": 0}, \"stability_threshold\": 0, \"t_max\": 1}");
    assert_true(c.entropy_bound == 0 && c.t_max == 1);
    mk_free(&k);
}

static void names_every_fault(void **state) {
    (void)state;
    struct mk_ckpt k;
    mk_build(&k, &mk_tiny, "BF16", false, 1);
    k.config = mk_edit(k.config, "\"vocab_size\": 160", "\"vocab_size\": 0");
    k.config = mk_edit(k.config, "\"hidden_size\": 32", "\"hidden_size\": -5");
    k.config = mk_edit(k.config, "\"attention_bias\": false", "\"attention_bias\": true");
    bad(k.config, NULL, DG_E_FORMAT,
        "config.json: 3 faults: vocab_size is 0, must be from 4 to 16777216; hidden_size is -5, must be from 1 to "
        "1048576; attention_bias must be false");
    mk_free(&k);
}

static void refuses_what_it_does_not_compute(void **state) {
    (void)state;
    const enum dg_status u = DG_E_UNSUPPORTED;
    edited("\"attention_bias\": false", "\"attention_bias\": true", u, "attention_bias must be false");
    edited("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", u, "tie_word_embeddings must be true");
    edited("gelu_pytorch_tanh", "silu", u, "hidden_activation must be gelu_pytorch_tanh");
    edited("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", u, "rope_parameters.sliding_attention: rope_type \"yarn\"");
    edited("\"rope_type\": \"proportional\"", "\"rope_type\": \"default\"", u, "\"default\" with a partial_rotary_factor");
    edited("\"rope_type\": \"proportional\"", "\"rope_type\": \"proportional\", \"factor\": 8", u, "factor 8");
    edited("\"full_attention\"]", "\"chunked_attention\"]", u,
           "layer_types[2] must be sliding_attention or full_attention, is chunked_attention");
    edited("\"final_logit_softcapping\": 30.0", "\"final_logit_softcapping\": null", u,
           "final_logit_softcapping must not be null");
    edited("\"attention_bias\"", "\"hidden_size_per_layer_input\": 256, \"attention_bias\"", u,
           "hidden_size_per_layer_input must be 0");
    edited("\"attention_bias\"", "\"num_kv_shared_layers\": 2, \"attention_bias\"", u, "num_kv_shared_layers must be 0");
    edited("\"attention_bias\"", "\"enable_moe_block\": false, \"attention_bias\"", u, "enable_moe_block must be true");
    struct mk_ckpt k;
    mk_build(&k, &mk_tiny, "BF16", true, 1);
    char *text =
        mk_edit(strdup(k.config), "\"num_key_value_heads\": 1}", "\"num_key_value_heads\": 1, \"intermediate_size\": 96}");
    bad(text, NULL, u, "per_layer_config[2].intermediate_size: only head_dim and num_key_value_heads may differ by layer");
    text = mk_edit(text, "\"intermediate_size\": 96}", "\"intermediate_size\": 48}"); /* the base value: nothing differs */
    (void)good(text, NULL);
    text = mk_edit(text, "\"2\": {", "\"3\": {");
    bad(text, NULL, DG_E_FORMAT, "per_layer_config: \"3\" is no layer of this model");
    text = mk_edit(text, "\"3\": {", "\"02\": {");
    bad(text, NULL, DG_E_FORMAT, "\"02\" is no layer");
    text = mk_edit(text, "\"02\": {", "\"99999999999999999999\": {");
    bad(text, NULL, DG_E_FORMAT, "\"99999999999999999999\" is no layer");
    free(text);
    mk_free(&k);
}

/* Pointing the engine at another model says what it is and what to do. */
static void names_other_models(void **state) {
    (void)state;
    const enum dg_status u = DG_E_UNSUPPORTED;
    const char *remedy = "diffgemma download google/diffusiongemma-26B-A4B-it";
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"model_type\": \"gemma4\", \"architectures\": [\"Gemma4ForConditionalGeneration\"]}",
         "plain Gemma 4 model (Gemma4ForConditionalGeneration)"},
        {"{\"model_type\": \"gemma4_text\"}", "plain Gemma 4 model (gemma4_text)"},
        {"{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"]}", "a model of another kind (LlamaForCausalLM)"},
        {"{\"a\": 1}", "names no model_type and no architecture"},
        {"{\"model_type\": 7, \"architectures\": [null]}", "names no model_type and no architecture"},
        {"{\"model_type\": \"diffusion_gemma\", \"quantization\": {\"group_size\": 64, \"bits\": 4}, \"quantization_config\": "
         "{\"bits\": 4}}",
         "an MLX quantised model (4 bits)"},
        {"{\"model_type\": \"diffusion_gemma\", \"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": "
         "\"NVFP4\"}}",
         "a quantised model (NVFP4)"},
        {"{\"model_type\": \"diffusion_gemma\", \"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}",
         "a quantised model (compressed-tensors)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bad(cases[i].text, NULL, u, cases[i].part);
        bad(cases[i].text, NULL, u, remedy);
    }
}

static void refuses_damaged_json(void **state) {
    (void)state;
    bad("", NULL, DG_E_FORMAT, "config.json: damaged JSON at byte 0");
    bad("[]", NULL, DG_E_FORMAT, "must be a JSON object");
    bad("{\"a\": \"\xff\"}", NULL, DG_E_FORMAT, "invalid UTF-8");
    bad("{\"model_type\": \"diffusion_gemma\", \"text_config\": null}", NULL, DG_E_FORMAT, "text_config is missing");
    size_t n = ((size_t)1 << 20) + 1;
    char *big = malloc(n + 1);
    assert_non_null(big);
    memset(big, '[', n);
    big[n] = 0;
    bad(big, NULL, DG_E_LIMIT, "at most 1048576 are read");
    big[1000] = 0;
    bad(big, NULL, DG_E_FORMAT, "nested too deeply");
    size_t at = 0;
    big[at++] = '[';
    while (at < 100000) {
        memcpy(big + at, "{},", 3);
        at += 3;
    }
    memcpy(big + at, "0]", 3);
    bad(big, NULL, DG_E_LIMIT, "more than 16384 objects");
    free(big);
}

static void loads_a_folder(void **state) {
    (void)state;
    char *dir = mk_tmpdir();
    struct mk_ckpt k;
    struct dg_config c;
    struct dg_error err = {0};
    mk_build(&k, &mk_tiny, "BF16", false, 1);
    assert_int_equal(dg_config_load(&c, dir, &err), DG_E_IO);
    expect_text(&err, "has no config.json");
    mk_put(dir, "config.json", k.config, strlen(k.config));
    assert_int_equal(dg_config_load(&c, dir, &err), DG_OK); /* no generation_config.json: the seed's defaults */
    assert_int_equal(c.steps_max, 48);
    mk_put(dir, "generation_config.json", k.generation, strlen(k.generation));
    assert_int_equal(dg_config_load(&c, dir, &err), DG_OK);
    assert_int_equal(c.steps_max, 12);
    mk_put(dir, "generation_config.json", "", 0);
    assert_int_equal(dg_config_load(&c, dir, &err), DG_E_FORMAT);
    expect_text(&err, dir);
    expect_text(&err, "generation_config.json: damaged JSON");
    dg_error_clear(&err);
    mk_remove(dir);
    free(dir);
    mk_free(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_oracle_folders), cmocka_unit_test(both_spellings_mean_the_same),
        cmocka_unit_test(defaults_of_the_seed),     cmocka_unit_test(stop_ids),
        cmocka_unit_test(refuses_hostile_numbers),  cmocka_unit_test(refuses_hostile_generation),
        cmocka_unit_test(names_every_fault),        cmocka_unit_test(refuses_what_it_does_not_compute),
        cmocka_unit_test(names_other_models),       cmocka_unit_test(refuses_damaged_json),
        cmocka_unit_test(loads_a_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
