/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/revive_job.h"

#include "daemon/daemon.h"
#include "daemon/job/base_job.h"
#include "daemon/job/declare.h"
#include "daemon/job/given.h"
#include "daemon/job/job_core.h"
#include "daemon/job/worker.h"
#include "daemon/ledger/kept_job.h"
#include "daemon/ledger/lent_slabs.h"
#include "daemon/ledger/revive_devices.h"
#include "daemon/memory/rank_devices.h"
#include "offload/plan/saved.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct cstd_job_options options_of(const Cistern__JobDescription *from)
{
    return (struct cstd_job_options){
        .optimizer = (enum cst_optimizer)from->optimizer,
        .masters = (enum cst_masters)from->masters,
        .moments = (enum cst_moments)from->moments,
        .rounding = (enum cst_rounding)from->rounding,
        .seed = from->seed,
        .overlap = (enum cst_overlap)from->overlap,
        .delay_from = from->delay_from,
        .grad_over_weight = from->grad_over_weight,
    };
}

static int read_given(const Ledger__Job *ledger, struct cst_saved_plan *out, struct cst_err *err)
{
    Cistern__JobPlan *message;
    int rc;

    if (!ledger->has_plan) {
        return CST_OK;
    }
    message = cistern__job_plan__unpack(NULL, ledger->plan.len, ledger->plan.data);
    if (message == NULL) {
        return cst_err_set(err, CST_ELOST, "its plan cannot be read");
    }
    rc = cstd_given_read(message, out, err);
    cistern__job_plan__free_unpacked(message, NULL);
    return rc;
}

/* Make the job without model and memory. */
static int make_job(struct cstd_daemon *daemon, const struct cstd_kept_job *kept,
                    struct cstd_job **out, struct cst_err *err)
{
    const Ledger__Job *ledger = kept->ledger;
    const Cistern__JobDescription *description = kept->description;
    struct cstd_job_request request = {
        .name = description->name,
        .world = description->world,
        .chunk_elems = ledger->chunk_elems,
        .micro_batches = description->micro_batches,
        .recompute = ledger->recompute,
        .options = options_of(description),
        .timeout_ms = ledger->timeout_ms,
        .model_config = description->model_config,
        .adapter_config = description->adapter_config,
    };
    struct cstd_quota_account *account;
    struct cstd_job *base = NULL;
    int rc = read_given(ledger, &request.plan, err);

    if (rc == CST_OK && description->base_job != NULL) {
        rc = cstd_base_job_find(daemon, ledger->uid, description->name, description->base_job,
                                &base, err);
    }
    if (rc == CST_OK) {
        rc = cstd_quota_open(&daemon->quota, ledger->uid, ledger->gids, ledger->n_gids, &account,
                             err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    cstd_quota_force(account, CSTD_QUOTA_JOBS, 1);
    daemon->jobs.serial = ledger->serial - 1;
    rc = cstd_job_create(daemon, account, &request, base, ledger->ttl_s, out, err);
    if (rc != CST_OK) {
        cstd_quota_give(account, CSTD_QUOTA_JOBS, 1);
    }
    cstd_quota_unref(account); /* The job has a reference of its own. */
    return rc;
}

static int declare_model(struct cstd_job *job, const Cistern__JobDescription *description,
                         struct cst_err *err)
{
    struct cstd_worker *worker = &job->workers[0];
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    int rc;

    declare.n_groups = description->n_groups;
    declare.groups = description->groups;
    declare.n_edges = description->n_edges;
    declare.edges = description->edges;
    declare.n_tensors = description->n_tensors;
    declare.tensors = description->tensors;
    declare.n_operators = description->n_operators;
    declare.operators = description->operators;
    rc = cstd_declare(worker, &declare, err);
    /* No worker has declared anything. */
    worker->n_groups = worker->n_edges = worker->n_tensors = worker->n_operators = 0;
    return rc;
}

/* The landings that the layout had. Earlier daemons did not write them down. */
static enum cst_layout_landings find_landings(const struct cstd_job *job, const Ledger__Job *ledger)
{
    return ledger->has_landings && ledger->landings <= CST_LANDINGS_SHARED
               ? (enum cst_layout_landings)ledger->landings
               : cstd_rank_devices_landings(job);
}

/* Build the layout again, with the sizes of chunks that it had. */
static int build_layout(struct cstd_job *job, const Ledger__Job *ledger, struct cst_err *err)
{
    struct cst_layout_config config = {.n_nodes = job->daemon->engines.n_nodes,
                                       .world = job->world,
                                       .grad_bytes = cstd_job_grad_bytes(job),
                                       .states = cstd_job_options_states(&job->options),
                                       .landings = find_landings(job, ledger),
                                       .max_classes = (uint32_t)ledger->n_class_elems};
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    int rc;

    if (ledger->n_nodes != config.n_nodes) {
        return cst_err_set(err, CST_EMISMATCH,
                           "it was laid out for %" PRIu32 " NUMA nodes, and there are %" PRIu32,
                           ledger->n_nodes, config.n_nodes);
    }
    if (ledger->n_class_elems < 1 || ledger->n_class_elems > CST_LAYOUT_MAX_CLASSES) {
        return cst_err_set(err, CST_ELOST, "its ledger has %zu size classes",
                           ledger->n_class_elems);
    }
    for (uint32_t r = 0; r < job->world; r++) {
        config.near_node[r] = job->workers[r].near_node;
    }
    (void)cstd_revive_list_reservations(job->daemon, ledger, reservations, &config);
    config.chunk_elems = ledger->class_elems[0];
    for (uint32_t i = 1; i < ledger->n_class_elems; i++) {
        config.class_elems[i - 1] = ledger->class_elems[i];
    }
    if (job->base != NULL) {
        config.base_model = &job->base->model;
        config.base = &job->base->layout;
    }
    rc = cst_layout_build(&job->layout, &job->model, &config, err);
    if (rc == CST_OK) {
        job->phase = CSTD_COMMIT_LAYOUT;
    }
    if (rc == CST_OK && cstd_ledger_hash(job) != ledger->layout_hash) {
        rc = cst_err_set(err, CST_EVERSION, "this daemon would lay it out differently");
    }
    return rc;
}

static int open_memory(struct cstd_job *job, struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_memory_pool pools[CST_CORE_MAX_WORLD] = {0};
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    struct cst_layout_config unused = {0};
    struct cstd_memory_request request = {.layout = &job->layout,
                                          .model = &job->model,
                                          .world = job->world,
                                          .account = job->account,
                                          .pools = pools,
                                          .reservations = reservations,
                                          .base = job->base != NULL ? &job->base->memory : NULL,
                                          .sparse = cstd_kept_job_is_moving(kept)};
    int rc;

    for (uint32_t r = 0; r < job->world; r++) {
        const Ledger__Rank *rank = kept->ledger->ranks[r];

        if (rank->n_n_blocks != CST_LAYOUT_MAX_CLASSES) {
            return cst_err_set(err, CST_ELOST, "its ledger has a pool of %zu size classes",
                               rank->n_n_blocks);
        }
        pools[r].gpu = job->workers[r].gpu;
        pools[r].bytes = rank->pool_bytes;
        memcpy(pools[r].blocks.n, rank->n_blocks, sizeof pools[r].blocks.n);
        job->workers[r].pool = pools[r];
        job->workers[r].pool_bytes = rank->pool_asked;
    }
    request.n_reservations =
        cstd_revive_list_reservations(job->daemon, kept->ledger, reservations, &unused);
    rc = cstd_kept_job_find_segments(job->daemon, kept, &job->layout, err);
    request.kept = kept->segments;
    if (rc == CST_OK) {
        rc = cstd_memory_open(&job->memory, &request, err);
    }
    if (rc == CST_OK) {
        job->phase = CSTD_COMMIT_MEMORY;
    }
    return rc;
}

/* Take what the plan had chosen from what the job got. Later searches for the prefetch depth begin
 * with it. */
static void take_plan(struct cstd_job *job, const Ledger__Job *ledger)
{
    const struct cstd_worker *worker = &job->workers[0];
    struct cst_saved_plan plan = {.world = job->world,
                                  .n_classes = job->layout.n_classes,
                                  .n_chunks = job->layout.n_chunks,
                                  .pool_bytes = worker->pool.bytes,
                                  .prefetch_depth = ledger->prefetch_depth,
                                  .eviction = ledger->eviction,
                                  .device_update_bytes = worker->device_update_bytes,
                                  .lent = worker->lends,
                                  .device_states = worker->device_states,
                                  .step_s = ledger->step_s};

    for (uint32_t i = 0; i < plan.n_classes; i++) {
        plan.chunk_elems[i] = job->layout.classes[i].capacity;
        plan.n_blocks[i] = worker->pool.blocks.n[i];
    }
    cst_plan_saved_choice(&plan, &job->plan.choice);
    job->plan.valid = ledger->plan_words[0] != '\0';
    job->plan.step_s = ledger->step_s;
    (void)snprintf(job->plan.words, sizeof job->plan.words, "%s", ledger->plan_words);
    (void)snprintf(job->plan.update_why, sizeof job->plan.update_why, "%s",
                   ledger->update_why != NULL ? ledger->update_why : "");
    (void)snprintf(job->plan.states_why, sizeof job->plan.states_why, "%s",
                   ledger->states_why != NULL ? ledger->states_why : "");
}

int cstd_revive_job_make(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                         struct cstd_job **out, struct cst_err *err)
{
    struct cstd_job *job;
    int rc = make_job(daemon, kept, &job, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = declare_model(job, kept->description, err);
    rc = rc == CST_OK ? cstd_revive_take_devices(job, kept->ledger, err) : rc;
    rc = rc == CST_OK ? build_layout(job, kept->ledger, err) : rc;
    rc = rc == CST_OK ? open_memory(job, kept, err) : rc;
    if (rc == CST_OK) {
        take_plan(job, kept->ledger);
        rc = cstd_kept_job_is_moving(kept) ? cstd_job_core_open(job, err)
                                           : cstd_job_core_reopen(job, &kept->file.last.core, err);
        job->phase = CSTD_COMMIT_CORE;
    }
    rc = rc == CST_OK ? cstd_lent_slabs_take(job, &kept->file.last.core, err) : rc;
    if (rc != CST_OK) {
        cstd_job_remove(job, 0, err);
        return rc;
    }
    *out = job;
    return CST_OK;
}

int cstd_revive_job_own(struct cstd_job *job, struct cstd_kept_job *kept, struct cst_err *err)
{
    if (cstd_ledger_continue(job, &kept->file, err) != CST_OK) {
        return err->status;
    }
    for (uint32_t i = 0; i < job->memory.n_segments; i++) {
        if (job->memory.segments[i] != NULL) { /* Most slabs of parked pools are NULL. */
            job->memory.segments[i]->kept = false;
        }
    }
    for (uint32_t r = 0; r < job->world; r++) {
        job->workers[r].left = (kept->file.last.left >> r & 1) != 0;
    }
    kept->file.fd = -1; /* The job has the file now. */
    kept->file.head = NULL;
    return CST_OK;
}
