/* SPDX-License-Identifier: Apache-2.0 */
/* The planner: from a model, budgets and rates it chooses everything that the user need not choose.
 * Pure. It always ends, because the candidates and the number of simulated events are bounded. It
 * never reads the clock; a caller that cannot wait for the end says so through `stop`.
 *
 *   combinations of a few values of each knob (capacities per size class, device reservation,
 *     states on accelerators, pool, prefetch depth)
 *     --pruned by a lower bound--> the promising ones --cst_replay_run--> the best
 *     --coordinate descent, simulated too--> the fastest that fits, and up to three runners-up that
 *     differ by more than noise, each with the knobs that differ and the reason why it lost
 *
 * The user chooses, and the plan follows:
 *
 *   - The formats of states.
 *   - When chunks are updated. Early updates need steps without clipping, delayed updates are a
 *     different optimizer.
 *   - The states of the last chunks that stay on accelerators (device_states), and the device
 *     reservation in which accelerators update chunks (device_update_bytes): a number of bytes, or
 *     CST_PLAN_DEVICE_UPDATE_AUTO.
 *
 *   - The drives that have states, and how many (n_drives, drive_bytes).
 *
 * With CST_PLAN_DEVICE_UPDATE_AUTO there is a device reservation of three buffers, or pools lend
 * memory (offload/gradient/lent_memory.h), if steps are shorter with it. Lent memory takes nothing
 * from the pools, and is chosen if steps are as short as with the best device reservation. One of
 * every k chunks is updated there, with the k that a daemon starts with
 * (offload/books/interleave.h). The part of a device that the smallest pool and the device
 * reservation leave is divided between blocks and states in a few ways, and the fastest is kept.
 * The first search is made without states on accelerators, so the plan is never slower because of
 * this choice.
 *
 * Used by the daemon at the commit of a model, by `cistern plan`, and by tests. */
#ifndef CST_PLAN_H
#define CST_PLAN_H

#include "offload/simulate/replay.h"

#define CST_PLAN_RUNNERS_UP 3
#define CST_PLAN_NOISE                                                                             \
    0.01 /* Of plans whose steps differ by less than this share only one is shown. */
#define CST_PLAN_WORDS 192
#define CST_PLAN_JOB_EVENTS                                                                        \
    200000 /* Value of max_events for plans of jobs, also in the command `cistern plan`. */
/* Value for bytes of a budget: no limit. 0: no bytes. */
#define CST_PLAN_NO_LIMIT UINT64_MAX
/* Value of device_update_bytes and device_states: chosen by the planner. */
#define CST_PLAN_DEVICE_UPDATE_AUTO UINT64_MAX

struct cst_plan_budget {
    /* Memory of one rank's device: blocks, rows kept there, activations and device reservation.
     * CST_PLAN_NO_LIMIT: as much as can be used. */
    uint64_t device_bytes;
    /* Part of device_bytes that the worker uses for itself; 0: what the operators declare. Not
     * counted if ranks compute on the host. */
    uint64_t activation_bytes;
    uint64_t host_bytes; /* Host memory of the node, for all ranks; may be CST_PLAN_NO_LIMIT. */
};

/* The least budgets with which a plan would fit. */
struct cst_plan_least {
    uint64_t device_bytes; /* Equals the given budget if the device has enough memory. */
    uint64_t host_bytes;   /* Equals the given budget if the host has enough memory. */
};

struct cst_plan_config {
    struct cst_model *model; /* Layouts write its chunk and offset fields. */
    uint32_t world;          /* Number of ranks on this node. */
    const struct cst_plan_budget *budget;
    const struct cst_rates *rates;
    /* Index into the devices of `rates`: what each rank computes on (each rank has its own). The
     * device "host" is the processor. */
    uint32_t device;
    uint32_t n_nodes;       /* Number of NUMA nodes with arenas; 0: 1. */
    uint32_t micro_batches; /* Micro-batches per step, at least 1. */
    /* Rows of chunks, and their formats. */
    struct cst_layout_states states;
    /* When chunks are updated; EARLY and DELAYED need states.two_weights. */
    enum cst_overlap overlap;
    /* Bytes of each rank's accelerator for updates of chunks; 0: none; or
     * CST_PLAN_DEVICE_UPDATE_AUTO. */
    uint64_t device_update_bytes;
    /* Bytes of each rank's accelerator for states that stay there; 0: none; or
     * CST_PLAN_DEVICE_UPDATE_AUTO, which also makes device_update_bytes the planner's choice if
     * that is 0. Needs fp32 moments, gradients in rows of their own and, if it is a number of
     * bytes, a device_update_bytes that is one too. */
    uint64_t device_states;
    /* Number of drives that have states; 0: none. The rates disk_read and so on are those of each.
     */
    uint32_t n_drives;
    /* Bytes of states on all drives together, which the last chunks have; 0: all states. */
    uint64_t drive_bytes;
    /* The ranks' pools on accelerators lend memory for updates (offload/gradient/lent_memory.h).
     * device_update_bytes and device_states are 0. Ignored if ranks compute on the host. */
    bool lent;
    bool interleave_given; /* Use `interleave` as k, whatever the rates are. */
    /* If interleave_given: one of this many chunks of a node gets a device update; 0: none. */
    uint32_t interleave;
    /* If ranks compute on the processor: index into the devices of `rates` of the accelerators that
     * make updates. Else the ranks' devices do. */
    uint32_t accelerator;
    /* If ranks compute on the processor: number of accelerators, which take turns; 0: one for each
     * rank. */
    uint32_t n_accelerators;
    /* Accelerators allocate memory in multiples of this; 0: 2 MiB if ranks compute on them, 4096 if
     * ranks compute on the processor. */
    uint64_t device_grain;
    double flops_share; /* As in cst_replay_config. */
    /* As in cst_replay_config. */
    bool recompute;
    bool worker_copies; /* Workers copy weights into their pools themselves; GPUs only. */
    /* The ranks' accelerators cannot access each other's memory: gradients of several ranks are
     * summed in host memory. */
    bool apart;
    uint64_t chunk_elems; /* Capacity of the first size class; 0: to be chosen. */
    /* Acceptable waste of weight blocks, as a share of the weights; 0: 0.02. A plan within it goes
     * before one that wastes more and is faster by up to 0.25 %, or by up to 2 % if that one wastes
     * more than half of the weights. */
    double max_padding;
    /* Filled if the search ends with CST_EPOOL or CST_EBUDGET; may be NULL. Borrowed. */
    struct cst_plan_least *least;
    /* Maximum number of events to simulate; 0: 600 000. The search for device_states may use as
     * many again. If no plan could be simulated within the limit, one is, with up to 16 times as
     * many. */
    uint64_t max_events;
    /* Called between layouts, and between and during simulations. True: end the search with the
     * best plan so far: the fastest simulated one or, if there is none, the one with the shortest
     * estimate. May be NULL. */
    bool (*stop)(void *arg);
    void *stop_arg; /* Argument for stop. */
};

struct cst_plan_choice {
    /* To build the same layout again: capacities of the classes and so on. Engine numbers of
     * accelerators follow those of the nodes. */
    struct cst_layout_config layout;
    uint32_t n_blocks[CST_LAYOUT_MAX_CLASSES]; /* Blocks of each size class in each rank's pool. */
    uint32_t n_classes;
    uint32_t prefetch_depth; /* As in cst_core_policy. */
    uint32_t n_chunks;
    uint64_t pool_bytes, state_bytes; /* Bytes on each rank's device for blocks, and for states. */
    uint64_t device_update_bytes;     /* Bytes of each rank's accelerator for updates; 0: none. */
    bool lends; /* The ranks' pools lend memory for updates; then device_update_bytes is 0. */
    /* Bytes of each rank's accelerator for states that stay there, as a job requests them;
     * state_bytes of them are used. */
    uint64_t device_states;
    /* Least bytes of each rank's accelerator with which a device reservation fits one chunk, and
     * with which one chunk's states fit. */
    uint64_t least_reservation, least_states;
    uint32_t n_staying; /* Number of chunks whose states stay on accelerators. */
    /* States on drives: the number of drives, the bytes of the files on all of them, the number of
     * chunks whose states are there, and the bytes of host memory in which they are updated. */
    uint32_t n_drives;
    uint64_t drive_bytes;
    uint32_t n_on_drives;
    uint64_t window_bytes;
    /* Chunks whose states stay in host memory, because buffers of their size for each drive would
     * take more, and the bytes of these states. */
    uint32_t n_stay_in_host;
    uint64_t stay_bytes;
    uint64_t rows_bytes; /* Bytes of the node without pools: rows, job table, buffers of drives. */
    uint32_t n_buffers;  /* Number of chunks that each device reservation holds at a time. */
    /* One of this many chunks gets a device update; 0: none, or only those whose states are
     * there. */
    uint32_t interleave;
    uint64_t activation_bytes; /* Bytes on each rank's device for activations. */
    uint64_t host_bytes;       /* Bytes of the node. */
    /* Waste of weight blocks if each chunk were in a block of its own: the unused ends of the
     * blocks. */
    uint64_t padding_bytes;
    uint64_t bound_ns; /* Lower bound of the step time of this candidate. */
    struct cst_replay_result predicted;
    /* The bottleneck: what a faster plan would need more of ("device memory", "link up", "update",
     * "compute", ...). Of a quarter more of each in turn, the one that shortens the step most.
     * Empty for runners-up. */
    const char *binds;
};

struct cst_plan_loser {
    struct cst_plan_choice plan;
    char why[CST_PLAN_WORDS]; /* One sentence with numbers. */
};

struct cst_plans {
    struct cst_plan_choice best;
    struct cst_plan_loser runners_up[CST_PLAN_RUNNERS_UP];
    uint32_t n_runners_up;
    uint64_t n_candidates, n_replayed, n_events;
    /* `stop` ended the search: a longer one might have found a faster plan, and runners-up can be
     * missing. */
    bool stopped;
    /* Layouts built to find the best plan; they take most of the time if there are many tensors. */
    uint64_t n_layouts;
    /* Fastest step without states that stay on accelerators; 0: no plan fits without them, or they
     * were not the planner's choice. */
    uint64_t without_states_ns;
    /* Why there is a device reservation, lent memory or neither. Empty: not the planner's choice.
     */
    char update_why[CST_PLAN_WORDS];
    /* Why the plan keeps so many states on accelerators, or none. Empty: not the planner's
     * choice. */
    char states_why[CST_PLAN_WORDS];
};

/* True if the planner chooses the device reservation: it is CST_PLAN_DEVICE_UPDATE_AUTO, or it is 0
 * and device_states is CST_PLAN_DEVICE_UPDATE_AUTO. */
bool cst_plan_chooses_reservation(const struct cst_plan_config *config);
/* CST_EINVAL: @config's device_states, states and device_update_bytes contradict each other. Checks
 * nothing else. */
int cst_plan_check_reservation(const struct cst_plan_config *config, struct cst_err *err);

/* Search for the fastest plan. The model's layout fields are those of the best plan. Statuses:
 *
 *   - CST_EPOOL, CST_EBUDGET: no plan fits. The message names the limit that no candidate meets and
 *     the missing bytes. If no candidate meets either limit: CST_EPOOL and both.
 *   - CST_ETIMEDOUT: no plan could be simulated within 16 x max_events, or `stop` ended the search
 *     before there was a candidate.
 *   - CST_EINVAL, CST_ENOMEM. */
int cst_plan_search(struct cst_plans *out, const struct cst_plan_config *config,
                    struct cst_err *err);
/* Choose again what can be changed while a job runs: the depth of prefetch of @choice. Its present
 * depth is kept unless another one is faster. *predicted: the step with the result. Statuses as
 * cst_plan_replay. */
int cst_plan_tune(const struct cst_plan_config *config, struct cst_plan_choice *choice,
                  struct cst_replay_result *predicted, struct cst_err *err);

/* Simulate @choice once more, for its timeline or with another number of steps. @n_steps: as in
 * cst_replay_config, 3 if 0. CST_ETIMEDOUT: more than 16 x max_events of @config, unless that is
 * 0. */
int cst_plan_replay(const struct cst_plan_config *config, const struct cst_plan_choice *choice,
                    uint32_t n_steps,
                    void (*interval)(void *arg, const struct cst_interval *interval), void *arg,
                    struct cst_replay_result *out, struct cst_err *err);

/* Reads and writes of drives in a step of a plan, in seconds, each if nothing else delays it. The
 * time of the step is that of the replay; these times say what drives hide under. */
struct cst_plan_drives {
    double disk_s; /* All reads and writes at the mixed rate of all drives. */
    /* Updates at the commit: what is read after the commit, and the forward pass that it hides
     * under, because that pass needs the new weights. 0 with early and delayed updates. */
    double read_s, read_under_s;
    /* Updates at the commit: what is written, and the passes that it hides under. Early and delayed
     * updates: all reads and writes, which share these passes or the step. */
    double write_s, write_under_s;
    /* A durable job: the time of flushes and of the record of a step, after its writes and before
     * the next commit, so that it is hidden under the passes of write_under_s; 0: not durable. */
    double seal_s;
    uint64_t record_bytes; /* Of that record. */
    /* Bytes that are written to one drive in a second of training, that with most of them. */
    double wear;
};

/* Compute the reads and writes of @choice, which has drives, with the rates of @config. */
struct cst_plan_drives cst_plan_drives_times(const struct cst_plan_config *config,
                                             const struct cst_plan_choice *choice);

#endif
