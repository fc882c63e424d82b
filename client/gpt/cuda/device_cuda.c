/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/moe.h"
#include "client/gpt/cuda/store.h"
#include "cistern/cuda.h"
#include "cistern/device.h"
#include "client/gpt/compute_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuda_device {
    struct gpt_device head;
    const struct gpt_options *options; /* borrowed */
    struct gpt_gpu gpu;                /* with the daemon it is opened by join */
    const struct gpt_model *model;     /* model of the local store */
    struct cst_cuda *cuda;             /* NULL: the states are not in the daemon */
};

static struct cuda_device *self(struct gpt_device *device)
{
    return (struct cuda_device *)(void *)device;
}

static int open_gpu(struct cuda_device *d, const char *name, struct cst_err *err)
{
    return gpt_gpu_open(&d->gpu, name, d->options->matmul != GPT_MATMUL_PLAIN, err);
}

/* Open the GPU that the daemon has chosen for the job. */
static int cuda_join(struct gpt_device *device, struct cst_job *job, struct cst_err *err)
{
    struct cuda_device *d = self(device);
    const char *name = cst_job_device(job);
    int rc;

    if (strcmp(name, "host") == 0) {
        return cst_err_set(err, CST_EUNSUPPORTED, "--device %s: the job is on the host device",
                           d->options->job.device);
    }
    rc = open_gpu(d, name, err);
    return rc != 0 ? rc : cst_cuda_open(&d->cuda, job, d->gpu.stream, err);
}

static int cuda_open_states(struct gpt_device *device, const struct gpt_model *model,
                            struct cst_err *err)
{
    const struct gpt_options *o = self(device)->options;

    if (o->job.states.optimizer != CST_OPTIMIZER_ADAMW ||
        o->job.states.moments != CST_MOMENTS_FP32 || o->job.states.masters != CST_MASTERS_FP32 ||
        o->job.updates.overlap == CST_OVERLAP_DELAYED) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "--store=local on a GPU: only adamw with fp32 masters and moments, and not delayed; "
            "use --store=daemon for others");
    }
    self(device)->model = model;
    return 0;
}

static int cuda_open_store(struct gpt_device *device, uint32_t rank, struct gpt_store **out,
                           struct cst_err *err)
{
    struct cuda_device *d = self(device);

    (void)rank; /* The local store on a GPU has one rank only. */
    return gpt_cuda_store_open(out, &d->gpu, d->model, err);
}

static void cuda_break_states(struct gpt_device *device)
{
    (void)device; /* No other rank waits. */
}

static uint32_t cuda_passes(const struct gpt_device *device)
{
    return gpt_cuda_passes(((const struct cuda_device *)(const void *)device)->options);
}

/* The whole --batch is one pass. */
static void cuda_describe_rows(const struct gpt_device *device, char out[GPT_EXCHANGE_WORDS])
{
    const struct gpt_options *o = ((const struct cuda_device *)(const void *)device)->options;

    (void)snprintf(out, GPT_EXCHANGE_WORDS, "rows of a GPU, %zu per pass",
                   (size_t)o->batch * o->context);
}

static int cuda_open_rows(struct gpt_device *device, struct cst_comm **out, struct cst_err *err)
{
    struct cuda_device *d = self(device);

    return cst_cuda_comm_open(out, d->cuda, CST_GROUP_ALL, d->gpu.stream, err);
}

static struct gpt_activation_size size_of(const struct gpt_device *device,
                                          const struct gpt_model *model)
{
    const struct gpt_options *o = ((const struct cuda_device *)(const void *)device)->options;

    return gpt_cuda_pass_size(o, model);
}

static int cuda_plan_stash(const struct gpt_device *device, const struct gpt_model *model,
                           struct gpt_stash_plan *out, struct cst_err *err)
{
    const struct gpt_activation_size size = size_of(device, model);

    return gpt_activations_plan(&size, out, err);
}

static int cuda_open_pass(struct gpt_device *device, const struct gpt_model *model,
                          struct gpt_pass **out, struct cst_err *err)
{
    struct cuda_device *d = self(device);

    return gpt_cuda_pass_open(out, &d->gpu, d->options, model, err);
}

static int cuda_open_view(struct gpt_device *device, struct gpt_store *from,
                          const struct gpt_model *model, struct gpt_store **out,
                          struct cst_err *err)
{
    return gpt_cuda_view_open(out, &self(device)->gpu, from, model, err);
}

static void cuda_describe(const struct gpt_device *device, char out[GPT_DEVICE_WORDS])
{
    const struct gpt_gpu *gpu = &((const struct cuda_device *)(const void *)device)->gpu;

    (void)snprintf(out, GPT_DEVICE_WORDS, "%s, matmul %s%s%.60s", gpu->name,
                   gpu->cublas != NULL ? gpt_cublas_name(gpu->cublas) : "plain and slow",
                   gpu->no_cublas.text[0] != '\0' ? ": " : "", gpu->no_cublas.text);
}

static void cuda_close(struct gpt_device *device)
{
    struct cuda_device *d = self(device);

    cst_cuda_close(d->cuda); /* The call waits for the stream. */
    gpt_gpu_close(&d->gpu);
    free(d);
}

static const struct gpt_device_ops cuda_ops = {
    .name = "cuda",
    .join = cuda_join,
    .open_states = cuda_open_states,
    .open_store = cuda_open_store,
    .break_states = cuda_break_states,
    .passes = cuda_passes,
    .describe_rows = cuda_describe_rows,
    .open_rows = cuda_open_rows,
    .plan_stash = cuda_plan_stash,
    .open_pass = cuda_open_pass,
    .open_view = cuda_open_view,
    .describe = cuda_describe,
    .close = cuda_close,
};

static int check(const struct gpt_options *o, struct cst_err *err)
{
    if (o->matmul == GPT_MATMUL_FP32) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "--matmul fp32 is for --device host: a GPU's "
                           "operands are bf16");
    }
    if (o->experts > 0 && o->job.planning.recompute) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "--experts %u cannot be combined with --recompute: tokens are not exchanged twice",
            o->experts);
    }
    if (o->vocab > 0 && o->vocab != GPT_VOCAB) {
        return cst_err_set(err, CST_EUNSUPPORTED, "--vocab %u: a GPU computes a vocabulary of %d",
                           o->vocab, GPT_VOCAB);
    }
    if (o->store == GPT_STORE_LOCAL && o->job.world > 1) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "--world %u cannot be combined with --store=local on a GPU, where the "
                           "local store has one rank",
                           o->job.world);
    }
    return 0;
}

int gpt_device_cuda_open(struct gpt_device **out, const struct gpt_options *options,
                         struct cst_err *err)
{
    struct cuda_device *d;
    int rc = check(options, err);

    if (rc != 0) {
        return rc;
    }
    d = calloc(1, sizeof *d);
    if (d == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    d->head.ops = &cuda_ops;
    d->options = options;
    if (options->store == GPT_STORE_LOCAL) {
        rc = open_gpu(d, options->job.device, err);
    }
    if (rc != 0) {
        free(d);
        return rc;
    }
    *out = &d->head;
    return 0;
}

/* How many rows the experts of a mixture get is known when the router has run. */
uint64_t gpt_device_cuda_activations(const struct gpt_options *options,
                                     const struct gpt_model *model, uint32_t number)
{
    const struct gpt_activation_size size = gpt_cuda_pass_size(options, model);

    return model->experts > 0 ? 0 : gpt_activations_bytes(&size, number);
}
