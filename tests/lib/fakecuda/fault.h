/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of every entry point: cst_fake_begin, work under the library's only lock, cst_fake_end.
 * These functions keep the state of the library, the sticky errors, the faults that the test asks
 * for, and the count of misuses.
 *
 *   fresh --cuInit--> ready --fork--> (in the child) forked: NOT_INITIALIZED for ever
 */
#ifndef CST_FAKE_FAULT_H
#define CST_FAKE_FAULT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* What an entry point requires. */
enum cst_fake_needs {
    CST_FAKE_NOTHING, /* nothing, not even cuInit */
    CST_FAKE_INIT,    /* cuInit */
    CST_FAKE_CONTEXT, /* a current context that is alive and has no sticky error */
};

/* Enter the function @name (__func__, from which a final "_v2" is removed). On success the lock is
 * held. On failure it is not held, and the caller returns the result. */
CUresult cst_fake_begin(const char *name, enum cst_fake_needs needs);

/* Release the lock. Returns @result. */
CUresult cst_fake_end(CUresult result);

/* cst_fake_wait waits, with the lock, until something changed. cst_fake_changed wakes all threads
 * that wait. */
void cst_fake_wait(void);
void cst_fake_changed(void);

/* The lock, for threads of the library and for its end. */
void cst_fake_lock(void);
void cst_fake_unlock(void);

/* cuInit was called: from now on calls work, but not those of a forked child. Called with the
 * lock. */
void cst_fake_set_ready(void);
bool cst_fake_is_ready(void);

/* The error with which the test wants the next operation of the kind @kind ("copy", "set",
 * "launch", "value", "host", "event") of a stream to fail, or CUDA_SUCCESS. Called with the
 * lock. */
CUresult cst_fake_fault(const char *kind);

/* True if a context cannot be used after the error @result. */
bool cst_fake_is_sticky(CUresult result);

/* Report on stderr what the program does wrong, and count it. May be called by any thread. */
void cst_fake_misuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Report on stderr an object that ends with its context, and count it. */
void cst_fake_leak(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Numbers of misuses, leaks, calls and faults so far. */
uint64_t cst_fake_misuses(void);
uint64_t cst_fake_leaks(void);
uint64_t cst_fake_calls(void);
uint64_t cst_fake_faults(void);

/* Set while this thread runs a host function, which must not call CUDA. */
void cst_fake_in_host_function(bool yes);

#endif
