/* Small random checkpoints for tests: built in memory, altered at will, written to a folder. A failure here ends the program: the
 * test could not even be set up. */
#ifndef DG_TESTS_MKCKPT_H
#define DG_TESTS_MKCKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mk_shape {
    int vocab, hidden, layers, heads, kv, hd, full_kv, full_hd, inter, experts, topk, moe, canvas, window;
    unsigned full; /* bit l: layer l is full */
};

struct mk_tensor {
    char name[128];
    char dtype[16]; /* safetensors spelling */
    int rank;
    int64_t shape[8];
    uint8_t *data;
    size_t bytes;
    int shard;
};

struct mk_ckpt {
    struct mk_shape shape;
    struct mk_tensor *t;
    int n, cap;
    int pad;                   /* spaces after the JSON header, which move every tensor's address */
    char *config, *generation; /* malloc; generation may be NULL: no file */
    uint64_t rng;
};

extern const struct mk_shape mk_tiny; /* 3 layers, about 60 KB in bf16 */

/* Every text tensor with random values of honest scale; dtype "BF16", "F16" or "F32"; the encoder's layer scalars differ from the
 * decoder's. per_layer: the config's per_layer_config spelling, else the global_* one. The same seed gives the same bytes. */
void mk_build(struct mk_ckpt *c, const struct mk_shape *s, const char *dtype, bool per_layer, uint64_t seed);
void mk_free(struct mk_ckpt *c);
/* The tensor of that name; it must exist. */
struct mk_tensor *mk_get(const struct mk_ckpt *c, const char *name);
/* Adds a tensor with random values (dtype as above), or zeros for another element type of `size` bytes. */
struct mk_tensor *mk_add(struct mk_ckpt *c, const char *name, const char *dtype, size_t size, int rank, const int64_t *shape);
void mk_drop(struct mk_ckpt *c, const char *name);
/* Element i as f32, of a BF16, F16 or F32 tensor. */
float mk_value(const struct mk_tensor *t, size_t i);
void mk_set(struct mk_tensor *t, size_t i, float v);

/* The bytes of shard `shard` as a safetensors file (malloc); -1 = all tensors. Tensors follow each other in the order of the
 * list. */
uint8_t *mk_file(const struct mk_ckpt *c, int shard, size_t *n);
/* Writes config.json, generation_config.json and the weights: model.safetensors for n_shards = 0, else shards and their index. */
void mk_write(struct mk_ckpt *c, const char *dir, int n_shards);

/* A new empty folder under $TMPDIR or /tmp (malloc), and its removal with everything in it. */
char *mk_tmpdir(void);
void mk_remove(const char *dir);
void mk_mkdir(const char *dir, const char *name);
void mk_put(const char *dir, const char *name, const void *data, size_t n);
/* A whole file (malloc), a NUL after it. */
char *mk_slurp(const char *path, size_t *n);
/* Replaces the one occurrence of `old` in a malloc'ed text by `new`; frees the old text. It must occur. */
char *mk_edit(char *text, const char *old, const char *new);

#endif
