#include "client/gpt/pass_host.h"

#include "client/gpt/memory.h"
#include "client/gpt/parallel.h"

#include <stdlib.h>
#include <string.h>

static struct gpt_pass_host *self(struct gpt_pass *pass)
{
    return (struct gpt_pass_host *)(void *)pass;
}

/* -- memory --------------------------------------------------------------------------------- */

struct carver {
    char *base;   /* NULL: only count */
    size_t bytes; /* handed out */
};

static void *carve(struct carver *c, size_t bytes)
{
    const size_t at = c->bytes;

    c->bytes += (bytes + 127) & ~(size_t)127;
    return c->base == NULL ? NULL : c->base + at;
}

static uint64_t largest_tensor(const struct gpt_model *model)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        most = model->tensors[i].n_elems > most ? model->tensors[i].n_elems : most;
    }
    return most;
}

static void carve_block(struct gpt_block *b, struct carver *c, size_t rows, size_t width,
                        size_t heads, size_t operand)
{
    b->x = carve(c, rows * width * sizeof(float));
    b->ln1 = carve(c, rows * width * operand);
    b->mean1 = carve(c, rows * sizeof(float));
    b->rstd1 = carve(c, rows * sizeof(float));
    b->qkv = carve(c, rows * 3 * width * sizeof(float));
    b->att = carve(c, rows * width * operand);
    b->lse = carve(c, rows * heads * sizeof(float));
    b->mid = carve(c, rows * width * sizeof(float));
    b->ln2 = carve(c, rows * width * operand);
    b->mean2 = carve(c, rows * sizeof(float));
    b->rstd2 = carve(c, rows * sizeof(float));
    b->pre = carve(c, rows * 4 * width * sizeof(float));
    b->act = carve(c, rows * 4 * width * operand);
}

static void carve_all(struct gpt_pass_host *p, struct carver *c)
{
    const struct gpt_model *m = p->head.model;
    const size_t rows = p->head.max_seqs * m->context, width = m->width;
    const size_t operand = p->bf16 ? sizeof(uint16_t) : sizeof(float);
    const size_t largest = largest_tensor(m);

    for (uint32_t i = 0; i < m->layers; i++) {
        carve_block(&p->blocks[i], c, rows, width, m->heads, operand);
    }
    p->x = carve(c, rows * width * sizeof(float));
    p->lnf = carve(c, rows * width * operand);
    p->meanf = carve(c, rows * sizeof(float));
    p->rstdf = carve(c, rows * sizeof(float));
    p->logits = carve(c, rows * GPT_VOCAB * sizeof(float));
    p->dlogits = carve(c, rows * GPT_VOCAB * operand);
    p->losses = carve(c, rows * sizeof(float));
    p->dx = carve(c, rows * width * sizeof(float));
    p->wide = carve(c, rows * 4 * width * sizeof(float));
    p->dy = carve(c, rows * 4 * width * operand);
    p->weight = carve(c, p->bf16 ? 0 : largest * sizeof(float));
    p->grad = carve(c, 2 * largest * sizeof(float));
    p->head.tokens = carve(c, rows);
    p->head.targets = carve(c, rows);
}

static void set_shape(struct gpt_pass_host *p, size_t n_seqs)
{
    p->shape = (struct gpt_attention_shape){
        .n_seqs = n_seqs,
        .context = p->head.model->context,
        .n_heads = p->head.model->heads,
        .head_dim = p->head.model->width / p->head.model->heads,
    };
    p->rows = n_seqs * p->head.model->context;
}

static void host_close(struct gpt_pass *pass)
{
    struct gpt_pass_host *p = self(pass);

    gpt_matmul_close(p->mm);
    gpt_layers_close(&p->layers);
    gpt_memory_put(p->memory);
    free(p->blocks);
    free(p);
}

/* -- helpers -------------------------------------------------------------------------------- */

/* A weight matrix as an operand. */
static const void *weight_operand(struct gpt_pass_host *p, const struct cst_io *io)
{
    if (p->bf16) {
        return io->weight;
    }
    gpt_upcast(&p->layers, io->n_elems, io->weight, p->weight);
    return p->weight;
}

/* y (M x n) = x (M x k) w (k x n) */
static int linear(struct gpt_pass_host *p, const void *x, const struct cst_io *w, size_t k,
                  size_t n, float *y, struct cst_err *err)
{
    return gpt_matmul(p->mm, p->rows, n, k, x, false, weight_operand(p, w), false, y, err);
}

/* dw = x^T dy, into the store; db = @sums, likewise; dx (M x k) = dy w^T. */
static int linear_backward(struct gpt_pass_host *p, const void *x, const void *dy,
                           const struct cst_io *w, const struct cst_io *b, const float *sums,
                           size_t k, size_t n, float *dx, struct cst_err *err)
{
    int rc = gpt_matmul(p->mm, k, n, p->rows, x, true, dy, false, p->grad, err);

    if (rc != 0) {
        return rc;
    }
    gpt_put(&p->layers, k * n, p->grad, w->grad, w->accumulate);
    gpt_put(&p->layers, n, sums, b->grad, b->accumulate);
    return gpt_matmul(p->mm, p->rows, k, n, dy, false, weight_operand(p, w), true, dx, err);
}

/* Layer norm's way back: p->dx += gradient; the norm's own gradients into the store. */
static void norm_backward(struct gpt_pass_host *p, const float *dy, const float *x,
                          const float *mean, const float *rstd, const struct cst_io *w,
                          const struct cst_io *b)
{
    const size_t width = p->head.model->width;
    float *dw = p->grad, *db = p->grad + width;

    gpt_layernorm_backward(&p->layers, p->rows, width, dy, x, w->weight, mean, rstd, p->dx, dw, db);
    gpt_put(&p->layers, width, dw, w->grad, w->accumulate);
    gpt_put(&p->layers, width, db, b->grad, b->accumulate);
}

static float *block_out(const struct gpt_pass_host *p, uint32_t layer)
{
    return layer + 1 < p->head.model->layers ? p->blocks[layer + 1].x : p->x;
}

/* -- forward, one operator each -------------------------------------------------------------- */

static int embed_forward(struct gpt_pass_host *p, const struct cst_io *io)
{
    gpt_embed(&p->layers, p->rows, p->head.model->width, p->head.model->context, p->head.tokens,
              io[0].weight, io[1].weight, p->blocks[0].x);
    return 0;
}

static int qkv_forward(struct gpt_pass_host *p, struct gpt_block *b, const struct cst_io *io,
                       struct cst_err *err)
{
    const size_t d = p->head.model->width;
    int rc;

    gpt_layernorm(&p->layers, p->rows, d, b->x, io[0].weight, io[1].weight, b->ln1, b->mean1,
                  b->rstd1);
    rc = linear(p, b->ln1, &io[2], d, 3 * d, b->qkv, err);
    if (rc == 0) {
        gpt_bias(&p->layers, p->rows, 3 * d, b->qkv, io[3].weight);
        gpt_attention(&p->layers, &p->shape, b->qkv, b->att, b->lse);
    }
    return rc;
}

static int proj_forward(struct gpt_pass_host *p, struct gpt_block *b, const struct cst_io *io,
                        struct cst_err *err)
{
    const size_t d = p->head.model->width;
    int rc = linear(p, b->att, &io[0], d, d, p->wide, err);

    if (rc == 0) {
        gpt_residual(&p->layers, p->rows, d, b->x, p->wide, io[1].weight, b->mid);
    }
    return rc;
}

static int fc_forward(struct gpt_pass_host *p, struct gpt_block *b, const struct cst_io *io,
                      struct cst_err *err)
{
    const size_t d = p->head.model->width;
    int rc;

    gpt_layernorm(&p->layers, p->rows, d, b->mid, io[0].weight, io[1].weight, b->ln2, b->mean2,
                  b->rstd2);
    rc = linear(p, b->ln2, &io[2], d, 4 * d, b->pre, err);
    if (rc == 0) {
        gpt_gelu(&p->layers, p->rows, 4 * d, b->pre, io[3].weight, b->act);
    }
    return rc;
}

static int fcproj_forward(struct gpt_pass_host *p, uint32_t layer, const struct cst_io *io,
                          struct cst_err *err)
{
    const struct gpt_block *b = &p->blocks[layer];
    const size_t d = p->head.model->width;
    int rc = linear(p, b->act, &io[0], 4 * d, d, p->wide, err);

    if (rc == 0) {
        gpt_residual(&p->layers, p->rows, d, b->mid, p->wide, io[1].weight, block_out(p, layer));
    }
    return rc;
}

/* logits = lnf(x) wte^T */
static int head_forward(struct gpt_pass_host *p, const struct cst_io *io, bool train,
                        struct cst_err *err)
{
    const size_t d = p->head.model->width;
    int rc;

    gpt_layernorm(&p->layers, p->rows, d, p->x, io[0].weight, io[1].weight, p->lnf, p->meanf,
                  p->rstdf);
    rc = gpt_matmul(p->mm, p->rows, GPT_VOCAB, d, p->lnf, false, weight_operand(p, &io[2]), true,
                    p->logits, err);
    if (rc == 0 && train) {
        p->loss = gpt_cross_entropy(&p->layers, p->rows, GPT_VOCAB, p->logits, p->head.targets,
                                    p->losses, p->dlogits);
    }
    return rc;
}

static int host_forward(struct gpt_pass *pass, struct gpt_store *store, size_t n_seqs, bool train,
                        struct cst_err *err)
{
    struct gpt_pass_host *p = self(pass);
    struct cst_io io[GPT_MAX_OP_TENSORS];
    int rc = 0;

    set_shape(p, n_seqs);
    for (uint32_t i = 0; rc == 0 && i < p->head.model->n_operators; i++) {
        const struct gpt_operator *op = &p->head.model->operators[i];
        struct gpt_block *b = &p->blocks[op->layer];

        rc = store->ops->op_begin(store, i, CST_FORWARD, io, op->n_tensors, err);
        if (rc != 0) {
            break;
        }
        switch (op->kind) {
        case GPT_OP_EMBED:
            rc = embed_forward(p, io);
            break;
        case GPT_OP_QKV:
            rc = qkv_forward(p, b, io, err);
            break;
        case GPT_OP_PROJ:
            rc = proj_forward(p, b, io, err);
            break;
        case GPT_OP_FC:
            rc = fc_forward(p, b, io, err);
            break;
        case GPT_OP_FCPROJ:
            rc = fcproj_forward(p, op->layer, io, err);
            break;
        case GPT_OP_HEAD:
            rc = head_forward(p, io, train, err);
            break;
        }
        if (rc == 0) {
            rc = store->ops->op_end(store, i, err);
        }
    }
    return rc;
}

/* -- backward ------------------------------------------------------------------------------- */

static int head_backward(struct gpt_pass_host *p, const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    int rc =
        gpt_matmul(p->mm, GPT_VOCAB, d, p->rows, p->dlogits, true, p->lnf, false, p->grad, err);

    if (rc != 0) {
        return rc;
    }
    gpt_put(&p->layers, GPT_VOCAB * d, p->grad, io[2].grad, io[2].accumulate);
    rc = gpt_matmul(p->mm, p->rows, d, GPT_VOCAB, p->dlogits, false, weight_operand(p, &io[2]),
                    false, p->wide, err);
    if (rc == 0) {
        memset(p->dx, 0, p->rows * d * sizeof *p->dx);
        norm_backward(p, p->wide, p->x, p->meanf, p->rstdf, &io[0], &io[1]);
    }
    return rc;
}

static int fcproj_backward(struct gpt_pass_host *p, const struct gpt_block *b,
                           const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    float *sums = p->grad + 4 * d * d;

    gpt_operand(&p->layers, p->rows, d, p->dx, p->dy, sums);
    return linear_backward(p, b->act, p->dy, &io[0], &io[1], sums, 4 * d, d, p->wide, err);
}

/* p->wide: gradient of act, and then of ln2. */
static int fc_backward(struct gpt_pass_host *p, const struct gpt_block *b, const struct cst_io *io,
                       struct cst_err *err)
{
    const size_t d = p->head.model->width;
    float *sums = p->grad + 4 * d * d;
    int rc;

    gpt_gelu_backward(&p->layers, p->rows, 4 * d, b->pre, p->wide, p->dy, sums);
    rc = linear_backward(p, b->ln2, p->dy, &io[2], &io[3], sums, d, 4 * d, p->wide, err);
    if (rc == 0) {
        norm_backward(p, p->wide, b->mid, b->mean2, b->rstd2, &io[0], &io[1]);
    }
    return rc;
}

static int proj_backward(struct gpt_pass_host *p, const struct gpt_block *b,
                         const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    float *sums = p->grad + 4 * d * d;

    gpt_operand(&p->layers, p->rows, d, p->dx, p->dy, sums);
    return linear_backward(p, b->att, p->dy, &io[0], &io[1], sums, d, d, p->wide, err);
}

/* p->wide: gradient of att in its first M x d, of qkv in the M x 3d behind. */
static int qkv_backward(struct gpt_pass_host *p, const struct gpt_block *b, const struct cst_io *io,
                        struct cst_err *err)
{
    const size_t d = p->head.model->width;
    float *sums = p->grad + 4 * d * d, *dqkv = p->wide + p->rows * d;
    int rc;

    gpt_attention_backward(&p->layers, &p->shape, b->qkv, b->att, b->lse, p->wide, dqkv);
    gpt_operand(&p->layers, p->rows, 3 * d, dqkv, p->dy, sums);
    rc = linear_backward(p, b->ln1, p->dy, &io[2], &io[3], sums, d, 3 * d, p->wide, err);
    if (rc == 0) {
        norm_backward(p, p->wide, b->x, b->mean1, b->rstd1, &io[0], &io[1]);
    }
    return rc;
}

static int embed_backward(struct gpt_pass_host *p, const struct cst_io *io)
{
    const size_t d = p->head.model->width;
    float *dwte = p->grad, *dwpe = p->grad + GPT_VOCAB * d;

    gpt_embed_backward(&p->layers, p->rows, d, p->head.model->context, GPT_VOCAB, p->head.tokens,
                       p->dx, dwte, dwpe);
    gpt_put(&p->layers, io[0].n_elems, dwte, io[0].grad, io[0].accumulate);
    gpt_put(&p->layers, io[1].n_elems, dwpe, io[1].grad, io[1].accumulate);
    return 0;
}

static int host_backward(struct gpt_pass *pass, struct gpt_store *store, struct cst_err *err)
{
    struct gpt_pass_host *p = self(pass);
    struct cst_io io[GPT_MAX_OP_TENSORS];
    int rc = 0;

    for (uint32_t i = p->head.model->n_operators; rc == 0 && i-- > 0;) {
        const struct gpt_operator *op = &p->head.model->operators[i];
        const struct gpt_block *b = &p->blocks[op->layer];

        rc = store->ops->op_begin(store, i, CST_BACKWARD, io, op->n_tensors, err);
        if (rc != 0) {
            break;
        }
        switch (op->kind) {
        case GPT_OP_EMBED:
            rc = embed_backward(p, io);
            break;
        case GPT_OP_QKV:
            rc = qkv_backward(p, b, io, err);
            break;
        case GPT_OP_PROJ:
            rc = proj_backward(p, b, io, err);
            break;
        case GPT_OP_FC:
            rc = fc_backward(p, b, io, err);
            break;
        case GPT_OP_FCPROJ:
            rc = fcproj_backward(p, b, io, err);
            break;
        case GPT_OP_HEAD:
            rc = head_backward(p, io, err);
            break;
        }
        if (rc == 0) {
            rc = store->ops->op_end(store, i, err);
        }
    }
    return rc;
}

/* -- the row -------------------------------------------------------------------------------- */

static int host_loss(struct gpt_pass *pass, double *out, struct cst_err *err)
{
    (void)err;
    *out = self(pass)->loss;
    return 0;
}

static int host_logits(struct gpt_pass *pass, size_t row, float out[GPT_VOCAB], struct cst_err *err)
{
    (void)err;
    memcpy(out, self(pass)->logits + row * GPT_VOCAB, GPT_VOCAB * sizeof *out);
    return 0;
}

static const struct gpt_pass_ops host_ops = {
    .name = "host",
    .forward = host_forward,
    .backward = host_backward,
    .loss = host_loss,
    .logits = host_logits,
    .close = host_close,
};

int gpt_pass_host_open(struct gpt_pass **out, const struct gpt_model *model, size_t max_seqs,
                       bool bf16, unsigned n_threads, struct cst_err *err)
{
    const size_t widest = 4 * (size_t)model->width;
    struct gpt_pass_host *p = calloc(1, sizeof *p);
    struct carver c = {0};
    int rc;

    if (p == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    p->head = (struct gpt_pass){.ops = &host_ops, .model = model, .max_seqs = max_seqs};
    p->bf16 = bf16;
    set_shape(p, max_seqs);
    p->blocks = calloc(model->layers, sizeof *p->blocks);
    if (p->blocks == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "out of memory");
        goto err_close;
    }
    carve_all(p, &c);
    c.base = p->memory = gpt_memory_get(c.bytes);
    if (p->memory == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "out of memory: %zu bytes of activations", c.bytes);
        goto err_close;
    }
    c.bytes = 0;
    carve_all(p, &c);
    rc = gpt_layers_init(&p->layers, gpt_simd_get(NULL), bf16, n_threads,
                         widest > GPT_VOCAB ? widest : GPT_VOCAB, &p->shape);
    if (rc != 0) {
        rc = cst_err_set(err, rc, "out of memory: scratch of %u threads", n_threads);
        goto err_close;
    }
    gpt_parallel_limit(n_threads);
    rc = gpt_matmul_open(&p->mm, bf16, err);
    if (rc != 0) {
        goto err_close;
    }
    *out = &p->head;
    return 0;
err_close:
    host_close(&p->head);
    return rc;
}
