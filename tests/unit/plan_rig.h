/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the tests of offload/plan/: a small model, laid out and ready to be replayed. */
#ifndef PLAN_RIG_H
#define PLAN_RIG_H

#include "offload/plan/preset.h"
#include "offload/simulate/replay.h"

/* A model with a layout, pools, rates and the configuration of its replay. */
struct plan_rig {
    struct cst_model model;
    struct cst_layout layout;
    struct cst_layout_config layout_config;
    struct cst_core_config core;
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    struct cst_core_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    struct cst_rates rates;
    struct cst_replay_config replay;
};

/* Rates of a host that trains on its processor: 8 cores, one NUMA node. */
void plan_rig_host_rates(struct cst_rates *out);

/* Open a rig with the preset @name for @world ranks, in chunks of @chunk_elems (0: chosen by the
 * layout). With @gpu the rates are those of A100s, otherwise of plan_rig_host_rates. A pool has the
 * share @pool_share of the blocks that it could use, and at least those that it needs. Close the
 * rig with plan_rig_close. */
void plan_rig_open(struct plan_rig *rig, const char *name, uint32_t world, uint64_t chunk_elems,
                   bool gpu, double pool_share);

/* Declare the preset @name, with four sequences in a batch, in the empty @model. */
void plan_rig_declare(struct cst_model *model, const char *name, uint32_t world);
/* Make all tensors of @model fp32. */
void plan_rig_fp32(struct cst_model *model);
/* Like plan_rig_open, with @model, which the rig then owns. */
void plan_rig_open_model(struct plan_rig *rig, struct cst_model *model, uint32_t world,
                         uint64_t chunk_elems, bool gpu, double pool_share);
/* Give steps @n micro-batches. With more than one, grad rows are fp32. */
void plan_rig_micro_batches(struct plan_rig *rig, uint32_t n);
/* Lay the model out again with @states and updates as @overlap says. */
void plan_rig_updates(struct plan_rig *rig, const struct cst_layout_states *states,
                      enum cst_overlap overlap);
/* Update one of every @k chunks on an accelerator, in one of @n reservations of @bytes each. The
 * reservations are on the devices of the first ranks or, if the ranks compute on the host, on
 * devices of their own. Each accelerator has @states bytes for states in device memory. */
void plan_rig_reservations(struct plan_rig *rig, uint32_t n, uint64_t bytes, uint32_t k,
                           uint64_t states);
/* Free the rig's layout and model. */
void plan_rig_close(struct plan_rig *rig);

/* Run the replay. Fails the test if the replay fails. */
struct cst_replay_result plan_rig_run(const struct plan_rig *rig);

#endif
