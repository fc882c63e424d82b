/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/upkeep.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/staging.h"
#include "daemon/session/session.h"
#include "offload/core/core.h"
#include "offload/layout/model_bytes.h"
#include "daemon/budget/quota.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* Most bytes of a packed JobDescription without declarations and texts. */
    DESCRIPTION_HEAD = 1024,
    /* The same of a packed Ledger__Job without its description: its head, and each rank, segment
     * and accelerator. */
    LEDGER_HEAD = 8192,
    LEDGER_RANK = 512,
    LEDGER_SEGMENT = 48,
    LEDGER_PLAN_CHUNK = 16,
    STAGING_FILES = 2, /* As in cstd_segment_open. */
    OWN_FILES = 2,     /* The description and the ledger. */
    /* Most bytes of a packed DurableChunk without rows, of a packed DurableRow, and of a tensor's
     * offset and the steps that it has missed. */
    DURABLE_CHUNK = 32,
    DURABLE_ROW = 64,
    DURABLE_TENSOR = 20,
};

/* -- sizes ------------------------------------------------------------------------------------ */

static uint64_t text_bytes(const char *text)
{
    return text != NULL ? strlen(text) + 8 : 0;
}

uint64_t cstd_upkeep_description(const struct cstd_job *job)
{
    return DESCRIPTION_HEAD + text_bytes(job->spec.model.model_config) +
           text_bytes(job->spec.model.adapter_config) + cst_model_packed_bytes(&job->model);
}

uint64_t cstd_upkeep_durable_description(const struct cstd_job *job)
{
    return job->layout.states.durable
               ? cstd_upkeep_description(job) +
                     job->layout.n_chunks *
                         (DURABLE_CHUNK + (uint64_t)CST_DURABLE_ROWS * DURABLE_ROW) +
                     (uint64_t)job->model.n_tensors * DURABLE_TENSOR
               : 0;
}

/* Bytes of the buffer of the job's records. */
static uint64_t records_bytes(const struct cstd_job *job)
{
    return job->layout.states.durable
               ? cstd_records_buffer_bytes(&job->layout, job->files.n,
                                           cstd_upkeep_durable_description(job))
               : 0;
}

static uint64_t ledger_bytes(const struct cstd_job *job)
{
    return LEDGER_HEAD + cstd_upkeep_description(job) + (uint64_t)job->world * LEDGER_RANK +
           (uint64_t)job->layout.n_segments * LEDGER_SEGMENT +
           (uint64_t)job->given.n_chunks * LEDGER_PLAN_CHUNK;
}

struct cstd_record_job cstd_upkeep_record(const struct cstd_job *job)
{
    return (struct cstd_record_job){.n_chunks = job->layout.n_chunks,
                                    .n_ranks = job->world,
                                    .micro_batches = job->spec.updates.micro_batches,
                                    .bytes = job->layout.arena_bytes};
}

static uint64_t table_bytes(const struct cstd_job *job)
{
    const struct cstd_record_job record = cstd_upkeep_record(job);
    uint64_t n_blocks = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        for (uint32_t c = 0; c < job->layout.n_classes; c++) {
            n_blocks += job->workers[r].pool.blocks.n[c];
        }
    }
    return sizeof *job + job->world * sizeof *job->workers +
           cst_layout_heap_bytes(&job->layout, &job->model, job->world) +
           cst_core_heap_bytes(&job->layout, &job->model, job->world, n_blocks) +
           cstd_record_bytes(&record) + cstd_history_bytes();
}

/* Each rank writes, and one connection saves. */
static uint32_t staging_segments(const struct cstd_job *job)
{
    return job->world + 1;
}

static uint64_t own_bytes(const struct cstd_job *job)
{
    return table_bytes(job) + cstd_upkeep_description(job) + ledger_bytes(job) + records_bytes(job);
}

uint64_t cstd_upkeep_bytes(const struct cstd_job *job)
{
    return own_bytes(job) + (uint64_t)staging_segments(job) * CSTD_STAGING_MIN_BYTES;
}

unsigned cstd_upkeep_files(const struct cstd_job *job)
{
    return OWN_FILES + job->layout.states.durable + staging_segments(job) * STAGING_FILES;
}

/* -- charging --------------------------------------------------------------------------------- */

int cstd_upkeep_open(struct cstd_job *job, bool force, struct cst_err *err)
{
    struct cstd_budget *host = job->daemon->host;
    const uint64_t bytes = cstd_upkeep_bytes(job);
    const unsigned n_files = cstd_upkeep_files(job);

    if (!force &&
        (cstd_budget_check(host, job->account, bytes, job->name, err) != CST_OK ||
         cstd_quota_check(job->account, CSTD_QUOTA_FILES, n_files, job->name, err) != CST_OK)) {
        return err->status;
    }
    cstd_budget_force(host, job->account, bytes);
    cstd_quota_force(job->account, CSTD_QUOTA_FILES, n_files);
    job->upkeep = (struct cstd_upkeep){.bytes = own_bytes(job),
                                       .n_staging = staging_segments(job),
                                       .most = staging_segments(job),
                                       .n_files = OWN_FILES};
    return CST_OK;
}

void cstd_upkeep_close(struct cstd_job *job)
{
    struct cstd_upkeep *upkeep = &job->upkeep;

    cstd_budget_give(job->daemon->host, job->account,
                     upkeep->bytes + (uint64_t)upkeep->n_staging * CSTD_STAGING_MIN_BYTES);
    cstd_quota_give(job->account, CSTD_QUOTA_FILES,
                    upkeep->n_files + upkeep->n_staging * STAGING_FILES);
    *upkeep = (struct cstd_upkeep){0};
}

/* -- lending ---------------------------------------------------------------------------------- */

/* Whose staging segment was lent; freed when the segment is gone. */
struct loan {
    struct cstd_daemon *daemon;
    uint64_t serial; /* Of the job, which may be gone. */
    bool returning;  /* Nobody uses the segment any more. */
};

static struct cstd_job *lender(const struct loan *loan)
{
    struct cstd_job *job;

    TAILQ_FOREACH(job, &loan->daemon->jobs->living, link)
    {
        if (job->serial == loan->serial && job->upkeep.most > 0) {
            return job;
        }
    }
    return NULL;
}

static struct cstd_job *job_of(const struct cstd_session *session)
{
    return session->saves != NULL ? session->saves : session->job;
}

/* Give back or charge what one staging segment of @job takes. */
static void give_one(struct cstd_job *job)
{
    cstd_budget_give(job->daemon->host, job->account, CSTD_STAGING_MIN_BYTES);
    cstd_quota_give(job->account, CSTD_QUOTA_FILES, STAGING_FILES);
    job->upkeep.n_staging--;
}

/* Charge one more staging segment of @job, if a process that keeps the memory of the last one
 * leaves as much. */
static bool take_one(struct cstd_job *job)
{
    struct cst_err unused;

    if (cstd_budget_check(job->daemon->host, job->account, CSTD_STAGING_MIN_BYTES, job->name,
                          &unused) != CST_OK ||
        cstd_quota_take(job->account, CSTD_QUOTA_FILES, STAGING_FILES, job->name, &unused) !=
            CST_OK) {
        return false;
    }
    cstd_budget_force(job->daemon->host, job->account, CSTD_STAGING_MIN_BYTES);
    job->upkeep.n_staging++;
    return true;
}

static void on_gone(struct cstd_segment *segment)
{
    struct loan *loan = segment->loan;
    struct cstd_job *job = lender(loan);

    if (job != NULL && job->upkeep.n_staging < job->upkeep.most) {
        (void)take_one(job);
    }
    if (job != NULL && loan->returning && job->upkeep.n_returning > 0) {
        job->upkeep.n_returning--;
    }
    cstd_staging_look(loan->daemon->staging_queue);
    free(loan);
}

void cstd_upkeep_return(struct cstd_segment *segment)
{
    struct loan *loan = segment->loan;
    struct cstd_job *job = loan != NULL ? lender(loan) : NULL;

    if (job != NULL) {
        loan->returning = true;
        job->upkeep.n_returning++;
    }
}

bool cstd_upkeep_awaits(const struct cstd_session *session)
{
    const struct cstd_job *job = job_of(session);

    return job != NULL && job->state != CSTD_JOB_CLOSING && job->upkeep.n_returning > 0;
}

int cstd_upkeep_lend(struct cstd_session *session, struct cstd_segment **out, struct cst_err *err)
{
    struct cstd_job *job = job_of(session);
    struct cstd_daemon *daemon = session->daemon;
    struct loan *loan;
    int rc;

    if (job == NULL || (job->upkeep.n_staging == 0 && job->upkeep.most == 0) ||
        (job->upkeep.n_staging == 0 && !take_one(job))) {
        return CST_EBUDGET;
    }
    loan = malloc(sizeof *loan);
    if (loan == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for staging");
    }
    *loan = (struct loan){.daemon = daemon, .serial = job->serial};
    give_one(job);
    rc = cstd_segment_open(out, cstd_engines_segment_id(daemon->engines), CSTD_STAGING_MIN_BYTES,
                           daemon->host, session->account, "staging", err);
    if (rc != CST_OK) {
        (void)take_one(job);
        free(loan);
        return rc;
    }
    (*out)->loan = loan;
    (*out)->on_gone = on_gone;
    return CST_OK;
}
