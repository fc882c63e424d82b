/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: replays steps of the real core (offload/core/core.h) under a virtual clock, so
 * that plans and daemon cannot drift apart. Workers use offload/worker/sequence.h, run the
 * operators in order, compute for flops / rate, hand in, accumulate and step. Engines take commands
 * by priority and ticket and finish them after latency + bytes / rate; lanes, link directions,
 * cores and memory are shared as the rates say. Pure and deterministic; no threads.
 *
 *   model, layout, pools, rates --> cst_replay_run --> step time, bytes, peaks, and the intervals
 *                                                      of each lane (for timelines)
 *
 * A rank can represent several ranks that do the same: each has a device of its own, and the work
 * of the host is done for all. Numbers of bytes are exact in either case.
 *
 * Updates follow the core's policy, with device updates in its device reservations. With EARLY,
 * workers PREPARE at the start of a step, and do not clip. The engine of a device reservation is
 * numbered after those of the nodes. It has a link of its own unless a pool is there too, and its
 * copies share the link with those of weights. An update takes the time that the device's rate
 * says, whatever else the device computes.
 *
 * A drive whose states are updated in buffers of host memory (a device reservation there) is like a
 * device that only copies: its engine reads in one lane and writes in another, at the rates of
 * drives. Reads and writes at the same time have half of the mixed rate each. The nodes' engines
 * update, and copy the weights from the buffers to their rows.
 *
 * Times. A message between a worker and the daemon, or the daemon and an engine, takes half of
 * request_s each way. Operators on a GPU are enqueued without waiting; on the processor they are
 * computed between begin and end. A backward pass takes twice the flops of the forward pass, with
 * recompute three times. */
#ifndef CST_REPLAY_H
#define CST_REPLAY_H

#include "offload/core/core.h"
#include "proto/rates.h"

enum cst_lane_kind {
    CST_LANE_COMPUTE,
    CST_LANE_UP,
    CST_LANE_DOWN,
    CST_LANE_PEER,
    CST_LANE_STATES_UP,   /* Copies of device updates to the accelerator or within it. */
    CST_LANE_STATES_DOWN, /* Copies of device updates back to the host. */
    CST_LANE_READ,        /* Reads of a drive. */
    CST_LANE_WRITE,       /* Writes of a drive. */
    CST_LANE_REDUCE,
    CST_LANE_UPDATE,
    CST_LANE_WAIT
};

/* An activity with its begin and end. */
struct cst_interval {
    enum cst_lane_kind lane;
    /* COMPUTE, WAIT: the rank. UP, DOWN, PEER, STATES_UP, STATES_DOWN: the device, or the node if
     * the host copies. READ, WRITE: the drive. REDUCE, UPDATE: the engine. */
    uint32_t number;
    uint32_t what;       /* COMPUTE, WAIT: the operator. Else the chunk. */
    bool backward;       /* COMPUTE, WAIT: in the backward pass. */
    uint32_t step;       /* Number of steps committed when it ended. */
    uint64_t begin, end; /* In ns. */
};

struct cst_replay_config {
    /* Model, layout, pools, policy, device reservations and interleave of the job; borrowed. The
     * simulator replaces segments, tickets and timeouts. */
    const struct cst_core_config *core;
    const struct cst_rates *rates;
    /* Number of steps to simulate; the last one is reported. With 3 the trace is learned and the
     * step is steady. */
    uint32_t n_steps;
    uint32_t micro_batches; /* At least 1. */
    double flops_share;     /* Share of the rates' flops that this model reaches, 0..1; 0: 1. */
    bool recompute;         /* Repeat each operator's forward pass before its backward pass. */
    /* Per rank: number of ranks that it represents, including itself; NULL: 1 each. */
    const uint32_t *stands_for;
    uint64_t deadline_events; /* Give up with CST_ETIMEDOUT after this many events; 0: no limit. */
    bool (*stop)(
        void *arg); /* Called from time to time. True: give up with CST_ETIMEDOUT. May be NULL. */
    void *stop_arg; /* Argument for stop. */
    /* Called for each interval; may be NULL. */
    void (*interval)(void *arg, const struct cst_interval *interval);
    /* Argument for interval. */
    void *arg;
};

/* Counters as the core keeps them: of all ranks together (cst_rank_stats) and of the job
 * (cst_core_stats). */
struct cst_replay_counts {
    uint64_t bytes_up, bytes_down;
    uint64_t hits, late, misses, evictions, prefetches, surprises;
    /* Updates of chunks, and those of them made on accelerators. */
    uint64_t updates, device_updates;
};

struct cst_replay_result {
    /* The fields from here on belong to the last step. */

    uint64_t step_ns;    /* Time from commit to commit. */
    uint64_t compute_ns; /* Compute time of the busiest rank. */
    uint64_t wait_ns;    /* Time that the busiest rank waited for weights or blocks. */
    /* By how much the step would be shorter if updates took no time; see offload/books/instant.c.
     */
    uint64_t update_exposed_ns;
    /* Time with at least one update in flight, for the last step whose updates had all ended
     * (cst_core_stats). */
    uint64_t update_ns;
    uint64_t update_hidden_ns; /* The part of update_ns that was not exposed. */
    /* Bytes that device updates moved over the links. Like in the core, not included in bytes_up
     * and bytes_down. */
    uint64_t states_up, states_down;
    /* Bytes that were read from all drives, and the part of them that was read before the commit;
     * bytes that were written to them. */
    uint64_t disk_read, disk_ahead, disk_written;
    uint64_t device_updates; /* Chunks whose device update was completed. */
    uint64_t tail_ns;        /* Time from the busiest rank's last backward pass to the commit. */
    /* Bytes from and to host memory, of all ranks; as the core counts them. */
    uint64_t bytes_up, bytes_down;
    uint64_t bytes_peer; /* Bytes between devices, which the core does not count. */
    uint64_t hits, late, misses, evictions, prefetches;
    /* Per rank: maximum number of blocks that were not free. */
    uint32_t peak_blocks[CST_CORE_MAX_WORLD];

    /* The fields from here on belong to the whole run. */

    /* Counters after the last step, when nothing is in flight: those of a job after n_steps. */
    struct cst_replay_counts total;
    /* Sums over commands and copies. They must equal the bytes in `total`. */
    uint64_t moved_up, moved_down;
    uint64_t n_events; /* Events that the core processed. */
};

/* Bytes of the record of a step of a durable job with @n_chunks chunks, and the time in which the
 * step is made to last when its states are written: all drives flush, then one of them writes the
 * record and flushes it. */
uint64_t cst_replay_seal_bytes(uint32_t n_chunks);
double cst_replay_seal_s(const struct cst_rates *rates, uint32_t n_chunks);

/* Simulate @config->n_steps steps. CST_EPOOL, CST_EINVAL (a necessary rate is 0, such as disk_read
 * if there are states on drives), CST_ETIMEDOUT,
 * CST_ENOMEM. */
int cst_replay_run(const struct cst_replay_config *config, struct cst_replay_result *out,
                   struct cst_err *err);

#endif
