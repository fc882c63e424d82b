/* SPDX-License-Identifier: Apache-2.0 */
#include "cistern/checkpoint.h"
#include "client/gpt/advice.h"
#include "client/gpt/describe.h"
#include "client/gpt/compute_device.h"
#include "client/gpt/gpt2.h"
#include "client/gpt/pipeline.h"
#include "client/gpt/stop.h"
#include "proto/job_options.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

struct daemon_store {
    struct gpt_store head;
    const struct gpt_options *options; /* borrowed */
    const struct gpt_model *model;     /* borrowed */
    struct cst_client *client;
    struct cst_job *job; /* freed with client */
};

/* Groups, tensors and operators have equal numbers in the job and in the model, because both count
 * them in order of declaration. */
static int declare_groups(struct cst_job *job, const struct gpt_model *model)
{
    int number = 0;

    for (uint32_t g = 1; g <= model->n_groups && number >= 0; g++) {
        uint32_t ranks[64], n = 0; /* A bit of the group is one of 64. */

        for (uint64_t left = gpt_model_group(model, g); left != 0; left &= left - 1) {
            ranks[n++] = (uint32_t)__builtin_ctzll(left);
        }
        number = cst_group(job, ranks, n);
    }
    return number < 0 ? number : 0;
}

/* If activations are stashed, edge r is the stash of rank r. */
static int declare_stashes(struct cst_job *job, const struct gpt_options *options,
                           const struct gpt_model *model, const struct gpt_device *device,
                           struct cst_err *err)
{
    struct gpt_stash_plan plan = {0};
    int number = 0;
    int rc =
        options->activation_memory == 0 ? 0 : device->ops->plan_stash(device, model, &plan, err);

    for (uint32_t rank = 0; rc == 0 && plan.n_stashed > 0 && rank < model->world; rank++) {
        char name[32];
        const struct cst_edge_spec edge = {.name = name,
                                           .from = rank,
                                           .to = rank,
                                           .slot_bytes = plan.block_bytes,
                                           .n_slots = plan.n_stashed};

        (void)snprintf(name, sizeof name, "stash of rank %u", rank);
        number = cst_edge(job, &edge);
        if (number < 0) {
            *err = *cst_job_error(job);
            rc = number;
        }
    }
    return rc;
}

/* Edge @i of @n between stages of --parallel dispatch, with one array for each micro-batch of all
 * rank blocks here: see gpt_store_ops. */
static struct cst_edge_spec dispatch_edge(const struct gpt_options *options, uint32_t i, uint32_t n,
                                          uint64_t bytes, char name[GPT_PIPELINE_NAME_BYTES])
{
    const uint32_t n_blocks = options->job.world / cst_job_block_ranks(&options->job);

    (void)snprintf(name, GPT_PIPELINE_NAME_BYTES, "%s stage %u",
                   i < n ? "output of" : "gradient for", i % n);
    return (struct cst_edge_spec){.name = name,
                                  .from = CST_ALL_RANKS,
                                  .to = CST_ALL_RANKS,
                                  .slot_bytes = bytes,
                                  .n_slots = n_blocks * options->job.updates.micro_batches};
}

/* Edges for what goes from stage to stage. */
static int declare_boundaries(struct cst_job *job, const struct gpt_options *options,
                              const struct gpt_model *model)
{
    const uint32_t n = model->stages > 0 ? model->stages - 1 : 0;
    const uint32_t n_edges =
        model->pipeline != NULL ? gpt_pipeline_n_edges(model->pipeline) : 2 * n;
    const uint64_t rows =
        (uint64_t)options->batch / options->job.updates.micro_batches * options->context;
    const uint64_t bytes = rows * model->width * sizeof(float);
    int number = 0;

    for (uint32_t i = 0; i < n_edges && number >= 0; i++) {
        char name[GPT_PIPELINE_NAME_BYTES];
        const struct cst_edge_spec edge = model->pipeline != NULL
                                              ? gpt_pipeline_edge(model->pipeline, i, bytes, name)
                                              : dispatch_edge(options, i, n, bytes, name);

        number = cst_edge(job, &edge);
    }
    return number < 0 ? number : 0;
}

static int declare_tensors(struct cst_job *job, const struct gpt_model *model)
{
    int number = 0;

    for (uint32_t i = 0; i < model->n_tensors && number >= 0; i++) {
        const struct gpt_tensor *t = &model->tensors[i];
        char name[GPT_GPT2_NAME_BYTES];
        const char *const external = name;
        bool transposed, named = gpt_gpt2_name(model, t, name, &transposed);
        const struct cst_tensor_spec spec = {
            .name = t->name,
            .dtype = CST_BF16,
            .n_dims = t->n_dims,
            .shape = t->shape,
            .group = (int)t->group,
            .pattern = t->pattern,
            .lr_scale = 1.0f,
            .decay_scale = t->decay_scale,
            .external_names = &external,
            .n_external = named,
            .transposed = named && transposed,
        };

        number = cst_tensor_as(job, &spec);
    }
    return number < 0 ? number : 0;
}

static int declare_operators(struct cst_job *job, const struct gpt_options *options,
                             const struct gpt_model *model)
{
    int number = 0;

    for (uint32_t i = 0, next = 0; i < model->n_operators && number >= 0; i++) {
        const struct gpt_operator *op = &model->operators[i];
        const bool begins =
            model->stages > 0 && model->pipeline == NULL && gpt_model_stage(model, op) == next;
        const struct cst_operator_cost cost = gpt_describe_cost(options, model, i);

        number = begins ? cst_stage(job) : 0;
        next += begins;
        if (number >= 0) {
            number = cst_operator_as(job, op->name, op->tensors, op->n_tensors, &cost);
        }
    }
    return number < 0 ? number : 0;
}

static int declare(struct cst_job *job, const struct gpt_options *options,
                   const struct gpt_model *model, const struct gpt_device *device,
                   struct cst_err *err)
{
    int rc = declare_stashes(job, options, model, device, err);

    if (rc != 0) {
        return rc;
    }
    rc = declare_boundaries(job, options, model);
    if (rc == 0) {
        rc = declare_groups(job, model);
    }
    if (rc == 0) {
        rc = declare_tensors(job, model);
    }
    if (rc == 0) {
        rc = declare_operators(job, options, model);
    }
    if (rc != 0) {
        *err = *cst_job_error(job);
    }
    return rc;
}

/* Bytes of the pool to ask for. A small percentage becomes 1 byte, as 0 would mean as much as can
 * be used. */
static uint64_t pool_bytes(const struct gpt_options *options, const struct gpt_model *model)
{
    if (options->pool_percent > 0) {
        const double bytes = options->pool_percent * 2.0 * (double)model->n_params / 100.0;

        /* A percentage may exceed the range of uint64_t. */
        return bytes < 1.0 ? 1 : bytes > 1e18 ? (uint64_t)1e18 : (uint64_t)bytes;
    }
    return options->job.memory.pool_bytes;
}

static struct daemon_store *self(struct gpt_store *store)
{
    return (struct daemon_store *)(void *)store;
}

static bool daemon_initialised(const struct gpt_store *store)
{
    return cst_job_initialised(((const struct daemon_store *)(const void *)store)->job);
}

static uint64_t daemon_steps(const struct gpt_store *store)
{
    return cst_job_steps(((const struct daemon_store *)(const void *)store)->job);
}

/* Print for what this rank waits: the daemon, or ranks, if the daemon knows which. It uses a
 * connection of its own, because a call is pending on the other connection. */
static void tell_waits(const struct daemon_store *s)
{
    const struct gpt_options *o = s->options;
    struct cst_client *client;
    struct cst_err why;
    char words[256] = "";

    if (o->quiet) {
        return;
    }
    if (cst_connect(&client, o->socket, &why) != CST_OK) {
        (void)printf("cistern-gpt: rank %u waits for the daemon: %s\n", o->job.rank, why.text);
        (void)fflush(stdout);
        return;
    }
    if (cst_job_waits(client, o->job.name, words, sizeof words, NULL) == CST_OK &&
        words[0] != '\0') {
        (void)printf("cistern-gpt: rank %u waits for %s\n", o->job.rank, words);
        (void)fflush(stdout);
    }
    cst_disconnect(client);
}

/* Arguments and results of a call that may wait for other ranks. */
struct call {
    int (*try)(struct cst_job *job, struct call *call, struct cst_err *err);
    /* The call is given up when a signal requests the end; otherwise the worker waits for it. */
    bool ends;
    struct cst_plan *plan;
    uint64_t *step;
    const struct cst_hyper_params *params;
    struct cst_step_result *result;
    double loss;
    struct cst_unit *unit;
};

/* Make the call and wait for it. After 2 s, print once for which ranks it waits. */
static int wait_for_ranks(struct daemon_store *s, struct call *call, struct cst_err *err)
{
    struct pollfd wanted[] = {{.events = POLLIN}, {.fd = gpt_stop_fd(), .events = POLLIN}};
    bool told = false;
    int rc, n;

    while ((rc = call->try(s->job, call, err)) == CST_EAGAIN) {
        if (call->ends && gpt_stop_asked() != 0) {
            return cst_err_set(err, CST_ECANCELLED, "stopped");
        }
        wanted[0].fd = cst_client_fd(s->client);
        n = poll(wanted, call->ends ? 2 : 1, 2000);
        if (n == 0 && !told) {
            tell_waits(s);
            told = true;
        }
    }
    return rc;
}

static int try_commit(struct cst_job *job, struct call *call, struct cst_err *err)
{
    return cst_try_commit(job, call->plan, err);
}

static int try_sync(struct cst_job *job, struct call *call, struct cst_err *err)
{
    return cst_try_sync(job, call->step, err);
}

static int try_step(struct cst_job *job, struct call *call, struct cst_err *err)
{
    return cst_try_step(job, call->params, call->result, err);
}

static int try_next(struct cst_job *job, struct call *call, struct cst_err *err)
{
    return cst_try_next(job, call->loss, call->unit, err);
}

static int daemon_next(struct gpt_store *store, double loss, struct cst_unit *unit,
                       struct cst_err *err)
{
    return wait_for_ranks(self(store), &(struct call){.try = try_next, .loss = loss, .unit = unit},
                          err);
}

static int daemon_sync(struct gpt_store *store, uint64_t *step, struct cst_err *err)
{
    return wait_for_ranks(self(store), &(struct call){.try = try_sync, .ends = true, .step = step},
                          err);
}

static int daemon_op_begin(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                           struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    return cst_op_begin(self(store)->job, (int)op, direction, io, n_io, err);
}

static int daemon_op_end(struct gpt_store *store, uint32_t op, struct cst_err *err)
{
    return cst_op_end(self(store)->job, (int)op, err);
}

static int daemon_comm_open(struct gpt_store *store, struct cst_comm **out, struct cst_err *err)
{
    return cst_comm_open(out, self(store)->job, CST_GROUP_ALL, err);
}

static int daemon_put_start(struct gpt_store *store, uint32_t number, const void *data,
                            uint64_t bytes, struct cst_err *err)
{
    const struct daemon_store *s = self(store);

    return cst_put_start(s->job, (int)s->options->job.rank, number, data, bytes, err);
}

static int daemon_take_start(struct gpt_store *store, uint32_t number, void *data, uint64_t bytes,
                             struct cst_err *err)
{
    const struct daemon_store *s = self(store);

    return cst_take_start(s->job, (int)s->options->job.rank, number, data, bytes, err);
}

static int daemon_stash_wait(struct gpt_store *store, uint32_t number, struct cst_err *err)
{
    const struct daemon_store *s = self(store);

    return cst_edge_wait(s->job, (int)s->options->job.rank, number, err);
}

static int daemon_put(struct gpt_store *store, uint32_t edge, uint32_t number, const void *data,
                      uint64_t bytes, struct cst_err *err)
{
    return cst_put(self(store)->job, (int)edge, number, data, bytes, err);
}

static int daemon_take(struct gpt_store *store, uint32_t edge, uint32_t number, void *data,
                       uint64_t bytes, struct cst_err *err)
{
    return cst_take(self(store)->job, (int)edge, number, data, bytes, err);
}

static int daemon_accumulate(struct gpt_store *store, struct cst_err *err)
{
    return cst_accumulate(self(store)->job, err);
}

static int daemon_prepare(struct gpt_store *store, const struct cst_hyper_params *params,
                          struct cst_err *err)
{
    return cst_prepare_step(self(store)->job, params, err);
}

static int daemon_step(struct gpt_store *store, const struct cst_hyper_params *params,
                       struct cst_step_result *result, struct cst_err *err)
{
    return wait_for_ranks(self(store),
                          &(struct call){.try = try_step, .params = params, .result = result}, err);
}

static int daemon_read(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                       uint64_t first, uint64_t n_elems, void *data, struct cst_err *err)
{
    return cst_tensor_read(self(store)->job, (int)tensor, state, first, n_elems, data, err);
}

static int daemon_write(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                        uint64_t first, uint64_t n_elems, const void *data, struct cst_err *err)
{
    return cst_tensor_write(self(store)->job, (int)tensor, state, first, n_elems, data, err);
}

static int daemon_stat(struct gpt_store *store, struct cst_rank_stat *out, struct cst_err *err)
{
    return cst_stat(self(store)->job, out, err);
}

static int daemon_leave(struct gpt_store *store, struct cst_err *err)
{
    int rc = cst_job_leave(self(store)->job, err);

    /* The daemon notices the end in any case, also one that goes on with the job of another. */
    return rc == CST_EENGINE || rc == CST_ELOST ? rc : CST_OK;
}

static int daemon_discard(struct gpt_store *store, struct cst_err *err)
{
    return cst_job_remove(self(store)->client, self(store)->options->job.name, err);
}

static void daemon_close(struct gpt_store *store, bool good)
{
    struct daemon_store *s = self(store);

    if (good && s->job != NULL) {
        (void)cst_job_leave(s->job, NULL); /* The daemon notices the end in any case. */
    }
    cst_disconnect(s->client);
    free(s);
}

static int daemon_load(struct gpt_store *store, const char *path, struct cst_load_result *result,
                       struct cst_err *err)
{
    return cst_load(self(store)->job, path, result, err);
}

static bool is_no_adapter(void *arg, const char *name)
{
    (void)arg;
    return !gpt_gpt2_is_adapter(name);
}

static int daemon_init(struct gpt_store *store, const char *dir, struct cst_err *err)
{
    const struct daemon_store *s = self(store);
    const struct cst_load_model_spec spec = {
        .path = dir, .prefix = GPT_GPT2_PREFIX, .wants = is_no_adapter};
    struct cst_load_model_result result;
    int rc = cst_load_model(s->job, &spec, &result, err);

    if (rc == 0 && !s->options->quiet) {
        (void)printf("loaded %u tensors from %s", result.n_tensors, dir);
        if (result.n_ignored > 0) {
            (void)printf("; ignored %u: %s", result.n_ignored, result.ignored);
        }
        (void)printf("\n");
    }
    return rc;
}

static const struct gpt_store_ops daemon_ops = {
    .name = "daemon",
    .load = daemon_load,
    .init = daemon_init,
    .initialised = daemon_initialised,
    .steps = daemon_steps,
    .sync = daemon_sync,
    .op_begin = daemon_op_begin,
    .op_end = daemon_op_end,
    .put_start = daemon_put_start,
    .take_start = daemon_take_start,
    .stash_wait = daemon_stash_wait,
    .comm_open = daemon_comm_open,
    .next = daemon_next,
    .put = daemon_put,
    .take = daemon_take,
    .accumulate = daemon_accumulate,
    .prepare = daemon_prepare,
    .step = daemon_step,
    .read = daemon_read,
    .write = daemon_write,
    .stat = daemon_stat,
    .leave = daemon_leave,
    .discard = daemon_discard,
    .close = daemon_close,
};

/* Open the job. */
static int open_job(struct daemon_store *s, struct gpt_device *device, struct cst_err *err)
{
    const struct gpt_options *options = s->options;
    const struct gpt_model *model = s->model;
    char *config = gpt_gpt2_config(model),
         *adapter_config = gpt_gpt2_adapter_config(model, options->init);
    struct cst_job_spec spec = options->job;
    int rc;

    spec.memory.pool_bytes = pool_bytes(options, model);
    spec.updates.micro_batches = model->pipeline != NULL
                                     ? gpt_pipeline_micro_batches(model->pipeline)
                                     : device->ops->passes(device);
    spec.model.model_config = config;
    spec.model.adapter_config = adapter_config;
    rc = cst_job_open(&s->job, s->client, &spec, err);

    free(config);
    free(adapter_config);
    return rc;
}

/* Whether a signal requests the end, or does so soon: the daemon's news of a peer that it has
 * stopped can be quicker than the signal for this rank. */
static bool is_stopped(void)
{
    struct pollfd stop = {.fd = gpt_stop_fd(), .events = POLLIN};

    return poll(&stop, 1, 200) == 1;
}

int gpt_store_daemon_open(struct gpt_store **out, const struct gpt_options *options,
                          const struct gpt_model *model, struct gpt_device *device,
                          struct cst_err *err)
{
    struct daemon_store *s = calloc(1, sizeof *s);
    int rc;

    if (s == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    s->head.ops = &daemon_ops;
    s->options = options;
    s->model = model;
    rc = cst_connect(&s->client, options->socket, err);
    if (rc != 0) {
        goto err_free;
    }
    rc = open_job(s, device, err);
    if (rc != 0) {
        goto err_disconnect;
    }
    rc = device->ops->join(device, s->job, err);
    if (rc == 0) {
        rc = declare(s->job, options, model, device, err);
    }
    if (rc == 0) {
        rc = wait_for_ranks(
            s, &(struct call){.try = try_commit, .ends = true, .plan = &s->head.plan}, err);
    }
    if (rc == CST_EPEERDIED && is_stopped()) {
        rc = cst_err_set(err, CST_ECANCELLED, "stopped");
    }
    if (rc != 0) {
        goto err_disconnect;
    }
    *out = &s->head;
    return 0;
err_disconnect:
    gpt_advise(options->job.name, err);
    cst_disconnect(s->client);
err_free:
    free(s);
    return rc;
}
