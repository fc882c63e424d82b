/* SPDX-License-Identifier: Apache-2.0 */
/* Random collective calls, and what each rank must get from them, computed one rank after the
 * other. All ranks that make call @number of @seed make the same call; each of them knows the
 * inputs of all. */
#ifndef TESTS_COLLECTIVE_H
#define TESTS_COLLECTIVE_H

#include "cistern/comm.h"

#define COLLECTIVE_MAX_RANKS 8

struct collective {
    struct cst_comm_call call; /* What this rank calls. */
    uint64_t seed, number;
    uint32_t rank, size;
    /* Elements that rank i sends to rank j; for calls with parts, all rows are the same. */
    size_t counts[COLLECTIVE_MAX_RANKS][COLLECTIVE_MAX_RANKS];
    size_t recv_counts[COLLECTIVE_MAX_RANKS];
    size_t in_elems, out_elems;
    void *in, *out; /* Owned. */
};

/* Make call @number for @rank of @size. Arrays have at most about @most elements. @op 0: any. */
void collective_make(struct collective *c, uint64_t seed, uint64_t number, uint32_t rank,
                     uint32_t size, size_t most, enum cst_comm_op op);

/* Return whether the output has the bits that it must have. */
bool collective_is_right(const struct collective *c);

void collective_free(struct collective *c);

#endif
