/* SPDX-License-Identifier: Apache-2.0 */
/* A loop shared between a rank's compute threads. They are OpenMP's, as oneDNN's are, so that one
 * set of threads serves both; built without OpenMP the loop runs on the caller alone, with the same
 * results. */
#ifndef GPT_PARALLEL_H
#define GPT_PARALLEL_H

#include <stddef.h>

/* Work on items [first, last); @thread is below the number of threads. */
typedef void (*gpt_parallel_fn)(void *arg, unsigned thread, size_t first, size_t last);

/* Cut 0..n-1 into at most @n_threads stretches and run @fn on each; returns when all are done. */
void gpt_parallel(unsigned n_threads, size_t n, gpt_parallel_fn fn, void *arg);

/* Let oneDNN, when called from this thread, use @n_threads. */
void gpt_parallel_limit(unsigned n_threads);

#endif
