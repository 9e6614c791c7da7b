/* From what a user gives as a model to a folder: a path, or a repo id looked up in the Hugging Face cache. */
#ifndef DG_PACK_HUB_H
#define DG_PACK_HUB_H

#include "core/status.h"

/* The folder a user's switch names (flags.hf_home), searched before all others from then on; NULL or "" = none. Copied. Called before other
 * threads start. Errors: DG_E_ARG when the path is too long. */
enum dg_status dg_hub_use_home(const char *hf_home, struct dg_error *err) DG_MUST_CHECK;

/* arg is a folder, used as it is, or a repo id ("org/name"): then the snapshot in the cache, searched in the folder of dg_hub_use_home, in
 * $HF_HOME and ~/.cache/huggingface in this order, each as hub/models--org--name/snapshots/REV or without the "hub/". The revision that
 * refs/main names is preferred, else the newest. A snapshot without config.json or with a missing or cut weight file is never
 * chosen. *dir_out: the folder, owned by the caller (dg_free); NULL on failure. Any thread, as long as no one changes the
 * environment. Errors: DG_E_ARG when nothing fits: the message says what arg is, where was searched, and the exact download
 * command. */
enum dg_status dg_hub_resolve(const char *arg, char **dir_out, struct dg_error *err) DG_MUST_CHECK;

/* Folders a Hugging Face cache may be in, in search order; returns how many. */
#define DG_HUB_ROOTS_MAX 3
#define DG_HUB_PATH 4096
int dg_hub_roots(char root[DG_HUB_ROOTS_MAX][DG_HUB_PATH]);

/* The cache folder of exactly that revision of a repo; false when no cache root has it. Nothing in it is opened. */
bool dg_hub_snapshot(const char *repo, const char *revision, char *path, size_t n);

/* Whether arg has the form of a repo id: "org/name" of the characters the hub allows. */
bool dg_hub_is_repo_id(const char *arg);
/* The folder of a repo id in the first of those caches, hub/models--org--name, whether it is there or not: where a download goes.
 * Owner: the caller (dg_free). Errors: DG_E_ARG when no cache folder is known or the path is too long, DG_E_NOMEM. */
enum dg_status dg_hub_cache_repo(const char *id, char **dir_out, struct dg_error *err) DG_MUST_CHECK;

#endif
