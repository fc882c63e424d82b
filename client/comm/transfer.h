/* SPDX-License-Identifier: Apache-2.0 */
/* A collective call, cut into rounds. In a round each rank writes at most one slot of its own, and
 * then reads the slots that the others wrote in the same round. This module copies and sums. It
 * knows neither shared memory nor waiting: the caller passes the slots, and observes the order.
 *
 *   broadcast        a round per piece; only the root writes
 *   all-gather       a round per piece; each rank writes a piece of its part
 *   reduce-scatter   a round per piece; the slot has a field for each rank, with a piece
 *                    of its part
 *   all-to-all       the same, and the number of rounds is known when all ranks' counts are
 *   all-reduce       small: one round; each rank writes everything, and sums everything
 *                    large: two rounds per piece, of which two are under way at a time.
 *                    In the round `spread` the slot has a field for each rank, with its
 *                    share of the piece. In the round `sums` each rank writes the sum of
 *                    its own share.
 *
 *                    spread 0, spread 1, sums 0, spread 2, sums 1, ...
 *                    spread m-1, sums m-2, sums m-1
 *
 * Used by one thread at a time. */
#ifndef CSTC_TRANSFER_H
#define CSTC_TRANSFER_H

#include "cistern/comm.h"
#include "kernels/math/total.h"
#include "proto/comm_memory.h"

/* A device that copies and sums, if arrays and slots are in its memory. */
struct cstc_transfer_device {
    /* Begin a copy, or a total as kernels/math/total.h has it, after what was begun before. */
    void (*copy)(void *arg, void *dst, const void *src, size_t bytes);
    void (*total)(void *arg, enum cst_comm_type type, size_t n, uint32_t n_src,
                  const void *const *src, void *dst);
    /* Wait until all that was begun is done. The status is that of the first failure. */
    int (*settle)(void *arg, struct cst_err *err);
};

/* What all calls of a communicator have in common. */
struct cstc_transfer_shape {
    uint32_t rank, size; /* This rank in the group, and the number of ranks. */
    size_t slot_bytes;   /* Data in a slot, a multiple of 64. */
    struct cst_totals totals;
    /* NULL: the processor copies and sums. Otherwise cstc_transfer_write and cstc_transfer_read
     * only begin that, and the caller calls settle. */
    const struct cstc_transfer_device *device;
    void *device_arg; /* First argument of its functions. */
};

struct cstc_transfer {
    struct cst_comm_header header; /* For comparison with those of the other ranks. */
    size_t elem_bytes;
    const char *in;
    char *out;
    size_t in_bytes;    /* All-reduce, broadcast: length of both arrays. */
    size_t n_pieces;    /* Large all-reduce: m in the diagram above; else 0. */
    size_t piece_bytes; /* Large all-reduce: length of each piece but the last. */
    size_t field_bytes; /* Length of a field in a slot; else of a slot's piece. */
    uint64_t n_rounds;  /* 0: not known yet. */
    /* The fields above are set for each call, and these only where they are used.
     * All-gather, reduce-scatter: the parts, of which both arrays have the same. All-to-all: what
     * is sent to each rank and received from each rank. In bytes. */
    size_t send[CST_COMM_MAX_RANKS], receive[CST_COMM_MAX_RANKS];
};

/* Begin @call. CST_EINVAL. */
int cstc_transfer_begin(struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                        const struct cst_comm_call *call, struct cst_err *err);

/* All-to-all: @most is the largest number of bytes that any rank sends to any rank, itself
 * included. */
void cstc_transfer_set_most(struct cstc_transfer *t, uint64_t most);

/* Return whether writing round @round reads the slots that the others wrote in an earlier round of
 * this call, *from. */
bool cstc_transfer_needs(const struct cstc_transfer *t, uint64_t round, uint64_t *from);

/* Return whether the others' slots of round @round are needed until this rank has written a later
 * round of this call, *until. */
bool cstc_transfer_keeps(const struct cstc_transfer *t, uint64_t round, uint64_t *until);

/* Fill @slot, the own slot of @round. @slots: if cstc_transfer_needs, the slots of that round by
 * rank; the own one is not used. */
void cstc_transfer_write(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                         uint64_t round, char *slot, const char *const *slots);

/* Take the data of @round out of the others' slots. */
void cstc_transfer_read(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                        uint64_t round, const char *const *slots);

/* Write @header as words: "all_reduce of 100 fp32". Any contents are allowed. */
#define CSTC_TRANSFER_WORDS 96
void cstc_transfer_words(const struct cst_comm_header *header, char *out, size_t size);

#endif
