/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/describe.h"

#include "daemon/base/daemon_state.h"
#include "offload/layout/box.h"
#include "offload/layout/edge.h"
#include "proto/cistern.pb-c.h"
#include "proto/fallocate.h"
#include "daemon/budget/remains.h"
#include "daemon/job/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FORMAT 1

/* The messages of all declarations, and arrays of pointers to them, as protobuf-c wants them. They
 * borrow names, shapes and lists from the model. */
struct declarations {
    Cistern__GroupDecl *groups, **group_list;
    Cistern__EdgeDecl *edges, **edge_list;
    Cistern__TensorDecl *tensors, **tensor_list;
    Cistern__OperatorDecl *operators, **operator_list;
    uint32_t *ranks; /* Lists of ranks, one after the other. */
    uint32_t *chunks;
};

/* Ranks of all groups together. */
static size_t count_ranks(const struct cst_model *model)
{
    size_t n = 0;

    for (uint32_t g = 1; g < model->n_groups; g++) {
        const struct cst_set ranks = cst_model_group_ranks(model, g);

        n += cst_set_count(&ranks);
    }
    return n;
}

static void fill_groups(const struct cst_model *model, struct declarations *d)
{
    uint32_t *at = d->ranks;

    for (uint32_t g = 1; g < model->n_groups; g++) {
        const struct cst_set ranks = cst_model_group_ranks(model, g);
        Cistern__GroupDecl *group = &d->groups[g - 1];

        cistern__group_decl__init(group);
        group->ranks = at;
        CST_SET_EACH (r, &ranks) {
            *at++ = r;
        }
        group->n_ranks = (size_t)(at - group->ranks);
        d->group_list[g - 1] = group;
    }
}

static void fill_edges(const struct cst_model *model, struct declarations *d)
{
    for (uint32_t i = 0; i < model->n_edges; i++) {
        const struct cst_layout_edge *from = &model->edges[i];
        Cistern__EdgeDecl *edge = &d->edges[i];

        cistern__edge_decl__init(edge);
        edge->name = (char *)(uintptr_t)from->name;
        edge->from = from->from;
        edge->to = from->to;
        edge->slot_bytes = from->slot_bytes;
        edge->n_slots = from->n_slots;
        edge->has_on_device = edge->on_device = from->on_device;
        d->edge_list[i] = edge;
    }
}

static void fill_tensors(const struct cst_model *model, const struct cst_layout *layout,
                         struct declarations *d)
{
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        const struct cst_layout_tensor *from = &model->tensors[i];
        Cistern__TensorDecl *tensor = &d->tensors[i];

        cistern__tensor_decl__init(tensor);
        tensor->name = (char *)(uintptr_t)from->name;
        tensor->dtype = from->dtype;
        tensor->n_shape = from->n_dims;
        tensor->shape = (int64_t *)(uintptr_t)from->shape;
        tensor->has_lr_scale = tensor->has_decay_scale = true;
        tensor->lr_scale = from->lr_scale;
        tensor->decay_scale = from->decay_scale;
        tensor->has_param_group = from->param_group != 0;
        tensor->param_group = from->param_group;
        tensor->has_update = from->update != CST_TENSOR_UPDATE_AUTO;
        tensor->update = from->update;
        tensor->has_muon = tensor->muon = layout->chunks[from->chunk].muon;
        tensor->has_group = tensor->has_pattern = true;
        tensor->group = from->group;
        tensor->pattern = from->pattern;
        if (from->box != NULL) {
            tensor->n_whole_shape = tensor->n_box_first = from->n_dims;
            tensor->whole_shape = from->box->whole;
            tensor->box_first = from->box->first;
            tensor->n_box_packed = cst_box_is_packed(from) ? from->n_dims : 0;
            tensor->box_packed = from->box->packed;
            tensor->whole_name =
                from->box->name[0] != '\0' ? (char *)(uintptr_t)from->box->name : NULL;
        }
        if (from->external != NULL) {
            tensor->n_external_name = tensor->n_external_rows = from->external->n;
            tensor->external_name = from->external->names;
            tensor->external_rows = from->external->rows;
            tensor->has_transposed = true;
            tensor->transposed = from->external->transposed;
        }
        d->tensor_list[i] = tensor;
        d->chunks[i] = from->chunk;
    }
}

static void fill_operators(const struct cst_model *model, struct declarations *d)
{
    for (uint32_t i = 0; i < model->n_operators; i++) {
        const struct cst_layout_operator *from = &model->operators[i];
        Cistern__OperatorDecl *op = &d->operators[i];

        cistern__operator_decl__init(op);
        op->name = (char *)(uintptr_t)from->name;
        op->n_tensors = from->n_tensors;
        op->tensors = from->tensors;
        op->has_flops = op->has_activation_bytes = op->has_expected_uses = true;
        op->flops = from->flops;
        op->activation_bytes = from->activation_bytes;
        op->expected_uses = from->expected_uses;
        op->has_stage = model->n_stages > 0;
        op->stage = from->stage;
        d->operator_list[i] = op;
    }
}

static void free_declarations(struct declarations *d)
{
    free(d->groups);
    free(d->group_list);
    free(d->edges);
    free(d->edge_list);
    free(d->tensors);
    free(d->tensor_list);
    free(d->operators);
    free(d->operator_list);
    free(d->ranks);
    free(d->chunks);
}

/* Fill @out, which refers to @model and @d. False: out of memory; @d must be freed in any case. */
static bool declare(const struct cst_model *model, const struct cst_layout *layout,
                    struct declarations *d, Cistern__JobDescription *out)
{
    size_t n_groups = model->n_groups - 1, n_edges = model->n_edges, n_tensors = model->n_tensors,
           n_operators = model->n_operators;

    /* One more of each, because calloc(0) may return NULL. */
    d->groups = calloc(n_groups + 1, sizeof *d->groups);
    d->group_list = calloc(n_groups + 1, sizeof(void *));
    d->edges = calloc(n_edges + 1, sizeof *d->edges);
    d->edge_list = calloc(n_edges + 1, sizeof(void *));
    d->tensors = calloc(n_tensors + 1, sizeof *d->tensors);
    d->tensor_list = calloc(n_tensors + 1, sizeof(void *));
    d->operators = calloc(n_operators + 1, sizeof *d->operators);
    d->operator_list = calloc(n_operators + 1, sizeof(void *));
    d->ranks = calloc(count_ranks(model) + 1, sizeof *d->ranks);
    d->chunks = calloc(n_tensors + 1, sizeof *d->chunks);
    if (d->groups == NULL || d->group_list == NULL || d->edges == NULL || d->edge_list == NULL ||
        d->tensors == NULL || d->tensor_list == NULL || d->operators == NULL ||
        d->operator_list == NULL || d->ranks == NULL || d->chunks == NULL) {
        return false;
    }
    fill_groups(model, d);
    fill_edges(model, d);
    fill_tensors(model, layout, d);
    fill_operators(model, d);
    out->n_groups = n_groups;
    out->groups = d->group_list;
    out->n_edges = n_edges;
    out->edges = d->edge_list;
    out->n_tensors = out->n_chunk = n_tensors;
    out->tensors = d->tensor_list;
    out->chunk = d->chunks;
    out->n_operators = n_operators;
    out->operators = d->operator_list;
    return true;
}

static void fill_options(const struct cstd_job *job, Cistern__JobDescription *out)
{
    out->format = FORMAT;
    out->n_chunks = job->layout.n_chunks;
    cst_job_options_fill(&out->base, &job->spec, &job->spec_texts, CST_JOB_ALL);
}

static void fill_progress(const struct cst_core_stats *stats, Cistern__Hyper *hyper,
                          Cistern__JobDescription *out)
{
    out->step = stats->step;
    out->adam_step = stats->adam_step;
    out->n_skipped = stats->n_skipped;
    out->n_overflows = stats->n_overflows;
    out->last_loss = stats->last_loss;
    out->last_grad_norm = stats->last_grad_norm;
    if (stats->has_hyper) {
        cistern__hyper__init(hyper);
        hyper->lr = stats->hyper.lr;
        hyper->beta1 = stats->hyper.beta1;
        hyper->beta2 = stats->hyper.beta2;
        hyper->eps = stats->hyper.eps;
        hyper->weight_decay = stats->hyper.weight_decay;
        hyper->clip_norm = stats->hyper.clip_norm;
        hyper->grad_scale = stats->hyper.grad_scale;
        out->hyper = hyper;
    }
}

int cstd_describe_progress(const struct cstd_job *job, struct cstd_progress *out,
                           struct cst_err *err)
{
    out->missed = NULL;
    cst_core_stats(job->core, &out->stats);
    if (job->spec.updates.unused != CST_UNUSED_SKIP) {
        return CST_OK;
    }
    out->missed = calloc(job->model.n_tensors, sizeof *out->missed);
    if (out->missed == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to describe job '%s'", job->name);
    }
    cst_core_missed_steps(job->core, out->missed);
    return CST_OK;
}

void cstd_describe_progress_close(struct cstd_progress *progress)
{
    free(progress->missed);
    progress->missed = NULL;
}

/* Open the memfd @fd anew and close it: the daemon finds out which processes have a file from such
 * descriptors alone (daemon/budget/remains.h). Returns the descriptor; -1: it failed. */
static int reopen(int fd)
{
    char path[40];
    int opened;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    opened = open(path, O_RDWR | O_CLOEXEC);
    (void)close(fd);
    return opened;
}

/* Write @message to a new memfd, which is sealed. */
static int write_memfd(const ProtobufCMessage *message, int *out, uint64_t *bytes,
                       struct cst_err *err)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    int fd = memfd_create("cistern-description", MFD_CLOEXEC | MFD_ALLOW_SEALING), saved;
    void *map = MAP_FAILED;

    if (fd >= 0 && cst_fallocate(fd, 0, 0, n) == 0) {
        map = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (map != MAP_FAILED) {
        (void)protobuf_c_message_pack(message, map);
        (void)munmap(map, n);
    }
    if (map == MAP_FAILED ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
        saved = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return cst_err_errno(err, CST_ENOMEM, saved, "a description of %zu bytes", n);
    }
    *bytes = n;
    *out = reopen(fd);
    return *out >= 0 ? CST_OK
                     : cst_err_errno(err, CST_ENOMEM, errno, "a description of %zu bytes", n);
}

int cstd_describe_make(const struct cstd_job *job, const struct cstd_progress *progress,
                       struct cstd_description *out, struct cst_err *err)
{
    Cistern__JobDescription description = CISTERN__JOB_DESCRIPTION__INIT;
    Cistern__Hyper hyper;
    struct declarations declarations = {0};
    int rc;

    fill_options(job, &description);
    fill_progress(&progress->stats, &hyper, &description);
    description.missed = progress->missed;
    description.n_missed = progress->missed != NULL ? job->model.n_tensors : 0;
    if (declare(&job->model, &job->layout, &declarations, &description)) {
        rc = write_memfd(&description.base, &out->fd, &out->bytes, err);
    } else {
        rc = cst_err_set(err, CST_ENOMEM, "no memory to describe job '%s'", job->name);
    }
    free_declarations(&declarations);
    out->step = progress->stats.step;
    out->exists = rc == CST_OK;
    return rc;
}

/* Give up the last description, if there is one. The memory of a description was charged with the
 * job's (upkeep.h); one that processes still hold is charged in addition. */
static int retire(struct cstd_job *job, bool force, struct cst_err *err)
{
    struct cstd_description *last = &job->description;
    char what[120];
    int rc = CST_OK;

    if (last->exists) {
        (void)snprintf(what, sizeof what,
                       "the last description of job '%s', which a process keeps,", job->name);
        rc = cstd_remains_retire(job->daemon->remains, &last->fd, last->bytes, job->daemon->host,
                                 job->account, force, what, err);
        last->exists = rc != CST_OK;
        last->step = UINT64_MAX;
    }
    return rc;
}

/* -- in a thread ------------------------------------------------------------------------------ */

struct cstd_describe_work {
    uv_work_t work;
    struct cstd_progress progress;
    cstd_describe_cb done;
    bool outdated; /* The description is wrong before it is made. */
    struct cstd_description made;
    struct cst_err err; /* The result. */
};

static void on_thread(uv_work_t *work)
{
    struct cstd_job *job = work->data;
    struct cstd_describe_work *describing = job->describing;

    (void)cstd_describe_make(job, &describing->progress, &describing->made, &describing->err);
}

/* If the job is removed meanwhile, the removal goes on from here. */
static void on_thread_done(uv_work_t *work, int status)
{
    struct cstd_job *job = work->data;
    struct cstd_describe_work *describing = job->describing;

    (void)status; /* libuv's cancellation is not used. */
    job->describing = NULL;
    if (job->state == CSTD_JOB_CLOSING) {
        cstd_deferred_add(&job->daemon->later, &job->close);
    }
    if (describing->made.exists && (describing->outdated || job->state == CSTD_JOB_CLOSING)) {
        (void)close(describing->made.fd);
    } else if (describing->made.exists) {
        cstd_describe_forget(job);
        job->description = describing->made;
    }
    if (job->state != CSTD_JOB_CLOSING) {
        describing->done(job, &describing->err);
    }
    cstd_describe_progress_close(&describing->progress);
    free(describing);
}

static int start(struct cstd_job *job, cstd_describe_cb done, struct cst_err *err)
{
    struct cstd_describe_work *describing = calloc(1, sizeof *describing);

    if (describing != NULL && cstd_describe_progress(job, &describing->progress, err) == CST_OK) {
        describing->work.data = job;
        describing->done = done;
        job->describing = describing;
        if (uv_queue_work(&job->daemon->loop, &describing->work, on_thread, on_thread_done) == 0) {
            return CST_EAGAIN;
        }
        cstd_describe_progress_close(&describing->progress);
    }
    job->describing = NULL;
    free(describing);
    return cst_err_set(err, CST_ENOMEM, "no memory to describe job '%s'", job->name);
}

int cstd_describe(struct cstd_job *job, cstd_describe_cb done, int *fd, uint64_t *bytes,
                  struct cst_err *err)
{
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    if (job->describing != NULL) {
        return CST_EAGAIN;
    }
    if (!job->description.exists || job->description.step != stats.step) {
        return retire(job, false, err) == CST_OK ? start(job, done, err) : err->status;
    }
    *fd = job->description.fd;
    *bytes = job->description.bytes;
    return CST_OK;
}

void cstd_describe_outdate(struct cstd_job *job)
{
    job->description.step = UINT64_MAX;
    if (job->describing != NULL) {
        job->describing->outdated = true;
    }
}

void cstd_describe_forget(struct cstd_job *job)
{
    struct cst_err err;

    if (job->describing != NULL) {
        job->describing->outdated = true;
    }
    if (retire(job, true, &err) != CST_OK) {
        (void)close(job->description.fd);
        job->description.exists = false;
    }
}
