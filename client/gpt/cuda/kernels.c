/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/kernels.h"

/* The device code, which nvcc and build-aux/embed.sh generate. */
extern const unsigned char gpt_cuda_fatbin[];

struct entry {
    const char *name;
    CUfunction *function;
};

int gpt_cuda_kernels_open(struct gpt_cuda_kernels *kernels, const struct cst_cuda_driver *driver,
                          CUstream stream, struct cst_err *err)
{
    struct gpt_cuda_kernels k = {.driver = driver, .stream = stream};
    const struct entry entries[] = {
        {"gpt_norm_kernel", &k.norm},
        {"gpt_norm_backward_kernel", &k.norm_backward},
        {"gpt_residual_kernel", &k.residual},
        {"gpt_round_kernel", &k.round},
        {"gpt_columns_kernel", &k.columns},
        {"gpt_sums_kernel", &k.sums},
        {"gpt_gelu_kernel", &k.gelu},
        {"gpt_gelu_backward_kernel", &k.gelu_backward},
        {"gpt_loss_kernel", &k.loss},
        {"gpt_embed_kernel", &k.embed},
        {"gpt_token_grad_kernel", &k.token_grad},
        {"gpt_position_grad_kernel", &k.position_grad},
        {"gpt_matmul_kernel", &k.matmul},
        {"gpt_choose_kernel", &k.choose},
        {"gpt_choose_backward_kernel", &k.choose_backward},
        {"gpt_gather_kernel", &k.gather},
        {"gpt_gather_gated_kernel", &k.gather_gated},
        {"gpt_combine_kernel", &k.combine},
    };
    int rc = cst_cuda_check(driver, driver->cuModuleLoadData(&k.module, gpt_cuda_fatbin), err,
                            "loading the worker's kernels (sm_80, sm_90, PTX)");

    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < sizeof entries / sizeof entries[0]; i++) {
        rc = cst_cuda_check(
            driver, driver->cuModuleGetFunction(entries[i].function, k.module, entries[i].name),
            err, "kernel %s", entries[i].name);
    }
    if (rc != 0) {
        (void)driver->cuModuleUnload(k.module);
        return rc;
    }
    *kernels = k;
    return 0;
}

void gpt_cuda_kernels_close(struct gpt_cuda_kernels *kernels)
{
    if (kernels->module != NULL) {
        (void)kernels->driver->cuModuleUnload(kernels->module);
    }
    *kernels = (struct gpt_cuda_kernels){0};
}

static unsigned parts(size_t n, size_t of)
{
    return (unsigned)((n + of - 1) / of);
}

/* Launch a grid of @x by @y blocks. */
static int launch(const struct gpt_cuda_kernels *k, CUfunction function, const char *name,
                  unsigned x, unsigned y, unsigned threads, void **args, struct cst_err *err)
{
    return cst_cuda_check(
        k->driver,
        k->driver->cuLaunchKernel(function, x, y, 1, threads, 1, 1, 0, k->stream, args, NULL), err,
        "launch of %s", name);
}

/* Threads for a row: one for every eight elements, rounded up to whole warps. */
static unsigned row_threads(size_t width)
{
    return 32 * parts(width, 8 * 32);
}

/* Rows of a strip in the norm's backward pass. There are as many strips as can run at once, so that
 * the second pass over sums is short. */
static size_t norm_strip(size_t rows)
{
    const size_t n = parts(rows, GPT_CUDA_NORM_STRIPS);

    return n > GPT_CUDA_NORM_ROWS ? n : GPT_CUDA_NORM_ROWS;
}

size_t gpt_cuda_parts_bytes(size_t rows, size_t width)
{
    /* A pass of fewer rows must not need more than this. */
    const size_t most = parts(rows, GPT_CUDA_NORM_ROWS);
    const size_t norm = 2 * (most < GPT_CUDA_NORM_STRIPS ? most : GPT_CUDA_NORM_STRIPS) * width;
    const size_t bias = (size_t)parts(rows, GPT_CUDA_BIAS_ROWS) * 4 * width;

    return (norm > bias ? norm : bias) * sizeof(float);
}

int gpt_cuda_norm(const struct gpt_cuda_kernels *k, size_t rows, size_t width, CUdeviceptr x,
                  CUdeviceptr branch, CUdeviceptr w, CUdeviceptr b, CUdeviceptr sum, CUdeviceptr y,
                  CUdeviceptr mean, CUdeviceptr rstd, struct cst_err *err)
{
    uint32_t n = (uint32_t)width;
    void *args[] = {&n, &x, &branch, &w, &b, &sum, &y, &mean, &rstd};

    return launch(k, k->norm, "norm", (unsigned)rows, 1, row_threads(width), args, err);
}

/* Launch the second pass of sums over rows: add up @n_strips strips of @n_vectors vectors. The
 * first vector's sum goes to @a, the second's to @b. */
static int sums(const struct gpt_cuda_kernels *k, uint32_t n_strips, size_t width, CUdeviceptr from,
                unsigned n_vectors, struct gpt_cuda_grad a, struct gpt_cuda_grad b,
                struct cst_err *err)
{
    uint32_t n = (uint32_t)width, add_a = a.accumulate, add_b = b.accumulate;
    void *args[] = {&n_strips, &n, &from, &a.at, &add_a, &b.at, &add_b};

    return launch(k, k->sums, "sums", parts(width, GPT_CUDA_SUM_COLUMNS), n_vectors,
                  GPT_CUDA_SUM_COLUMNS * GPT_CUDA_SUM_LANES, args, err);
}

int gpt_cuda_norm_backward(const struct gpt_cuda_kernels *k, const struct gpt_cuda_norm_back *norm,
                           struct cst_err *err)
{
    struct gpt_cuda_norm_back n = *norm;
    uint32_t rows = (uint32_t)n.rows, width = (uint32_t)n.width, accumulate = !n.first;
    uint32_t strip = (uint32_t)norm_strip(n.rows);
    const unsigned strips = parts(n.rows, strip);
    void *args[] = {&rows,   &strip,  &width,      &n.dy, &n.x,       &n.w,
                    &n.mean, &n.rstd, &accumulate, &n.dx, &n.operand, &n.parts};
    int rc =
        launch(k, k->norm_backward, "norm_backward", strips, 1, row_threads(n.width), args, err);

    return rc != 0 || n.dw.at == 0 ? rc : sums(k, strips, n.width, n.parts, 2, n.dw, n.db, err);
}

int gpt_cuda_residual(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr x, CUdeviceptr branch,
                      CUdeviceptr sum, struct cst_err *err)
{
    uint64_t n_elems = n;
    void *args[] = {&n_elems, &x, &branch, &sum};

    return launch(k, k->residual, "residual", parts(n, 8 * GPT_CUDA_THREADS), 1, GPT_CUDA_THREADS,
                  args, err);
}

int gpt_cuda_round(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr x, CUdeviceptr y,
                   struct cst_err *err)
{
    uint64_t n_elems = n;
    void *args[] = {&n_elems, &x, &y};

    return launch(k, k->round, "round", parts(n, 8 * GPT_CUDA_THREADS), 1, GPT_CUDA_THREADS, args,
                  err);
}

int gpt_cuda_bias_grad(const struct gpt_cuda_kernels *k, size_t rows, size_t width, CUdeviceptr dy,
                       CUdeviceptr scratch, struct gpt_cuda_grad db, struct cst_err *err)
{
    uint32_t n_rows = (uint32_t)rows, n = (uint32_t)width;
    const unsigned strips = parts(rows, GPT_CUDA_BIAS_ROWS);
    void *args[] = {&n_rows, &n, &dy, &scratch};
    int rc = launch(k, k->columns, "columns", parts(width, GPT_CUDA_BIAS_COLUMNS), strips,
                    GPT_CUDA_THREADS, args, err);

    /* A strip has one vector, so the second destination is not used. */
    return rc != 0 ? rc : sums(k, strips, width, scratch, 1, db, db, err);
}

int gpt_cuda_gelu(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr pre, CUdeviceptr act,
                  struct cst_err *err)
{
    uint64_t n_elems = n;
    void *args[] = {&n_elems, &pre, &act};

    return launch(k, k->gelu, "gelu", parts(n, 8 * GPT_CUDA_THREADS), 1, GPT_CUDA_THREADS, args,
                  err);
}

int gpt_cuda_gelu_backward(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr pre,
                           CUdeviceptr grad, struct cst_err *err)
{
    uint64_t n_elems = n;
    void *args[] = {&n_elems, &pre, &grad};

    return launch(k, k->gelu_backward, "gelu_backward", parts(n, 8 * GPT_CUDA_THREADS), 1,
                  GPT_CUDA_THREADS, args, err);
}

int gpt_cuda_loss(const struct gpt_cuda_kernels *k, size_t rows, CUdeviceptr logits,
                  CUdeviceptr targets, float scale, CUdeviceptr losses, CUdeviceptr dlogits,
                  struct cst_err *err)
{
    uint32_t n = (uint32_t)rows;
    void *args[] = {&n, &logits, &targets, &scale, &losses, &dlogits};

    return launch(k, k->loss, "loss", parts(rows, GPT_CUDA_LOSS_ROWS), 1, 32 * GPT_CUDA_LOSS_ROWS,
                  args, err);
}

int gpt_cuda_embed(const struct gpt_cuda_kernels *k, size_t rows, size_t width, size_t context,
                   CUdeviceptr tokens, CUdeviceptr wte, CUdeviceptr wpe, CUdeviceptr y,
                   struct cst_err *err)
{
    uint32_t n_rows = (uint32_t)rows, n = (uint32_t)width, positions = (uint32_t)context;
    void *args[] = {&n_rows, &n, &positions, &tokens, &wte, &wpe, &y};

    return launch(k, k->embed, "embed", parts(rows * width, 8 * GPT_CUDA_THREADS), 1,
                  GPT_CUDA_THREADS, args, err);
}

int gpt_cuda_embed_backward(const struct gpt_cuda_kernels *k, size_t rows, size_t width,
                            size_t context, CUdeviceptr tokens, CUdeviceptr dx,
                            struct gpt_cuda_grad dwte, struct gpt_cuda_grad dwpe,
                            struct cst_err *err)
{
    uint32_t n_rows = (uint32_t)rows, n = (uint32_t)width, positions = (uint32_t)context;
    uint32_t n_seqs = (uint32_t)(rows / context), add_e = dwte.accumulate, add_p = dwpe.accumulate;
    void *token_args[] = {&n_rows, &n, &tokens, &dx, &dwte.at, &add_e};
    void *position_args[] = {&n_seqs, &n, &positions, &dx, &dwpe.at, &add_p};
    int rc = launch(k, k->token_grad, "token_grad", parts(width, 4 * GPT_CUDA_TOKEN_THREADS),
                    GPT_CUDA_VOCAB, GPT_CUDA_TOKEN_THREADS, token_args, err);

    return rc != 0 ? rc
                   : launch(k, k->position_grad, "position_grad",
                            parts(context * width, 4 * GPT_CUDA_THREADS), 1, GPT_CUDA_THREADS,
                            position_args, err);
}

int gpt_cuda_matmul(const struct gpt_cuda_kernels *k, const struct gpt_cuda_product *product,
                    struct cst_err *err)
{
    struct gpt_cuda_product p = *product;
    void *args[] = {&p};

    return launch(k, k->matmul, "matmul", parts(p.n, GPT_CUDA_TILE), parts(p.m, GPT_CUDA_TILE),
                  GPT_CUDA_THREADS, args, err);
}

/* -- a mixture --------------------------------------------------------------------------------- */

int gpt_cuda_choose(const struct gpt_cuda_kernels *k, size_t rows, uint32_t experts, uint32_t top_k,
                    CUdeviceptr probs, CUdeviceptr chosen, CUdeviceptr gates, struct cst_err *err)
{
    uint32_t n = (uint32_t)rows;
    void *args[] = {&n, &experts, &top_k, &probs, &chosen, &gates};

    return launch(k, k->choose, "choose", parts(rows, GPT_CUDA_CHOOSE_ROWS), 1,
                  32 * GPT_CUDA_CHOOSE_ROWS, args, err);
}

int gpt_cuda_choose_backward(const struct gpt_cuda_kernels *k,
                             const struct gpt_cuda_choose_back *back, struct cst_err *err)
{
    struct gpt_cuda_choose_back b = *back;
    uint32_t width = (uint32_t)b.width;
    void *args[] = {&width,   &b.experts, &b.top_k, &b.place, &b.chosen, &b.gates,
                    &b.probs, &b.shares,  &b.scale, &b.y,     &b.dx,     &b.dz};

    return launch(k, k->choose_backward, "choose_backward", (unsigned)b.rows, 1,
                  GPT_CUDA_ROUTE_THREADS, args, err);
}

int gpt_cuda_gather(const struct gpt_cuda_kernels *k, size_t n, size_t width, uint32_t top_k,
                    CUdeviceptr from, CUdeviceptr x, CUdeviceptr out, struct cst_err *err)
{
    uint32_t rows = (uint32_t)n, columns = (uint32_t)width;
    void *args[] = {&rows, &columns, &top_k, &from, &x, &out};

    /* A launch without blocks would be an error. */
    return n == 0 ? 0
                  : launch(k, k->gather, "gather", parts(n * width, 8 * GPT_CUDA_THREADS), 1,
                           GPT_CUDA_THREADS, args, err);
}

int gpt_cuda_gather_gated(const struct gpt_cuda_kernels *k, size_t n, size_t width, uint32_t top_k,
                          CUdeviceptr from, CUdeviceptr gates, CUdeviceptr dx, CUdeviceptr out,
                          struct cst_err *err)
{
    uint32_t rows = (uint32_t)n, columns = (uint32_t)width;
    void *args[] = {&rows, &columns, &top_k, &from, &gates, &dx, &out};

    return n == 0 ? 0
                  : launch(k, k->gather_gated, "gather_gated",
                           parts(n * width, 8 * GPT_CUDA_THREADS), 1, GPT_CUDA_THREADS, args, err);
}

int gpt_cuda_combine(const struct gpt_cuda_kernels *k, size_t rows, size_t width, uint32_t top_k,
                     CUdeviceptr place, CUdeviceptr gates, CUdeviceptr y, CUdeviceptr out,
                     struct cst_err *err)
{
    uint32_t n = (uint32_t)rows, columns = (uint32_t)width;
    void *args[] = {&n, &columns, &top_k, &place, &gates, &y, &out};

    return launch(k, k->combine, "combine", parts(rows * width, 8 * GPT_CUDA_THREADS), 1,
                  GPT_CUDA_THREADS, args, err);
}
