/* SPDX-License-Identifier: Apache-2.0 */
/* Facts: what one part of the core has found out and parts above it act upon. Calls between the
 * parts go down only; a part that learns something of interest to a part above it adds a fact, and
 * core.c, which alone takes facts out, calls the parts concerned in the order of the facts:
 *
 *   cst_core_step:  event --> the part that handles it --> facts
 *                                                           |   ^
 *                                                           v   | (more facts)
 *                                                 core.c: the parts that act
 *
 * No fact outlives its event. Any part of the core may add facts. */
#ifndef CST_FACTS_H
#define CST_FACTS_H

#include "cistern/status.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

struct cst_event;

enum cst_fact_kind {
    /* chunk. A contribution came, or a command that a sum of the chunk waited for is complete: the
     * chunk may need its next sum, or its gradient is complete. */
    CST_FACT_GRADIENT,
    /* A rank ended its micro-batch or asked for the step: this is so for every chunk. */
    CST_FACT_RANK_WENT_ON,
    /* chunk, ticket. The update that completes the weights of the chunk ended, well or not: workers
     * that copy weights themselves may read the row. */
    CST_FACT_WEIGHTS_WRITTEN,
    /* engine, needed. The engine of pools was lost with a command of the event; `needed`: the
     * closing step cannot be committed without the command. */
    CST_FACT_POOLS_LOST,
    CST_FACT_JOB_FAILED,   /* why. States are lost. */
    CST_FACT_ATTEMPT_LOST, /* why. Something that the step needs did not come. */
    CST_FACT_DECIDED,      /* The machines of the job have decided to commit the step. */
    CST_FACT_KEPT_NO_MORE, /* A weight row for which a commit may wait is kept no more. */
    CST_FACT_IDLE_KNOWN,   /* Another machine has told its tensors without a gradient. */
};

struct cst_fact {
    enum cst_fact_kind kind;
    uint32_t chunk;
    uint64_t ticket;
    uint32_t engine;
    bool needed;
    struct cst_err why;
};

#define CST_FACTS_MAX 8 /* More than one event and one fact can cause. */

/* The facts of the current event that core.c has not acted upon. */
struct cst_facts {
    struct cst_fact v[CST_FACTS_MAX]; /* A ring. */
    uint32_t first, n;
};

/* Add a fact; the fields that its kind has are described there. */
void cst_fact_gradient(struct cst_facts *facts, uint32_t chunk);
void cst_fact_rank_went_on(struct cst_facts *facts);
void cst_fact_weights_written(struct cst_facts *facts, uint32_t chunk, uint64_t ticket);
void cst_fact_pools_lost(struct cst_facts *facts, uint32_t engine, bool needed);
void cst_fact_job_failed(struct cst_facts *facts, const struct cst_err *why);
void cst_fact_attempt_lost(struct cst_facts *facts, const struct cst_err *why);
void cst_fact_decided(struct cst_facts *facts);
void cst_fact_kept_no_more(struct cst_facts *facts);
void cst_fact_idle_known(struct cst_facts *facts);
/* The job fails because the command of @event, about @chunk, failed in step @step and cannot be
 * replaced. @what names the command. */
void cst_fact_command_failed(struct cst_facts *facts, const struct cst_event *event, uint64_t step,
                             const char *what, uint32_t chunk);

/* Take out the oldest fact; there must be one. */
static inline struct cst_fact cst_facts_take(struct cst_facts *facts)
{
    const struct cst_fact *fact = &facts->v[facts->first];

    assert(facts->n > 0);
    facts->first = (facts->first + 1) % CST_FACTS_MAX;
    facts->n--;
    return *fact;
}

#endif
