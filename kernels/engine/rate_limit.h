/* SPDX-License-Identifier: Apache-2.0 */
/* A pace limits work of one kind to a rate, over all threads, as if all work went over one link or
 * through one processor. A thread enters, does its work, and sleeps until the time that the rate
 * gives to the work is over. A slower machine of chosen proportions is simulated in this way. A
 * pace cannot make work faster than the machine does it.
 *
 *   enter --(work)--> wait: the time of the work begins where the time of the previous work ended
 *
 * Threads wake up late from sleep. While other threads are inside, this lateness is not counted as
 * idle time: the following work sleeps less until the rate is reached again. Otherwise the rate
 * would always be missed. */
#ifndef CSTE_RATE_LIMIT_H
#define CSTE_RATE_LIMIT_H

#include "cistern/status.h"

#include <pthread.h>
#include <stdint.h>

/* Longest time, in nanoseconds, by which a thread may enter an empty pace after the end of the
 * previous work and still continue it. A later thread begins anew. */
#define CSTE_RATE_LIMIT_LATE_NS 100000
/* Largest delay, in nanoseconds, that is made up for while other threads are inside. */
#define CSTE_RATE_LIMIT_LAG_NS 10000000

/* The rates and the memory size of a simulated machine. */
struct cste_rate_limit_spec {
    /* Rates of copies to and from an accelerator in bytes per second. 0: no limit. */
    uint64_t up, down;
    uint64_t update; /* Rate of updates in elements per second. 0: no limit. */
    uint64_t memory; /* Memory of an accelerator in bytes. 0: it has none. */
};

/* Parse "up=N,down=N,update=N,memory=N", of which any part may be missing. CST_EINVAL: @text has
 * another form; CST_ENOMEM. */
int cste_rate_limit_parse(const char *text, struct cste_rate_limit_spec *out, struct cst_err *err);

/* A rate, and the current stretch of work. */
struct cste_rate_limit {
    pthread_mutex_t mutex; /* Guards the fields below rate. */
    double rate;           /* Units (bytes or elements) per second. 0: no limit. Constant. */
    unsigned n_inside;     /* Number of threads between enter and leave. */
    /* Monotonic time when the current uninterrupted stretch of work began. */
    uint64_t began_ns;
    double units; /* Units done in the current stretch. */
};

/* Initialise a pace. With @rate 0, all functions below do nothing. */
void cste_rate_limit_init(struct cste_rate_limit *pace, uint64_t rate);
/* Release the pace. No thread is inside. */
void cste_rate_limit_close(struct cste_rate_limit *pace);

/* The calling thread begins a piece of work at @now_ns. Any thread. */
void cste_rate_limit_enter(struct cste_rate_limit *pace, uint64_t now_ns);

/* Add @units of finished work. Returns the monotonic time at which the work may end; 0: at once. */
uint64_t cste_rate_limit_take(struct cste_rate_limit *pace, uint64_t units);

/* The calling thread ends its piece of work. */
void cste_rate_limit_leave(struct cste_rate_limit *pace);

/* Call cste_rate_limit_take, sleep until the returned time, and call cste_rate_limit_leave. */
void cste_rate_limit_wait(struct cste_rate_limit *pace, uint64_t units);

#endif
