/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this machine as the daemon knows them: what `cistern-engine-cuda --probe` wrote,
 * which of them the configuration wants, and which one a worker means. Pure; knows no CUDA. */
#ifndef CST_GPU_LIST_H
#define CST_GPU_LIST_H

#include "daemon/arena.h"

#include <stddef.h>

#define CST_GPU_MAX 16
#define CST_GPU_UUID_BYTES 64 /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", or "MIG-..." */

struct cst_gpu {
    unsigned index; /* N of "cuda:N": place in the list */
    bool paced;     /* it is a paced accelerator (daemon/paced.h), no GPU: "paced:N" is its UUID */
    char uuid[CST_GPU_UUID_BYTES];
    char name[64];          /* "NVIDIA H200" */
    uint64_t memory_bytes;  /* of the card */
    int os_node;            /* NUMA node that it is near to; -1: not known */
    struct cst_budget pool; /* for pools of all jobs on it */
    char pool_name[160];    /* "pools of cuda:0 (GPU-..., NVIDIA H200)": the budget's name */
    unsigned engine;        /* index in engines */
};

struct cst_gpu_list {
    struct cst_gpu v[CST_GPU_MAX];
    unsigned n;      /* of them */
    uint32_t driver; /* version of the driver, 13000 for 13.0; 0: not known */
};

/* Read one JSON object: {"gpus": [{"index", "uuid", "name", "memory_bytes", "node"}], "driver"}, of
 * which "node" and "driver" may lack, or {"error": "sentence"}. CST_EUNSUPPORTED: that sentence;
 * CST_EPROTO: something else, or no GPU in it. */
int cst_gpu_list_parse(const char *text, size_t n, struct cst_gpu_list *out, struct cst_err *err);

/* Keep what @devices wants ("all", or UUIDs and numbers divided by commas or spaces, in that order,
 * counted anew) and give each a budget of @pool (bytes, or per cent of the card; at most the
 * card). CST_ENOTFOUND: a wanted one is not there, with the list of those that are; the others
 * are kept. */
int cst_gpu_list_select(struct cst_gpu_list *list, const char *devices, const char *pool,
                        struct cst_err *err);

/* The GPU that @device ("cuda", "cuda:N", a UUID or the beginning of one) means for @rank.
 * CST_ENOTFOUND: none, with the list of those that are there; CST_EINVAL: more than one. */
int cst_gpu_list_find(struct cst_gpu_list *list, const char *device, uint32_t rank,
                      struct cst_gpu **out, struct cst_err *err);

/* CST_EINVAL unless @devices has the form that select takes, or is "none". */
int cst_gpu_list_check(const char *devices, struct cst_err *err);

#endif
