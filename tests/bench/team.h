/* SPDX-License-Identifier: Apache-2.0 */
/* A team of threads for memory benchmarks: each pinned to a processor of its own, each with the
 * same share of the work in every run, so that pages, caches and threads stay together. Times one
 * run of a function by all of them. */
#ifndef CST_BENCH_TEAM_H
#define CST_BENCH_TEAM_H

#include <stddef.h>

struct cst_team; /* opaque */

/* Called by thread @index, 0..threads-1, of the team. */
typedef void (*cst_team_fn)(void *arg, unsigned index);

/* Processors that this process may use. */
unsigned cst_team_cpus(void);

/* Start @threads threads, pinned to the process's processors in turn. NULL, and errno, if that
 * fails. */
struct cst_team *cst_team_open(unsigned threads);

/* Run fn(arg, index) on every thread; seconds from before the first began until all ended. */
double cst_team_run(struct cst_team *team, cst_team_fn fn, void *arg);

/* End and join the threads. */
void cst_team_close(struct cst_team *team);

#endif
