/* SPDX-License-Identifier: Apache-2.0 */
/* A loop that a rank's compute threads share. The threads are those of OpenMP, as in oneDNN, so
 * that one set of threads serves both. Without OpenMP the loop runs in the calling thread alone,
 * with the same results. */
#ifndef GPT_PARALLEL_H
#define GPT_PARALLEL_H

#include <stddef.h>

/* Work on items [first, last). @thread is smaller than the number of threads. */
typedef void (*gpt_parallel_fn)(void *arg, unsigned thread, size_t first, size_t last);

/* Divide the items 0..n-1 into at most @n_threads ranges and run @fn on each range. Returns when
 * all are done. */
void gpt_parallel(unsigned n_threads, size_t n, gpt_parallel_fn fn, void *arg);

/* Return the number of cores that this process may use, at least 1. */
unsigned gpt_parallel_cores(void);

/* Let oneDNN use @n_threads when it is called from this thread. */
void gpt_parallel_limit(unsigned n_threads);

#endif
