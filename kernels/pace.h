/* A pace: work of a kind, by however many threads, is done no faster than a rate, as if all of it
 * went over one link or through one processor, in the order in which it came. Who has some to do
 * takes its time, does it, and sleeps until that time is over. So a machine of chosen proportions
 * can be had from one that is faster. It says nothing of what is slower than its rate. */
#ifndef CST_PACE_H
#define CST_PACE_H

#include "proto/status.h"

#include <pthread.h>
#include <stdint.h>

/* Who comes so long after the end of what went before was late to wake up, and had no rest: its
 * time begins where that ended, or rates could not be kept by threads that sleep. */
#define CST_PACE_LATE_NS 100000

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
    uint64_t began_ns; /* monotonic: when the first of the times began that follow one another */
    double units;      /* taken since then */
};

/* @rate 0: time is never taken. */
void cst_pace_init(struct cst_pace *pace, uint64_t rate);
void cst_pace_close(struct cst_pace *pace);

/* Take the time of @units, from @now_ns (monotonic) on or from the end of what was taken before,
 * whichever is later. Returns its end; 0: no rate is kept. Any thread. */
uint64_t cst_pace_take(struct cst_pace *pace, uint64_t units, uint64_t now_ns);

/* Sleep until @end_ns of the monotonic clock; not at all if that is over. Any thread. */
void cst_pace_wait(uint64_t end_ns);

#endif
