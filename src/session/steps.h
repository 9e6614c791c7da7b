/* The steps of a block: forward pass and sampler.
 *
 * On the host the sampler goes by the statistics that a pass leaves in the session. A backend with an op for it (ops->sample) makes both, and then
 * a step is launched first and taken later: what the host does in between, the device does not wait for. The results are the same bit for bit, and
 * after each step that was taken the sampler's object stands where dg_sampler_step would have left it. */
#ifndef DG_SESSION_STEPS_H
#define DG_SESSION_STEPS_H

#include "sampler/sampler.h"
#include "session/session.h"

struct dg_steps {
    struct dg_session *s;
    struct dg_sampler *sampler;
    enum dg_sc_mode sc; /* of the next step */
    bool on_backend, under_way; /* under_way: a step was launched and not taken */
    struct dg_error late;       /* what went wrong when it was launched */
};

/* Prepares the steps of the block that the sampler has begun. Both are borrowed until dg_steps_end, which may come at any time: a step that is then
 * under way changes nothing that anyone reads, but what asks for the backend next waits for its end. Until then nobody else denoises in the
 * session's planes. A draw instead of the argmax, and a canvas larger than the op takes, leave the steps to the host. Errors: the backend's;
 * dg_steps_end is due all the same. */
enum dg_status dg_steps_begin(struct dg_steps *st, struct dg_session *s, struct dg_sampler *sampler, enum dg_sc_mode first, struct dg_error *err)
    DG_MUST_CHECK;

void dg_steps_end(struct dg_steps *st);

/* Launches the next step of a block that has not stopped; nothing where the host makes them, or one is under way. What fails here is the error of
 * taking that step. */
void dg_steps_ahead(struct dg_steps *st);

/* The next step's result, launched now or ahead: as dg_sampler_step gives it, and the rows' p_max in the session (on the host also their other
 * statistics). Errors: those of dg_session_step, dg_session_draw and dg_sampler_step; the block is void then. */
enum dg_status dg_steps_take(struct dg_steps *st, struct dg_step_result *out, struct dg_error *err) DG_MUST_CHECK;

/* Writes the block that the sampler has begun to backend memory: what ops->sample steps. at: the same block in host memory, which is filled. */
void dg_steps_write_block(struct dg_backend *be, const struct dg_sample *to, const struct dg_sample *at, const struct dg_sampler *sampler,
                          bool unchecked);
/* Takes over what the op has left, which `at` holds again. Errors: DG_E_NUMERIC and DG_E_INTERNAL as the statistics have it, those of
 * dg_sampler_adopt. */
enum dg_status dg_steps_adopt(struct dg_sampler *sampler, const struct dg_sample *at, struct dg_step_result *out, struct dg_error *err)
    DG_MUST_CHECK;

#endif
