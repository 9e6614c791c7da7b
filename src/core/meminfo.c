#include "core/meminfo.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_uint_fast64_t pretended;

void dg_mem_pretend(uint64_t bytes) { atomic_store(&pretended, bytes); }

/* The number a file of the kernel holds, at its start or after `key`; UINT64_MAX when it holds none ("max" too). */
static uint64_t number(const char *path, const char *key) {
    char line[256];
    uint64_t v = UINT64_MAX;
    FILE *f = fopen(path, "r");
    if (!f)
        return v;
    size_t n = key ? strlen(key) : 0;
    while (fgets(line, sizeof line, f))
        if (!key || !strncmp(line, key, n)) {
            if (sscanf(line + n, "%" SCNu64, &v) != 1)
                v = UINT64_MAX;
            break;
        }
    fclose(f);
    return v;
}

/* What a control group leaves: its limit, less what it uses, caches of files apart, which it would give up. */
static uint64_t left(const char *limit, const char *used, const char *stat, const char *cache) {
    uint64_t most = number(limit, NULL), now = number(used, NULL), file = number(stat, cache);
    if (most == UINT64_MAX || now == UINT64_MAX)
        return UINT64_MAX;
    now -= file != UINT64_MAX && file < now ? file : 0;
    return most > now ? most - now : 0;
}

uint64_t dg_mem_available(void) {
    uint64_t v = atomic_load(&pretended);
    if (v)
        return v;
    v = number("/proc/meminfo", "MemAvailable:");
    v = v < UINT64_MAX / 1024 ? v * 1024 : UINT64_MAX;
    uint64_t groups[2] = {left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "file "),
                          left("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                               "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file ")};
    for (int i = 0; i < 2; i++)
        v = groups[i] < v ? groups[i] : v;
    return v;
}
