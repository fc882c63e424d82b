/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/attention.h"

#include "client/gpt/cuda/attention_args.h"

#include <math.h>
#include <stdio.h>

/* Parameters of one kernel of an instance. */
struct launch {
    uint32_t dim;     /* widest head */
    uint32_t rows;    /* rows of a block's tile */
    uint32_t threads; /* per block */
    uint32_t shared;  /* bytes of dynamic shared memory */
    uint32_t parts;   /* blocks per tile */
};

#define FORWARD(dim, tiles, warps, columns, blocks, parts)                                         \
    {dim, 16 * (tiles) * (warps), 32 * (warps),                                                    \
     GPT_ATTENTION_FORWARD_SHARED(dim, tiles, warps, columns), parts},
#define DQ(dim, tiles, warps, columns, blocks, parts)                                              \
    {dim, 16 * (tiles) * (warps), 32 * (warps),                                                    \
     GPT_ATTENTION_DQ_SHARED(dim, tiles, warps, columns), parts},
#define DKV(dim, tiles, warps, columns, blocks, parts)                                             \
    {dim, 16 * (tiles) * (warps), 32 * (warps),                                                    \
     GPT_ATTENTION_DKV_SHARED(dim, tiles, warps, columns), parts},

static const struct launch forwards[GPT_ATTENTION_INSTANCES] = {GPT_ATTENTION_FORWARD(FORWARD)};
static const struct launch dqs[GPT_ATTENTION_INSTANCES] = {GPT_ATTENTION_DQ(DQ)};
static const struct launch dkvs[GPT_ATTENTION_INSTANCES] = {GPT_ATTENTION_DKV(DKV)};

/* Most blocks of a grid. */
static const uint64_t MAX_BLOCKS = 0x7fffffff;

/* Limits of the kernels, which count positions and elements of some rows in 32 bits. The positions
 * include tiles beyond the last one. */
static const size_t MAX_CONTEXT = (size_t)1 << 30;
static const size_t MAX_HEADS = (size_t)1 << 16;

/* Look up a kernel of the module. A kernel gets more than 48 KiB of shared memory only after a
 * request. */
static int look_up(const struct cst_cuda_driver *driver, CUmodule module, const char *what,
                   const struct launch *launch, CUfunction *out, struct cst_err *err)
{
    char name[64];
    int status;

    (void)snprintf(name, sizeof name, "gpt_attention_%s_%u", what, launch->dim);
    status = cst_cuda_check(driver, driver->cuModuleGetFunction(out, module, name), err,
                            "kernel %s", name);
    if (status != CST_OK) {
        return status;
    }
    return cst_cuda_check(
        driver,
        driver->cuFuncSetAttribute(*out, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                   (int)launch->shared),
        err, "%u bytes of shared memory for kernel %s", launch->shared, name);
}

int gpt_cuda_attention_open(struct gpt_cuda_attention_kernels *kernels,
                            const struct cst_cuda_driver *driver, CUmodule module,
                            struct cst_err *err)
{
    struct gpt_cuda_attention_kernels made = {.driver = driver};
    int status = cst_cuda_check(
        driver, driver->cuModuleGetFunction(&made.prepare, module, "gpt_attention_prepare"), err,
        "kernel gpt_attention_prepare");

    for (size_t i = 0; status == CST_OK && i < GPT_ATTENTION_INSTANCES; i++) {
        status = look_up(driver, module, "forward", &forwards[i], &made.forward[i], err);
        if (status == CST_OK) {
            status = look_up(driver, module, "dq", &dqs[i], &made.dq[i], err);
        }
        if (status == CST_OK) {
            status = look_up(driver, module, "dkv", &dkvs[i], &made.dkv[i], err);
        }
    }
    if (status == CST_OK) {
        *kernels = made;
    }
    return status;
}

static size_t padded(const struct gpt_attention_shape *shape)
{
    return (shape->context + GPT_ATTENTION_PAD - 1) / GPT_ATTENTION_PAD * GPT_ATTENTION_PAD;
}

size_t gpt_cuda_attention_scratch(const struct gpt_attention_shape *shape)
{
    return 2 * sizeof(float) * shape->n_seqs * shape->n_heads * padded(shape);
}

/* Find the instance for @shape. CST_EUNSUPPORTED: there is none, and @err says why. */
static int find_instance(const struct gpt_attention_shape *shape, size_t *out, struct cst_err *err)
{
    const size_t dim = shape->head_dim;
    size_t i = 0;

    if (dim == 0 || dim % 16 != 0 || dim > GPT_CUDA_MAX_HEAD_DIM) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "attention on a GPU: heads of %zu elements, not a multiple of 16 up to "
                           "%d",
                           dim, GPT_CUDA_MAX_HEAD_DIM);
    }
    if (shape->context > MAX_CONTEXT || shape->n_heads > MAX_HEADS) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "attention on a GPU: a context of %zu positions, %zu heads",
                           shape->context, shape->n_heads);
    }
    while (forwards[i].dim < dim) {
        i++;
    }
    *out = i;
    return CST_OK;
}

static struct gpt_attention_sizes sizes_of(const struct gpt_attention_shape *shape,
                                           size_t positions, uint32_t rows)
{
    const double scale = 1.0 / sqrt((double)shape->head_dim);

    return (struct gpt_attention_sizes){
        .context = (uint32_t)shape->context,
        .padded = (uint32_t)padded(shape),
        .n_heads = (uint32_t)shape->n_heads,
        .dim = (uint32_t)shape->head_dim,
        .n_tiles = (uint32_t)((positions + rows - 1) / rows),
        .scale = (float)scale,
        .scale_log2 = (float)(scale * 1.4426950408889634),
    };
}

/* Launch the blocks for @positions of each head. @args: the kernel's arguments; the first element
 * is left free for the sizes. */
static int run(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
               const struct gpt_attention_shape *shape, size_t positions, CUfunction function,
               const struct launch *launch, const char *what, void **args, struct cst_err *err)
{
    struct gpt_attention_sizes sizes = sizes_of(shape, positions, launch->rows);
    const uint64_t n_pairs = (uint64_t)shape->n_seqs * shape->n_heads;

    if (n_pairs == 0 || sizes.n_tiles == 0) {
        return CST_OK;
    }
    if (n_pairs > MAX_BLOCKS / sizes.n_tiles) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "attention (%s): %zu sequences x %zu heads x %u tiles are more than a "
                           "launch has",
                           what, shape->n_seqs, shape->n_heads, sizes.n_tiles);
    }
    args[0] = &sizes;
    return cst_cuda_check(kernels->driver,
                          kernels->driver->cuLaunchKernel(
                              function, (unsigned)(n_pairs * sizes.n_tiles), launch->parts, 1,
                              launch->threads, 1, 1, launch->shared, stream, args, NULL),
                          err, "launch of attention (%s)", what);
}

int gpt_cuda_attention(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
                       const struct gpt_attention_shape *shape, CUdeviceptr qkv, CUdeviceptr out,
                       CUdeviceptr lse, struct cst_err *err)
{
    void *args[] = {NULL, &qkv, &out, &lse};
    size_t i;
    int status = find_instance(shape, &i, err);

    if (status != CST_OK) {
        return status;
    }
    return run(kernels, stream, shape, shape->context, kernels->forward[i], &forwards[i], "forward",
               args, err);
}

int gpt_cuda_attention_backward(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
                                const struct gpt_attention_shape *shape, CUdeviceptr qkv,
                                CUdeviceptr out, CUdeviceptr lse, CUdeviceptr dout,
                                CUdeviceptr dqkv, CUdeviceptr scratch, struct cst_err *err)
{
    static const struct launch prepare = {
        .rows = GPT_ATTENTION_PREPARE,
        .threads = GPT_ATTENTION_PREPARE * GPT_ATTENTION_PREPARE_LANES,
        .parts = 1,
    };
    uint64_t n_rows = (uint64_t)shape->n_seqs * shape->n_heads;
    void *prepare_args[] = {NULL, &out, &dout, &lse, &scratch, &n_rows};
    void *args[] = {NULL, &qkv, &dout, &scratch, &n_rows, &dqkv};
    size_t i;
    int status = find_instance(shape, &i, err);

    if (status == CST_OK) { /* The prepare kernel also writes the padding of scratch. */
        status = run(kernels, stream, shape, padded(shape), kernels->prepare, &prepare, "prepare",
                     prepare_args, err);
    }
    if (status == CST_OK) {
        status = run(kernels, stream, shape, shape->context, kernels->dkv[i], &dkvs[i], "dkv", args,
                     err);
    }
    if (status == CST_OK) {
        status =
            run(kernels, stream, shape, shape->context, kernels->dq[i], &dqs[i], "dq", args, err);
    }
    return status;
}
