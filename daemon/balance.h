/* How many of a job's updates go through rooms: k (offload/interleave.h), chosen when its memory is
 * made, with what is known of the machine, and again after each step, with the medians of what its
 * engines took for the last ones. Changes take effect at the next commit and are logged; a change
 * must promise more than the choice's margin, so that k does not swing between two that are alike.
 * Where a k turns out slower than the nodes alone would be, no chunk goes up for a while. Loop
 * thread. */
#ifndef CST_BALANCE_H
#define CST_BALANCE_H

#include "daemon/rates.h"

#include <stdbool.h>
#include <stdint.h>

struct cst_job;

/* Rates of one kind: known before, and seen since. */
struct cst_balance_rate {
    double known;                 /* per second; of the machine */
    struct cst_rates_median seen; /* of this job's steps; counts as soon as there is one */
};

struct cst_balance {
    uint32_t k;                             /* that is set; 0: none goes up */
    uint64_t looked;                        /* intervals of the record that were looked at */
    struct cst_balance_rate node, device;   /* elements/s: all nodes together; one accelerator */
    struct cst_balance_rate up, down;       /* bytes/s of one accelerator's link */
    struct cst_rates_median phase;          /* elements/s: of whole update phases with this k */
    uint32_t n_rest;                        /* steps in which none goes up, whatever is predicted */
};

/* k for @job, whose memory is ready and whose core is about to be opened. */
uint32_t cst_balance_open(struct cst_job *job);

/* A step of @job is committed: see what the last one's updates took, and whether another k is
 * better. */
void cst_balance_step(struct cst_job *job);

#endif
