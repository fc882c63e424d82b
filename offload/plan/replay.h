/* SPDX-License-Identifier: Apache-2.0 */
/* A step, played through the very code that runs in production, under a virtual clock: what a plan
 * promises and what the daemon does cannot drift apart. The core (offload/core.h) decides; workers
 * keep their books with client/lease.h and client/fence.h, run the operators in their order,
 * compute for as long as flops / rate, hand in, accumulate, step. Engines take commands in the
 * order of priority and tickets and finish them after latency + bytes / rate; lanes, directions,
 * cores and memory are shared as rates say. Pure, deterministic, no threads.
 *
 *   model, layout, pools, rates --> cst_replay_run --> step time, bytes, peaks, and each interval
 * of each lane (for timelines)
 *
 * A rank may stand for several that do the same (representatives): each has a device of its own,
 * the host's work is done for all of them. Bytes are exact either way.
 *
 * Updates follow the core's policy and rooms. EARLY: workers PREPARE at the start of a step,
 * without clipping. A room's engine is one behind the nodes'; it has a link of its own unless a
 * pool is there too, takes as long for an update as its device's rate says, whatever else it
 * computes, and its copies share the link with the weights'.
 *
 * What a time is made of. A message takes half of rates' request_s each way, between a worker and
 * the daemon and between the daemon and an engine. A GPU's operators are enqueued without waiting,
 * the processor's are computed between begin and end. Backward costs twice the forward's flops,
 * three times with recompute. */
#ifndef CST_REPLAY_H
#define CST_REPLAY_H

#include "offload/core.h"
#include "offload/plan/rates.h"

enum cst_lane_kind {
    CST_LANE_COMPUTE,
    CST_LANE_UP,
    CST_LANE_DOWN,
    CST_LANE_PEER,
    CST_LANE_STATES_UP,   /* of an update in a room, and within the accelerator */
    CST_LANE_STATES_DOWN, /* same, home */
    CST_LANE_REDUCE,
    CST_LANE_UPDATE,
    CST_LANE_WAIT
};

/* Something that took time. */
struct cst_interval {
    enum cst_lane_kind lane;
    uint32_t number;     /* of the rank (COMPUTE, WAIT), device (or node where the host copies: UP,
                            DOWN, PEER), or engine (REDUCE, UPDATE) */
    uint32_t what;       /* operator (COMPUTE, WAIT) or chunk */
    bool backward;       /* COMPUTE, WAIT */
    uint32_t step;       /* steps committed when it ended */
    uint64_t begin, end; /* ns */
};

struct cst_replay_config {
    const struct cst_core_config
        *core; /* with its model, layout, pools, policy, rooms and interleave; borrowed. Segments,
                * tickets and time-outs are the replay's */
    const struct cst_rates *rates;
    uint32_t n_steps;       /* played; the last one is reported. 3: trace learned, steady */
    uint32_t micro_batches; /* >= 1 */
    bool reduce_once;   /* workers add their micro-batches up in gradient blocks that stay open, and
                           hand in at the step (the core knows of one) */
    double flops_share; /* of rates' flops that this model reaches, 0..1; 0: 1 */
    bool recompute;     /* each operator's forward again before its backward */
    const uint32_t *stands_for; /* per rank: ranks, itself included; NULL: 1 each */
    const uint8_t *device_rows; /* per chunk: 1 << cst_row of those whose home is a device, where it
                                 * is updated then; NULL: none. Devices take turns by chunk; only
                                 * GPUs. Other ranks' copies of them are peer copies. */
    const uint8_t *disk_rows;   /* per chunk: same, those that are on disk and come and go for each
                                   update; NULL: none */
    uint64_t deadline_events;   /* give up (CST_ETIMEDOUT) after so many; 0: none */
    bool (*stop)(
        void *arg); /* Asked now and then. True: give up (CST_ETIMEDOUT). NULL: nobody is asked. */
    void *stop_arg; /* For stop. */
    void (*interval)(void *arg, const struct cst_interval *interval); /* NULL: nobody wants them */
    void *arg;
};

/* Counters as the core keeps them (cst_rank_stats), of all ranks, and of the job (cst_core_stats).
 */
struct cst_replay_counts {
    uint64_t bytes_up, bytes_down;
    uint64_t hits, late, misses, evictions, prefetches, surprises;
    uint64_t updates, device_updates; /* of chunks; of them, in rooms */
};

struct cst_replay_result {
    /* of the last step */
    uint64_t step_ns;           /* commit to commit */
    uint64_t compute_ns;        /* busiest rank's compute */
    uint64_t wait_ns;           /* that rank's waits for weights or blocks */
    uint64_t update_exposed_ns; /* by which the step would be shorter if updates took no time, see
                                   offload/instant.c */
    uint64_t update_ns;        /* in which at least one update was under way; of the last step whose
                                  updates had all ended (cst_core_stats) */
    uint64_t update_hidden_ns; /* of it, what was not exposed */
    uint64_t states_up, states_down; /* bytes that updates in rooms moved over the links; not among
                                        bytes_up, bytes_down, as in the core */
    uint64_t device_updates;         /* chunks whose update in a room ended */
    uint64_t tail_ns;                /* from that rank's last backward to the commit */
    uint64_t bytes_up, bytes_down;   /* of all ranks, out of host memory and towards it: as the core
                                        counts, but for chunks at home on a device */
    uint64_t bytes_peer;             /* between devices, not counted by the core */
    uint64_t hits, late, misses, evictions, prefetches;
    uint32_t peak_blocks[CST_CORE_MAX_WORLD]; /* not free at once, per rank */
    /* of the whole run */
    struct cst_replay_counts
        total; /* when all is quiet behind the last step: what a job says that has done n_steps */
    uint64_t moved_up, moved_down; /* added up from commands and copies; total's bytes, unless
                                      somebody miscounts */
    uint64_t n_events;             /* that the core digested */
};

/* CST_EPOOL, CST_EINVAL (a rate that is needed is 0), CST_ETIMEDOUT, CST_ENOMEM. */
int cst_replay_run(const struct cst_replay_config *config, struct cst_replay_result *out,
                   struct cst_err *err);

/* How the bytes that a real job counted (the sums of its ranks' cst_rank_stats, after n_steps and
 * when nothing is under way) differ from the total that was predicted: how many of up and down
 * differ by more than @tolerance of the prediction (0: at all), with both values in @words; 0:
 * none. Other counters depend on who was faster. */
unsigned cst_replay_differs(const struct cst_replay_counts *predicted,
                            const struct cst_replay_counts *counted, double tolerance,
                            char words[160]);

#endif
