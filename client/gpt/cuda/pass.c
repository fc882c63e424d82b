#include "client/gpt/cuda/pass.h"

#include "client/gpt/cuda/activations.h"

#include <stdlib.h>
#include <string.h>

struct cuda_pass {
    struct gpt_pass head;
    const struct gpt_gpu *gpu;      /* borrowed */
    struct gpt_activations a;       /* device memory */
    bool recompute;                 /* blocks share all but their input */
    size_t part_seqs;               /* sequences of a part, at most */
    size_t n_seqs;                  /* of the pass under way */
    struct gpt_attention_shape all; /* of the pass under way */
    uint32_t at_hand;               /* with recompute: the layer whose activations there are */
    CUevent known;                  /* the losses have come */
    float *losses;                  /* pinned, max rows */
    float *logits;                  /* pinned, a row */
};

/* Rows of the pass that are computed together. */
struct part {
    size_t row, rows;                 /* first and how many */
    struct gpt_attention_shape shape; /* of its sequences */
    bool first;                       /* of the operator: gradients go as the store says */
};

static struct cuda_pass *self(struct gpt_pass *pass)
{
    return (struct cuda_pass *)(void *)pass;
}

static CUdeviceptr device(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

/* -- pieces of operators ------------------------------------------------------------------------
 */

static CUdeviceptr rows16(CUdeviceptr base, const struct part *part, size_t width)
{
    return base + part->row * width * sizeof(uint16_t);
}

static CUdeviceptr rows32(CUdeviceptr base, const struct part *part, size_t width)
{
    return base + part->row * width * sizeof(float);
}

/* Later parts of an operator add to what the first one wrote. */
static struct gpt_cuda_grad grad(const struct cst_io *io, const struct part *part)
{
    return (struct gpt_cuda_grad){device(io->grad), io->accumulate || !part->first};
}

/* y (rows x n) = x (rows x k) w (k x n) + bias */
static int linear(const struct cuda_pass *p, const struct part *part, CUdeviceptr x,
                  const struct cst_io *w, const struct cst_io *bias, size_t k, size_t n,
                  CUdeviceptr y, struct cst_err *err)
{
    const struct gpt_product product = {
        .m = part->rows,
        .n = n,
        .k = k,
        .a = rows16(x, part, k),
        .b = device(w->weight),
        .c = rows16(y, part, n),
        .epilogue = GPT_EPILOGUE_BIAS,
        .bias = device(bias->weight),
    };

    return gpt_gpu_product(p->gpu, &product, err);
}

/* dw = x^T dy and db = sums of dy, into the store; dx (rows x k) = dy w^T, through GELU where there
 * is a @pre. */
static int linear_backward(const struct cuda_pass *p, const struct part *part, CUdeviceptr x,
                           CUdeviceptr dy, const struct cst_io *w, const struct cst_io *bias,
                           size_t k, size_t n, CUdeviceptr pre, CUdeviceptr dx, struct cst_err *err)
{
    const struct gpt_cuda_grad dw = grad(w, part);
    const struct gpt_product of_weights = {
        .m = k,
        .n = n,
        .k = part->rows,
        .a = rows16(x, part, k),
        .turn_a = true,
        .b = rows16(dy, part, n),
        .c = dw.at,
        .accumulate = dw.accumulate,
    };
    const struct gpt_product of_input = {
        .m = part->rows,
        .n = k,
        .k = n,
        .a = rows16(dy, part, n),
        .b = device(w->weight),
        .turn_b = true,
        .c = rows16(dx, part, k),
        .epilogue = pre != 0 ? GPT_EPILOGUE_GELU_BACKWARD : GPT_EPILOGUE_NONE,
        .pre = pre != 0 ? rows16(pre, part, k) : 0,
    };
    int rc = gpt_gpu_product(p->gpu, &of_weights, err);

    if (rc == 0) {
        rc = gpt_cuda_bias_grad(&p->gpu->kernels, part->rows, n, rows16(dy, part, n), p->a.parts,
                                grad(bias, part), err);
    }
    return rc != 0 ? rc : gpt_gpu_product(p->gpu, &of_input, err);
}

/* y := layer norm of sum := x + branch; @branch 0: of x. */
static int norm(const struct cuda_pass *p, const struct part *part, CUdeviceptr x,
                CUdeviceptr branch, const struct cst_io *io, CUdeviceptr sum, CUdeviceptr y,
                CUdeviceptr mean, CUdeviceptr rstd, struct cst_err *err)
{
    const size_t d = p->head.model->width;

    return gpt_cuda_norm(&p->gpu->kernels, part->rows, d, rows32(x, part, d),
                         branch != 0 ? rows16(branch, part, d) : 0, device(io[0].weight),
                         device(io[1].weight), rows32(sum, part, d), rows16(y, part, d),
                         rows32(mean, part, 1), rows32(rstd, part, 1), err);
}

/* The gradient of the residual stream, from a.dh; @first: it begins here. */
static int norm_backward(const struct cuda_pass *p, const struct part *part, CUdeviceptr x,
                         CUdeviceptr mean, CUdeviceptr rstd, const struct cst_io *io, bool first,
                         struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_cuda_norm_back back = {
        .rows = part->rows,
        .width = d,
        .dy = rows16(p->a.dh, part, d),
        .x = rows32(x, part, d),
        .w = device(io[0].weight),
        .mean = rows32(mean, part, 1),
        .rstd = rows32(rstd, part, 1),
        .first = first,
        .dx = rows32(p->a.dx, part, d),
        .operand = rows16(p->a.dxh, part, d),
        .parts = p->a.parts,
        .dw = grad(&io[0], part),
        .db = grad(&io[1], part),
    };

    return gpt_cuda_norm_backward(&p->gpu->kernels, &back, err);
}

static CUdeviceptr lse_of(const struct cuda_pass *p, const struct gpt_block_memory *b,
                          const struct part *part)
{
    return b->lse + part->row * p->head.model->heads * sizeof(float);
}

/* -- forward, one operator each -----------------------------------------------------------------
 */

static int embed_forward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                         const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;

    return gpt_cuda_embed(&p->gpu->kernels, part->rows, d, p->all.context, p->a.tokens + part->row,
                          device(io[0].weight), device(io[1].weight),
                          rows32(p->a.blocks[layer].x, part, d), err);
}

/* The block's input is made here, of what the block before left in mid and branch; not in the first
 * block, nor when its activations are computed again. */
static int qkv_forward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                       const struct cst_io *io, struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[layer];
    const size_t d = p->head.model->width;
    const bool made = layer == 0 || p->at_hand == layer;
    int rc = norm(p, part, made ? b->x : p->a.blocks[layer - 1].mid, made ? 0 : p->a.branch, io,
                  b->x, b->ln1, b->mean1, b->rstd1, err);

    if (rc == 0) {
        rc = linear(p, part, b->ln1, &io[2], &io[3], d, 3 * d, b->qkv, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_attention(&p->gpu->attention, p->gpu->stream, &part->shape,
                                rows16(b->qkv, part, 3 * d), rows16(b->att, part, d),
                                lse_of(p, b, part), err);
    }
    return rc;
}

static int proj_forward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                        const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;

    return linear(p, part, p->a.blocks[layer].att, &io[0], &io[1], d, d, p->a.branch, err);
}

static int fc_forward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                      const struct cst_io *io, struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[layer];
    const size_t d = p->head.model->width;
    const struct gpt_product product = {
        .m = part->rows,
        .n = 4 * d,
        .k = d,
        .a = rows16(b->ln2, part, d),
        .b = device(io[2].weight),
        .c = rows16(b->act, part, 4 * d),
        .epilogue = GPT_EPILOGUE_BIAS_GELU,
        .bias = device(io[3].weight),
        .pre = rows16(b->pre, part, 4 * d),
    };
    int rc = norm(p, part, b->x, p->a.branch, io, b->mid, b->ln2, b->mean2, b->rstd2, err);

    return rc != 0 ? rc : gpt_gpu_product(p->gpu, &product, err);
}

static int fcproj_forward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                          const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;

    return linear(p, part, p->a.blocks[layer].act, &io[0], &io[1], 4 * d, d, p->a.branch, err);
}

static int head_forward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                        const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_product product = {
        .m = part->rows,
        .n = GPT_VOCAB,
        .k = d,
        .a = rows16(p->a.lnf, part, d),
        .b = device(io[2].weight),
        .turn_b = true,
        .c = rows32(p->a.logits, part, GPT_VOCAB),
        .fp32 = true,
    };
    int rc = norm(p, part, p->a.blocks[p->head.model->layers - 1].mid, p->a.branch, io, p->a.x,
                  p->a.lnf, p->a.meanf, p->a.rstdf, err);

    (void)layer;
    return rc != 0 ? rc : gpt_gpu_product(p->gpu, &product, err);
}

/* -- backward -----------------------------------------------------------------------------------
 */

static int head_backward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                         const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_cuda_grad dw = grad(&io[2], part);
    const struct gpt_product of_weights = {
        .m = GPT_VOCAB,
        .n = d,
        .k = part->rows,
        .a = rows16(p->a.dlogits, part, GPT_VOCAB),
        .turn_a = true,
        .b = rows16(p->a.lnf, part, d),
        .c = dw.at,
        .accumulate = dw.accumulate,
    };
    const struct gpt_product of_input = {
        .m = part->rows,
        .n = d,
        .k = GPT_VOCAB,
        .a = rows16(p->a.dlogits, part, GPT_VOCAB),
        .b = device(io[2].weight),
        .c = rows16(p->a.dh, part, d),
    };
    int rc = gpt_gpu_product(p->gpu, &of_weights, err);

    (void)layer;
    if (rc == 0) {
        rc = gpt_gpu_product(p->gpu, &of_input, err);
    }
    return rc != 0 ? rc : norm_backward(p, part, p->a.x, p->a.meanf, p->a.rstdf, io, true, err);
}

/* a.wide: the gradient of pre. */
static int fcproj_backward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                           const struct cst_io *io, struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[layer];
    const size_t d = p->head.model->width;

    return linear_backward(p, part, b->act, p->a.dxh, &io[0], &io[1], 4 * d, d, b->pre, p->a.wide,
                           err);
}

static int fc_backward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                       const struct cst_io *io, struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[layer];
    const size_t d = p->head.model->width;
    int rc = linear_backward(p, part, b->ln2, p->a.wide, &io[2], &io[3], d, 4 * d, 0, p->a.dh, err);

    return rc != 0 ? rc : norm_backward(p, part, b->mid, b->mean2, b->rstd2, io, false, err);
}

/* a.dh: the gradient of att. */
static int proj_backward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                         const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;

    return linear_backward(p, part, p->a.blocks[layer].att, p->a.dxh, &io[0], &io[1], d, d, 0,
                           p->a.dh, err);
}

/* a.wide: the gradient of qkv. */
static int qkv_backward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                        const struct cst_io *io, struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[layer];
    const size_t d = p->head.model->width;
    int rc = gpt_cuda_attention_backward(&p->gpu->attention, p->gpu->stream, &part->shape,
                                         rows16(b->qkv, part, 3 * d), rows16(b->att, part, d),
                                         lse_of(p, b, part), rows16(p->a.dh, part, d),
                                         rows16(p->a.wide, part, 3 * d), p->a.scratch, err);

    if (rc == 0) {
        rc = linear_backward(p, part, b->ln1, p->a.wide, &io[2], &io[3], d, 3 * d, 0, p->a.dh, err);
    }
    return rc != 0 ? rc : norm_backward(p, part, b->x, b->mean1, b->rstd1, io, false, err);
}

/* Of all parts at once. */
static int embed_backward(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                          const struct cst_io *io, struct cst_err *err)
{
    const size_t rows = p->n_seqs * p->all.context;

    (void)layer;
    return !part->first ? 0
                        : gpt_cuda_embed_backward(&p->gpu->kernels, rows, p->head.model->width,
                                                  p->all.context, p->a.tokens, p->a.dx,
                                                  grad(&io[0], part), grad(&io[1], part), err);
}

/* -- all operators ------------------------------------------------------------------------------
 */

typedef int (*operator_fn)(const struct cuda_pass *p, uint32_t layer, const struct part *part,
                           const struct cst_io *io, struct cst_err *err);

static const struct {
    operator_fn forward, backward;
} operators[] = {
    [GPT_OP_EMBED] = {embed_forward, embed_backward},
    [GPT_OP_QKV] = {qkv_forward, qkv_backward},
    [GPT_OP_PROJ] = {proj_forward, proj_backward},
    [GPT_OP_FC] = {fc_forward, fc_backward},
    [GPT_OP_FCPROJ] = {fcproj_forward, fcproj_backward},
    [GPT_OP_HEAD] = {head_forward, head_backward},
};

/* Operator @number with all its parts, one after the other. */
static int run_operator(struct cuda_pass *p, struct gpt_store *store, uint32_t number,
                        enum cst_direction direction, struct cst_err *err)
{
    const struct gpt_operator *op = &p->head.model->operators[number];
    const operator_fn fn =
        direction == CST_FORWARD ? operators[op->kind].forward : operators[op->kind].backward;
    struct cst_io io[GPT_MAX_OP_TENSORS];
    int rc = store->ops->op_begin(store, number, direction, io, op->n_tensors, err);

    for (size_t seq = 0; rc == 0 && seq < p->n_seqs; seq += p->part_seqs) {
        const size_t left = p->n_seqs - seq;
        struct part part = {.row = seq * p->all.context, .shape = p->all, .first = seq == 0};

        part.shape.n_seqs = left < p->part_seqs ? left : p->part_seqs;
        part.rows = part.shape.n_seqs * p->all.context;
        rc = fn(p, op->layer, &part, io, err);
    }
    return rc != 0 ? rc : store->ops->op_end(store, number, err);
}

static int begin_pass(struct cuda_pass *p, size_t n_seqs, bool train, struct cst_err *err)
{
    const struct gpt_model *m = p->head.model;
    const size_t rows = n_seqs * m->context;
    int rc = gpt_gpu_upload(p->gpu, p->a.tokens, p->head.tokens, rows, err);

    p->n_seqs = n_seqs;
    p->all = (struct gpt_attention_shape){
        .n_seqs = n_seqs,
        .context = m->context,
        .n_heads = m->heads,
        .head_dim = m->width / m->heads,
    };
    p->at_hand = UINT32_MAX;
    if (rc == 0 && train) {
        rc = gpt_gpu_upload(p->gpu, p->a.targets, p->head.targets, rows, err);
    }
    return rc;
}

/* Losses and dlogits of all rows; the losses are on their way to the host. */
static int enqueue_loss(struct cuda_pass *p, struct cst_err *err)
{
    const struct gpt_gpu *gpu = p->gpu;
    const size_t rows = p->n_seqs * p->all.context;
    int rc = gpt_cuda_loss(&gpu->kernels, rows, p->a.logits, p->a.targets, 1.0f / (float)rows,
                           p->a.losses, p->a.dlogits, err);

    if (rc == 0) {
        rc = gpt_gpu_download(gpu, p->losses, p->a.losses, rows * sizeof(float), err);
    }
    if (rc == 0) {
        rc = cst_cuda_check(&gpu->driver, gpu->driver.cuEventRecord(p->known, gpu->stream), err,
                            "the loss's event");
    }
    return rc;
}

static int cuda_forward(struct gpt_pass *pass, struct gpt_store *store, size_t n_seqs, bool train,
                        struct cst_err *err)
{
    struct cuda_pass *p = self(pass);
    int rc = begin_pass(p, n_seqs, train, err);

    for (uint32_t i = 0; rc == 0 && i < pass->model->n_operators; i++) {
        rc = run_operator(p, store, i, CST_FORWARD, err);
    }
    return rc == 0 && train ? enqueue_loss(p, err) : rc;
}

/* Make the activations of the block whose last operator is @number again, of its input: its three
 * operators before that one once more. */
static int recompute(struct cuda_pass *p, struct gpt_store *store, uint32_t number,
                     struct cst_err *err)
{
    int rc = 0;

    p->at_hand = p->head.model->operators[number].layer;
    for (uint32_t i = number - 3; rc == 0 && i < number; i++) {
        rc = run_operator(p, store, i, CST_FORWARD, err);
    }
    return rc;
}

static int cuda_backward(struct gpt_pass *pass, struct gpt_store *store, struct cst_err *err)
{
    struct cuda_pass *p = self(pass);
    const struct gpt_model *m = pass->model;
    int rc = 0;

    for (uint32_t i = m->n_operators; rc == 0 && i-- > 0;) {
        const struct gpt_operator *op = &m->operators[i];

        /* The last block's are still there. */
        if (p->recompute && op->kind == GPT_OP_FCPROJ && op->layer + 1 < m->layers) {
            rc = recompute(p, store, i, err);
        }
        if (rc == 0) {
            rc = run_operator(p, store, i, CST_BACKWARD, err);
        }
    }
    return rc;
}

static int cuda_loss(struct gpt_pass *pass, double *out, struct cst_err *err)
{
    const struct cuda_pass *p = self(pass);
    const size_t rows = p->n_seqs * p->all.context;
    double sum = 0.0;
    int rc = cst_cuda_check(&p->gpu->driver, p->gpu->driver.cuEventSynchronize(p->known), err,
                            "the forward pass");

    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; i < rows; i++) {
        sum += (double)p->losses[i];
    }
    *out = sum / (double)rows;
    return 0;
}

static int cuda_logits(struct gpt_pass *pass, size_t row, float out[GPT_VOCAB], struct cst_err *err)
{
    const struct cuda_pass *p = self(pass);
    const size_t bytes = GPT_VOCAB * sizeof(float);
    int rc = gpt_gpu_download(p->gpu, p->logits, p->a.logits + row * bytes, bytes, err);

    if (rc == 0) {
        rc = gpt_gpu_wait(p->gpu, err);
    }
    if (rc == 0) {
        memcpy(out, p->logits, bytes);
    }
    return rc;
}

/* -- opening ------------------------------------------------------------------------------------
 */

static void cuda_close(struct gpt_pass *pass)
{
    struct cuda_pass *p = self(pass);

    (void)gpt_gpu_wait(p->gpu, NULL);
    if (p->known != NULL) {
        (void)p->gpu->driver.cuEventDestroy(p->known);
    }
    gpt_activations_close(&p->a, p->gpu);
    gpt_gpu_free_host(p->gpu, p->losses);
    gpt_gpu_free_host(p->gpu, p->logits);
    gpt_gpu_free_host(p->gpu, p->head.tokens);
    gpt_gpu_free_host(p->gpu, p->head.targets);
    free(p);
}

static const struct gpt_pass_ops cuda_ops = {
    .name = "cuda",
    .forward = cuda_forward,
    .backward = cuda_backward,
    .loss = cuda_loss,
    .logits = cuda_logits,
    .close = cuda_close,
};

static int alloc_pinned(struct cuda_pass *p, size_t rows, struct cst_err *err)
{
    const struct {
        void **at;
        size_t bytes;
    } arrays[] = {
        {(void **)&p->losses, rows * sizeof(float)},
        {(void **)&p->logits, GPT_VOCAB * sizeof(float)},
        {(void **)&p->head.tokens, rows},
        {(void **)&p->head.targets, rows},
    };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof arrays / sizeof arrays[0]; i++) {
        rc = gpt_gpu_alloc_host(p->gpu, arrays[i].bytes, arrays[i].at, err);
    }
    return rc;
}

int gpt_cuda_pass_open(struct gpt_pass **out, const struct gpt_gpu *gpu,
                       const struct gpt_options *options, const struct gpt_model *model,
                       size_t max_seqs, struct cst_err *err)
{
    const size_t rows = max_seqs * model->context;
    struct cuda_pass *p;
    int rc;

    if (model->width > GPT_CUDA_MAX_WIDTH) {
        return cst_err_set(err, CST_EUNSUPPORTED, "--width %u: at most %d on a GPU", model->width,
                           GPT_CUDA_MAX_WIDTH);
    }
    p = calloc(1, sizeof *p);
    if (p == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    p->head = (struct gpt_pass){.ops = &cuda_ops, .model = model, .max_seqs = max_seqs};
    p->gpu = gpu;
    p->recompute = options->recompute;
    p->part_seqs = max_seqs / options->micro_batches;
    rc = gpt_gpu_enter(gpu, err);
    if (rc == 0) {
        rc = gpt_activations_open(&p->a, gpu, model, max_seqs, p->part_seqs, p->recompute, err);
    }
    if (rc == 0) {
        rc = alloc_pinned(p, rows, err);
    }
    if (rc == 0) {
        rc = cst_cuda_check(
            &gpu->driver,
            gpu->driver.cuEventCreate(&p->known, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
            err, "an event");
    }
    if (rc != 0) {
        cuda_close(&p->head);
        return rc;
    }
    *out = &p->head;
    return 0;
}
