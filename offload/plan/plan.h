/* SPDX-License-Identifier: Apache-2.0 */
/* The planner: from a model, budgets and rates to everything that the user need not choose. Pure;
 * bounded by candidates and by a count of replayed events, so it always ends; never asks the clock.
 * A caller that has no time to wait for the end says so by `stop`.
 *
 *   candidates (capacities per size class x blocks x states on the device x prefetch depth x
 * gradient storage x reductions)
 *     --lower bound by arithmetic, pruned--> the promising ones --cst_replay_run--> neighbours of
 * the best, replayed too
 *     --> the fastest that fits, and up to three runners-up that differ by more than noise, with
 * the reason
 *
 * What the runtime cannot do yet is modelled, and chosen only without `runtime_only`:
 *   states on a device   a chunk's rows are all at home on a rank's device (ranks take turns),
 * which updates them: neither weights nor gradients cross the link. Rows go together: a weight row
 * alone on the device is what a block is already, a gradient alone there saves nothing where the
 * host updates gradient over weight 14 bytes per parameter and not 16; taken where 16 do not fit.
 * One micro-batch only. At run time a job says so itself (states.grad_over_weight): it is not
 * chosen for it one reduction        of several micro-batches: workers add up in their gradient
 * blocks, which all stay open: as many blocks as chunks disk                 moments, then master
 * weights, of the chunks that are used last in a forward pass
 *
 * What the user chooses, and the plan follows: formats of states, when chunks are updated (early
 * and delayed updates are other training, or need steps without clipping), states of the last
 * chunks that stay on accelerators. A room in which accelerators update chunks is as large as is
 * said; or there is one for three buffers wherever steps are shorter with it. Of each k chunks one
 * goes through, as a daemon begins (offload/interleave.h). States that stay on accelerators take as
 * many bytes as are said; or, beside such a room, what the plan finds: it divides what the smallest
 * pool and the room leave of a device between blocks and states in a few ways and keeps the
 * fastest. First it searches without them, so it is never slower for having been asked. Neither
 * rooms nor such states are combined with what the runtime cannot do yet.
 *
 * Used by the daemon at commit, by `cistern plan`, and by tests. */
#ifndef CST_PLAN_H
#define CST_PLAN_H

#include "offload/plan/replay.h"

#define CST_PLAN_RUNNERS_UP 3
#define CST_PLAN_NOISE                                                                             \
    0.01 /* steps that differ by less are the same, to a person: of such plans one is shown */
#define CST_PLAN_WORDS 192
#define CST_PLAN_JOB_EVENTS                                                                        \
    200000 /* as max_events: what the daemon plays for a job, and `cistern plan` to find the same: \
              less than a second, seconds at worst */
#define CST_PLAN_NO_LIMIT UINT64_MAX  /* as bytes of a budget. 0 is none at all */
#define CST_PLAN_ROOM_AUTO UINT64_MAX /* as update_room, device_states: the plan's choice */

struct cst_plan_budget {
    uint64_t device_bytes; /* of one rank's device: blocks, rows kept there, activations, room for
                              updates. CST_PLAN_NO_LIMIT: as much as can be used */
    uint64_t activation_bytes; /* of it, what the worker keeps for itself; what operators declare,
                                  if 0. Not counted on the host as device */
    uint64_t host_bytes;       /* of the node, all ranks; may be CST_PLAN_NO_LIMIT */
    uint64_t disk_bytes;       /* 0: no disk tier */
};

/* The least budgets with which a plan would fit. */
struct cst_plan_least {
    uint64_t device_bytes; /* that of the budget where a device is not short */
    uint64_t host_bytes;   /* that of the budget where the host is not short */
};

struct cst_plan_config {
    struct cst_model *model; /* layouts write its chunk and offset fields */
    uint32_t world;          /* ranks on this node */
    const struct cst_plan_budget *budget;
    const struct cst_rates *rates;
    uint32_t device;        /* which of rates' devices a rank computes on (each has one of its own);
                               "host": the processor */
    uint32_t n_nodes;       /* NUMA nodes with arenas; 0: 1 */
    uint32_t micro_batches; /* per step, >= 1 */
    struct cst_layout_states states; /* which rows chunks have, in which format. grad_over_weight:
                                        the plan need not choose it */
    enum cst_overlap overlap; /* when chunks are updated; EARLY, DELAYED: with states.two_weights */
    uint64_t update_room; /* bytes of each rank's accelerator in which chunks are updated; 0: none;
                             CST_PLAN_ROOM_AUTO */
    uint64_t device_states; /* same, for states that stay there. With fp32 moments, gradients beside
                             * the weights, and an update_room that is given; CST_PLAN_ROOM_AUTO: or
                             * that is the plan's choice, as it is then without an update_room */
    bool interleave_given;  /* of each node one of `interleave` chunks is updated in a room (0:
                               none), whatever the rates are */
    uint32_t interleave;
    uint32_t accelerator; /* which of rates' devices that is where ranks compute on the processor;
                             else it is theirs */
    uint32_t n_accelerators; /* where ranks compute on the processor: so many, they take turns; 0:
                                one for each rank */
    uint64_t device_grain;   /* accelerators give out memory in multiples of so many bytes; 0: 2 MiB
                                where ranks compute on them, 4096 beside the host */
    double flops_share;      /* as cst_replay_config */
    bool recompute;
    bool worker_copies;   /* workers copy weights in themselves; GPUs only */
    bool runtime_only;    /* nothing that cannot be run today */
    uint64_t chunk_elems; /* given capacity of the first class; 0: to be chosen */
    double
        max_padding; /* of weights, as a share: a plan that wastes no more is taken before one that
                      * is faster by up to 0.25 %, or by up to 2 % where that one wastes more than
                      * half of them (without such a plan: the one that wastes least). 0: 0.02 */
    struct cst_plan_least *least; /* written where the search ends with CST_EPOOL or CST_EBUDGET;
                                     NULL: nowhere. Borrowed */
    uint64_t max_events; /* to replay in all; 0: 600 000. As many again with device_states of the
                            plan's choice. Where no plan could be played within them one is, with up
                            to 16 times as many */
    bool (*stop)(
        void *arg); /* Asked between layouts, and between and within plays. True: end the search
                     * with the best plan so far, which is the fastest that was played or, if none
                     * was, the one with the shortest estimate. NULL: nobody is asked */
    void *stop_arg; /* For stop. */
};

enum cst_plan_grad {
    CST_PLAN_GRAD_BESIDE,
    /* 16 B per parameter */ CST_PLAN_GRAD_OVER /* in the weight's place: 14 B */
};

struct cst_plan_choice {
    struct cst_layout_config layout; /* to build the same layout again: capacities per class, ...;
                                        accelerators' engines follow the nodes' */
    uint32_t n_blocks[CST_LAYOUT_MAX_CLASSES]; /* of each rank's pool */
    uint32_t n_classes;
    uint32_t prefetch_depth;         /* as cst_core_policy */
    enum cst_core_eviction eviction; /* same: next use, but where the other happens to be faster */
    enum cst_plan_grad grad;
    bool reduce_each; /* micro-batches: a reduction each, into an fp32 row; else one per chunk and
                         step */
    uint8_t *device_rows; /* per chunk: 1 << cst_row of those that stay on a device; owned */
    uint8_t *disk_rows;   /* same, on disk; owned */
    uint32_t n_chunks;
    uint64_t pool_bytes, state_bytes; /* on each rank's device */
    uint64_t update_room;             /* on each rank's accelerator, for updates; 0: none */
    uint64_t device_states; /* same, for states that stay there: what a job asks for to have them;
                               state_bytes of it are used */
    uint64_t least_room, least_states; /* bytes of each rank's accelerator with which a room takes
                                          one chunk through, and holds one chunk's states */
    uint32_t n_staying;                /* chunks whose states stay there */
    uint32_t n_buffers;                /* chunks at a time in each room */
    uint32_t interleave; /* one of so many chunks is updated in a room; 0: none, or those alone
                            whose states are there */
    uint64_t activation_bytes;       /* same, counted */
    uint64_t host_bytes, disk_bytes; /* of the node */
    uint64_t padding_bytes; /* of weights' blocks, were each chunk in one: what their ends waste */
    uint64_t bound_ns;      /* no step of this candidate is shorter */
    struct cst_replay_result predicted;
    const char *binds; /* what a faster plan would need more of: "device memory", "link up",
                        * "update", "compute", ...: of a quarter more of each in turn, what shortens
                        * the step most. Empty: a runner-up's */
};

struct cst_plan_loser {
    struct cst_plan_choice plan;
    char why[CST_PLAN_WORDS]; /* a sentence with numbers */
};

struct cst_plans {
    struct cst_plan_choice best;
    struct cst_plan_loser runners_up[CST_PLAN_RUNNERS_UP];
    uint32_t n_runners_up;
    uint64_t n_candidates, n_replayed, n_events;
    bool stopped;       /* `stop` ended the search: a longer one might have found a faster plan.
                           Runners-up may be lacking then. */
    uint64_t n_layouts; /* of the model that were built to find the best: most of the time where
                           there are many tensors */
    uint64_t without_states_ns; /* the fastest step without states that stay on accelerators; 0:
                                   nothing fits, or they were not the plan's choice */
    char states_why[CST_PLAN_WORDS]; /* why so much of accelerators is for states, or nothing;
                                        empty: they were not the plan's choice */
};

/* Is the room for updates the plan's choice? It is where device_states are and there is none
 * otherwise. */
bool cst_plan_chooses_room(const struct cst_plan_config *config);
/* CST_EINVAL: @config's device_states, states and update_room contradict each other. Looks at
 * nothing else. */
int cst_plan_check_rooms(const struct cst_plan_config *config, struct cst_err *err);

/* CST_EPOOL / CST_EBUDGET: nothing fits: the limit that no candidate meets and the bytes that are
 * short; both limits, and CST_EPOOL, where none meets either. CST_ETIMEDOUT: the steps of no plan
 * could be played within 16 x max_events, or `stop` ended the search before there was a candidate.
 * CST_EINVAL, CST_ENOMEM. The model's layout fields are the
 * best plan's. */
int cst_plan_search(struct cst_plans *out, const struct cst_plan_config *config,
                    struct cst_err *err);
void cst_plans_close(struct cst_plans *plans);

/* Play @choice once more, for its timeline or a run of another length: what the search has played.
 * @n_steps as there: 3 if 0. CST_ETIMEDOUT: more events than 16 x config's max_events, unless that
 * is 0. */
int cst_plan_replay(const struct cst_plan_config *config, const struct cst_plan_choice *choice,
                    uint32_t n_steps,
                    void (*interval)(void *arg, const struct cst_interval *interval), void *arg,
                    struct cst_replay_result *out, struct cst_err *err);

#endif
