/* SPDX-License-Identifier: Apache-2.0 */
/* A pace: work of a kind, by however many threads, is done no faster than a rate, as if all of it
 * went over one link or through one processor. Who has some to do enters, does it, and sleeps until
 * the time that it takes is over. So a machine of chosen proportions can be had from one that is
 * faster. It says nothing of what is slower than its rate.
 *
 *   enter --(work)--> wait: its time begins where that of the work before it ended
 *
 * Threads that sleep wake up late. While others are inside, that is no rest: what comes next is
 * hurried until the rate is kept again, or rates could not be kept at all. */
#ifndef CST_PACE_H
#define CST_PACE_H

#include "cistern/status.h"

#include <pthread.h>
#include <stdint.h>

#define CST_PACE_LATE_NS                                                                           \
    100000                       /* who is alone and comes so late after its last work had no rest \
                                  */
#define CST_PACE_LAG_NS 10000000 /* most that is made up for, where others are inside */

/* The proportions of a machine. */
struct cst_pace_spec {
    uint64_t up,
        down; /* copies to an accelerator and from it, bytes per second; 0: no rate is kept */
    uint64_t update; /* elements per second, same */
    uint64_t memory; /* of an accelerator, bytes; 0: it has none */
};

/* Read "up=N,down=N,update=N,memory=N", of which any may lack. CST_EINVAL: something else. */
int cst_pace_parse(const char *text, struct cst_pace_spec *out, struct cst_err *err);

struct cst_pace {
    pthread_mutex_t mutex; /* guards what follows rate */
    double rate;           /* units (bytes, elements) per second; 0: none is kept. Constant */
    unsigned n_inside;     /* threads between enter and leave */
    uint64_t began_ns;     /* monotonic: when the work began that went on without a rest ... */
    double units;          /* ... and how much of it there has been */
};

/* @rate 0: everything below does nothing. */
void cst_pace_init(struct cst_pace *pace, uint64_t rate);
void cst_pace_close(struct cst_pace *pace);

/* A thread begins with a piece of work, at @now_ns. Any thread. */
void cst_pace_enter(struct cst_pace *pace, uint64_t now_ns);

/* It has done @units, and may be done with it at the time that is returned; 0: at once. */
uint64_t cst_pace_take(struct cst_pace *pace, uint64_t units);

/* It leaves. */
void cst_pace_leave(struct cst_pace *pace);

/* The last two, with a sleep between them. */
void cst_pace_wait(struct cst_pace *pace, uint64_t units);

#endif
