/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a GPU that is not for pools: CUDA contexts of the engine and of the workers,
 * workspaces of libraries such as cuBLASLt, and activations. With `pool = auto` in [gpu], pools get
 * what these leave of the card. The daemon allocates none of this memory: it only leaves it free.
 * Loop thread only. */
#ifndef CSTD_CARD_H
#define CSTD_CARD_H

#include <stddef.h>
#include <stdint.h>

struct cstd_daemon;
struct cstd_gpu;
struct cstd_job;

/* Parts of a card's memory that are set aside, in bytes. */
struct cstd_card {
    uint64_t memory_bytes;     /* Memory of the card. */
    uint32_t n_contexts;       /* Processes: the engine, and each rank with its pool on the card. */
    uint64_t context_bytes;    /* Their CUDA contexts. */
    uint64_t workspace_bytes;  /* Workspaces of the ranks' libraries. */
    uint64_t activation_bytes; /* What ranks declared: the sum over their operators. */
    uint32_t n_undeclared;     /* Ranks that declared nothing. */
    uint64_t assumed_bytes;    /* What is assumed for all of these ranks together. */
};

/* Begin a card of @memory_bytes, on which the engine alone has a context. */
void cstd_card_init(struct cstd_card *card, uint64_t memory_bytes);

/* Add a rank whose operators declare @activation_bytes; 0: they declare nothing. */
void cstd_card_add_rank(struct cstd_card *card, uint64_t activation_bytes);

/* Return the sum of all parts. It is larger than the card if too much was declared. */
uint64_t cstd_card_bytes(const struct cstd_card *card);

#define CSTD_CARD_WORDS 256

/* Write all parts with their names to @out: "1 GiB for 2 CUDA contexts, 64 MiB for workspaces of
 * libraries, 3 GiB for activations". */
void cstd_card_words(const struct cstd_card *card, char *out, size_t n);

/* Return what the operators of @job that @rank runs declare to keep from the forward pass to the
 * backward pass, in bytes, at most UINT64_MAX / 1024. */
uint64_t cstd_card_activations(const struct cstd_job *job, uint32_t rank);

/* Count the ranks of all jobs on @gpu. A rank counts without a worker, too, because its pool
 * remains and a new worker may come; but not if its job is done, whose pools are freed, or is about
 * to be replaced by another one. */
void cstd_card_count(const struct cstd_daemon *daemon, const struct cstd_gpu *gpu,
                     struct cstd_card *out);

/* Count again, and set the part of @gpu's budget that is not for pools. Without `pool = auto` the
 * budget is as it was configured. */
void cstd_card_update(const struct cstd_daemon *daemon, struct cstd_gpu *gpu);

#endif
