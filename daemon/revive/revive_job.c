/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/revive/revive_job.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/base_job.h"
#include "daemon/job/commit.h"
#include "daemon/job/declare.h"
#include "daemon/job/job_core.h"
#include "daemon/job/span.h"
#include "daemon/job/worker.h"
#include "daemon/ledger/kept_job.h"
#include "daemon/ledger/lent_slabs.h"
#include "daemon/session/packed.h"
#include "daemon/ledger/revive_devices.h"
#include "daemon/memory/rank_devices.h"
#include "offload/plan/saved.h"
#include "daemon/budget/quota.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/ledger/ledger.h"
#include "proto/plan_message.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    rc = cst_plan_message_read(message, out, err);
    cistern__job_plan__free_unpacked(message, NULL);
    return rc;
}

int cstd_revive_job_create(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                           struct cst_err *err)
{
    const Ledger__Job *ledger = kept->ledger;
    struct cstd_job_request request = {.spec = {.name = kept->name, .world = kept->world}};
    struct cstd_job *base = NULL;
    struct cstd_quota_account *account;
    int rc = read_given(ledger, &request.plan, err);

    rc = rc == CST_OK ? cst_job_options_take(&request.spec, &ledger->base, err) : rc;
    if (rc == CST_OK && kept->base[0] != '\0') {
        base = cstd_job_find(daemon, ledger->uid, kept->base);
        rc = base != NULL
                 ? CST_OK
                 : cst_err_set(err, CST_ENOTFOUND, "its base job '%s' is not there", kept->base);
    }
    if (rc == CST_OK) {
        rc = cstd_quota_open(daemon->quota, ledger->uid, ledger->gids, ledger->n_gids, &account,
                             err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    cstd_quota_force(account, CSTD_QUOTA_JOBS, 1);
    daemon->jobs->serial = ledger->serial - 1;
    rc = cstd_job_create(daemon, account, &request, base, ledger->ttl_s, &kept->job, err);
    if (rc != CST_OK) {
        cstd_quota_give(account, CSTD_QUOTA_JOBS, 1);
    } else {
        kept->job->state = CSTD_JOB_REVIVING;
        kept->job->ledger.reviving = kept;
        kept->job->ledger.step = kept->file.last.core.counters.step;
        cstd_kept_job_charge(daemon, kept, account);
    }
    cstd_quota_unref(account); /* The job and its charges have references of their own. */
    return rc;
}

/* -- the model and the layout ----------------------------------------------------------------- */

/* Fields of JobDescription with one declaration each, and the list of chunks, which is not needed.
 */
enum { GROUPS = 13, TENSORS = 14, OPERATORS = 15, CHUNKS = 16, EDGES = 28 };

/* The message of a declaration, of which a Declare with only this one can be made. */
union declaration {
    ProtobufCMessage *base;
    Cistern__GroupDecl *group;
    Cistern__EdgeDecl *edge;
    Cistern__TensorDecl *tensor;
    Cistern__OperatorDecl *op;
};

/* The type of the declaration in @field; NULL: it is none. */
static const ProtobufCMessageDescriptor *type_of(const struct cstd_packed_field *field)
{
    switch (field->number) {
    case GROUPS:
        return &cistern__group_decl__descriptor;
    case TENSORS:
        return &cistern__tensor_decl__descriptor;
    case OPERATORS:
        return &cistern__operator_decl__descriptor;
    case EDGES:
        return &cistern__edge_decl__descriptor;
    default:
        return NULL;
    }
}

/* Declare what @field has. */
static int declare(struct cstd_worker *worker, const struct cstd_packed_field *field,
                   const ProtobufCMessageDescriptor *type, struct cst_err *err)
{
    union declaration one = {
        .base = protobuf_c_message_unpack(type, NULL, field->n_value, field->value)};
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    int rc;

    if (one.base == NULL) {
        return cst_err_set(err, CST_ELOST, "its description cannot be read");
    }
    declare.n_groups = field->number == GROUPS;
    declare.groups = &one.group;
    declare.n_edges = field->number == EDGES;
    declare.edges = &one.edge;
    declare.n_tensors = field->number == TENSORS;
    declare.tensors = &one.tensor;
    declare.n_operators = field->number == OPERATORS;
    declare.operators = &one.op;
    rc = cstd_declare(worker, &declare, err);
    protobuf_c_message_free_unpacked(one.base, NULL);
    return rc;
}

/* Declare the model, one declaration after the other, and read the rest of the description. */
static int read_description(struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_packed rest = {.at = kept->text.bytes, .end = kept->text.bytes + kept->text.n};
    struct cstd_worker *worker = &kept->draft->workers[0];
    struct cstd_packed_field field;
    uint8_t *others = NULL;
    size_t n = 0;
    int rc = CST_OK;

    while (rc == CST_OK && cstd_packed_next(&rest, &field)) {
        const ProtobufCMessageDescriptor *type = type_of(&field);
        size_t bytes = (size_t)(rest.at - field.begin);

        if (type != NULL) {
            rc = declare(worker, &field, type, err);
        } else if (field.number != CHUNKS) {
            uint8_t *longer = realloc(others, n + bytes);

            if (longer == NULL) {
                rc = cst_err_set(err, CST_ENOMEM, "no memory for its description");
                break;
            }
            others = longer;
            memcpy(others + n, field.begin, bytes);
            n += bytes;
        }
    }
    /* No worker has declared anything. */
    worker->n_groups = worker->n_edges = worker->n_tensors = worker->n_operators = 0;
    if (rc == CST_OK && rest.at == rest.end) {
        kept->description = cistern__job_description__unpack(NULL, n, others);
    }
    free(others);
    return rc == CST_OK && kept->description == NULL
               ? cst_err_set(err, CST_ELOST, "its description cannot be read")
               : rc;
}

/* The landings that the layout had. Earlier daemons did not write them down. */
static enum cst_layout_landings find_landings(const struct cstd_job *job, const Ledger__Job *ledger)
{
    return ledger->has_landings && ledger->landings <= CST_LANDINGS_SHARED
               ? (enum cst_layout_landings)ledger->landings
               : cstd_rank_devices_landings(job);
}

/* What the layout depended on, without the options of the description. */
static int configure(struct cstd_job *job, struct cstd_kept_job *kept, struct cst_err *err)
{
    const Ledger__Job *ledger = kept->ledger;
    struct cst_layout_config *config = &kept->config;
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];

    *config = (struct cst_layout_config){.n_nodes = job->daemon->engines->n_nodes,
                                         .world = job->world,
                                         .landings = find_landings(job, ledger),
                                         .max_classes = (uint32_t)ledger->n_class_elems};
    if (ledger->n_nodes != config->n_nodes) {
        return cst_err_set(err, CST_EMISMATCH,
                           "it was laid out for %" PRIu32 " NUMA nodes, and there are %" PRIu32,
                           ledger->n_nodes, config->n_nodes);
    }
    if (ledger->n_class_elems < 1 || ledger->n_class_elems > CST_LAYOUT_MAX_CLASSES) {
        return cst_err_set(err, CST_ELOST, "its ledger has %zu size classes",
                           ledger->n_class_elems);
    }
    for (uint32_t r = 0; r < job->world; r++) {
        config->near_node[r] = job->workers[r].near_node;
    }
    (void)cstd_revive_list_reservations(job->daemon, ledger, reservations, config);
    config->chunk_elems = ledger->class_elems[0];
    for (uint32_t i = 1; i < ledger->n_class_elems; i++) {
        config->class_elems[i - 1] = ledger->class_elems[i];
    }
    return CST_OK;
}

static int make_draft(struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_job *draft = calloc(1, sizeof *draft);

    if (draft != NULL) {
        draft->workers = calloc(kept->world, sizeof *draft->workers);
    }
    if (draft == NULL || draft->workers == NULL) {
        free(draft);
        return cst_err_set(err, CST_ENOMEM, "no memory for a job");
    }
    draft->world = kept->world;
    for (uint32_t r = 0; r < draft->world; r++) {
        draft->workers[r].job = draft;
        draft->workers[r].rank = r;
    }
    cst_model_init(&draft->model);
    kept->draft = draft;
    return CST_OK;
}

int cstd_revive_job_prepare(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                            struct cst_err *err)
{
    struct cstd_job *job = kept->job;
    int rc = cstd_revive_take_devices(job, kept->ledger, &kept->file.last, err);

    (void)daemon;
    rc = rc == CST_OK ? configure(job, kept, err) : rc;
    return rc == CST_OK ? make_draft(kept, err) : rc;
}

/* Build the layout again, with the sizes of chunks that it had. */
static int build_layout(struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_job *draft = kept->draft;
    int rc = cst_layout_build(&draft->layout, &draft->model, &kept->config, err);

    if (rc == CST_OK) {
        draft->phase = CSTD_COMMIT_LAYOUT;
    }
    if (rc == CST_OK && cstd_ledger_hash(draft) != kept->ledger->layout_hash) {
        rc = cst_err_set(err, CST_EVERSION, "this daemon would lay it out differently");
    }
    return rc;
}

/* What the layout depends on of the options, which the description has, and of the other nodes. */
static int configure_by_options(struct cstd_kept_job *kept, struct cst_err *err)
{
    const Ledger__Span *span = kept->ledger->span;
    struct cstd_job *draft = kept->draft;
    struct cstd_ledger_members members;

    kept->config.grad_bytes = cstd_job_grad_bytes(draft);
    kept->config.states = cst_layout_job_states(&draft->spec);
    if (span != NULL && (cstd_ledger_file_members(&kept->file, &members, err) != CST_OK ||
                         cstd_span_restore(draft, span, &members, err) != CST_OK)) {
        return err->status;
    }
    return cstd_span_lay_out(draft, &kept->config, err);
}

int cstd_revive_job_build(struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_job *draft = kept->draft;
    int rc = cstd_ledger_file_check(&kept->file, err);

    rc = rc == CST_OK ? read_description(kept, err) : rc;
    rc = rc == CST_OK ? cst_job_options_take(&draft->spec, &kept->description->base, err) : rc;
    rc = rc == CST_OK ? configure_by_options(kept, err) : rc;
    return rc == CST_OK && kept->base[0] == '\0' ? build_layout(kept, err) : rc;
}

int cstd_revive_job_build_on(struct cstd_kept_job *kept, const struct cstd_job *base,
                             struct cst_err *err)
{
    kept->config.base_model = &base->model;
    kept->config.base = &base->layout;
    return build_layout(kept, err);
}

void cstd_revive_job_drop_draft(struct cstd_kept_job *kept)
{
    struct cstd_job *draft = kept->draft;

    if (draft == NULL) {
        return;
    }
    if (draft->phase == CSTD_COMMIT_LAYOUT) {
        cst_layout_close(&draft->layout);
    }
    cst_model_close(&draft->model);
    cstd_span_drop(draft);
    free(draft->workers);
    free(draft);
    kept->draft = NULL;
}

/* -- memory and core -------------------------------------------------------------------------- */

/* Move what was built from the draft to the job. */
static int take_draft(struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_job *job = kept->job, *draft = kept->draft;
    struct cst_job_spec spec = job->spec;
    int rc = cst_job_options_take(&spec, &kept->description->base, err);

    rc = rc == CST_OK ? cstd_job_set_options(job, &spec, err) : rc;
    job->model = draft->model;
    job->layout = draft->layout;
    cstd_span_move(draft, job);
    cstd_declare_charge(job);
    cstd_device_reservation_choose_drives(job);
    job->phase = CSTD_COMMIT_LAYOUT;
    cst_model_init(&draft->model);
    draft->phase = CSTD_COMMIT_COLLECT;
    cstd_revive_job_drop_draft(kept);
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
                                          .files = &job->files,
                                          .pools = pools,
                                          .reservations = reservations,
                                          .base = job->base != NULL ? &job->base->memory : NULL,
                                          .sparse = cstd_kept_job_is_moving(kept),
                                          .serves = cstd_span_serves(job),
                                          .description_bytes =
                                              cstd_upkeep_durable_description(job)};
    int rc;

    for (uint32_t r = 0; r < job->world; r++) {
        const Ledger__Rank *rank = kept->ledger->ranks[r];

        if (rank->n_n_blocks != CST_LAYOUT_MAX_CLASSES) {
            return cst_err_set(err, CST_ELOST, "its ledger has a pool of %zu size classes",
                               rank->n_n_blocks);
        }
        pools[r].tier = job->workers[r].tier;
        pools[r].bytes = rank->pool_bytes;
        memcpy(pools[r].blocks.n, rank->n_blocks, sizeof pools[r].blocks.n);
        job->workers[r].pool = pools[r];
        job->workers[r].pool_bytes = rank->pool_asked;
    }
    request.n_reservations =
        cstd_revive_list_reservations(job->daemon, kept->ledger, reservations, &unused);
    rc = cstd_kept_job_take_segments(job->daemon, kept, &job->layout, err);
    request.kept = kept->segments;
    rc = rc == CST_OK ? cstd_upkeep_open(job, true, err) : rc;
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

static int reopen_span(struct cstd_job *job, const struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_ledger_members record;

    if (job->span == NULL) {
        return CST_OK;
    }
    return cstd_ledger_file_members(&kept->file, &record, err) == CST_OK
               ? cstd_span_reopen(job, &record, err)
               : err->status;
}

int cstd_revive_job_open(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                         cstd_memory_cb mounted, struct cst_err *err)
{
    struct cstd_job *job = kept->job, *base = NULL;
    int rc = take_draft(kept, err);

    if (rc == CST_OK && job->base != NULL) { /* It must be usable. */
        rc = cstd_base_job_find(daemon, job->uid, job->name, job->base->name, &base, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    job->memory.on_ready = mounted;
    cstd_kept_job_discharge(daemon, kept);
    rc = reopen_span(job, kept, err);
    rc = rc == CST_OK ? open_memory(job, kept, err) : rc;
    if (rc == CST_OK) {
        take_plan(job, kept->ledger);
        rc = cstd_kept_job_is_moving(kept) ? cstd_job_core_open(job, err)
                                           : cstd_job_core_reopen(job, &kept->file.last.core, err);
        job->phase = CSTD_COMMIT_CORE;
    }
    return rc == CST_OK ? cstd_lent_slabs_take(job, &kept->file.last.core, err) : rc;
}

void cstd_revive_job_own(struct cstd_job *job, struct cstd_kept_job *kept)
{
    cstd_ledger_continue(job, &kept->file);
    for (uint32_t i = 0; i < job->memory.n_segments; i++) {
        if (job->memory.segments[i] != NULL) { /* Most slabs of parked pools are NULL. */
            job->memory.segments[i]->kept = false;
        }
    }
    job->memory.on_ready = cstd_commit_memory_ready;
    job->ledger.reviving = NULL;
    for (uint32_t r = 0; r < job->world; r++) {
        job->workers[r].left = cst_set_has(&kept->file.last.left, r);
    }
    kept->file.fd = -1; /* The job has the file now. */
    kept->file.head = NULL;
}
