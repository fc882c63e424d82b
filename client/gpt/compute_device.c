/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/compute_device.h"

#include "client/gpt/matmul.h"
#include "client/gpt/parallel.h"
#include "client/gpt/pass_host.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <string.h>

#ifndef HAVE_CUDA
int gpt_device_cuda_open(struct gpt_device **out, const struct gpt_options *options,
                         struct cst_err *err)
{
    (void)out;
    return cst_err_set(err, CST_EUNSUPPORTED,
                       "--device %s: this cistern-gpt was built without "
                       "CUDA",
                       options->job.device);
}

uint64_t gpt_device_cuda_activations(const struct gpt_options *options,
                                     const struct gpt_model *model, uint32_t number)
{
    (void)options;
    (void)model;
    (void)number;
    return 0;
}
#endif

/* True if the model is computed on the processor: with --device host, or with --device paced, whose
 * pools are in memory that the processor can access. */
static bool is_host(const struct gpt_options *options)
{
    return strcmp(options->job.device, "host") == 0 ||
           strncmp(options->job.device, "paced", 5) == 0;
}

/* All names except "host" and "paced..." are names of GPUs: "cuda", "cuda:1", a UUID. */
int gpt_device_open(struct gpt_device **out, const struct gpt_options *options, struct cst_err *err)
{
    if (is_host(options)) {
        return gpt_device_host_open(out, options, err);
    }
    return gpt_device_cuda_open(out, options, err);
}

unsigned gpt_device_threads(const struct gpt_options *options)
{
    const unsigned share = gpt_parallel_cores() / options->job.world;

    if (options->threads > 0) {
        return options->threads;
    }
    return share > 0 ? share : 1;
}

bool gpt_device_bf16(const struct gpt_options *options)
{
    return !is_host(options) || options->matmul == GPT_MATMUL_BF16 ||
           (options->matmul == GPT_MATMUL_AUTO && gpt_matmul_fast_bf16());
}

uint64_t gpt_device_activations(const struct gpt_options *options, const struct gpt_model *model,
                                uint32_t number)
{
    return is_host(options)
               ? gpt_host_kept_bytes(model, &model->operators[number],
                                     options->batch / options->job.updates.micro_batches,
                                     gpt_device_bf16(options))
               : gpt_device_cuda_activations(options, model, number);
}
