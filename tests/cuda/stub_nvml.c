/* libnvidia-ml.so.1 for tests: the cards of the stub driver (stub.c), of which the first draws 250 W and the second 1000. The energy counter moves
 * every 5 ms. DG_STUB_NVML: "still", it never does; "uncounted", there is none; "blind", nor power; "broken", the library does not start. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define FN(type, name, ...)           \
    EXPORT type name(__VA_ARGS__);    \
    EXPORT type name(__VA_ARGS__)

enum { NO_DRIVER = 9, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct card {
    const char *bus;
    unsigned watts;
};
static const struct card cards[] = {{"0000:41:00.0", 250}, {"0000:42:00.0", 1000}};

static int plays(const char *what) {
    const char *v = getenv("DG_STUB_NVML");
    return v && strcmp(v, what) == 0;
}

FN(const char *, nvmlErrorString, int r) {
    return r == NOT_SUPPORTED ? "Not Supported" : r == NOT_FOUND ? "Not Found" : r == NO_DRIVER ? "Driver Not Loaded" : "Success";
}
FN(int, nvmlInit_v2, void) { return plays("broken") ? NO_DRIVER : 0; }
FN(int, nvmlShutdown, void) { return 0; }
FN(int, nvmlDeviceGetHandleByPciBusId_v2, const char *bus, const struct card **c) {
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (strcmp(cards[i].bus, bus) == 0) {
            *c = &cards[i];
            return 0;
        }
    return NOT_FOUND;
}
FN(int, nvmlDeviceGetTotalEnergyConsumption, const struct card *c, unsigned long long *mj) {
    struct timespec t;
    if (plays("uncounted") || plays("blind"))
        return NOT_SUPPORTED;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ms = plays("still") ? 0 : ((uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000) / 5 * 5;
    *mj = 123456789 + ms * c->watts;
    return 0;
}
FN(int, nvmlDeviceGetPowerUsage, const struct card *c, unsigned *mw) {
    *mw = c->watts * 1000;
    return plays("blind") ? NOT_SUPPORTED : 0;
}
FN(int, nvmlDeviceGetClockInfo, const struct card *c, int which, unsigned *mhz) {
    (void)c;
    *mhz = 1500;
    return which == 1 ? 0 : NOT_SUPPORTED;
}
