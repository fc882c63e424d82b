/* client/gpt/cuda/attention.h by the kernels of attention_plain.cu: as slow as they are simple. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/attention.h"

#define THREADS 64 /* of a block */

int gpt_cuda_attention_open(struct gpt_cuda_attention_kernels *kernels,
                            const struct cst_cuda_driver *driver, CUmodule module,
                            struct cst_err *err)
{
    struct gpt_cuda_attention_kernels k = {.driver = driver};
    const struct {
        CUfunction *function;
        const char *name;
    } entries[] = {
        {&k.forward, "gpt_attention_plain_kernel"},
        {&k.dq, "gpt_attention_plain_dq_kernel"},
        {&k.dkv, "gpt_attention_plain_dkv_kernel"},
    };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof entries / sizeof entries[0]; i++) {
        rc = cst_cuda_check(
            driver, driver->cuModuleGetFunction(entries[i].function, module, entries[i].name), err,
            "kernel %s", entries[i].name);
    }
    if (rc == 0) {
        *kernels = k;
    }
    return rc;
}

size_t gpt_cuda_attention_scratch(const struct gpt_attention_shape *shape)
{
    (void)shape;
    return 0;
}

static int launch(const struct gpt_cuda_attention_kernels *k, CUstream stream, CUfunction function,
                  const struct gpt_attention_shape *shape, void **args, struct cst_err *err)
{
    const unsigned blocks = (unsigned)((shape->context + THREADS - 1) / THREADS);
    const unsigned heads = (unsigned)(shape->n_seqs * shape->n_heads);

    if (shape->head_dim > GPT_CUDA_MAX_HEAD_DIM) {
        return cst_err_set(err, CST_EUNSUPPORTED, "heads of %zu elements: at most %d on a GPU",
                           shape->head_dim, GPT_CUDA_MAX_HEAD_DIM);
    }
    return cst_cuda_check(
        k->driver,
        k->driver->cuLaunchKernel(function, blocks, heads, 1, THREADS, 1, 1, 0, stream, args, NULL),
        err, "launch of attention");
}

static struct gpt_cuda_attention_shape sizes(const struct gpt_attention_shape *shape)
{
    return (struct gpt_cuda_attention_shape){
        .n_seqs = (uint32_t)shape->n_seqs,
        .context = (uint32_t)shape->context,
        .n_heads = (uint32_t)shape->n_heads,
        .head_dim = (uint32_t)shape->head_dim,
    };
}

int gpt_cuda_attention(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
                       const struct gpt_attention_shape *shape, CUdeviceptr qkv, CUdeviceptr out,
                       CUdeviceptr lse, struct cst_err *err)
{
    struct gpt_cuda_attention_shape s = sizes(shape);
    void *args[] = {&s, &qkv, &out, &lse};

    return launch(kernels, stream, kernels->forward, shape, args, err);
}

int gpt_cuda_attention_backward(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
                                const struct gpt_attention_shape *shape, CUdeviceptr qkv,
                                CUdeviceptr out, CUdeviceptr lse, CUdeviceptr dout,
                                CUdeviceptr dqkv, CUdeviceptr scratch, struct cst_err *err)
{
    struct gpt_cuda_attention_shape s = sizes(shape);
    void *args[] = {&s, &qkv, &out, &lse, &dout, &dqkv};
    int rc = launch(kernels, stream, kernels->dq, shape, args, err);

    (void)scratch;
    return rc != 0 ? rc : launch(kernels, stream, kernels->dkv, shape, args, err);
}
