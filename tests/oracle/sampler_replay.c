/* sampler_replay DIR...: replays the trajectories stored in oracle folders through the sampler alone. */
#include "support/replay.h"

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s DIR... (folders with config.json, oracle.json and oracle.safetensors)\n", argv[0]);
        return 2;
    }
    struct replay_tally t = {0, 0};
    for (int i = 1; i < argc; i++) {
        printf("%s\n", argv[i]);
        replay_folder(argv[i], stdout, &t);
    }
    printf("%d passed, %d failed\n", t.passed, t.failed);
    return t.failed ? 1 : 0;
}
