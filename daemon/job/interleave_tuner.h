/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the number of device updates of a job: k (offload/books/interleave.h) is chosen from
 * the known rates of the machine, and again after each step. Pure computation.
 *
 * The expected duration of an update phase with some k is
 * - measured, if update phases with this k were timed recently;
 * - otherwise predicted from the rates that engines reached in this job, or else from the known
 *   rates of the machine. A prediction is multiplied by the ratio of measured to predicted time of
 *   the nearest k that was measured. Rates depend on k, because copies, accelerators and nodes
 *   share memory bandwidth, and rates that were seen with one k are only an estimate for another k.
 *
 * Another k is chosen only if its expected time is less than the measured time of the present k by
 * CSTD_INTERLEAVE_TUNER_MARGIN. "No device updates" is chosen if it is expected to be faster at
 * all. The margin keeps the choice stable between values of k that are about equally fast. A
 * measurement of a k that was replaced expires after some steps, twice as many each time, and then
 * this k can be tried again. A k that loses repeatedly is therefore tried less and less often. */
#ifndef CSTD_INTERLEAVE_TUNER_H
#define CSTD_INTERLEAVE_TUNER_H

#include "daemon/engine/rates.h"
#include "offload/books/interleave.h"

#include <stdbool.h>
#include <stdint.h>

/* Relative time that another k must save before it is chosen. */
#define CSTD_INTERLEAVE_TUNER_MARGIN 0.05
/* Update phases with one k before their measurement counts. */
#define CSTD_INTERLEAVE_TUNER_PHASES 3u
#define CSTD_INTERLEAVE_TUNER_MEMORY                                                               \
    128u /* Steps for which a measurement counts after its k was replaced for the first time. */

/* Rate of one kind of work. */
struct cstd_interleave_tuner_rate {
    double known; /* Units per second from the rates of the machine. */
    /* Rates that were observed in the steps of this job; used instead of known as soon as there is
     * one. */
    struct cstd_rates_median seen;
};

/* Measurements with one k. */
struct cstd_interleave_tuner_tried {
    /* Elements per second of whole update phases, in the last period in which this k was in
     * force. */
    struct cstd_rates_median phase;
    uint64_t step;   /* Number of the step that measured this k last. */
    unsigned n_left; /* Number of times that this k was replaced by another one, up to a maximum. */
};

struct cstd_interleave_tuner {
    uint32_t k;       /* The chosen k; CST_INTERLEAVE_NEVER: no device updates. */
    uint64_t n_steps; /* Steps since cstd_interleave_tuner_begin. */
    uint64_t phase;   /* Number of the last update phase that was taken into account; 0: none. */
    /* Elements per second of all nodes' engines together, and of one accelerator. */
    struct cstd_interleave_tuner_rate node, device;
    struct cstd_interleave_tuner_rate up, down; /* Bytes per second to and from one accelerator. */
    struct cstd_interleave_tuner_tried
        tried[CST_INTERLEAVE_MOST + 1]; /* Measurements, indexed by k. */
};

/* Returns a copy of @machine whose rates are the observed ones or, where none was observed, the
 * known ones. */
struct cst_interleave cstd_interleave_tuner_machine(const struct cstd_interleave_tuner *tuner,
                                                    const struct cst_interleave *machine);

/* Choose the first k. The known rates in @tuner must be set. @machine describes the job; its
 * rates are not read. */
void cstd_interleave_tuner_begin(struct cstd_interleave_tuner *tuner,
                                 const struct cst_interleave *machine);

/* The updates of one step, after all of them have completed. */
struct cstd_interleave_tuner_phase {
    /* Number of the phase among all update phases of the job, from 1; 0: there was none yet. */
    uint64_t number;
    uint32_t k;  /* The k with which the updates were made. */
    uint64_t ns; /* Duration of the phase in nanoseconds; 0: unknown. */
};

/* Take account of a step that was committed. @last is the last update phase that has ended,
 * which may belong to an earlier step; each phase counts once. Returns true if another k is
 * chosen now. */
bool cstd_interleave_tuner_step(struct cstd_interleave_tuner *tuner,
                                const struct cst_interleave *machine,
                                const struct cstd_interleave_tuner_phase *last);

/* Expected duration in seconds of an update phase with @k. */
double cstd_interleave_tuner_promise(const struct cstd_interleave_tuner *tuner,
                                     const struct cst_interleave *machine, uint32_t k);

#endif
