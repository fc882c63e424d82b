/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker computes with: a table of operations with a row for the processor (device_host.c)
 * and one for a GPU (cuda/device.c). The device gives out passes, and with --store=local the stores
 * of the ranks. */
#ifndef GPT_DEVICE_H
#define GPT_DEVICE_H

#include "client/gpt/model.h"
#include "client/gpt/options.h"
#include "client/gpt/pass.h"
#include "client/gpt/store.h"

#define GPT_DEVICE_WORDS 160

struct gpt_device;

struct gpt_device_ops {
    const char *name;
    /* Work for @job of the daemon, which is open and not committed. CST_ENOTFOUND: the job's device
     * is not seen by this process. */
    int (*join)(struct gpt_device *device, struct cst_job *job, struct cst_err *err);
    /* Memory for the states of all ranks in this process: --store=local. Until close. */
    int (*open_states)(struct gpt_device *device, const struct gpt_model *model,
                       struct cst_err *err);
    /* The store of @rank over these states; called by the rank's own thread. */
    int (*open_store)(struct gpt_device *device, uint32_t rank, struct gpt_store **out,
                      struct cst_err *err);
    /* A rank will not come: no other waits for it any more. Any thread. */
    void (*break_states)(struct gpt_device *device);
    /* Passes per step that the store's accumulate is called between; each is over its part of
     * --batch. */
    uint32_t (*passes)(const struct gpt_device *device);
    /* Of a rank in the exchange of a mixture's tokens (exchange.h). Ranks whose devices exchange
     * them in another way have another size. */
    size_t (*region_bytes)(const struct gpt_device *device, const struct gpt_model *model);
    /* Activations for @max_seqs sequences. Called by the thread that will use them. */
    int (*open_pass)(struct gpt_device *device, const struct gpt_model *model, size_t max_seqs,
                     struct gpt_pass **out, struct cst_err *err);
    /* A store for looking at the weights of @from alone, through the operators of @model, where
     * this device's passes can read them. Both are borrowed for its life. */
    int (*open_view)(struct gpt_device *device, struct gpt_store *from,
                     const struct gpt_model *model, struct gpt_store **out, struct cst_err *err);
    /* "2 threads, matmul bf16" */
    void (*describe)(const struct gpt_device *device, char out[GPT_DEVICE_WORDS]);
    /* Operations per second of a large bf16 matrix product. CST_EUNSUPPORTED. */
    int (*measure)(struct gpt_device *device, double *out, struct cst_err *err);
    void (*close)(struct gpt_device *device);
};

/* The head of each row's own struct. */
struct gpt_device {
    const struct gpt_device_ops *ops;
};

/* What --device says, for @options, which are borrowed. CST_EUNSUPPORTED: built without it, it is
 * not there, or it cannot do what the options ask for. ops->close frees, after all passes and
 * stores. */
int gpt_device_open(struct gpt_device **out, const struct gpt_options *options,
                    struct cst_err *err);

/* Threads of the processor that a rank may use: --threads, or its share of the cores. */
unsigned gpt_device_threads(const struct gpt_options *options);

/* True where operands of products are bf16: on a GPU, by --matmul, or where the processor has them
 * in hardware. */
bool gpt_device_bf16(const struct gpt_options *options);

/* The rows. */
int gpt_device_host_open(struct gpt_device **out, const struct gpt_options *options,
                         struct cst_err *err);
int gpt_device_cuda_open(struct gpt_device **out, const struct gpt_options *options,
                         struct cst_err *err);

#endif
