/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces in which all states of a job are copied (state_copy.h), in the order in which they are
 * written: of each tensor first the master weights, because a WRITE of them also sets weights and
 * moments, then the weights and the moments. Loop thread only. */
#ifndef CSTD_STATE_PIECES_H
#define CSTD_STATE_PIECES_H

#include "offload/layout/reshard.h"
#include "proto/table.h"

#include <stdbool.h>
#include <stdint.h>

struct cstd_job;

/* A part of one row of a tensor of the destination. */
struct cstd_state_piece {
    uint32_t tensor;
    enum cst_row row;
    bool raw, exponents;     /* As in struct cst_event. */
    uint64_t first, n_elems; /* Elements of the tensor. */
};

/* The pieces that were not taken yet. Filled in by the caller, and it may change `end`; `step` and
 * `first` begin with 0. */
struct cstd_state_pieces {
    const struct cstd_job *to;         /* The destination, which has its layout; borrowed. */
    const struct cst_reshard *reshard; /* From the tensors of the source; borrowed. */
    enum cst_moments moments;          /* Format of the moments of the source. */
    const uint32_t *order; /* Numbers of the destination's tensors in the order of copying. */
    uint32_t place;        /* The next piece: tensor by place in `order`, */
    uint32_t step;         /* row, */
    uint64_t first;        /* and element. */
    uint32_t end;          /* Place in `order` before which the pieces end. */
};

/* True if there is another piece. */
bool cstd_state_pieces_left(struct cstd_state_pieces *pieces);

/* Take it: cstd_state_pieces_left has just said that there is one. It has at most @most_bytes, and
 * is read in at most @most_runs runs, a multiple of CST_MX8_BLOCK. */
void cstd_state_pieces_take(struct cstd_state_pieces *pieces, uint64_t most_bytes,
                            uint32_t most_runs, struct cstd_state_piece *out);

/* Bytes of the first @n_elems elements of @piece. */
uint64_t cstd_state_piece_bytes(const struct cstd_state_pieces *pieces,
                                const struct cstd_state_piece *piece, uint64_t n_elems);

#endif
