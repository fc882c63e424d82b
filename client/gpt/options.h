/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of cistern-gpt. Parsing touches nothing but the struct; bad values are told with
 * what was given and what is allowed. */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include "cistern/optimizer.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

enum gpt_matmul_choice { GPT_MATMUL_AUTO, GPT_MATMUL_BF16, GPT_MATMUL_FP32, GPT_MATMUL_PLAIN };
enum gpt_store_choice { GPT_STORE_DAEMON, GPT_STORE_LOCAL };

struct gpt_options {
    uint32_t layers;      /* blocks */
    uint32_t heads;       /* per block */
    uint32_t width;       /* of the residual stream, elements */
    uint32_t context;     /* bytes of a sequence */
    uint32_t batch;       /* sequences per rank and step, all micro-batches together */
    uint32_t experts;     /* of the mixture in place of each block's MLP; 0: dense */
    uint32_t top_k;       /* experts that a byte goes to */
    double balance;       /* weight of the load-balancing loss */
    uint32_t lora;        /* rank of the adapters beside a frozen base; 0: none */
    double lora_alpha;    /* adapters count alpha / rank; negative: as much as the rank */
    const char *base;     /* job whose frozen tensors are used; NULL: this job's own */
    const char *describe; /* write the model as JSON there and end; "-": standard output */
    uint64_t steps;       /* in the life of the job */
    double lr;            /* at its highest */
    double min_lr;        /* at the end; negative: a tenth of lr */
    uint64_t warmup;      /* steps of linear rise */
    double weight_decay;  /* of matrices */
    double clip;          /* global norm; 0: none */
    double beta1, beta2;  /* of the optimizer; SGD: beta1 is the momentum */
    enum cst_optimizer optimizer;
    enum cst_moments moments;      /* their format */
    enum cst_rounding rounding;    /* of moments that are not fp32; seeded as all else */
    enum cst_overlap overlap;      /* when chunks are updated */
    uint64_t delay_from;           /* step; with CST_OVERLAP_DELAYED */
    bool grad_over_weight;         /* gradients take the weights' places */
    uint64_t update_room;          /* bytes of the device for updates */
    uint64_t device_states;        /* bytes of the device for states that stay there; CST_ROOM_AUTO,
                                      either: planned */
    uint64_t seed;                 /* of weights, data order and sample */
    const char *data;              /* file to read bytes from */
    uint32_t rank, world;          /* this worker and how many there are */
    enum gpt_store_choice store;   /* where the states live */
    const char *device;            /* "host", "paced", "paced:N", "cuda", "cuda:N", a UUID */
    uint32_t micro_batches;        /* parts of the batch, computed one after the other */
    bool recompute;                /* activations of a block on the way back */
    bool measure_matmul;           /* before training, for the share of it that is used */
    const char *socket;            /* of the daemon; NULL: the library's default */
    const char *job;               /* name */
    uint64_t pool_bytes;           /* per rank; 0: see pool_percent */
    double pool_percent;           /* of the bf16 weights; 0: as much as can be used */
    const char *plan_file;         /* of `cistern plan --save`; NULL: none */
    uint64_t chunk;                /* elements; 0: the daemon chooses */
    uint32_t threads;              /* compute threads per rank; 0: cores / world, at least 1 */
    uint32_t engine_threads;       /* of the local store; 0: all cores */
    enum gpt_matmul_choice matmul; /* operands of matrix products */
    uint64_t sample;               /* bytes to generate at the end */
    const char *prompt;            /* to start the sample with */
    double temperature;            /* of the sample; 0: the likeliest byte */
    const char *log_json;          /* a JSON object per step */
    const char *dump_weights;      /* master then bf16 weights, at the end */
    const char *dump_grads;        /* reduced gradients of the first step */
    const char *loss_file;         /* the loss of each step in hexadecimal */
    bool quiet;                    /* no progress, no summary */
    bool help, version;            /* print and go */
};

/* Fill @options from the command line; strings are borrowed from @argv. CST_EINVAL. */
int gpt_options_parse(struct gpt_options *options, int argc, char *argv[], struct cst_err *err);

/* The text of --help. */
const char *gpt_options_help(void);

#endif
