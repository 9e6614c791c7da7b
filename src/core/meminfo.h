/* How much memory this process may still take. */
#ifndef DG_CORE_MEMINFO_H
#define DG_CORE_MEMINFO_H

#include <stdint.h>

/* Bytes that can be taken without swapping: what the kernel says is available (caches it would give up count), or what is left of the
 * process's control group where that is less. UINT64_MAX when nobody says. Any thread. */
uint64_t dg_mem_available(void);
/* For tests: the answer from now on; 0 = the true one again. */
void dg_mem_pretend(uint64_t bytes);

#endif
