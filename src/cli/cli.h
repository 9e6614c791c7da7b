/* What the commands share: opening a model the way a user names it, flags, errors to exit statuses. */
#ifndef DG_CLI_CLI_H
#define DG_CLI_CLI_H

#include "cli/args.h"
#include "core/flags.h"
#include "ops/backends.h"
#include "session/session.h"
#include "tokenizer/tokenizer.h"

enum { DG_EXIT_OK = 0, DG_EXIT_FAILED = 1, DG_EXIT_USAGE = 2, DG_EXIT_INTERRUPTED = 130 };

/* Commands, one file each. */
int dg_cmd_ask(int argc, char **argv);
int dg_cmd_chat(int argc, char **argv);
int dg_cmd_tokenize(int argc, char **argv);
int dg_cmd_config(int argc, char **argv);
int dg_cmd_summary(int argc, char **argv);
int dg_cmd_download(int argc, char **argv);
int dg_cmd_flags(int argc, char **argv);
int dg_cmd_step_parity(int argc, char **argv);
int dg_cmd_replay(int argc, char **argv);
int dg_cmd_golden(int argc, char **argv);
int dg_cmd_quantize(int argc, char **argv);
int dg_cmd_repack(int argc, char **argv);
int dg_cmd_verify(int argc, char **argv);
int dg_cmd_manifest(int argc, char **argv);
int dg_cmd_probe(int argc, char **argv);
int dg_cmd_synth(int argc, char **argv);
int dg_cmd_bench(int argc, char **argv);
/* --list-models */
int dg_list_models(void);
/* The row of a command in main's table. */
const struct dg_command *dg_command_find(const char *name);

const char *dg_version(void); /* "0.1.0 (commit)" */

/* Prints "diffgemma NAME: text" to stderr, clears err, and returns the exit status of its code. */
int dg_cli_fail(const char *name, struct dg_error *err);

/* Options that every command with a model takes. */
struct dg_model_args {
    const char *model, *backend, *kv, *cpu;
    const char *cuda_kernels; /* NULL = as the switch says */
    int64_t threads, ctx, device;
    size_t gpu_memory; /* 0 = what is free */
    bool exact; /* f32 planes and sums */
};
/* Defaults. */
void dg_model_args_init(struct dg_model_args *a);
/* A value of --kv. Errors: DG_E_ARG. */
enum dg_status dg_kv_type(const char *name, enum dg_dtype *out, struct dg_error *err) DG_MUST_CHECK;
#define DG_MODEL_ARG(a) {"model", 'm', DG_ARG_STR, &(a).model, 0, 0, "MODEL", "model folder, or org/name in the Hugging Face cache"}
#define DG_GPU_MEMORY_ARG(a)                                                                                                       \
    {"gpu-memory", 0, DG_ARG_SIZE, &(a).gpu_memory, 0, 0, "SIZE", "most GPU memory to take, such as 16G (default: what is free)"}
#define DG_RUN_ARGS(a)                                                                                                             \
    {"backend", 0, DG_ARG_STR, &(a).backend, 0, 0, "NAME", "auto (a GPU if there is one), cuda, cpu or ref (plain C)"},           \
    {"device", 0, DG_ARG_INT, &(a).device, 0, 255, "N", "which GPU, from 0"},                                                      \
    DG_GPU_MEMORY_ARG(a),                                                                                                          \
    {"cpu", 0, DG_ARG_STR, &(a).cpu, 0, 0, "LEVEL", "strongest instruction set to use: see diffgemma probe-device"},                \
    {"threads", 't', DG_ARG_INT, &(a).threads, 0, 256, "N", "CPU threads (default: all)"},                                         \
    {"ctx", 'c', DG_ARG_INT, &(a).ctx, 1, 1 << 30, "N", "context in tokens (default: the model's, at most 8192)"},                 \
    {"kv", 0, DG_ARG_STR, &(a).kv, 0, 0, "TYPE", "KV element type: f16 (default), f32, or q8 (half the memory, less exact)"}

/* Everything a command runs on; zeroed is empty. */
struct dg_runtime {
    struct dg_flags flags;
    char *dir;
    struct dg_model *model;
    struct dg_tokenizer *tok;
    struct dg_backend *be;
    /* What a GPU with a budget leaves room for: as many sessions (0 = 1) as the options say, or what `beside` says when it is not NULL. */
    size_t sessions;
    dg_beside_fn *beside;
    void *beside_ctx;
    bool said_streamed;
    double load_s;
};

/* Seconds of a monotonic clock. */
double dg_now(void);
/* The folder models/ beside the program (build/diffgemma) or in the installed data folder; false when there is none. */
bool dg_bundled_models(char *path, size_t n);
/* Flags from the environment; the one that names a cache folder goes to pack/hub.h at once. */
enum dg_status dg_runtime_flags(struct dg_runtime *r, struct dg_error *err) DG_MUST_CHECK;
/* Folder of the model: -m, else DGQ_MODEL, else the bundled one, which is said on stderr. */
enum dg_status dg_runtime_find(struct dg_runtime *r, const struct dg_model_args *a, struct dg_error *err) DG_MUST_CHECK;
/* The rest, each after the ones before it; warnings of the model go to stderr. */
enum dg_status dg_runtime_tokenizer(struct dg_runtime *r, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_runtime_model(struct dg_runtime *r, struct dg_error *err) DG_MUST_CHECK;
/* Fills the options of sessions from arguments and flags; the same, and opens the backend. */
enum dg_status dg_runtime_session(const struct dg_runtime *r, const struct dg_model_args *a, struct dg_session_opts *so, struct dg_error *err)
    DG_MUST_CHECK;
enum dg_status dg_runtime_backend(struct dg_runtime *r, const struct dg_model_args *a, struct dg_session_opts *so, struct dg_error *err)
    DG_MUST_CHECK;
/* A line on stderr, once, when a GPU's backend keeps experts in host memory. */
void dg_runtime_say_streamed(struct dg_runtime *r);
void dg_runtime_close(struct dg_runtime *r);

/* All of stdin, or of a file; at most `max` bytes. Errors: DG_E_IO, DG_E_LIMIT. */
enum dg_status dg_read_all(const char *path, size_t max, struct dg_buf *out, struct dg_error *err) DG_MUST_CHECK;
/* Token ids as text: whole numbers between white space, commas or brackets. Errors: DG_E_ARG naming the first word that is none. */
enum dg_status dg_read_ids(const char *text, struct dg_ids *out, struct dg_error *err) DG_MUST_CHECK;

#endif
