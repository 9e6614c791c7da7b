/* The CUDA driver, opened at run time: no header or library of the toolkit is needed to build or to start.
 *
 * The prototypes are written here from the driver API's documentation; names carry the ABI suffix (_v2) they are exported under. */
#ifndef DG_OPS_CUDA_DRIVER_H
#define DG_OPS_CUDA_DRIVER_H

#include "core/status.h"

typedef int dg_cu_result; /* 0 = success */
typedef int dg_cu_device;
typedef unsigned long long dg_cu_ptr;
typedef struct dg_cu_context_ *dg_cu_context;
typedef struct dg_cu_module_ *dg_cu_module;
typedef struct dg_cu_function_ *dg_cu_function;
typedef struct dg_cu_stream_ *dg_cu_stream;
typedef struct dg_cu_event_ *dg_cu_event;
typedef struct dg_cu_graph_ *dg_cu_graph;
typedef struct dg_cu_graph_exec_ *dg_cu_graph_exec;

enum { DG_CU_OUT_OF_MEMORY = 2, DG_CU_NO_DEVICE = 100, DG_CU_NO_BINARY = 209, DG_CU_BAD_PTX_VERSION = 222 };
enum {
    DG_CU_ATTR_SHARED_PER_BLOCK_OPTIN = 97,
    DG_CU_ATTR_SM_COUNT = 16,
    DG_CU_ATTR_L2_BYTES = 38,
    DG_CU_ATTR_MAJOR = 75,
    DG_CU_ATTR_MINOR = 76
};
/* cuLaunchKernelEx's configuration. */
struct dg_cu_launch_attr {
    int id; /* 6: may begin while the launch before it in the stream ends */
    char pad[4];
    union {
        int flag;
        char bytes[64];
    } value;
};
struct dg_cu_launch {
    unsigned gx, gy, gz, bx, by, bz, shared;
    dg_cu_stream stream;
    struct dg_cu_launch_attr *attrs;
    unsigned n_attrs;
};
enum { DG_CU_LAUNCH_CHAINED = 6 };

enum { DG_CU_FUNC_MAX_DYNAMIC_SHARED = 8, DG_CU_FUNC_SHARED_PERCENT = 9 };

/* X(needed, result name, exported name, parameters) */
#define DG_CUDA_DRIVER(X)                                                                                                            \
    X(1, init, "cuInit", (unsigned))                                                                                                 \
    X(1, version, "cuDriverGetVersion", (int *))                                                                                     \
    X(1, error_name, "cuGetErrorName", (dg_cu_result, const char **))                                                                \
    X(1, error_string, "cuGetErrorString", (dg_cu_result, const char **))                                                            \
    X(1, device_count, "cuDeviceGetCount", (int *))                                                                                  \
    X(1, device_get, "cuDeviceGet", (dg_cu_device *, int))                                                                           \
    X(1, device_name, "cuDeviceGetName", (char *, int, dg_cu_device))                                                                \
    X(1, device_attr, "cuDeviceGetAttribute", (int *, int, dg_cu_device))                                                            \
    X(1, device_bus, "cuDeviceGetPCIBusId", (char *, int, dg_cu_device))                                                             \
    X(1, ctx_retain, "cuDevicePrimaryCtxRetain", (dg_cu_context *, dg_cu_device))                                                    \
    X(1, ctx_release, "cuDevicePrimaryCtxRelease_v2", (dg_cu_device))                                                                \
    X(1, ctx_set, "cuCtxSetCurrent", (dg_cu_context))                                                                                \
    X(1, module_load, "cuModuleLoadData", (dg_cu_module *, const void *))                                                            \
    X(1, module_unload, "cuModuleUnload", (dg_cu_module))                                                                            \
    X(1, module_function, "cuModuleGetFunction", (dg_cu_function *, dg_cu_module, const char *))                                     \
    X(1, func_set, "cuFuncSetAttribute", (dg_cu_function, int, int))                                                                 \
    X(1, launch, "cuLaunchKernel",                                                                                                   \
      (dg_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, dg_cu_stream, void **, void **))         \
    X(1, mem_info, "cuMemGetInfo_v2", (size_t *, size_t *))                                                                          \
    X(1, mem_alloc, "cuMemAlloc_v2", (dg_cu_ptr *, size_t))                                                                          \
    X(1, mem_free, "cuMemFree_v2", (dg_cu_ptr))                                                                                      \
    X(1, host_alloc, "cuMemHostAlloc", (void **, size_t, unsigned))                                                                  \
    X(1, host_free, "cuMemFreeHost", (void *))                                                                                       \
    X(1, copy_to_device, "cuMemcpyHtoDAsync_v2", (dg_cu_ptr, const void *, size_t, dg_cu_stream))                                    \
    X(1, copy_to_host, "cuMemcpyDtoHAsync_v2", (void *, dg_cu_ptr, size_t, dg_cu_stream))                                            \
    X(1, copy_on_device, "cuMemcpyDtoDAsync_v2", (dg_cu_ptr, dg_cu_ptr, size_t, dg_cu_stream))                                       \
    X(1, set_bytes, "cuMemsetD8Async", (dg_cu_ptr, unsigned char, size_t, dg_cu_stream))                                             \
    X(1, stream_create, "cuStreamCreate", (dg_cu_stream *, unsigned))                                                                \
    X(1, stream_create_ranked, "cuStreamCreateWithPriority", (dg_cu_stream *, unsigned, int))                                        \
    X(1, stream_destroy, "cuStreamDestroy_v2", (dg_cu_stream))                                                                       \
    X(1, stream_sync, "cuStreamSynchronize", (dg_cu_stream))                                                                         \
    X(1, stream_wait, "cuStreamWaitEvent", (dg_cu_stream, dg_cu_event, unsigned))                                                    \
    X(1, event_create, "cuEventCreate", (dg_cu_event *, unsigned))                                                                   \
    X(1, event_destroy, "cuEventDestroy_v2", (dg_cu_event))                                                                          \
    X(1, event_record, "cuEventRecord", (dg_cu_event, dg_cu_stream))                                                                 \
    X(1, event_sync, "cuEventSynchronize", (dg_cu_event))                                                                            \
    X(1, event_elapsed, "cuEventElapsedTime", (float *, dg_cu_event, dg_cu_event))                                                   \
    X(1, capture_begin, "cuStreamBeginCapture_v2", (dg_cu_stream, int))                                                              \
    X(1, capture_end, "cuStreamEndCapture", (dg_cu_stream, dg_cu_graph *))                                                           \
    X(1, graph_instantiate, "cuGraphInstantiateWithFlags", (dg_cu_graph_exec *, dg_cu_graph, unsigned long long))                    \
    X(1, graph_launch, "cuGraphLaunch", (dg_cu_graph_exec, dg_cu_stream))                                                            \
    X(1, graph_destroy, "cuGraphDestroy", (dg_cu_graph))                                                                             \
    X(1, graph_exec_destroy, "cuGraphExecDestroy", (dg_cu_graph_exec))                                                               \
    X(0, graph_upload, "cuGraphUpload", (dg_cu_graph_exec, dg_cu_stream))                                                            \
    X(0, func_param, "cuFuncGetParamInfo", (dg_cu_function, size_t, size_t *, size_t *))                                             \
    X(0, launch_ex, "cuLaunchKernelEx", (const struct dg_cu_launch *, dg_cu_function, void **, void **))                                            \
    X(0, tensor_map_tiled, "cuTensorMapEncodeTiled",                                                                                 \
      (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int))

struct dg_cuda_driver {
    void *lib;
    int version_number; /* 1000 * major + 10 * minor of the CUDA release the driver supports */
#define DG_X(needed, name, symbol, params) dg_cu_result(*name) params;
    DG_CUDA_DRIVER(DG_X)
#undef DG_X
};

/* Opens libcuda.so.1, fills the table and initialises the driver. Errors: DG_E_BACKEND with the one reason why CUDA cannot be used here:
 * no driver, a driver too old, or what the driver says. Owner: the caller, dg_cuda_driver_close. */
enum dg_status dg_cuda_driver_open(struct dg_cuda_driver *d, struct dg_error *err) DG_MUST_CHECK;
void dg_cuda_driver_close(struct dg_cuda_driver *d); /* a zeroed or closed table is allowed */

/* The driver's words for a result: "CUDA_ERROR_OUT_OF_MEMORY: out of memory" into buf. Returns buf. */
const char *dg_cuda_result_text(const struct dg_cuda_driver *d, dg_cu_result r, char *buf, size_t size);

#endif
