/* SPDX-License-Identifier: Apache-2.0 */
/* Compute devices of the worker: a table of operations, implemented for the host processor
 * (device_host.c) and for a GPU (cuda/device_cuda.c). A device opens passes. With --store=local it
 * also opens the stores of all ranks. */
#ifndef GPT_DEVICE_H
#define GPT_DEVICE_H

#include "client/gpt/exchange.h"
#include "client/gpt/model.h"
#include "client/gpt/options.h"
#include "client/gpt/pass.h"
#include "client/gpt/stash.h"
#include "client/gpt/store.h"

#define GPT_DEVICE_WORDS 160

struct gpt_device;

struct gpt_device_ops {
    const char *name;
    /* Attach the device to @job, a job in the daemon that is open and not yet committed.
     * CST_ENOTFOUND: this process does not see the job's device. */
    int (*join)(struct gpt_device *device, struct cst_job *job, struct cst_err *err);
    /* Prepare the states of all ranks of this process, for --store=local. close() frees them.
     * @model is borrowed until then. CST_EUNSUPPORTED, CST_ENOMEM. */
    int (*open_states)(struct gpt_device *device, const struct gpt_model *model,
                       struct cst_err *err);
    /* Open the store of @rank over the states of open_states. The thread of this rank calls it. */
    int (*open_store)(struct gpt_device *device, uint32_t rank, struct gpt_store **out,
                      struct cst_err *err);
    /* Tell the stores that some rank will not come: all other ranks stop waiting for it. Any thread
     * may call it. */
    void (*break_states)(struct gpt_device *device);
    /* Number of passes per step. The worker calls the store's accumulate between two passes. Each
     * pass computes --batch / passes sequences. */
    uint32_t (*passes)(const struct gpt_device *device);
    /* Describe the rows of a mixture in words, for example "fp32 rows of a host, 512 per pass".
     * Devices that cannot exchange rows with each other have other words (exchange.h). */
    void (*describe_rows)(const struct gpt_device *device, char out[GPT_EXCHANGE_WORDS]);
    /* Open a communicator of all ranks for rows in the memory of this device, which has joined a
     * job. The caller closes it. The statuses are those of cst_cuda_comm_open. NULL: rows are in
     * host memory. */
    int (*open_rows)(struct gpt_device *device, struct cst_comm **out, struct cst_err *err);
    /* Plan a pass over --batch / passes sequences that holds at most --activation-memory bytes of
     * activations (0: no limit). CST_EINVAL: the limit is too small; the text has the smallest
     * one. */
    int (*plan_stash)(const struct gpt_device *device, const struct gpt_model *model,
                      struct gpt_stash_plan *out, struct cst_err *err);
    /* Allocate the activations of a pass over --batch / passes sequences. The thread that will use
     * the pass calls it. */
    int (*open_pass)(struct gpt_device *device, const struct gpt_model *model,
                     struct gpt_pass **out, struct cst_err *err);
    /* Open a read-only store of the weights of @from, for forward passes of this device through the
     * operators of @model. @from and @model are borrowed until the store is closed. */
    int (*open_view)(struct gpt_device *device, struct gpt_store *from,
                     const struct gpt_model *model, struct gpt_store **out, struct cst_err *err);
    /* Describe the device in words, for example "2 threads, matmul bf16". */
    void (*describe)(const struct gpt_device *device, char out[GPT_DEVICE_WORDS]);
    void (*close)(struct gpt_device *device);
};

/* First member of the struct of each implementation. */
struct gpt_device {
    const struct gpt_device_ops *ops;
};

/* Open the device that --device names. @options is borrowed until ops->close, which frees the
 * device. Passes and stores must be closed before. CST_EUNSUPPORTED: the program was built without
 * this kind of device, the machine has no driver or GPU, or the device cannot do what the options
 * ask for. CST_ENOTFOUND: there is no device of this name. CST_ENOMEM. */
int gpt_device_open(struct gpt_device **out, const struct gpt_options *options,
                    struct cst_err *err);

/* Number of threads on the processor that one rank may use: --threads, or the rank's share of the
 * cores. */
unsigned gpt_device_threads(const struct gpt_options *options);

/* True where operands of matrix products are bf16: on a GPU, with --matmul bf16, or with --matmul
 * auto where the processor multiplies bf16 in hardware. */
bool gpt_device_bf16(const struct gpt_options *options);

/* Bytes of memory that operator @number of @model takes in a pass, besides weights and gradients,
 * on the device that @options names: a declaration for the daemon. The device need not be open, nor
 * exist. 0 for all operators: not known before the first pass.
 *   - A GPU: the sum over all operators is what open_pass allocates on it. What operators share is
 *     counted for the last one.
 *   - The host: what the operator keeps from the forward to the backward pass. */
uint64_t gpt_device_activations(const struct gpt_options *options, const struct gpt_model *model,
                                uint32_t number);

/* The implementations. Use gpt_device_open and gpt_device_activations to choose between them. */
int gpt_device_host_open(struct gpt_device **out, const struct gpt_options *options,
                         struct cst_err *err);
int gpt_device_cuda_open(struct gpt_device **out, const struct gpt_options *options,
                         struct cst_err *err);
uint64_t gpt_device_cuda_activations(const struct gpt_options *options,
                                     const struct gpt_model *model, uint32_t number);

#endif
