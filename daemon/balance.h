/* SPDX-License-Identifier: Apache-2.0 */
/* How many of a job's updates go through rooms: k (offload/interleave.h), chosen with what is known
 * of the machine, and again after each step. What a k promises is
 *
 *   measured    where whole phases of updates with it were timed lately
 *   predicted   by the rates that engines were seen to reach, else by the known ones; and stretched
 * by as much as the phases with the nearest k that was measured are longer than predicted for that
 * one. Rates depend on k, for copies, accelerators and nodes share memory: those seen with one k
 * can speak for another one, and with that for the first
 *
 * Another k must promise to be faster by CST_BALANCE_MARGIN than the present one was, in several
 * phases; only the nodes alone are taken if they promise to be faster at all. So of two that are
 * alike it stays with the one that it has. What was measured of a k that was left is forgotten
 * after a while, each time after twice as long, so that it is tried again, ever more seldom. Pure.
 */
#ifndef CST_BALANCE_H
#define CST_BALANCE_H

#include "daemon/rates.h"
#include "offload/interleave.h"

#include <stdbool.h>
#include <stdint.h>

#define CST_BALANCE_MARGIN 0.05 /* by which another k must be faster */
#define CST_BALANCE_PHASES 3u   /* with one k, until it counts how long they took */
#define CST_BALANCE_MEMORY                                                                         \
    128u /* steps for which that counts when another one is in force, at first */

/* Rates of one kind: known before, and seen since. */
struct cst_balance_rate {
    double known;                 /* per second; of the machine */
    struct cst_rates_median seen; /* of this job's steps; counts as soon as there is one */
};

/* Of one k. */
struct cst_balance_tried {
    struct cst_rates_median
        phase;       /* elements/s of whole update phases, when it was in force last */
    uint64_t step;   /* the last of them */
    unsigned n_left; /* times that another one was preferred, until it counts no more */
};

struct cst_balance {
    uint32_t k;                           /* that is set; CST_INTERLEAVE_NEVER: none goes up */
    uint64_t n_steps;                     /* since it began */
    uint64_t phase;                       /* number of the last phase that was seen; 0: none was */
    struct cst_balance_rate node, device; /* elements/s: all nodes together; one accelerator */
    struct cst_balance_rate up, down;     /* bytes/s of one accelerator's link */
    struct cst_balance_tried tried[CST_INTERLEAVE_MOST + 1]; /* by k */
};

/* @machine with the rates in its place that are seen, or known. */
struct cst_interleave cst_balance_machine(const struct cst_balance *balance,
                                          const struct cst_interleave *machine);

/* The first k. Known rates are set; @machine is the job's, its rates are not read. */
void cst_balance_begin(struct cst_balance *balance, const struct cst_interleave *machine);

/* The updates of one step, all done. */
struct cst_balance_phase {
    uint64_t number; /* of all of the job, from 1; 0: there was none yet */
    uint32_t k;      /* with which they were made */
    uint64_t ns;     /* that they took; 0: nobody knows */
};

/* A step is committed. @last: the last phase that has ended, of that step or of one before; it
 * counts when it is seen first. True: another k is set now. */
bool cst_balance_step(struct cst_balance *balance, const struct cst_interleave *machine,
                      const struct cst_balance_phase *last);

/* What a phase with @k promises to take, in seconds. */
double cst_balance_promise(const struct cst_balance *balance, const struct cst_interleave *machine,
                           uint32_t k);

#endif
