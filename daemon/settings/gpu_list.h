/* SPDX-License-Identifier: Apache-2.0 */
/* The list of this machine's GPUs: parsing of the output of `cistern-engine-cuda --probe`,
 * selection by the configuration, and lookup of the device that a worker names. Pure computation
 * without CUDA. Simulated accelerators have a list of the same type. */
#ifndef CST_GPU_LIST_H
#define CST_GPU_LIST_H

#include "daemon/budget/arena.h"
#include "offload/plan/card.h"

#include <stddef.h>

#define CSTD_GPU_MAX 16
/* Size of "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" or "MIG-..." with the NUL. */
#define CSTD_GPU_UUID_BYTES 64

/* A GPU or a simulated accelerator. */
struct cstd_gpu {
    unsigned index; /* Place in the list, N of "cuda:N". */
    /* A simulated accelerator (daemon/engine/simulated.h), not a GPU. Its uuid is "paced:N". */
    bool paced;
    char uuid[CSTD_GPU_UUID_BYTES];
    char name[64];           /* Name of the product, such as "NVIDIA H200". */
    uint64_t memory_bytes;   /* Memory of the card in bytes. */
    bool mps;                /* Processes share the card by MPS, not in turns. */
    int os_node;             /* The nearest NUMA node (OS number); -1: unknown. */
    struct cstd_budget pool; /* Budget of all jobs' memory on this accelerator. */
    /* The budget is what contexts and workers leave of the card (set_aside.h), not a configured
     * size. */
    bool pool_auto;
    char set_aside_words[CST_CARD_WORDS + 64]; /* What pool.set_aside is for. */
    /* Name of the budget, such as "pools of cuda:0 (GPU-..., NVIDIA H200)". */
    char pool_name[160];
    unsigned engine;            /* Index of the accelerator's engine in struct cstd_engines. */
    struct cst_set unreachable; /* Indices of the GPUs of its list whose memory it cannot access. */
};

struct cstd_gpu_list {
    struct cstd_gpu v[CSTD_GPU_MAX];
    unsigned n;      /* Number of entries in v. */
    uint32_t driver; /* Version of the driver, 13000 for 13.0; 0: unknown. */
};

/* Parse one JSON object of @n bytes: {"gpus": [{"index", "uuid", "name", "memory_bytes", "node",
 * "unreachable"}], "driver"}, where "node", "unreachable" (an array of places in the array "gpus")
 * and "driver" are optional, or {"error": "sentence"}. CST_EUNSUPPORTED: the object has an error,
 * whose sentence is copied to @err; CST_EPROTO: the text has another form or lists no GPU. */
int cstd_gpu_list_parse(const char *text, size_t n, struct cstd_gpu_list *out, struct cst_err *err);

/* Keep the GPUs that @devices selects, in the order of @devices and with new indices, and give each
 * the budget @pool (bytes or a percentage of the card's memory, at most the card's memory; or
 * "auto": what the engine's context and the workers leave of it).
 * @devices is "all", or a list of UUIDs and numbers separated by commas or spaces. CST_ENOTFOUND: a
 * selected GPU does not exist, and @err lists those that do; the others are kept. */
int cstd_gpu_list_select(struct cstd_gpu_list *list, const char *devices, const char *pool,
                         struct cst_err *err);

/* Let no GPU of @list access the memory of another one. */
void cstd_gpu_list_separate(struct cstd_gpu_list *list);

/* Find the GPU that @device names for @rank: "cuda" (number @rank modulo the number of GPUs),
 * "cuda:N", a UUID, or the beginning of a UUID. CST_ENOTFOUND: there is no such GPU, and @err lists
 * the existing ones; CST_EINVAL: the beginning fits more than one GPU. */
int cstd_gpu_list_find(struct cstd_gpu_list *list, const char *device, uint32_t rank,
                       struct cstd_gpu **out, struct cst_err *err);

/* Check the form of the setting @devices: a list for cstd_gpu_list_select, or "none". CST_EINVAL:
 * it has another form. */
int cstd_gpu_list_check(const char *devices, struct cst_err *err);

#endif
