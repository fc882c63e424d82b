/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/compute_device.h"
#include "client/gpt/host_moe.h"

#include <stdio.h>
#include <stdlib.h>

struct host_device {
    struct gpt_device head;
    const struct gpt_options *options; /* borrowed */
    unsigned threads;                  /* compute threads of a rank */
    bool bf16;                         /* operands of products are bf16 */
    struct gpt_local *local;           /* NULL: the states are in the daemon */
};

static struct host_device *self(struct gpt_device *device)
{
    return (struct host_device *)(void *)device;
}

static int host_join(struct gpt_device *device, struct cst_job *job, struct cst_err *err)
{
    /* The processor can access the pools of all devices of this kind, so there is nothing to
     * open. */
    (void)device;
    (void)job;
    (void)err;
    return 0;
}

static int host_open_states(struct gpt_device *device, const struct gpt_model *model,
                            struct cst_err *err)
{
    struct host_device *d = self(device);
    const struct gpt_options *o = d->options;
    const struct gpt_local_config config = {
        .world = o->job.world,
        .micro_batches = o->job.updates.micro_batches,
        .engine_threads = o->engine_threads,
        .optimizer = o->job.states.optimizer,
        .masters = o->job.states.masters,
        .moments = o->job.states.moments,
        .rounding = o->job.states.rounding,
        .seed = o->job.states.seed,
        .overlap = o->job.updates.overlap,
        .delay_from = o->job.updates.delay_from,
    };

    return gpt_local_open(&d->local, model, &config, err);
}

static int host_open_store(struct gpt_device *device, uint32_t rank, struct gpt_store **out,
                           struct cst_err *err)
{
    return gpt_store_local_open(out, self(device)->local, rank, err);
}

static void host_break_states(struct gpt_device *device)
{
    gpt_local_break(self(device)->local);
}

static uint32_t host_passes(const struct gpt_device *device)
{
    return ((const struct host_device *)(const void *)device)->options->job.updates.micro_batches;
}

static void host_describe_rows(const struct gpt_device *device, char out[GPT_EXCHANGE_WORDS])
{
    const struct host_device *d = (const struct host_device *)(const void *)device;

    (void)snprintf(
        out, GPT_EXCHANGE_WORDS, "%s rows of a host, %zu per pass", d->bf16 ? "bf16" : "fp32",
        (size_t)d->options->batch / d->options->job.updates.micro_batches * d->options->context);
}

static int host_plan_stash(const struct gpt_device *device, const struct gpt_model *model,
                           struct gpt_stash_plan *out, struct cst_err *err)
{
    const struct host_device *d = (const struct host_device *)(const void *)device;

    return gpt_host_plan(model, d->options->batch / d->options->job.updates.micro_batches, d->bf16,
                         d->options->activation_memory, out, err);
}

static int host_open_pass(struct gpt_device *device, const struct gpt_model *model,
                          struct gpt_pass **out, struct cst_err *err)
{
    struct host_device *d = self(device);

    return gpt_pass_host_open(out, model, d->options->batch / d->options->job.updates.micro_batches,
                              d->bf16, d->options->activation_memory, d->threads, err);
}

static int host_open_view(struct gpt_device *device, struct gpt_store *from,
                          const struct gpt_model *model, struct gpt_store **out,
                          struct cst_err *err)
{
    (void)device;
    return gpt_store_read_open(out, from, model, err);
}

static void host_describe(const struct gpt_device *device, char out[GPT_DEVICE_WORDS])
{
    const struct host_device *d = (const struct host_device *)(const void *)device;

    (void)snprintf(out, GPT_DEVICE_WORDS, "%u threads, matmul %s", d->threads,
                   d->bf16 ? "bf16" : "fp32");
}

static void host_close(struct gpt_device *device)
{
    struct host_device *d = self(device);

    gpt_local_close(d->local);
    free(d);
}

static const struct gpt_device_ops host_ops = {
    .name = "host",
    .join = host_join,
    .open_states = host_open_states,
    .open_store = host_open_store,
    .break_states = host_break_states,
    .passes = host_passes,
    .describe_rows = host_describe_rows,
    .open_rows = NULL,
    .plan_stash = host_plan_stash,
    .open_pass = host_open_pass,
    .open_view = host_open_view,
    .describe = host_describe,
    .close = host_close,
};

static int check(const struct gpt_options *o, struct cst_err *err)
{
    if (o->job.planning.recompute && o->parallel == GPT_PARALLEL_DATA) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "--recompute is only for --device cuda: the host keeps its activations");
    }
    if (o->matmul == GPT_MATMUL_PLAIN) {
        return cst_err_set(err, CST_EUNSUPPORTED, "--matmul plain is for --device cuda");
    }
    return 0;
}

int gpt_device_host_open(struct gpt_device **out, const struct gpt_options *options,
                         struct cst_err *err)
{
    struct host_device *d;
    int rc = check(options, err);

    if (rc != 0) {
        return rc;
    }
    d = calloc(1, sizeof *d);
    if (d == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    d->head.ops = &host_ops;
    d->options = options;
    d->threads = gpt_device_threads(options);
    d->bf16 = gpt_device_bf16(options);
    *out = &d->head;
    return 0;
}
