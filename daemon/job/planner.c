/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/planner.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/declare.h"
#include "daemon/base/log.h"
#include "daemon/job/reshape.h"
#include "daemon/job/searches.h"
#include "daemon/memory/edge_slots.h"
#include "daemon/job/pool_share.h"
#include "daemon/memory/rank_devices.h"
#include "offload/layout/model_bytes.h"
#include "proto/size.h"
#include "daemon/budget/arena.h"
#include "daemon/budget/quota.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/job/job.h"
#include "daemon/memory/memory.h"
#include "daemon/settings/settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STOPPED "the search was stopped after [plan] search_time"

/* Assumed if neither the rates nor the user tell: what a plain bf16 product reaches, flop/s. */
#define HOST_FLOPS_PER_CORE 16e9

/* A search that is queued or runs. Its question is read from the job when its turn comes (ask), not
 * when it is queued. */
struct cstd_plan_search {
    struct cstd_search_task task;
    /* NULL: the search was cancelled, and the job may be gone. */
    struct cstd_job *job;
    cstd_planner_fn done; /* Called at the end; NULL: nobody waits for the result. */
    /* Account of the job's owner, which is charged with the search; a reference. */
    struct cstd_quota_account *account;
    struct cst_model model;  /* Copy of the job's model. */
    struct cstd_charge copy; /* What is charged for model, and for what the search computes. */
    struct cst_rates rates;
    struct cst_plan_budget budget;
    struct cst_plan_config config;
    bool flops_known, drives_known; /* The rates are measured, not guessed. */
    /* The search follows a drift: only the prefetch depth is searched for. */
    bool depth_only;
    bool stopped; /* Time ended before all plans were examined. */
    /* An accelerator has no memory left: no device reservation and no states there. */
    bool full;
    struct cst_plan_choice choice; /* Result; with depth_only, also the choice to start from. */
    struct cst_replay_result predicted;
    char update_why[CST_PLAN_WORDS], states_why[CST_PLAN_WORDS];
    uint64_t n_candidates;
    uint64_t started_ns;
    int rc;
    struct cst_err err;
};

/* -- the question ----------------------------------------------------------------------------- */

/* The device of rank 0 represents the devices of all ranks: can_plan has checked that they are of
 * one kind. */
static void choose_device(const struct cstd_job *job, struct cstd_plan_search *s)
{
    const struct cstd_tier *tier = job->workers[0].tier;
    struct cst_rates *rates = &s->rates;
    uint32_t i = cstd_planner_rates_add(tier, rates);

    s->flops_known = rates->devices[i].flops > 0;
    if (!s->flops_known) {
        rates->devices[i].flops = tier->kind->flops > 0
                                      ? tier->kind->flops
                                      : HOST_FLOPS_PER_CORE * (rates->nodes[0].cores + 1);
    }
    s->config.device = i;
}

/* The accelerator of rank 0 represents those of all ranks. If the ranks' pools are on the host, the
 * ranks take turns on the simulated accelerators. */
static void choose_reservations(const struct cstd_job *job, struct cstd_plan_search *s)
{
    const struct cstd_worker *worker = &job->workers[0];
    bool open = job->state == CSTD_JOB_DECLARING && cstd_device_reservation_is_open(worker);
    bool lent = cstd_device_reservation_is_lent(worker);
    uint32_t i;

    s->config.overlap = job->spec.updates.overlap;
    s->config.apart = cstd_rank_devices_landings(job) == CST_LANDINGS_SHARED;
    s->config.lent = lent;
    if (!cstd_tier_buffers(worker->update_tier)->kind->apart ||
        (worker->device_update_bytes == 0 && !open && !lent)) {
        return;
    }
    i = cstd_planner_rates_add(worker->update_tier, &s->rates);
    cstd_planner_rates_guess(worker->update_tier, &s->rates.devices[i], &s->rates.nodes[0]);
    s->config.interleave_given = job->daemon->config->interleave != CSTD_SETTINGS_INTERLEAVE_AUTO;
    s->config.interleave = s->config.interleave_given ? job->daemon->config->interleave : 0;
    s->config.device_update_bytes =
        open ? worker->device_update_asked : worker->device_update_bytes;
    s->config.device_states = open ? worker->states_asked : worker->device_states;
    s->config.accelerator = i;
    s->config.device_grain = cstd_tier_grain(worker->update_tier);
    s->config.n_accelerators = worker->tier->kind->n_updaters(worker->tier);
    if (open && s->config.n_accelerators > 0) {
        uint32_t n = s->config.n_accelerators < job->world ? s->config.n_accelerators : job->world;
        uint64_t left = cstd_device_reservation_left(job);

        s->rates.devices[i].memory_bytes = left * job->world / n;
        s->full = left == 0;
    }
    /* For the search, memory_bytes 0 means unlimited memory: state here that there is none. */
    if (s->full) {
        s->config.device_update_bytes =
            cst_plan_chooses_reservation(&s->config) ? 0 : s->config.device_update_bytes;
        s->config.device_states = 0;
    }
}

/* The drives of the job's files. */
static void choose_drives(const struct cstd_job *job, struct cstd_plan_search *s)
{
    s->config.n_drives = job->files.n;
    s->config.drive_bytes = job->spec.states.disk_bytes;
    s->drives_known = job->files.n == 0 || cstd_planner_rates_drives(&s->rates);
}

/* -- a search --------------------------------------------------------------------------------- */

static bool has_flops(const struct cst_model *model)
{
    bool any = false;

    for (uint32_t i = 0; i < model->n_operators; i++) {
        any = any || model->operators[i].flops > 0;
    }
    return any;
}

/* Return the part of the budget for pools in @tier that one rank of @job can have. */
static uint64_t left_on(const struct cstd_job *job, const struct cstd_tier *tier)
{
    const struct cstd_budget *pool = cstd_tier_budget(tier);
    uint64_t left = cstd_budget_left(pool, job->account),
             reserved = cstd_device_reservation_bytes(job, tier);
    uint32_t n = 0;

    reserved += cstd_edge_slots_bytes(job, tier);

    for (uint32_t r = 0; r < job->world; r++) {
        n += job->workers[r].tier == tier;
    }
    left -= reserved < left ? reserved : left;
    return left / n;
}

/* Return the smallest part of any rank, since one plan is used for all ranks. */
static uint64_t least_left(const struct cstd_job *job)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t r = 0; r < job->world; r++) {
        uint64_t left = left_on(job, job->workers[r].tier);

        least = left < least ? left : least;
    }
    return least;
}

/* The device's bytes are all for blocks: the worker's activations are outside the daemon's budgets.
 * Device reservations and states on the device are added, because the plan subtracts them. */
static void fill_budget(const struct cstd_job *job, struct cst_plan_budget *out)
{
    const struct cstd_daemon *daemon = job->daemon;
    uint64_t asked = cstd_pool_share_smallest(job),
             pools = cstd_budget_left(cstd_tiers_host(daemon)->budget, job->account),
             others = cstd_edge_slots_host_bytes(job) + cstd_reshape_staging_bytes(job) +
                      cstd_upkeep_bytes(job); /* Without chunks, which are not known yet. */

    out->device_bytes = asked != 0 ? asked : least_left(job);
    out->activation_bytes = 1;
    out->host_bytes = cstd_budget_left(daemon->host, job->account);
    out->host_bytes -= others < out->host_bytes ? others : out->host_bytes;
    if (job->workers[0].tier->kind->one_budget) {
        out->device_bytes += job->workers[0].device_update_bytes + job->workers[0].device_states;
    } else { /* The plan charges pools on the host to the host's memory, too. */
        out->host_bytes += out->device_bytes * job->world;
        pools -= out->device_bytes * job->world < pools ? out->device_bytes * job->world : pools;
    }
    /* The buffers of drives are in the memory for pools on the host. */
    out->host_bytes += job->files.n > 0 ? pools : 0;
}

static bool stops(void *arg)
{
    const struct cstd_plan_search *s = arg;

    return cstd_search_task_stops(&s->task);
}

/* Read the question from the job as it is now. Loop thread. */
static int ask(struct cstd_plan_search *s)
{
    const struct cstd_job *job = s->job;
    struct cstd_daemon *daemon = job->daemon;
    const struct cst_model_extent all = {.n_groups = job->model.n_groups - 1,
                                         .n_tensors = job->model.n_tensors,
                                         .n_operators = job->model.n_operators};
    /* The search computes about as much as it copies. A plan does not depend on the names in model
     * files, which can be 64 for each tensor. */
    int rc =
        cstd_charge_set(&s->copy, 2 * cst_model_bytes(&job->model), "a search for a plan", &s->err);

    rc = rc == CST_OK ? cstd_declare_copy(&s->model, &job->model, &all, &s->err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    cstd_planner_rates_nodes(daemon, &s->rates);
    choose_device(job, s);
    choose_reservations(job, s);
    choose_drives(job, s);
    fill_budget(job, &s->budget);
    s->config.model = &s->model;
    s->config.world = job->world;
    s->config.budget = &s->budget;
    s->config.rates = &s->rates;
    s->config.n_nodes = s->rates.n_nodes;
    s->config.micro_batches =
        job->spec.updates.micro_batches > 0 ? job->spec.updates.micro_batches : 1;
    s->config.states = cst_layout_job_states(&job->spec);
    s->config.worker_copies = cstd_memory_worker_copies(job->workers[0].tier, &s->config.states);
    s->config.max_events = CST_PLAN_JOB_EVENTS;
    s->config.recompute = job->spec.planning.recompute;
    s->config.stop = stops;
    s->config.stop_arg = s;
    if (s->depth_only) {
        cstd_planner_rates_overlay(daemon, &s->rates);
        s->choice = job->plan.choice;
    }
    return CST_OK;
}

static void close_search(struct cstd_plan_search *s)
{
    cst_model_close(&s->model);
    cstd_charge_force(&s->copy, 0);
    cstd_quota_give(s->account, CSTD_QUOTA_SEARCHES, 1);
    cstd_quota_unref(s->account);
    free(s);
}

static void search_all(struct cstd_plan_search *s)
{
    struct cst_plans plans;

    s->rc = cst_plan_search(&plans, &s->config, &s->err);
    if (s->rc == CST_OK) {
        s->choice = plans.best;
        s->predicted = plans.best.predicted;
        s->n_candidates = plans.n_candidates;
        s->stopped = plans.stopped;
        memcpy(s->update_why, plans.update_why, sizeof s->update_why);
        (void)snprintf(s->states_why, sizeof s->states_why, "%s",
                       s->full ? "no memory of an accelerator is free" : plans.states_why);
    }
}

static struct cstd_plan_search *search_of(struct cstd_search_task *task)
{
    return cstd_owner_of(task, struct cstd_plan_search, task);
}

static bool on_turn(struct cstd_search_task *task)
{
    struct cstd_plan_search *s = search_of(task);

    s->rc = ask(s);
    return s->rc == CST_OK;
}

static void on_run(struct cstd_search_task *task)
{
    struct cstd_plan_search *s = search_of(task);

    if (s->depth_only) {
        s->rc = cst_plan_tune(&s->config, &s->choice, &s->predicted, &s->err);
    } else {
        search_all(s);
    }
}

/* -- results ---------------------------------------------------------------------------------- */

/* Tell why there are no updates and no states on accelerators, if the plan was to choose them. */
static void tell_none(struct cstd_job *job, const char *what, const struct cst_err *why)
{
    char *words = job->plan.states_why;

    if (job->workers[0].device_update_asked == CST_PLAN_DEVICE_UPDATE_AUTO) {
        (void)snprintf(job->plan.update_why, sizeof job->plan.update_why,
                       "no updates on accelerators: %s: %.130s", what, why->text);
    }
    if (job->workers[0].states_asked == CST_PLAN_DEVICE_UPDATE_AUTO) {
        (void)snprintf(words, sizeof job->plan.states_why, "%s: %.150s", what, why->text);
    }
}

static void take_plan(struct cstd_job *job, const struct cstd_plan_search *s)
{
    struct cstd_job_plan *plan = &job->plan;
    double ms = (double)(uv_hrtime() - s->started_ns) * 1e-6;
    char budget[CST_SIZE_TEXT];
    const char *stopped = s->stopped ? " (" STOPPED ")" : "";

    if (s->rc != CST_OK) {
        cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job), "no plan: %s", s->err.text);
        tell_none(job, "no plan", &s->err);
        return;
    }
    plan->valid = true;
    plan->choice = s->choice;
    /* Without the workers' speed the prediction has no meaning; the job's drift then learns from
     * its first steps. */
    plan->step_s =
        s->flops_known && s->drives_known && job->daemon->planner->has_file && has_flops(&s->model)
            ? (double)s->predicted.step_ns * 1e-9
            : 0;
    (void)snprintf(plan->words, sizeof plan->words,
                   "planned with the rates %s%.90s: the fastest of %" PRIu64
                   " plans within %s per rank",
                   job->daemon->planner->has_file ? "of " : "", job->daemon->planner->from,
                   s->n_candidates, cst_size_text(s->budget.device_bytes, budget));
    cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job), "%s, %.0f ms%s; predicted step %.4g s%s",
                   plan->words, ms, stopped, (double)s->predicted.step_ns * 1e-9,
                   plan->step_s > 0 ? "" : " (the workers' speed is not known)");
    memcpy(plan->update_why, s->update_why, sizeof plan->update_why);
    if (plan->update_why[0] != '\0') {
        cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job), "%s", plan->update_why);
    }
    memcpy(plan->states_why, s->states_why, sizeof plan->states_why);
    if (plan->states_why[0] != '\0') {
        cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job),
                       "%" PRIu64 " bytes of each rank's accelerator for states: %s",
                       s->choice.device_states, plan->states_why);
    }
}

static const char *depth_words(uint32_t depth, char out[24])
{
    if (depth == 0 || depth == CST_CORE_NO_PREFETCH) {
        return depth == 0 ? "as many chunks as blocks allow" : "nothing";
    }
    (void)snprintf(out, 24, "%" PRIu32 " chunk%s", depth, depth == 1 ? "" : "s");
    return out;
}

static void take_depth(struct cstd_job *job, const struct cstd_plan_search *s)
{
    uint32_t before = job->plan.choice.prefetch_depth;
    char now[24], was[24];

    if (s->rc != CST_OK) {
        cstd_log_about(CSTD_LOG_DEBUG, CSTD_JOB_ABOUT(job), "not planned again: %s", s->err.text);
        return;
    }
    if (job->core == NULL || job->spec.planning.prefetch_depth > 0) {
        return;
    }
    if (s->choice.prefetch_depth == before) {
        cstd_log_about(CSTD_LOG_DEBUG, CSTD_JOB_ABOUT(job),
                       "planned again: the depth of prefetch is unchanged");
        return;
    }
    job->plan.choice.prefetch_depth = s->choice.prefetch_depth;
    cst_core_set_prefetch(job->core, s->choice.prefetch_depth);
    cstd_log_about(
        cstd_log_due(&job->replanned, uv_hrtime()) ? CSTD_LOG_NOTICE : CSTD_LOG_DEBUG,
        CSTD_JOB_ABOUT(job),
        "planned again: prefetch of %s instead of %s: the last %d steps took %.4g s each, "
        "%s %.4g s",
        depth_words(s->choice.prefetch_depth, now), depth_words(before, was), CSTD_DRIFT_STEPS,
        job->drift.mean_s, job->drift.learned ? "the first ones took" : "the plan says",
        job->drift.predicted_s);
}

static void on_end(struct cstd_search_task *task)
{
    struct cstd_plan_search *s = search_of(task);
    struct cstd_job *job = s->job;

    if (job != NULL) {
        job->plan.search = NULL;
        if (s->depth_only) {
            take_depth(job, s);
        } else {
            take_plan(job, s);
            s->done(job);
        }
    }
    close_search(s);
}

static const struct cstd_search_task_ops ops = {.prepare = on_turn, .run = on_run, .end = on_end};

/* Queue a search. @done NULL: only for the prefetch depth, because the steps of @job have
 * drifted. */
static int queue(struct cstd_job *job, cstd_planner_fn done, struct cst_err *err)
{
    struct cstd_plan_search *s = calloc(1, sizeof *s);
    const struct cst_model *m = &job->model;
    char what[96];
    int rc;

    if (s == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a plan");
    }
    (void)snprintf(what, sizeof what, "the plan of job '%s'", job->name);
    rc = cstd_quota_take(job->account, CSTD_QUOTA_SEARCHES, 1, what, err);
    if (rc != CST_OK) {
        free(s);
        return rc;
    }
    s->account = cstd_quota_ref(job->account);
    s->copy = (struct cstd_charge){.budget = job->daemon->host, .account = s->account};
    cst_model_init(&s->model);
    s->job = job;
    s->done = done;
    s->depth_only = done == NULL;
    s->started_ns = uv_hrtime();
    rc = cstd_searches_add(job->daemon->searches, &s->task, &ops, job->uid,
                           m->n_tensors + m->n_operators + m->n_uses, err);
    if (rc != CST_OK) {
        close_search(s);
        return rc;
    }
    job->plan.search = s;
    return CST_OK;
}

void cstd_planner_cancel(struct cstd_job *job)
{
    struct cstd_plan_search *s = job->plan.search;

    if (s != NULL) {
        cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job), "no worker waits for its plan any more");
        job->plan.search = NULL;
        s->job = NULL;
        cstd_search_task_cancel(&s->task);
    }
}

/* -- starting and reducing plans -------------------------------------------------------------- */

/* The planner does not replay a model that is cut into stages. A job with a base has the base's
 * chunks. Ranks on several kinds of devices would need different plans. */
static bool can_plan(const struct cstd_job *job)
{
    const struct cstd_tier *tier = job->workers[0].tier;

    for (uint32_t r = 1; r < job->world; r++) {
        const struct cstd_tier *other = job->workers[r].tier;

        if (tier->kind != other->kind || strcmp(tier->product, other->product) != 0) {
            return false;
        }
    }
    return job->daemon->config->plan_search && job->spec.planning.chunk_elems == 0 &&
           job->base == NULL && job->model.n_operators > 0 && job->model.n_stages == 0;
}

/* The plan is for all ranks. CST_EUNSUPPORTED: only some of them lend memory. */
static int check_lenders(const struct cstd_job *job, struct cst_err *err)
{
    const bool first = cstd_device_reservation_is_lent(&job->workers[0]);

    for (uint32_t r = 1; r < job->world; r++) {
        if (cstd_device_reservation_is_lent(&job->workers[r]) != first) {
            return cst_err_set(err, CST_EUNSUPPORTED,
                               "the pool of rank %" PRIu32 " lends memory for updates, and that of "
                               "rank %" PRIu32 " does not: they would need different plans",
                               first ? 0 : r, first ? r : 0);
        }
    }
    return CST_OK;
}

bool cstd_planner_start(struct cstd_job *job, cstd_planner_fn done)
{
    struct cst_err err = {0};

    cstd_planner_cancel(job);
    job->plan.valid = false;
    job->plan.update_why[0] = job->plan.states_why[0] = '\0';
    cstd_device_reservation_settle(job);
    if (!can_plan(job)) {
        (void)cst_err_set(&err, CST_EUNSUPPORTED, "this job needs no search");
        tell_none(job, "no plan", &err);
        return false;
    }
    if (check_lenders(job, &err) != CST_OK || queue(job, done, &err) != CST_OK) {
        cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job), "no plan: %s", err.text);
        tell_none(job, "no plan", &err);
        return false;
    }
    return true;
}

/* The chosen device reservations and states are dropped first, because they are the likeliest not
 * to fit. */
bool cstd_planner_forgo(struct cstd_job *job, const struct cst_err *why)
{
    struct cstd_job_plan *plan = &job->plan;
    struct cst_plan_choice *choice = &plan->choice;
    bool reserved = cstd_device_reservation_is_chosen(&job->workers[0]);

    if (!plan->valid || cstd_job_has_given_plan(job)) {
        return false;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "its plan does not fit: %s: continuing without %s", why->text,
                   reserved ? "updates and states on accelerators" : "a plan");
    plan->valid = reserved;
    plan->step_s = 0; /* The prediction was for a step with device reservations. */
    if (reserved) {
        choice->device_update_bytes = choice->device_states = 0;
        choice->layout.n_devices = 0;
        tell_none(job, "the planned ones did not fit", why);
    }
    cstd_device_reservation_settle(job);
    /* A reservation that the user gave, and that was not chosen, stays. */
    choice->device_update_bytes = job->workers[0].device_update_bytes;
    return true;
}

void cstd_planner_drifted(struct cstd_job *job)
{
    struct cst_err err = {0};

    if (job->plan.valid && job->plan.search == NULL && queue(job, NULL, &err) != CST_OK) {
        cstd_log_about(CSTD_LOG_DEBUG, CSTD_JOB_ABOUT(job), "not planned again: %s", err.text);
    }
}

/* -- explanation ------------------------------------------------------------------------------ */

unsigned cstd_planner_explain(const struct cstd_job *job, uint32_t size_class, char lines[][192],
                              unsigned max)
{
    const struct cst_plan_choice *choice = &job->plan.choice;
    const uint32_t given = job->spec.planning.prefetch_depth;
    char depth[24];
    unsigned n = 1;

    if (max < 4) {
        return 0;
    }
    (void)snprintf(lines[0], 192,
                   "chunks of its size class, number %" PRIu32 " of %" PRIu32
                   ", have up to %" PRIu64 " elements: that was %s",
                   size_class, job->layout.n_classes, job->layout.classes[size_class].capacity,
                   cstd_job_has_given_plan(job)          ? "given with a plan"
                   : job->plan.valid                     ? "searched for"
                   : job->spec.planning.chunk_elems != 0 ? "asked for"
                                                         : "chosen for the least waste");
    if (job->plan.valid) {
        (void)snprintf(lines[n++], 192, "%.191s", job->plan.words);
        (void)snprintf(lines[n++], 192, "pools prefetch %s; the bottleneck is %s",
                       depth_words(given > 0 ? given : choice->prefetch_depth, depth),
                       choice->binds);
    }
    if (job->plan.update_why[0] != '\0') {
        (void)snprintf(lines[n++], 192, "%.191s", job->plan.update_why);
    }
    if (job->plan.states_why[0] != '\0' && n < max) {
        (void)snprintf(lines[n++], 192,
                       "%" PRIu64 " bytes of each rank's accelerator are for states: %.130s",
                       job->plan.valid ? choice->device_states : 0, job->plan.states_why);
    }
    return n;
}
