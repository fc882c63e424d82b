/* SPDX-License-Identifier: Apache-2.0 */
/* A model of a few shapes, laid out and ready to be replayed: what the tests of offload/plan/
 * share. */
#ifndef PLAN_RIG_H
#define PLAN_RIG_H

#include "offload/plan/preset.h"
#include "offload/plan/replay.h"

struct plan_rig {
    struct cst_model model;
    struct cst_layout layout;
    struct cst_layout_config layout_config;
    struct cst_core_config core;
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    struct cst_core_room rooms[CST_CORE_MAX_ROOMS];
    struct cst_rates rates;
    struct cst_replay_config replay;
};

/* A processor that trains: 8 cores, one node. */
void plan_rig_host_rates(struct cst_rates *out);

/* The preset called @name for @world ranks; chunks of @chunk_elems (0: chosen). Rates: the host's,
 * or with @gpu an A100's. Pools have
 * @pool_share of the blocks that can be used, at least what is needed. */
void plan_rig_open(struct plan_rig *rig, const char *name, uint32_t world, uint64_t chunk_elems,
                   bool gpu, double pool_share);

/* Like it, of @model, which the rig takes over. */
void plan_rig_open_model(struct plan_rig *rig, struct cst_model *model, uint32_t world,
                         uint64_t chunk_elems, bool gpu, double pool_share);
/* Steps have so many micro-batches: grad rows are fp32. */
void plan_rig_micro_batches(struct plan_rig *rig, uint32_t n);
/* Lay out again: states as in @states, updates when @overlap says, where two rows of weights are.
 */
void plan_rig_updates(struct plan_rig *rig, const struct cst_layout_states *states,
                      enum cst_overlap overlap);
/* One of each @k chunks is updated on an accelerator, in one of @n rooms of @bytes, on the devices
 * of the first ranks, or on links of their own where ranks compute on the host; @states bytes of
 * each are for states that stay there. */
void plan_rig_rooms(struct plan_rig *rig, uint32_t n, uint64_t bytes, uint32_t k, uint64_t states);
void plan_rig_close(struct plan_rig *rig);

/* A replay that must succeed. */
struct cst_replay_result plan_rig_run(const struct plan_rig *rig);

#endif
