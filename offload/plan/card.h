/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a GPU that is not for pools: CUDA contexts of the engine and of the workers,
 * workspaces of libraries such as cuBLASLt, and activations. With `pool = auto` in [gpu], the
 * daemon gives to pools what these leave of the card, and `cistern plan` plans for as much. Nobody
 * allocates this memory here: it is only left free. */
#ifndef CST_PLAN_CARD_H
#define CST_PLAN_CARD_H

#include "offload/layout/layout.h"

#include <stddef.h>
#include <stdint.h>

/* Parts of a card's memory that are set aside, in bytes. */
struct cst_card {
    uint64_t memory_bytes;     /* Memory of the card. */
    uint32_t n_contexts;       /* Processes: the engine, and each rank with its pool on the card. */
    uint64_t context_bytes;    /* Their CUDA contexts. */
    uint64_t workspace_bytes;  /* Workspaces of the ranks' libraries. */
    uint64_t activation_bytes; /* What ranks declared: the sum over their operators. */
    uint32_t n_undeclared;     /* Ranks that declared nothing. */
    uint64_t assumed_bytes;    /* What is assumed for all of these ranks together. */
};

/* Begin a card of @memory_bytes, on which the engine alone has a context. */
void cst_card_init(struct cst_card *card, uint64_t memory_bytes);

/* Add a rank whose operators declare @activation_bytes; 0: they declare nothing. */
void cst_card_add_rank(struct cst_card *card, uint64_t activation_bytes);

/* Return the sum of all parts. It is larger than the card if too much was declared. */
uint64_t cst_card_bytes(const struct cst_card *card);

#define CST_CARD_WORDS 256

/* Write all parts with their names to @out: "1 GiB for 2 CUDA contexts, 64 MiB for workspaces of
 * libraries, 3 GiB for activations". */
void cst_card_words(const struct cst_card *card, char *out, size_t n);

/* Return what the operators of @model that @rank runs declare to keep from the forward pass to the
 * backward pass, in bytes, at most UINT64_MAX / 1024. */
uint64_t cst_card_activations(const struct cst_model *model, uint32_t rank);

#endif
