/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all options. `cistern plan --config` reads it, too, so this file needs nothing else
 * of the worker. */
#include "cistern/cistern.h"
#include "client/gpt/layers.h"
#include "client/gpt/model.h"
#include "client/gpt/options.h"
#include "proto/job_options.h"
#include "proto/optimizers.h"
#include "proto/size.h"

#include <stddef.h>

#define AT(name) offsetof(struct gpt_options, name)
#define CST_JOB_AT(member) AT(job.member)
#define CST_JOB_OPTION(member, in, has, section, option, argument, help, ...)                      \
    CST_OPTION_IN(section, option, argument, help, __VA_ARGS__),
#define ROW(option, argument, help, ...) CST_OPTION(option, 0, 0, argument, help, __VA_ARGS__)
#define KEY CST_OPTION_IN
#define FILE_KEY CST_OPTION_IN_FILE

static const char *const token_names[] = {"bytes", "uint16", "uint32", NULL};
static const char *const parallel_names[] = {"data", "dispatch", "pipeline", "auto", NULL};
static const char *const tensor_names[] = {"1d", "sequence", "zero3", "2d", "2.5d", "3d", NULL};
static const char *const sequence_names[] = {"ring", "ulysses", NULL};
static const char *const store_names[] = {"daemon", "local", NULL};
static const char *const matmul_names[] = {"auto", "bf16", "fp32", "plain", NULL};

/* Percentages that write_pool writes as decimals without an exponent, which read_pool reads. */
#define MIN_POOL_PERCENT 1e-4
#define MAX_POOL_PERCENT 1e6

/* Read a size, or a percentage of the weights. More than 100 % is allowed, because the pool also
 * holds gradients. */
static int read_pool(void *base, const char *text, void *field, struct cst_err *err)
{
    struct gpt_options *options = base;
    uint64_t bytes = 0;
    double percent = 0;
    bool is_percent = cst_size_percent(text, &percent);
    int rc = is_percent ? 0 : cst_size_parse(text, UINT64_MAX, &bytes, err);

    if (rc == 0 && (is_percent ? percent < MIN_POOL_PERCENT : bytes == 0)) {
        rc = cst_err_set(err, CST_EINVAL, "'%s' is too small for a pool", text);
    } else if (percent > MAX_POOL_PERCENT) {
        rc = cst_err_set(err, CST_EINVAL, "'%s' is too large for a pool (at most %.0f%%)", text,
                         MAX_POOL_PERCENT);
    }
    if (rc == 0) {
        options->pool_percent = percent;
        *(uint64_t *)field = bytes;
    }
    return rc;
}

static bool write_pool(const void *base, const void *field, char *out, size_t size)
{
    const struct gpt_options *options = base;
    const uint64_t *bytes = field;

    if (options->pool_percent > 0) {
        (void)snprintf(out, size, "%.17g%%", options->pool_percent);
    } else {
        (void)snprintf(out, size, "%llu", (unsigned long long)*bytes);
    }
    return options->pool_percent > 0 || *bytes > 0;
}

const struct cst_option gpt_options_table[] = {
    CST_OPTION_HEADING("model:"),
    KEY("model", "layers", "N", "transformer blocks (4)", CST_U32(AT(layers), 1, 4096)),
    KEY("model", "heads", "N",
        "attention heads per block (4); width / heads must be a multiple of 16",
        CST_U32(AT(heads), 1, 4096)),
    KEY("model", "width", "N", "elements of the residual stream (128), a multiple of 16",
        CST_U32(AT(width), GPT_SIMD_ELEMS, 65536)),
    KEY("model", "context", "N", "tokens of a sequence (128)", CST_U32(AT(context), 1, 65536)),
    KEY("model", "vocab", "N", "tokens of the vocabulary (256: one for each byte); on a GPU, 256",
        CST_U32(AT(vocab), GPT_SIMD_ELEMS, 1 << 24)),
    KEY("model", "init", "DIR",
        "begin a new job with the weights of a GPT-2 of Hugging Face: config.json, which decides "
        "the five sizes above, and model.safetensors, or several files with their index",
        CST_TEXT(AT(init))),
    KEY("model", "experts", "N",
        "a mixture of N experts in place of each block's MLP (0: no experts); rank e mod world "
        "holds expert e",
        CST_U32(AT(experts), 0, GPT_MAX_EXPERTS)),
    KEY("model", "top-k", "N", "experts that process each byte (2, or 1 if there is only one)",
        CST_U32(AT(top_k), 1, GPT_MAX_EXPERTS)),
    KEY("model", "balance", "X",
        "weight of the loss that distributes bytes evenly over experts (0.01)",
        CST_REAL(AT(balance), 0, 1e3)),
    KEY("model", "lora", "R",
        "freeze the model and train LoRA adapters of rank R (0: train everything)",
        CST_U32(AT(lora), 0, 65536)),
    KEY("model", "lora-alpha", "X", "multiply the output of the adapters by X / R (R)",
        CST_REAL(AT(lora_alpha), 0, 1e6)),
    ROW("describe", "FILE",
        "write the model as JSON for `cistern plan` (-: to standard output) and exit",
        CST_TEXT(AT(describe))),
    CST_OPTION_HEADING("training:"),
    KEY("data", "data", "FILE", "text to learn", CST_TEXT(AT(data))),
    KEY("data", "tokens", "FORM",
        "form of the text: bytes, or the numbers of its tokens as uint16 or uint32, little-endian "
        "(bytes)",
        CST_NAME(AT(tokens), 0, token_names)),
    KEY("data", "validate", "FILE|P%",
        "print the loss on this text, which is not trained on, at the end; P%: on the last P "
        "percent of --data",
        CST_TEXT(AT(validate))),
    KEY("data", "validate-every", "N", "print this loss after every N steps, too",
        CST_U64(AT(validate_every), 1, 1e15)),
    KEY("training", "batch", "N", "sequences per rank and step (8)", CST_U32(AT(batch), 1, 65536)),
    KEY("memory", "activation-memory", "SIZE",
        "hold at most SIZE of activations; those of the other blocks wait in host memory of the "
        "daemon (no limit; only on the host, without --experts)",
        CST_SIZE(AT(activation_memory))),
    KEY("parallel", "recompute", NULL,
        "keep only the input of each block, and compute the rest again in the backward pass (on a "
        "GPU, without --experts; stages always do that). In files also a number of layers of each "
        "stage, its first ones, or a list of these numbers: not for cistern-gpt",
        CST_LIST_OR_ALL(AT(recompute_layers), 0, 65536)),
    KEY("training", "steps", "N", "steps of the job, including those already made (100)",
        CST_U64(AT(steps), 0, 1e15)),
    KEY("optimizer", "lr", "X", "highest learning rate (0.001)", CST_REAL(AT(lr), 0, 1e3)),
    KEY("optimizer", "min-lr", "X",
        "learning rate at the end of the cosine schedule (a tenth of --lr)",
        CST_REAL(AT(min_lr), 0, 1e3)),
    KEY("optimizer", "warmup", "N", "steps in which the learning rate rises linearly (10)",
        CST_U64(AT(warmup), 0, 1e15)),
    KEY("optimizer", "weight-decay", "X",
        "decay of matrices; biases, norms and embeddings have none (0.1)",
        CST_REAL(AT(weight_decay), 0, 1e3)),
    KEY("optimizer", "clip", "X", "largest norm of all gradients together; 0: no clipping (1)",
        CST_REAL(AT(clip), 0, 1e9)),
    KEY("optimizer", "beta1", "X", "first parameter of the optimizer; sgd: the momentum (0.9)",
        CST_REAL(AT(beta1), 0, 0.9999999)),
    KEY("optimizer", "beta2", "X", "second parameter of the optimizer (0.95; lion 0.99)",
        CST_REAL(AT(beta2), 1e-6, 0.9999999)),
    KEY("training", "seed", "N",
        "seed of initial weights, order of data, rounding and the sample (1)",
        CST_U64(AT(job.states.seed), 0, 1.8446744073709552e19)),
    CST_OPTION_HEADING("the job and its ranks:"),
#include "proto/job_options.def"
    KEY("parallel", "parallel", "HOW",
        "how workers share a step (data):\ndata: each one computes a batch of its own\ndispatch: "
        "each one computes whatever stage and micro-batch is next, of one batch for all; workers "
        "may end and come at any time, and the results do not depend on their number\npipeline: "
        "each one has stages of its own, of one batch for all; the results are those of "
        "dispatch\nauto: for cistern plan and ct.parallelize, not for cistern-gpt",
        CST_NAME(AT(parallel), 0, parallel_names)),
    KEY("parallel", "stages", "N",
        "stages into which the blocks are divided (dispatch: one for each block, at most 64; "
        "pipeline: one for each worker, interleaved two)",
        CST_U32(AT(stages), 1, GPT_MAX_STAGES)),
    KEY("parallel", "schedule", "NAME|FILE",
        "order of a pipeline's passes: gpipe, 1f1b, interleaved, early or shifted, or a file of "
        "cistern schedule --output (1f1b)",
        CST_TEXT(AT(schedule))),
    KEY("parallel", "borders", "N,N...",
        "blocks before which the stages 1, 2, ... begin (stages differ by at most one block)",
        CST_LIST(AT(borders), 1, 65536)),
    FILE_KEY("parallel", "dp",
             "replicas of the model, each with data of its own (ranks / (tp pp cp))",
             CST_U32(AT(dp), 1, 65536)),
    FILE_KEY("parallel", "tp", "ranks that divide tensors (1; cistern-gpt: only 1)",
             CST_U32(AT(tp), 1, 65536)),
    FILE_KEY("parallel", "pp",
             "ranks of a pipeline (1); cistern-gpt: more mean --parallel pipeline",
             CST_U32(AT(pp), 1, 65536)),
    FILE_KEY("parallel", "cp", "ranks that share each sequence (1; cistern-gpt: only 1)",
             CST_U32(AT(cp), 1, 65536)),
    FILE_KEY("parallel", "tensor", "how tp ranks divide tensors (1d; cistern-gpt: only 1d)",
             CST_NAME(AT(tensor), 0, tensor_names)),
    FILE_KEY("parallel", "sequence", "how cp ranks share sequences (ring)",
             CST_NAME(AT(sequence), 0, sequence_names)),
    KEY("job", "store", "WHAT",
        "where states are: daemon, or local: in this process, with a thread for each rank (daemon)",
        CST_NAME(AT(store), 0, store_names)),
    KEY("job", "socket", "PATH",
        "socket of the daemon ($CISTERN_SOCKET, /run/cistern/cistern.sock)", CST_TEXT(AT(socket))),
    KEY("memory", "pool", "SIZE|P%",
        "memory of this rank for weights and gradients: 4096, 1.5G, 1.5GiB, or a percentage of the "
        "bf16 weights (as much as can be used)",
        CST_OTHER_SAVED(AT(job.memory.pool_bytes), read_pool, write_pool)),
    KEY("parallel", "threads", "N",
        "compute threads of this rank ($OMP_NUM_THREADS, or cores / world, at least 1)",
        CST_U32(AT(threads), 1, 1024)),
    KEY("parallel", "engine-threads", "N", "threads for updates with --store local (all cores)",
        CST_U32(AT(engine_threads), 1, 1024)),
    KEY("parallel", "matmul", "WHAT",
        "on the CPU: bf16, fp32, or auto: bf16 if the CPU has bf16 products, else fp32; on a GPU, "
        "always in bf16: auto or bf16 with cuBLASLt, or plain, slow, without it (auto)",
        CST_NAME(AT(matmul), 0, matmul_names)),
    CST_OPTION_HEADING("checkpoints:"),
    KEY("checkpoints", "save-dir", "DIR", "directory of the checkpoints", CST_TEXT(AT(save_dir))),
    KEY("checkpoints", "save-every", "N", "save the job after every N steps, while it goes on",
        CST_U64(AT(save_every), 1, 1e15)),
    KEY("checkpoints", "keep", "K",
        "remove older checkpoints when K newer ones are whole (all remain)",
        CST_U32(AT(keep), 1, 1000000)),
    KEY("checkpoints", "resume", "DIR",
        "begin a new job with the states of a checkpoint, or of the newest one in DIR; auto: of "
        "the newest one in --save-dir, if there is one; a job that exists goes on as it is",
        CST_TEXT(AT(resume))),
    CST_OPTION_HEADING("configuration:"),
    ROW("config", "FILE",
        "read options from a file, see cistern-job.json(5) (-: from standard input); options on "
        "the "
        "command line override it",
        CST_TEXT(AT(config))),
    ROW("print-config", NULL, "write the options in force as such a file, and exit",
        CST_FLAG(AT(print_config))),
    CST_OPTION_HEADING("output:"),
    KEY("output", "sample", "N",
        "bytes that rank 0 generates at the end (0); give the same number to all ranks, because "
        "they wait for rank 0",
        CST_U64(AT(sample), 0, 1e9)),
    KEY("output", "prompt", "TEXT", "beginning of the sample (a new line)", CST_TEXT(AT(prompt))),
    KEY("output", "temperature", "X", "temperature of the sample; 0: the most probable byte (0.8)",
        CST_REAL(AT(temperature), 0, 100)),
    KEY("output", "log-json", "FILE", "write one JSON object per step", CST_TEXT(AT(log_json))),
    KEY("output", "loss-file", "FILE", "write the loss of each step in hexadecimal, one per line",
        CST_TEXT(AT(loss_file))),
    KEY("output", "dump-weights", "FILE",
        "write master weights in fp32, then weights in bf16, in order of declaration",
        CST_TEXT(AT(dump_weights))),
    KEY("output", "dump-logits", "FILE",
        "at the end, write the logits of the first sequence of --data in fp32, a row for each "
        "token",
        CST_TEXT(AT(dump_logits))),
    KEY("output", "dump-grads", "FILE",
        "write the summed gradients of step 1 in bf16, in order of declaration",
        CST_TEXT(AT(dump_grads))),
    KEY("output", "quiet", NULL, "print errors only", CST_FLAG(AT(quiet))),
    ROW("help", NULL, "print this text", CST_FLAG(AT(help))),
    ROW("version", NULL, "print the version of this program", CST_FLAG(AT(version))),
    CST_OPTION_END,
};
