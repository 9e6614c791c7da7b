/* NVML, the driver's library that reads a card's sensors, opened at run time: no header or library of NVIDIA's is needed to build or to start.
 *
 * Energy is in millijoules since the driver was loaded, of the whole card, memory and idle parts too, whoever uses it; the driver brings the counter
 * up to date every so often (some 20 to 100 ms), and between two updates it stands still. Power is in milliwatts, on cards since Ampere a mean of the
 * last second. The clock is the multiprocessors', in MHz. Reading is allowed from any thread, also from several at a time; opening and closing are
 * not. Errors: DG_E_BACKEND with NVML's words. The prototypes are written from NVML's API reference. */
#ifndef DG_OPS_CUDA_NVML_H
#define DG_OPS_CUDA_NVML_H

#include "core/status.h"

#include <stdint.h>

struct dg_nvml {
    void *lib;
    struct dg_nvml_device_ *device;
    bool counts; /* the card has an energy counter; without it, there is its power alone */
    const char *(*text)(int);
    int (*start)(void);
    int (*end)(void);
    int (*by_bus)(const char *, struct dg_nvml_device_ **);
    int (*energy)(struct dg_nvml_device_ *, unsigned long long *);
    int (*power)(struct dg_nvml_device_ *, unsigned *);
    int (*clock)(struct dg_nvml_device_ *, int, unsigned *);
};

/* Opens libnvidia-ml.so.1 and starts it. Errors: why that is not possible. Owner: the caller, dg_nvml_close. */
enum dg_status dg_nvml_open(struct dg_nvml *n, struct dg_error *err) DG_MUST_CHECK;
void dg_nvml_close(struct dg_nvml *n); /* a zeroed or closed one is allowed */

/* Chooses the card by its PCI bus id ("0000:65:00.0"), which the calls below are about. Errors: no such card, or neither energy nor power. */
enum dg_status dg_nvml_choose(struct dg_nvml *n, const char *bus_id, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_nvml_energy(const struct dg_nvml *n, uint64_t *mj, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_nvml_power(const struct dg_nvml *n, uint32_t *mw, struct dg_error *err) DG_MUST_CHECK;
uint32_t dg_nvml_clock(const struct dg_nvml *n); /* 0: the driver does not say */

#endif
