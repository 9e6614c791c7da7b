#include "yard.h"

#include <stddef.h>

struct yard *yard_create(enum yard_type type, int m, int n, int k, int threads) {
    (void)type, (void)m, (void)n, (void)k, (void)threads;
    return NULL;
}

void yard_destroy(struct yard *y) { (void)y; }

double yard_run(struct yard *y) {
    (void)y;
    return 0;
}

void yard_rest(void) {}

const char *yard_kernel(const struct yard *y) {
    (void)y;
    return "";
}
