/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the local store: the states of all ranks of one process. local_states.c has the memory,
 * local_step.c what is done when all ranks meet, store_local.c the ranks' handles.
 *

 * Delayed updates, from step d = delay_from on. weights(i) are those that update i makes:
 *
 *   step              ...  d-1        d          d+1        d+2
 *   operators use          w(d-2)     w(d-1)     w(d-1)     w(d)
 *   update i writes        in place   the spare row, which the next step's end brings in
 *
 * Tensors of one group and pattern lie together in a chunk, in order of declaration; the chunk's
 * gradients are those of the group's ranks. A frozen chunk has weights alone. Tiles are numbered
 * through the tensors in order of declaration, as the daemon does, so that sums are the same. */
#ifndef GPT_LOCAL_H
#define GPT_LOCAL_H

#include "client/gpt/store.h"
#include "client/gpt/team.h"
#include "kernels/tile.h"

#include <pthread.h>

/* Where a tensor's elements are. */
struct gpt_local_place {
    uint32_t chunk; /* index */
    uint64_t start; /* elements from the start of its rows */
};

struct gpt_local_chunk {
    uint32_t group; /* of its tensors, as in gpt_tensor */
    enum cst_pattern_kind pattern;
    bool has_states;    /* not frozen: what follows but the weights */
    uint64_t n_elems;   /* padding included */
    uint64_t n_tiles;   /* of all its tensors */
    uint64_t n_reduced; /* reductions in the life of the store: their marks */
    struct cst_rows
        rows;         /* weight: that operators use. grad: that of the group's first rank,
                         which the sum replaces; with micro-batches NULL, grad_f32 has the sum */
    uint16_t *newest; /* weights after all updates: those in rows, or the spare ones */
    uint16_t *spare;  /* where a delayed update writes; NULL: none is */
};

struct gpt_local_rank {
    struct gpt_store head;
    struct gpt_local *local;
    uint32_t rank;
    bool open;                      /* its handle exists */
    uint16_t **grads;               /* per chunk: n_elems bf16; NULL: not of its group, or frozen */
    bool *written;                  /* per tensor: its gradient of this micro-batch is there */
    struct cst_hyper_params params; /* of the step that it waits for */
};

struct gpt_local {
    const struct gpt_model *model; /* borrowed */
    const struct cst_kernels *kernels;
    struct gpt_team *team;
    struct cst_table_header *table; /* spans and tiles of the chunks that have states */
    struct gpt_local_chunk *chunks;
    uint32_t n_chunks;              /* in use, of one per tensor */
    struct gpt_local_place *places; /* per tensor */
    uint64_t bytes;                 /* of all rows and gradients */
    uint32_t world;
    struct gpt_local_config config; /* with more than one micro-batch chunks have fp32 gradients */
    struct gpt_local_rank *ranks;

    pthread_mutex_t lock;          /* of all below */
    pthread_cond_t met;            /* the meeting is over or a rank is gone */
    uint32_t n_here;               /* ranks at the meeting */
    uint64_t meetings;             /* held */
    bool broken;                   /* a rank left in bad order: nobody waits any more */
    bool initialised;              /* a sync has completed */
    uint32_t n_accumulated;        /* micro-batches of the step under way that are summed */
    uint64_t step;                 /* committed */
    uint64_t adam_step;            /* applied: step less the skipped */
    int status;                    /* of the last step */
    struct cst_step_result result; /* of the last step */
};

/* Chunks, places, table and rows for local->model and local->world. CST_ENOMEM: what was made is
 * there for gpt_local_states_close. */
int gpt_local_states_open(struct gpt_local *local, struct cst_err *err);
void gpt_local_states_close(struct gpt_local *local);

/* True where @rank is in @group. */
static inline bool gpt_local_in_group(uint32_t group, uint32_t rank)
{
    return group == 0 || group == rank + 1;
}

/* For the meeting of all ranks, by the last one to come, with the lock held. A step whose ranks
 * gave different parameters leaves CST_EMISMATCH in local->status. */
void gpt_local_sync_all(struct gpt_local *local);
void gpt_local_accumulate_all(struct gpt_local *local);
void gpt_local_step_all(struct gpt_local *local);

/* Operators use the weights of the last update from now on, delayed or not. */
void gpt_local_turn(struct gpt_local *local);

#endif
