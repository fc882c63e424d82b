/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/books/facts.h"

#include "offload/books/actions.h"

#include <inttypes.h>

static struct cst_fact *add(struct cst_facts *facts, enum cst_fact_kind kind)
{
    struct cst_fact *fact = &facts->v[(facts->first + facts->n) % CST_FACTS_MAX];

    assert(facts->n < CST_FACTS_MAX);
    facts->n++;
    fact->kind = kind;
    return fact;
}

void cst_fact_gradient(struct cst_facts *facts, uint32_t chunk)
{
    add(facts, CST_FACT_GRADIENT)->chunk = chunk;
}

void cst_fact_rank_went_on(struct cst_facts *facts)
{
    (void)add(facts, CST_FACT_RANK_WENT_ON);
}

void cst_fact_weights_written(struct cst_facts *facts, uint32_t chunk, uint64_t ticket)
{
    struct cst_fact *fact = add(facts, CST_FACT_WEIGHTS_WRITTEN);

    fact->chunk = chunk;
    fact->ticket = ticket;
}

void cst_fact_pools_lost(struct cst_facts *facts, uint32_t engine, bool needed)
{
    struct cst_fact *fact = add(facts, CST_FACT_POOLS_LOST);

    fact->engine = engine;
    fact->needed = needed;
}

void cst_fact_job_failed(struct cst_facts *facts, const struct cst_err *why)
{
    add(facts, CST_FACT_JOB_FAILED)->why = *why;
}

void cst_fact_attempt_lost(struct cst_facts *facts, const struct cst_err *why)
{
    add(facts, CST_FACT_ATTEMPT_LOST)->why = *why;
}

void cst_fact_decided(struct cst_facts *facts)
{
    (void)add(facts, CST_FACT_DECIDED);
}

void cst_fact_kept_no_more(struct cst_facts *facts)
{
    (void)add(facts, CST_FACT_KEPT_NO_MORE);
}

void cst_fact_idle_known(struct cst_facts *facts)
{
    (void)add(facts, CST_FACT_IDLE_KNOWN);
}

void cst_fact_command_failed(struct cst_facts *facts, const struct cst_event *event, uint64_t step,
                             const char *what, uint32_t chunk)
{
    struct cst_fact *fact = add(facts, CST_FACT_JOB_FAILED);

    (void)cst_err_set(&fact->why, event->status == CST_ELOST ? CST_ELOST : CST_EENGINE,
                      "%s of chunk %" PRIu32 " failed in step %" PRIu64 ": %s", what, chunk, step,
                      cst_event_words(event));
}
