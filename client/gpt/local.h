/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the local store: the states of all ranks of one process. local_states.c allocates
 * the states, local_step.c does the work of the barriers, and store_local.c has the ranks' handles.
 *
 * Delayed updates, from step d = delay_from on; w(i) are the weights after update i:
 *
 *   step              ...  d-1        d          d+1        d+2
 *   operators use          w(d-2)     w(d-1)     w(d-1)     w(d)
 *   update i writes        in place   the spare row, which takes effect at the end of the next step
 *
 * Tensors of one group and one pattern form a chunk, in order of declaration. The ranks of the
 * group contribute the chunk's gradients. A frozen chunk has weights only. As in the daemon, tiles
 * are numbered through all tensors in order of declaration, so that sums are equal to the
 * daemon's. */
#ifndef GPT_LOCAL_H
#define GPT_LOCAL_H

#include "client/gpt/parallel.h"
#include "client/gpt/store.h"
#include "kernels/math/tile.h"

#include <pthread.h>

/* Place of a tensor's elements. */
struct gpt_local_place {
    uint32_t chunk; /* index of the chunk */
    uint64_t start; /* offset in elements from the start of the chunk's rows */
};

struct gpt_local_chunk {
    uint32_t group; /* group of the chunk's tensors, as in gpt_tensor */
    enum cst_pattern_kind pattern;
    bool has_states;    /* not frozen: the chunk has all states, else weights only */
    uint64_t n_elems;   /* elements, padding included */
    uint64_t n_tiles;   /* tiles of all tensors of the chunk */
    uint64_t n_reduced; /* reductions so far, the mark of the latest one in the tiles' table */
    /* weight: the weights that operators use. grad: the gradient of the group's first rank, which
     * the sum replaces. With several micro-batches grad is NULL, and grad_f32 holds the sum. */
    struct cst_rows rows;
    /* Weights after all updates: rows.weight, or the result of a delayed update. */
    uint16_t *newest;
    uint16_t *spare; /* row that the next delayed update writes; NULL: updates are not delayed */
};

struct gpt_local_rank {
    struct gpt_store head;
    struct gpt_local *local;
    uint32_t rank;
    bool open;        /* the rank's handle is open */
    uint16_t **grads; /* per chunk: n_elems bf16; NULL: the chunk is frozen or of another group */
    bool *written;    /* per tensor: the gradient of this micro-batch has been written */
    struct cst_hyper_params params; /* hyper-parameters that the rank passed to the current step */
};

struct gpt_local {
    const struct gpt_model *model; /* borrowed */
    const struct cst_kernels *kernels;
    unsigned n_threads;             /* threads that reduce and update */
    struct cst_table_header *table; /* spans and tiles of the chunks that have states */
    struct gpt_local_chunk *chunks;
    uint32_t n_chunks;              /* chunks in use; one entry per tensor is allocated */
    struct gpt_local_place *places; /* one per tensor */
    uint64_t bytes;                 /* bytes of all rows and gradients */
    uint32_t world;
    struct gpt_local_config config; /* with several micro-batches, chunks have fp32 gradients */
    struct gpt_local_rank *ranks;

    pthread_mutex_t lock;          /* protects all fields below */
    pthread_cond_t met;            /* signalled when the barrier completes or a rank is gone */
    uint32_t n_here;               /* ranks that wait at the barrier */
    uint64_t meetings;             /* completed barriers */
    bool broken;                   /* a rank left without a proper close: no rank waits any more */
    bool initialised;              /* a sync has completed */
    uint32_t n_accumulated;        /* summed micro-batches of the current step */
    uint64_t step;                 /* committed steps */
    uint64_t adam_step;            /* applied updates: step minus the skipped steps */
    int status;                    /* status of the last step */
    struct cst_step_result result; /* result of the last step */
};

/* Lay out the chunks for local->model and local->world and allocate the table and all rows.
 * CST_ENOMEM: what was allocated before the failure stays for gpt_local_states_close. */
int gpt_local_states_open(struct gpt_local *local, struct cst_err *err);
void gpt_local_states_close(struct gpt_local *local);

static inline bool gpt_local_in_group(uint32_t group, uint32_t rank)
{
    return group == 0 || group == rank + 1;
}

/* Work at the barrier of all ranks. The last rank to arrive calls the function, with the lock held.
 * If the ranks passed different hyper-parameters, gpt_local_step_all leaves CST_EMISMATCH in
 * local->status. */
void gpt_local_sync_all(struct gpt_local *local);
void gpt_local_accumulate_all(struct gpt_local *local);
void gpt_local_step_all(struct gpt_local *local);

/* Let the operators use the newest weights from now on. */
void gpt_local_turn(struct gpt_local *local);

#endif
