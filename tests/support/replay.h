/* Replays the stored trajectories of an oracle folder through the sampler alone: no forward pass. */
#ifndef TESTS_SUPPORT_REPLAY_H
#define TESTS_SUPPORT_REPLAY_H

#include "support/st_read.h"

#include <jansson.h>
#include <stdio.h>

struct replay_tally {
    int passed, failed;
};

/* For every trajectory that meta (oracle.json) describes, block after block with one random stream: from the stored entropies and
 * argmaxes it must reproduce canvas0 of each block, every accept mask and every canvas exactly. Where the block's logits are
 * stored, the entropies and argmaxes of softmax(logits / T) at the sampler's temperature must be the stored ones (2e-5 nats). One
 * line a key on out: name, figure, "ok" or "FAILED: why". A trajectory without its tensors, or a folder without a trajectory, is
 * a failure. */
void replay_trajectories(const struct st_file *f, const json_t *meta, int32_t vocab, FILE *out, struct replay_tally *t);

/* Opens DIR/config.json, oracle.json and oracle.safetensors and does the above; what is missing counts as one failure. */
void replay_folder(const char *dir, FILE *out, struct replay_tally *t);

#endif
