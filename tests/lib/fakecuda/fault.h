/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of every entry point: cst_fake_begin, work under the one lock, cst_fake_end. Between
 * them stand the state of the library, the sticky errors, the faults that the test asks for, and
 * the count of misuses.
 *
 *   fresh --cuInit--> ready --fork--> (in the child) forked: NOT_INITIALIZED for ever
 */
#ifndef CST_FAKE_FAULT_H
#define CST_FAKE_FAULT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* What an entry point needs before it does anything. */
enum cst_fake_needs {
    CST_FAKE_NOTHING, /* not even cuInit */
    CST_FAKE_INIT,    /* cuInit */
    CST_FAKE_CONTEXT, /* a current context that is alive and has had no sticky error */
};

/* Enter the function called @name (__func__: "_v2" at its end is cut off). On success the lock is
 * held; on failure it is not, and the caller returns the result. */
CUresult cst_fake_begin(const char *name, enum cst_fake_needs needs);

/* Give the lock back. Returns @result. */
CUresult cst_fake_end(CUresult result);

/* Wait, with the lock, until something changed; tell all who wait that something did. */
void cst_fake_wait(void);
void cst_fake_changed(void);

/* The lock, for threads of the library and for its end. */
void cst_fake_lock(void);
void cst_fake_unlock(void);

/* cuInit was called: from now on calls work, and those of a forked child do not. With the lock. */
void cst_fake_set_ready(void);
bool cst_fake_is_ready(void);

/* Would the test have the next operation of a stream of the kind @kind ("copy", "set", "launch",
 * "value", "host", "event") fail, and how? CUDA_SUCCESS: no. With the lock. */
CUresult cst_fake_fault(const char *kind);

/* Can a context be used after @result? */
bool cst_fake_is_sticky(CUresult result);

/* Say on stderr what the program does wrong, and count it. Any thread. */
void cst_fake_misuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Say on stderr what a context takes with it, and count it. */
void cst_fake_leak(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Misuses, leaks, calls and faults so far. */
uint64_t cst_fake_misuses(void);
uint64_t cst_fake_leaks(void);
uint64_t cst_fake_calls(void);
uint64_t cst_fake_faults(void);

/* This thread runs a host function: it may not call CUDA. */
void cst_fake_in_host_function(bool yes);

#endif
