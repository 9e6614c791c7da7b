#include "ops/cuda/nvml.h"

#include <dlfcn.h>
#include <string.h>

enum { NOT_SUPPORTED = 3, CLOCK_SM = 1 };

static enum dg_status said(const struct dg_nvml *n, int r, const char *what, struct dg_error *err) {
    const char *text = n->text(r);
    return r == 0 ? DG_OK : DG_FAIL(err, DG_E_BACKEND, "NVML, %s: %s (%d)", what, text ? text : "unknown error", r);
}

enum dg_status dg_nvml_open(struct dg_nvml *n, struct dg_error *err) {
    static const char *const symbols[] = {"nvmlErrorString",
                                          "nvmlInit_v2",
                                          "nvmlShutdown",
                                          "nvmlDeviceGetHandleByPciBusId_v2",
                                          "nvmlDeviceGetTotalEnergyConsumption",
                                          "nvmlDeviceGetPowerUsage",
                                          "nvmlDeviceGetClockInfo"};
    void *to[] = {&n->text, &n->start, &n->end, &n->by_bus, &n->energy, &n->power, &n->clock};
    memset(n, 0, sizeof *n);
    n->lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->lib)
        return DG_FAIL(err, DG_E_BACKEND, "it cannot be opened (%s)", dlerror());
    const char *missing = NULL;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols && !missing; i++) {
        void *f = dlsym(n->lib, symbols[i]);
        memcpy(to[i], &f, sizeof f);
        missing = f ? NULL : symbols[i];
    }
    enum dg_status st = missing ? DG_FAIL(err, DG_E_BACKEND, "it is too old: it has no %s", missing) : said(n, n->start(), "starting", err);
    if (st != DG_OK) { /* it is not to be ended, as it did not start */
        dlclose(n->lib);
        n->lib = NULL;
    }
    return st;
}

void dg_nvml_close(struct dg_nvml *n) {
    if (n->lib) {
        n->end();
        dlclose(n->lib);
    }
    memset(n, 0, sizeof *n);
}

enum dg_status dg_nvml_choose(struct dg_nvml *n, const char *bus_id, struct dg_error *err) {
    unsigned long long mj;
    uint32_t mw;
    DG_TRY(said(n, n->by_bus(bus_id, &n->device), bus_id, err));
    int r = n->energy(n->device, &mj);
    n->counts = r == 0;
    return r == NOT_SUPPORTED ? dg_nvml_power(n, &mw, err) : said(n, r, "reading the energy counter", err);
}

enum dg_status dg_nvml_energy(const struct dg_nvml *n, uint64_t *mj, struct dg_error *err) {
    unsigned long long v = 0;
    int r = n->energy(n->device, &v);
    *mj = v;
    return said(n, r, "reading the energy counter", err);
}

enum dg_status dg_nvml_power(const struct dg_nvml *n, uint32_t *mw, struct dg_error *err) {
    unsigned v = 0;
    int r = n->power(n->device, &v);
    *mw = v;
    return said(n, r, "reading the power", err);
}

uint32_t dg_nvml_clock(const struct dg_nvml *n) {
    unsigned mhz = 0;
    return n->clock(n->device, CLOCK_SM, &mhz) == 0 ? mhz : 0;
}
