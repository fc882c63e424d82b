/* A step, played through the very core that runs in production, under a virtual clock: what a plan promises and what the daemon does cannot
 * drift apart. Workers run the operators in their order, fetch as libcistern does (one operator ahead), compute for as long as flops / rate,
 * hand in, accumulate, step. Engines take commands in the order of priority and tickets and finish them after latency + bytes / rate; lanes,
 * directions and memory are shared as rates say. Pure, deterministic, no threads.
 *
 *   model, layout, pools, rates --> cst_replay_run --> step time, bytes, peaks, and each interval of each lane (for timelines)
 *
 * Ranks that differ only in number are played once where that gives the same result (representatives); bytes are exact either way. */
#ifndef CST_REPLAY_H
#define CST_REPLAY_H

#include "offload/core.h"
#include "offload/plan/rates.h"

enum cst_lane_kind { CST_LANE_COMPUTE, CST_LANE_UP, CST_LANE_DOWN, CST_LANE_PEER, CST_LANE_REDUCE, CST_LANE_UPDATE, CST_LANE_WAIT };

/* Something that took time. */
struct cst_interval {
    enum cst_lane_kind lane;
    uint32_t number;      /* of the rank (COMPUTE, WAIT), device (UP, DOWN, PEER) or node (REDUCE, UPDATE) */
    uint32_t what;        /* operator (COMPUTE, WAIT) or chunk */
    bool backward;        /* COMPUTE */
    uint32_t step;
    uint64_t begin, end;  /* ns */
};

struct cst_replay_config {
    const struct cst_core_config *core; /* with its model, layout and pools; borrowed */
    const struct cst_rates *rates;
    uint32_t n_steps;       /* played; the last one is reported. 3: trace learned, steady */
    uint32_t micro_batches; /* >= 1 */
    double flops_share;     /* of rates' flops that this model reaches, 0..1; 0: 1 */
    bool recompute;         /* each operator's forward again before its backward */
    uint64_t deadline_events; /* give up (CST_ETIMEDOUT) after so many; 0: none */
    void (*interval)(void *arg, const struct cst_interval *interval); /* NULL: nobody wants them */
    void *arg;
};

/* Of the last step. */
struct cst_replay_result {
    uint64_t step_ns;           /* commit to commit */
    uint64_t compute_ns;        /* busiest rank's compute */
    uint64_t wait_ns;           /* that rank's waits for weights or blocks */
    uint64_t update_exposed_ns; /* ... of them, for updates */
    uint64_t tail_ns;           /* from that rank's last backward to the commit */
    uint64_t bytes_up, bytes_down, bytes_peer; /* of all ranks */
    uint64_t hits, misses, evictions, prefetches;
    uint32_t peak_blocks[CST_CORE_MAX_WORLD];  /* in use at once, per rank */
};

/* CST_EPOOL, CST_EINVAL (a rate that is needed is 0), CST_ETIMEDOUT, CST_ENOMEM. */
int cst_replay_run(const struct cst_replay_config *config, struct cst_replay_result *out, struct cst_err *err);

#endif
