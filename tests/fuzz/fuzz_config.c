/* Configuration: the input is config.json, then, after a NUL byte if there is one, generation_config.json. What is accepted must
 * keep every promise of config.h. */
#include "support/fuzz_main.h"

#include "model/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void require(int good) {
    if (!good)
        abort();
}

static void check(const struct dg_config *c) {
    require(c->vocab >= 4 && c->vocab <= DG_VOCAB_MAX && c->hidden >= 1 && c->hidden <= DG_WIDTH_MAX);
    require(c->layers >= 1 && c->layers <= DG_LAYERS_MAX && c->heads >= 1 && c->heads <= DG_HEADS_MAX);
    require(c->inter >= 1 && c->inter <= DG_WIDTH_MAX && c->moe >= 1 && c->moe <= DG_WIDTH_MAX);
    require(c->experts >= 1 && c->experts <= DG_EXPERTS_MAX && c->topk >= 1 && c->topk <= DG_TOPK_MAX && c->topk <= c->experts);
    require(c->canvas >= 1 && c->canvas <= DG_CANVAS_MAX && c->window >= 1 && c->window <= DG_CTX_MAX);
    require(c->ctx_max >= 1 && c->ctx_max <= DG_CTX_MAX);
    require(c->eps > 0 && c->eps < 1 && c->softcap > 0 && isfinite(c->softcap));
    require(c->theta_full >= 1 && c->theta_sliding >= 1 && isfinite(c->theta_full) && isfinite(c->theta_sliding));
    require(c->rotary_full > 0 && c->rotary_full <= 1 && c->rotary_sliding > 0 && c->rotary_sliding <= 1);
    require(c->pad >= 0 && c->pad < c->vocab && c->bos >= 0 && c->bos < c->vocab);
    require(c->n_stops >= 0 && c->n_stops <= DG_STOPS_MAX);
    for (int i = 0; i < c->n_stops; i++)
        require(c->stops[i] >= 0 && c->stops[i] < c->vocab);
    for (int l = 0; l < c->layers; l++)
        require(c->layer[l].hd >= 2 && c->layer[l].hd % 2 == 0 && c->layer[l].hd <= DG_HEAD_DIM_MAX &&
                c->layer[l].kv_heads >= 1 && c->heads % c->layer[l].kv_heads == 0);
    require(c->steps_max >= 1 && c->stability >= 0 && c->t_min > 0 && c->t_min <= c->t_max && isfinite(c->t_max));
    require(c->entropy_bound >= 0 && isfinite(c->entropy_bound) && c->confidence >= 0 && isfinite(c->confidence));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct dg_config c;
    struct dg_error err = {0};
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    enum dg_status st =
        dg_config_parse(&c, (const char *)data, n, nul ? (const char *)nul + 1 : NULL, nul ? size - n - 1 : 0, &err);
    if (st == DG_OK)
        check(&c);
    else
        require(strlen(dg_error_text(&err)) >= 10 && !strchr(dg_error_text(&err), '\n'));
    dg_error_clear(&err);
    return 0;
}
