/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/done.h"

#include "daemon/job/base_job.h"
#include "daemon/base/daemon_state.h"
#include "daemon/memory/staging.h"
#include "daemon/ledger/lent_slabs.h"
#include "daemon/base/log.h"
#include "proto/size.h"
#include "daemon/job/jobs.h"
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"

#include <stdio.h>
#include <string.h>

enum { SUGGESTIONS = 3 };

static bool all_left(const struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        if (!job->workers[r].left) {
            return false;
        }
    }
    return true;
}

/* True if no worker uses a block and no command that could use one is in flight. */
static bool is_at_rest(const struct cstd_job *job)
{
    struct cst_core_stats stats;
    struct cst_err err;

    cst_core_stats(job->core, &stats);
    if (stats.commands_in_flight > 0) {
        return false;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        /* A pool that may move is used by no lease and no transfer. */
        if (cst_core_may_move(job->core, r, false, &err) != CST_OK) {
            return false;
        }
    }
    return true;
}

/* True if all workers have left in good order between two steps. */
static bool is_done(const struct cstd_job *job)
{
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    return stats.phase == CST_PHASE_IDLE && all_left(job);
}

/* Of parked pools only the slabs exist that were adopted, and nobody misses them. */
void cstd_done_look(struct cstd_job *job)
{
    char pools[CST_SIZE_TEXT], arenas[CST_SIZE_TEXT];
    uint64_t before = job->memory.pool_bytes;
    bool parked = job->memory.parked;

    if (job->state != CSTD_JOB_READY || job->core == NULL ||
        !(parked || is_done(job) || job->successor != NULL) ||
        !cstd_memory_has_pools(&job->memory) || job->memory.n_waiting > 0 || !is_at_rest(job) ||
        cstd_pool_pages_are_moving(&job->memory)) {
        return;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        cstd_lent_slabs_forget(job, r);
    }
    cstd_memory_park(&job->memory, true);
    job->daemon->status_changed = true;
    if (!parked) {
        cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job),
                       "done: its pools (%s) are freed, its states (%s) are kept for %u s",
                       cst_size_text(before - job->memory.pool_bytes, pools),
                       cst_size_text(job->memory.arena_bytes, arenas), job->spec.limits.ttl_s);
    }
}

bool cstd_done_is(const struct cstd_job *job)
{
    return job->memory.parked && job->successor == NULL && all_left(job);
}

/* What other jobs have had on the GPUs may have changed since the last count. */
static void count_again(const struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        job->workers[r].tier->kind->count(job->workers[r].tier);
    }
}

int cstd_done_resume(struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_tier *tiers[CST_CORE_MAX_WORLD];
    int rc;

    /* Pools that are released are made again by the resume. */
    if (!job->memory.parked || (cstd_job_lacks_pools(job) && !job->pause.ends)) {
        return CST_OK;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        tiers[r] = job->workers[r].tier;
    }
    job->resumes = true;
    count_again(job);
    rc = cstd_memory_unpark(&job->memory, &job->layout, tiers, err);
    if (rc != CST_OK) {
        job->resumes = false;
        count_again(job);
        return cst_err_prefix(
            err, "the pools of job '%s' were freed, and cannot be allocated again", job->name);
    }
    job->resumes = job->memory.n_waiting > 0;
    for (uint32_t r = 0; r < job->world; r++) {
        cst_core_move_pool(job->core, r, &job->memory.pools[r]);
        job->workers[r].moves = job->resumes;
        job->workers[r].relocate_err.status = CST_OK;
    }
    return CST_OK;
}

/* -- suggestions of jobs to remove ---------------------------------------------------------- */

/* Bytes of host memory that the removal of @job, which is done, frees. */
static uint64_t frees(const struct cstd_job *job)
{
    return job->memory.arena_bytes + job->declared.bytes + job->upkeep.bytes +
           (uint64_t)job->upkeep.n_staging * CSTD_STAGING_MIN_BYTES;
}

/* True if @asker can remove @job, which is done and the base of no other one. */
static bool is_removable(const struct cstd_job *job, uid_t asker, bool manager)
{
    return cstd_done_is(job) && (manager || job->uid == asker) &&
           cstd_base_job_user(job, NULL) == NULL;
}

/* Returns the next job after @last (NULL: the first) among those that @asker could remove to free
 * memory, in the order of the size of their arenas, the largest first. NULL: there is none. */
static const struct cstd_job *next_largest(const struct cstd_daemon *daemon, uid_t asker,
                                           bool manager, const struct cstd_job *last)
{
    const struct cstd_job *job, *best = NULL;
    bool passed = false;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        uint64_t bytes = frees(job);
        bool later = last == NULL || bytes < frees(last) || (bytes == frees(last) && passed);

        passed = passed || job == last;
        if (is_removable(job, asker, manager) && later && (best == NULL || bytes > frees(best))) {
            best = job;
        }
    }
    return best;
}

/* Append to @err the command that removes @job, and @effect of it, after the words @before. Returns
 * false if there is no place: a command that was cut off would be worse than none. */
static bool append(const char *before, const struct cstd_job *job, uid_t asker, const char *effect,
                   struct cst_err *err)
{
    size_t used = strlen(err->text);
    char text[200], uid[32] = "";

    if (job->uid != asker) {
        (void)snprintf(uid, sizeof uid, " --uid %u", (unsigned)job->uid);
    }
    (void)snprintf(text, sizeof text, "%s 'cistern rm %s%s'%s", before, job->name, uid, effect);
    if (used + strlen(text) >= sizeof err->text) {
        return false;
    }
    (void)snprintf(err->text + used, sizeof err->text - used, "%s", text);
    return true;
}

void cstd_done_suggest(struct cstd_daemon *daemon, uid_t asker, bool manager, struct cst_err *err)
{
    const struct cstd_job *job = NULL;

    for (int i = 0; i < SUGGESTIONS; i++) {
        char effect[48], bytes[CST_SIZE_TEXT];

        job = next_largest(daemon, asker, manager, job);
        if (job == NULL) {
            return;
        }
        (void)snprintf(effect, sizeof effect, " frees %s", cst_size_text(frees(job), bytes));
        if (!append(i == 0 ? ";" : ",", job, asker, effect, err)) {
            return;
        }
    }
}

void cstd_done_suggest_oldest(struct cstd_daemon *daemon, uid_t asker, bool manager,
                              struct cst_err *err)
{
    const struct cstd_job *job;
    int n = 0;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        if (!is_removable(job, asker, manager)) {
            continue;
        }
        if (!append(n == 0 ? "; these are done, the oldest first:" : ",", job, asker, "", err) ||
            ++n == SUGGESTIONS) {
            return;
        }
    }
}
