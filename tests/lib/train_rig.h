/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of training jobs on devices share: a private daemon, a client that looks at its books,
 * the workers' reports, and jobs whose ranks are in given places. Their bits must be those of a
 * calculation in this process, whoever dies when. */
#ifndef TRAIN_RIG_H
#define TRAIN_RIG_H

#include "tests/lib/settle.h"
#include "tests/lib/train_check.h"

enum { TRAIN_RIG_STEPS = 3 }; /* of a job */

/* Where the ranks of a job are. */
struct train_placement {
    const char *name;
    uint32_t world;
    const char *devices[TRAIN_MAX_WORLD]; /* per rank */
};

extern struct daemon_proc proc;
extern struct raw_client witness; /* looks at the books and removes jobs */
extern unsigned base_fds;         /* descriptors of the daemon with the witness alone */
extern struct train_report *reports[TRAIN_MAX_WORLD];
extern struct train_order
    train_like; /* what the test's orders have in common, but for their places */

/* Start the daemon with @config and @options (as daemon_proc_start_with), its engines there; the
 * witness connects. Orders are alike in that nothing is special and nobody dies. */
void train_rig_start(const char *config, const char *const *options);

/* Jobs are removed, everything must have settled; the daemon is stopped. */
void train_rig_stop(void);

/* Process id of an engine. */
pid_t train_rig_engine(unsigned engine);

struct train_order train_rig_order(const struct train_placement *at, const char *name,
                                   uint32_t rank);

/* Start a worker whose report is empty. */
pid_t train_rig_send(const struct train_order *order);

/* All ranks to the end, each as @like is but for its place; what they report from step @from on is
 * right. */
void train_rig_run_like(const struct train_placement *at, const struct train_order *like,
                        uint64_t from);
void train_rig_run(const struct train_placement *at, const char *name, uint64_t pool_bytes);

/* With the largest pools and with the smallest. */
void train_rig_bits(const struct train_placement *at);

/* Of two ranks @victim ends as it is told to, by a kill or with words; another process takes its
 * place, and the states in the end are right. */
void train_rig_replace(struct train_order orders[2], uint32_t victim, bool killed);

/* Rank @victim of two is killed at every @step-th point of its life from @first on, and replaced.
 */
void train_rig_kill_worker(const struct train_placement *at, uint32_t victim, uint32_t first,
                           uint32_t step);

/* @engine is killed at every @step-th point of a worker's life: another one takes over with the
 * memory that the daemon kept, no step is given up, and the bits are right. */
void train_rig_kill_engine(const struct train_placement *at, unsigned engine, uint32_t step);

#endif
