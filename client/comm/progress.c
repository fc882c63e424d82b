/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/progress.h"

static _Atomic uint32_t *line_of(const struct cst_comm *comm, uint32_t rank)
{
    return &cst_comm_line(comm->segment.base, rank)->read;
}

void cstc_progress_say(struct cst_comm *comm, uint64_t n_calls)
{
    const uint32_t line = (uint32_t)(1 + n_calls);

    if (!comm->by_flow && line != comm->said) {
        comm->said = line;
        atomic_store(line_of(comm, comm->flow.shape.rank), line);
    }
}

bool cstc_progress_is_lost(const struct cst_comm *comm)
{
    return atomic_load(line_of(comm, comm->flow.shape.rank)) != comm->said;
}

static bool is_behind(const struct cst_comm *comm, uint32_t rank, uint64_t n_calls)
{
    return (int32_t)(atomic_load(line_of(comm, rank)) - (uint32_t)(1 + n_calls)) < 0;
}

uint32_t cstc_progress_missing(const struct cst_comm *comm, uint64_t n_calls)
{
    const struct cst_comm_control *control = comm->segment.base;
    const uint64_t closed = atomic_load(&control->closed);

    for (uint32_t rank = 0; rank < comm->flow.shape.size && !comm->by_flow; rank++) {
        if ((closed >> rank & 1) != 0 && is_behind(comm, rank, n_calls)) {
            return rank;
        }
    }
    return CST_COMM_MAX_RANKS;
}

uint32_t cstc_progress_late(const struct cst_comm *comm, uint64_t n_calls)
{
    for (uint32_t rank = 0; rank < comm->flow.shape.size && !comm->by_flow; rank++) {
        if (rank != comm->flow.shape.rank && is_behind(comm, rank, n_calls)) {
            return rank;
        }
    }
    return comm->flow.shape.rank;
}

enum cstc_ends cstc_progress_ends(const struct cst_comm *comm)
{
    const struct cst_comm_control *control = comm->segment.base;

    if (cstc_progress_late(comm, comm->n_started) == comm->flow.shape.rank) {
        return CSTC_ENDS_SURELY;
    }
    return comm->n_compared >= comm->n_started && atomic_load(&control->closed) != 0 &&
                   cstc_progress_missing(comm, comm->n_started) == CST_COMM_MAX_RANKS
               ? CSTC_ENDS_PROBABLY
               : CSTC_ENDS_NEVER;
}
