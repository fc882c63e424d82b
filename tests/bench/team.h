/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for memory benchmarks. Each thread is pinned to a processor, and has the same share of
 * the work in every run. The pages of a share therefore stay near the processor that uses them. A
 * run calls a function on all threads and measures the time. */
#ifndef CST_BENCH_TEAM_H
#define CST_BENCH_TEAM_H

#include <stddef.h>

struct cst_team; /* The threads. */

/* A function of a run. @index is the number of the thread that calls it, from 0. */
typedef void (*cst_team_fn)(void *arg, unsigned index);

/* Returns the number of processors that this process may use. */
unsigned cst_team_cpus(void);

/* Start @threads threads. Thread i is pinned to processor i modulo the number of processors that
 * this process may use. Returns NULL and sets errno on failure. */
struct cst_team *cst_team_open(unsigned threads);

/* Call fn(arg, index) on every thread. Returns the seconds from before the first call began until
 * the last one ended. */
double cst_team_run(struct cst_team *team, cst_team_fn fn, void *arg);

/* End all threads and free the team. */
void cst_team_close(struct cst_team *team);

#endif
