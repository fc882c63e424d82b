/* The planner: from a model, budgets and rates to everything that the user need not choose. Pure; bounded by candidates and by a count of
 * replayed events, so it always ends; never asks the clock.
 *
 *   candidates (capacities per size class x blocks x rows on the device x prefetch depth x gradient storage)
 *     --lower bound by arithmetic, pruned--> best few --cst_replay_run--> the fastest that fits, and three runners-up with the reason
 *
 * Used by the daemon at commit, by `cistern plan`, and by tests. */
#ifndef CST_PLAN_H
#define CST_PLAN_H

#include "offload/plan/replay.h"

#define CST_PLAN_RUNNERS_UP 3

struct cst_plan_budget {
    uint64_t device_bytes;      /* of one rank's device: weights' and gradients' blocks and rows kept there. 0: as much as can be used */
    uint64_t activation_bytes;  /* of it, what the worker keeps for itself; what operators declare, if 0 */
    uint64_t host_bytes;        /* of the node, all ranks; 0: no limit */
    uint64_t disk_bytes;        /* 0: no disk tier */
};

struct cst_plan_config {
    struct cst_model *model;    /* layouts write its chunk and offset fields */
    uint32_t world;             /* ranks on this node */
    const struct cst_plan_budget *budget;
    const struct cst_rates *rates;
    uint32_t micro_batches;     /* per step, >= 1 */
    double flops_share;         /* as cst_replay_config */
    bool recompute;
    uint64_t chunk_elems;       /* given capacity of the first class; 0: to be chosen */
    uint64_t max_events;        /* to replay in all; 0: 4 million */
};

enum cst_plan_grad { CST_PLAN_GRAD_BESIDE, /* 16 B per parameter */ CST_PLAN_GRAD_OVER /* in the weight's place: 14 B */ };

struct cst_plan_choice {
    struct cst_layout_config layout;     /* to build the same layout again: capacities per class, ... */
    uint32_t n_blocks[CST_LAYOUT_MAX_CLASSES]; /* of each rank's pool */
    uint32_t prefetch_depth;
    enum cst_plan_grad grad;
    bool reduce_each;                    /* micro-batches: a reduction each, into an fp32 row; else one per chunk and step */
    uint8_t *device_rows;                /* per chunk: 1 << cst_row of those that stay on the device; owned */
    uint32_t n_chunks;
    uint64_t pool_bytes, state_bytes;    /* on each rank's device */
    uint64_t host_bytes, disk_bytes;     /* of the node */
    uint64_t padding_bytes;              /* weights that chunks' ends waste */
    struct cst_replay_result predicted;
    const char *binds;                   /* what a faster plan would need more of: "device memory", "link up", "update", "compute", ... */
};

struct cst_plan_loser {
    struct cst_plan_choice plan;
    char why[160];                       /* a sentence with numbers */
};

struct cst_plans {
    struct cst_plan_choice best;
    struct cst_plan_loser runners_up[CST_PLAN_RUNNERS_UP];
    uint32_t n_runners_up;
    uint64_t n_candidates, n_replayed;
};

/* CST_EPOOL / CST_EBUDGET: cannot fit: the limit that binds and the bytes that are short. CST_EINVAL, CST_ENOMEM. */
int cst_plan_search(struct cst_plans *out, const struct cst_plan_config *config, struct cst_err *err);
void cst_plans_close(struct cst_plans *plans);

#endif
