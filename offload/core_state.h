/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the core: what its parts own, embedded by value, and what all of them read. Private
 * to offload/; plan/ looks into it to replay a job. A part changes what its own header declares,
 * and calls the functions of other parts for the rest. Calls go down only, in these layers:
 *
 *   core                                events in, facts routed, actions out
 *   commit  states  prepare  device_loss  ranks  update_end
 *   overlap  fetch  prefetch  update  spill  device_update
 *   sum  landing  load  collection  multi_gpu_load  kept_gradients
 *   residency  eviction  waiting  lookahead  weight_row  chunk_update  rank
 *   actions  group  facts  instant  exposure
 *   block  trace  request  flight  buffers  hyper  clip  reduce_site
 *
 * What a part has to tell to one above it is a fact (offload/facts.h). */
#ifndef CST_CORE_STATE_H
#define CST_CORE_STATE_H

#include "offload/actions.h"
#include "offload/chunk_update.h"
#include "offload/collection.h"
#include "offload/commit.h"
#include "offload/core.h"
#include "offload/device_update.h"
#include "offload/eviction.h"
#include "offload/exposure.h"
#include "offload/facts.h"
#include "offload/flight.h"
#include "offload/instant.h"
#include "offload/landing.h"
#include "offload/overlap.h"
#include "offload/rank.h"
#include "offload/ranks.h"
#include "offload/request.h"
#include "offload/states.h"
#include "offload/update_end.h"
#include "offload/waiting.h"
#include "offload/weight_row.h"

struct cst_chunk {
    /* The chunk's group, one bit for each rank: only these ranks fetch the chunk and contribute to
     * it. */
    uint64_t ranks;
    bool has_states; /* False: the chunk is frozen and has no gradient, sum or update. */
    /* Engine of the accelerator that has the chunk's states and makes all its updates; 0: the
     * states are in host memory. */
    uint32_t device;
    /* Command in flight that completes the weights of the last update: UPDATE in place, or COPY of
     * the weights down after a device update; else 0. */
    uint64_t update_ticket;
    /* If the last update was a device update: COPYs of its states down that are in flight; else
     * 0. */
    uint64_t states_tickets[CST_UPDATE_STATES];
    /* Device reservation of the last update; CST_NONE: the node's engine made it in place. */
    uint32_t room;
    uint32_t buffer; /* Buffer of the device reservation that the last update used. */
    /* If the last update was a device update: its UPDATE is done, so its COPYs down overwrite the
     * chunk's rows. */
    bool comes;
    struct cst_update away; /* If the last update was a device update: its parameters. */
    /* Slot of the device reservation that holds the chunk's gradient; CST_NONE: none does. */
    uint32_t held;
    bool turn; /* By the interleaving, the last update was to be a device update. */
    /* Command in flight that completes the weights that fetches read; else 0. */
    uint64_t weight_ticket;
    bool other_side; /* Fetches read the second weight row. */
    bool pending;    /* The last update's weights are in the row that fetches do not read yet. */
    bool ahead;      /* The chunk's update of the uncommitted step was issued; see overlap.c. */
    bool carried; /* The chunk's update of the uncommitted step was issued in an earlier attempt. */
    bool fused;   /* The last sum was made within the update, so the grad row does not hold it. */
    uint64_t reduce_ticket; /* REDUCE in flight, of this or an earlier collection; else 0. */
    /* COPY into the grad row in flight, of this or an earlier collection; else 0. */
    uint64_t stage_ticket;
    uint64_t write_ticket; /* Last WRITE, if it is in flight; else 0. */
    uint32_t n_writes;     /* Number of WRITEs in flight. */
    /* A command failed that was to change the weights or states, so their contents are unknown. */
    bool broken;
    /* The grad row holds one rank's contribution, or the sum of some micro-batches only. */
    bool torn;
    /* Rank whose contribution is spilled in the grad row; CST_NONE: none is. */
    uint32_t staged_rank;
    uint32_t micro; /* Micro-batch that the chunk collects; all before it are in the grad row. */
    /* Ranks that have handed in for this micro-batch or cannot any more, one bit each. */
    uint64_t handed;
    /* Ranks in `handed` whose contributions a REDUCE has taken or skipped, one bit each. */
    uint64_t added;
    bool summed;        /* A REDUCE of this collection was issued: the next one adds to the row. */
    bool reduced;       /* The whole gradient of this collection is in the grad row. */
    enum cst_over over; /* Contents of the weight row once all issued commands are done. */
    bool ordered;       /* Scratch for the order of updates. */
    struct cst_chunk_times times;
    uint64_t version;      /* Incremented when a write to the weights or states is issued. */
    uint64_t grad_version; /* Incremented when a write to the grad row is issued. */
    struct cst_evicted evicted;
};

struct cst_core {
    /* From the configuration; see struct cst_core_config. */

    const struct cst_model *model;
    const struct cst_layout *layout;
    const uint32_t *arena_segments;
    uint32_t table_segment;
    uint32_t world;
    uint32_t n_chunks;
    uint64_t everybody; /* One bit for each rank. */
    /* GPUs into whose memory engines load weights; several ranks can share a GPU. */
    uint32_t n_gpus;
    uint32_t n_nodes;       /* Nodes whose engines have chunks. */
    uint32_t n_trained;     /* Chunks that are not frozen. */
    uint64_t n_blocks;      /* Number of blocks in all pools. */
    uint32_t micro_batches; /* Maximum number of micro-batches of a step; at least 1. */
    bool grad_fp32;   /* Grad rows are fp32, so contributions can be added to them one by one. */
    bool two_weights; /* Chunks with states have a second weight row. */
    uint64_t peer_timeout_ns;
    struct cst_core_policy policy;

    /* What all parts read. */

    uint64_t now;             /* Time of the current event, in ns. */
    uint64_t step;            /* Number of committed steps; changed by commit.c. */
    struct cst_rank *ranks;   /* Owned. */
    struct cst_chunk *chunks; /* Owned. */

    /* What the parts own. */

    struct cst_attempt attempt;
    struct cst_commit commit;
    struct cst_collection collection;
    struct cst_early early;
    struct cst_writes writes;
    struct cst_grants grants;
    struct cst_landings landings;
    struct cst_device_updates device_updates;
    struct cst_updates_done updates_done;
    struct cst_exposure exposure;
    struct cst_clock clock;
    struct cst_requests requests;
    struct cst_flights flights;
    struct cst_facts facts;
    struct cst_output out;
};

#endif
