/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that copies memory beside the worker's computation, for puts and takes that were started
 * (cst_put_start). It does one copy after another, in the order in which they were started. It uses
 * neither the connection nor the job. Internal header of libcistern. All functions are called by
 * the job's thread. */
#ifndef CST_COPIER_H
#define CST_COPIER_H

#include "cistern/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* A copy, embedded in the object that wants it. From cstc_copier_start to the end of
 * cstc_copier_wait it must stay where it is. */
struct cstc_copy {
    void *to;
    const void *from;
    size_t bytes;
    bool under_way; /* It was started, and is not done. Changed under the lock. */
    struct cstc_copy *next;
};

/* Zeros: there is no thread. */
struct cstc_copier {
    bool runs; /* The thread and what follows exist. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* A copy was started, or the thread is to end; a copy is done. */
    struct cstc_copy *first, **end; /* Copies that are under way, oldest first. */
    bool stops;
};

/* Copy @copy->bytes from @copy->from to @copy->to. Starts the thread, if it does not run. Never
 * waits for a copy. CST_ENOMEM: no thread can be made, and nothing was started. */
int cstc_copier_start(struct cstc_copier *copier, struct cstc_copy *copy, struct cst_err *err);

/* Wait until @copy is done. Returns at once if it was not started. */
void cstc_copier_wait(struct cstc_copier *copier, struct cstc_copy *copy);

/* Finish all copies and end the thread. Must not be called in a forked child, which does not have
 * the thread. */
void cstc_copier_close(struct cstc_copier *copier);

#endif
