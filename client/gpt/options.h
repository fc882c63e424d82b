/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of cistern-gpt. Parsing changes only the struct. An error for a bad value names
 * the value and the allowed values. */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include "cistern/job.h"
#include "cistern/status.h"
#include "client/gpt/data.h"
#include "proto/options.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum gpt_matmul_choice { GPT_MATMUL_AUTO, GPT_MATMUL_BF16, GPT_MATMUL_FP32, GPT_MATMUL_PLAIN };
enum gpt_parallel_choice {
    GPT_PARALLEL_DATA,
    GPT_PARALLEL_DISPATCH,
    GPT_PARALLEL_PIPELINE,
    GPT_PARALLEL_AUTO /* For plans: cistern-gpt refuses it. */
};
enum gpt_tensor_choice { GPT_TENSOR_1D }; /* The further ones are not of cistern-gpt. */
enum gpt_store_choice { GPT_STORE_DAEMON, GPT_STORE_LOCAL };

struct gpt_options {
    uint32_t layers;   /* number of blocks */
    uint32_t heads;    /* attention heads per block */
    uint32_t width;    /* elements of the residual stream */
    uint32_t context;  /* tokens in a sequence */
    uint32_t vocab;    /* tokens of the vocabulary */
    uint32_t batch;    /* sequences per rank and step, all micro-batches together; of the ranks of a
                          node, or of a rank block, together unless they share the work as
                          GPT_PARALLEL_DATA */
    uint32_t experts;  /* experts per block, in place of its MLP; 0: dense */
    uint32_t top_k;    /* experts that each byte is sent to */
    double balance;    /* weight of the load-balancing loss */
    uint32_t lora;     /* rank of the adapters of a frozen base model; 0: no adapters */
    double lora_alpha; /* adapters' output is scaled by alpha / rank; negative: alpha is the rank */
    const char *describe; /* file for the model as JSON; "-": standard output; NULL: train */
    uint64_t steps;       /* steps in the life of the job */
    double lr;            /* highest learning rate */
    double min_lr;        /* final learning rate; negative: a tenth of lr */
    uint64_t warmup;      /* steps of linear increase of the learning rate */
    double weight_decay;  /* weight decay of matrices */
    double clip;          /* limit of the global gradient norm; 0: no clipping */
    double beta1, beta2;  /* of the optimizer; SGD: beta1 is the momentum */
    /* What the daemon is asked for. pool_bytes 0: see pool_percent; recompute: recompute_layers are
     * all. The seed is that of initial weights, data order and sample, too; the micro-batches are
     * parts of the batch that are computed one after the other. */
    struct cst_job_spec job;
    bool standby;           /* take the place of a rank that dies; job.rank is not known before */
    const char *data;       /* training text */
    enum gpt_tokens tokens; /* form of the tokens in the files of text */
    /* Text for validation: a file, or the end of the training text as "P%"; NULL: none. */
    const char *validate;
    uint64_t validate_every;     /* steps between validations; 0: only after the last step */
    const char *init;            /* directory of a GPT-2 whose weights a new job begins with */
    enum gpt_store_choice store; /* store of the states */
    enum gpt_parallel_choice parallel; /* how ranks share the work */
    uint32_t stages;                   /* of whole blocks; 0: none with GPT_PARALLEL_DATA; with
                                          GPT_PARALLEL_PIPELINE, those of the schedule */
    const char *schedule;              /* of GPT_PARALLEL_PIPELINE: a kind, or a file; else NULL */
    /* Blocks before which the stages 1, 2, ... begin; empty: stages differ by at most one block. */
    struct cst_value_list borders;
    /* Degrees of data, tensor, pipeline and context parallelism; 0: not given. */
    uint32_t dp, tp, pp, cp;
    unsigned tensor;                        /* how ranks of tp divide a model: a mode */
    unsigned sequence;                      /* how ranks of cp share a sequence */
    struct cst_value_list recompute_layers; /* of each stage, whose forward passes are repeated */
    uint64_t activation_memory;             /* most bytes of activations per rank; 0: no limit */
    const char *socket;                     /* socket of the daemon; NULL: the library's default */
    double pool_percent;     /* pool in percent of the bf16 weights; 0: as much as can be used */
    uint32_t threads;        /* compute threads per rank; 0: cores / world, at least 1 */
    uint32_t engine_threads; /* threads of the local store; 0: all cores */
    enum gpt_matmul_choice matmul; /* operands and implementation of matrix products */
    uint64_t sample;               /* bytes of text to generate at the end */
    const char *prompt;            /* start of the sample */
    double temperature;            /* temperature of the sample; 0: always the most probable byte */
    const char *log_json;          /* file for one JSON object per step; NULL: none */
    /* File for master weights, then bf16 weights, at the end; NULL: none. */
    const char *dump_weights;
    const char *dump_logits; /* file for the logits of the text's first sequence; NULL: none */
    const char *dump_grads;  /* file for the reduced gradients of the first step; NULL: none */
    const char *save_dir;    /* directory of checkpoints; NULL: none */
    uint64_t save_every;     /* steps between checkpoints; 0: none are made */
    uint32_t keep;           /* checkpoints that remain; 0: all */
    const char *resume;      /* checkpoint of a new job, or "auto"; NULL: initial weights */
    const char *loss_file;   /* file for each step's loss in hexadecimal; NULL: none */
    bool quiet;              /* print neither progress nor a summary */
    const char *config;      /* file with options; NULL: none */
    struct json_t *texts;    /* what was read from that file: it owns its texts; NULL: none */
    bool print_config;       /* write the options as such a file and exit */
    bool help, version;      /* print the text and exit */
};

/* All options, in the order of the help. They set fields of struct gpt_options. */
extern const struct cst_option gpt_options_table[];

/* Fill @options from the command line, the file of --config and the environment, and apply
 * defaults. Strings are borrowed from @argv, or live until gpt_options_release, which the caller
 * owes after CST_OK. The statuses of cst_options_load. CST_EINVAL: a bad option. After a failure
 * @options is unchanged. */
int gpt_options_parse(struct gpt_options *options, int argc, char *argv[], struct cst_err *err);

/* Release the strings that do not belong to the command line. */
void gpt_options_release(struct gpt_options *options);

/* Print the text of --help. */
void gpt_options_help(FILE *out);

#endif
