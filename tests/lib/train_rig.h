/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of training jobs on devices: a private daemon, a client that reads its
 * statistics, the workers' reports, and jobs whose ranks are on given devices. The results must
 * have the bits of a computation in this process, whichever process dies at whatever time. */
#ifndef TRAIN_RIG_H
#define TRAIN_RIG_H

#include "tests/lib/job_rig.h"
#include "tests/lib/train_check.h"

enum { TRAIN_RIG_STEPS = 3 }; /* number of steps of a job */

/* The devices of a job's ranks. */
struct train_placement {
    const char *name;
    uint32_t world;
    const char *devices[TRAIN_MAX_WORLD]; /* device of each rank */
};

extern struct train_report *reports[TRAIN_MAX_WORLD];
/* Template for the orders of the test; only the fields of the rank's place are not used. */
extern struct train_order train_like;

/* True if the daemon's log contains @text. */
bool train_rig_logged(const char *text);

/* Start the daemon with @config and @options (see daemon_proc_start_with), wait for its engines,
 * and connect the witness. train_like is reset: no worker dies, and no option is set. */
void train_rig_start(const char *config, const char *const *options);

/* Remove all jobs, check that the daemon settles, and stop it. */
void train_rig_stop(void);

/* The order for @rank of job @name: train_like with the rank's place. */
struct train_order train_rig_order(const struct train_placement *at, const char *name,
                                   uint32_t rank);

/* Clear the report of the order's rank and start its worker. Returns the process id. */
pid_t train_rig_send(const struct train_order *order);

/* Run all ranks to the end, each with the order @like and its own place, and check their reports
 * from step @from on. */
void train_rig_run_like(const struct train_placement *at, const struct train_order *like,
                        uint64_t from);
/* Run job @name with pools of @pool_bytes and train_like, and check all reports. */
void train_rig_run(const struct train_placement *at, const char *name, uint64_t pool_bytes);

/* Run a job with the largest pools and one with the smallest, and check their results. */
void train_rig_bits(const struct train_placement *at);

/* Run two ranks of which @victim ends as its order says: @killed by SIGKILL, otherwise with an
 * error. Start another process in its place, and check the final states. */
void train_rig_replace(struct train_order orders[2], uint32_t victim, bool killed);

/* The points of a worker's run at which a test kills a process: every @step-th one that suite_first
 * and suite_stride choose with @sparse, from @first on. */
struct train_points {
    uint32_t first, step, sparse;
};

/* Kill rank @victim of two at @points of its run, and replace it each time. Returns true if more
 * than half of the deaths made the other rank repeat a step. */
bool train_rig_kill_worker(const struct train_placement *at, uint32_t victim,
                           struct train_points points);

/* Kill @engine at @points of a worker's run. A new engine must take over with the memory that the
 * daemon kept, no step may be repeated, and the results must have the expected bits. */
void train_rig_kill_engine(const struct train_placement *at, unsigned engine,
                           struct train_points points);

#endif
