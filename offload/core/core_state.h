/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the core: what its parts own, embedded by value, and what all of them read. Private
 * to offload/; simulate/ looks into it to replay a job. A part changes what its own header
 * declares, and calls the functions of other parts for the rest. Calls go to parts in the same
 * folder and in those below it (tests/lib/layers). The .c files of all these folders include this
 * header.
 *
 * What a part has to tell to one above it is a fact (offload/books/facts.h). */
#ifndef CST_CORE_STATE_H
#define CST_CORE_STATE_H

#include "offload/books/actions.h"
#include "offload/books/machine_waits.h"
#include "offload/books/membership.h"
#include "offload/books/chunk_update.h"
#include "offload/gradient/collection.h"
#include "offload/core/agreement.h"
#include "offload/core/commit.h"
#include "offload/core/core.h"
#include "offload/update/staged_update.h"
#include "offload/weights/eviction.h"
#include "offload/books/exposure.h"
#include "offload/books/facts.h"
#include "offload/base/flight.h"
#include "offload/books/idle.h"
#include "offload/books/instant.h"
#include "offload/gradient/landing.h"
#include "offload/gradient/partials.h"
#include "offload/update/overlap.h"
#include "offload/update/replicas.h"
#include "offload/update/update.h"
#include "offload/update/versions.h"
#include "offload/core/pause.h"
#include "offload/books/rank.h"
#include "offload/core/ranks.h"
#include "offload/books/request.h"
#include "offload/core/save.h"
#include "offload/update/seal.h"
#include "offload/schedule/step_schedule.h"
#include "offload/core/states.h"
#include "offload/update/update_end.h"
#include "offload/books/waiting.h"
#include "offload/books/weight_row.h"

struct cst_chunk {
    /* The chunk's group: only these ranks fetch the chunk and contribute to it. One of
     * cst_core.groups. */
    const struct cst_set *ranks;
    bool away;       /* The chunk has states, and all of them are on other machines. */
    bool has_states; /* False: the chunk is frozen and has no gradient, sum or update. */
    /* The rows of moments have the zeros of new memory: nothing was written there. */
    bool moments_are_new;
    uint32_t tier; /* Number of the tier that has the chunk's states. */
    bool ordered;  /* Scratch of commit.c for the order of updates. */
    /* The job skips tensors without a gradient, and the step that is being committed has no
     * gradient of this chunk; changed by idle.c. */
    bool idle;
    struct cst_weight_row weight;
    struct cst_gradient gradient;
    struct cst_chunk_update update;
    /* Slot of the device reservation `update.reservation` that holds the chunk's gradient;
     * CST_NONE: none does. Changed by kept_gradients.c. */
    uint32_t kept;
    uint32_t n_addends; /* Addends of the chunk's gradient in a step (step_schedule.h). */
    uint32_t n_in_sum;  /* Of those, how many one sum adds; at least 1. */
    struct cst_chunk_writes writes;
    struct cst_chunk_times times;
    struct cst_evicted evicted;
};

/* What the memory that core.c has reserved suffices for. */
struct cst_reserved {
    uint32_t requests; /* Capacity for waiting requests. */
    uint32_t gpus;     /* Number of GPUs into which engines load weights. */
    size_t actions;    /* Least capacity of the list of actions. */
};

struct cst_core {
    /* From the configuration; see struct cst_core_config. */

    const struct cst_model *model;
    const struct cst_layout *layout;
    const uint32_t *arena_segments;
    uint32_t table_segment;
    struct cst_table_header *table; /* As in struct cst_core_config. */
    /* The job's other machines; owned. NULL: there are none. */
    struct cst_core_machines *machines;
    uint32_t world;
    uint32_t n_chunks;
    /* Largest number of GPUs that can access each other's memory, of those into whose memory
     * engines load weights. Several ranks can share a GPU. */
    uint32_t n_gpus;
    uint32_t n_nodes;   /* Nodes whose engines have chunks. */
    uint32_t n_trained; /* Chunks that are not frozen. */
    uint64_t n_blocks;  /* Number of blocks in all pools. */
    /* Maximum number of micro-batches of a step; at least 1. With stages: of each rank block. */
    uint32_t micro_batches;
    bool grad_fp32; /* Grad rows are fp32, so contributions can be added to them one by one. */
    /* Contributions can be added before all of a sum have come: grad rows are fp32, or each is
     * alone in its rank block. */
    bool adds_singly;
    bool two_weights; /* Chunks with states have a second weight row. */
    uint64_t peer_timeout_ns;
    struct cst_core_policy policy;

    /* What all parts read. */

    uint64_t now;  /* Time of the current event, in ns. */
    uint64_t step; /* Number of committed steps; changed by commit.c. */
    /* Factors of parameter groups of the last STEP or PREPARE that was accepted. All ranks have the
     * same ones when they are used (hyper.factors). */
    struct cst_table_factors factors;
    const struct cst_step_schedule *schedule; /* How the job's ranks share the work of a step. */
    void *schedule_state;     /* Owned, and changed by the functions of `schedule` alone. */
    struct cst_rank *ranks;   /* Owned. */
    struct cst_chunk *chunks; /* Owned. */
    /* The groups of the layout, which can be for more ranks, without those that the core does not
     * have. Owned. */
    struct cst_set *groups;

    /* What the parts own. */

    struct cst_membership membership;
    struct cst_machine_waits machine_waits;
    struct cst_agreement agreement;
    struct cst_attempt attempt;
    struct cst_commit commit;
    struct cst_collection collection;
    struct cst_early early;
    struct cst_idle idle;
    struct cst_writes writes;
    struct cst_save save;
    struct cst_pause pause;
    struct cst_seal seal;
    struct cst_versions versions;
    struct cst_grants grants;
    struct cst_landings landings;
    struct cst_partials partials;
    struct cst_replicas replicas;
    struct cst_scratches scratches;
    struct cst_device_updates device_updates;
    struct cst_updates_done updates_done;
    struct cst_exposure exposure;
    struct cst_clock clock;
    struct cst_requests requests;
    struct cst_flights flights;
    struct cst_reserved reserved;
    struct cst_facts facts;
    struct cst_output out;
};

#endif
