/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/store.h"

#include <stdlib.h>

struct view {
    struct gpt_store head;
    const struct gpt_gpu *gpu; /* borrowed */
    struct gpt_store *read;    /* store that reads an operator's weights into host memory */
    CUdeviceptr weights;       /* the operator's weights on the GPU */
};

static struct view *self(struct gpt_store *store)
{
    return (struct view *)(void *)store;
}

/* Copy an operator's weights to the GPU. The function waits, because the next operator uses the
 * same host buffer. */
static int view_op_begin(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                         struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    struct view *v = self(store);
    int rc = v->read->ops->op_begin(v->read, op, direction, io, n_io, err);
    const char *base = rc == 0 ? io[0].weight : NULL;

    for (uint32_t k = 0; k < n_io && rc == 0; k++) {
        const CUdeviceptr to = v->weights + (size_t)((const char *)io[k].weight - base);

        rc = gpt_gpu_upload(v->gpu, to, io[k].weight, io[k].n_elems * sizeof(uint16_t), err);
        io[k].weight = (void *)(uintptr_t)to;
    }
    return rc == 0 ? gpt_gpu_wait(v->gpu, err) : rc;
}

static int view_op_end(struct gpt_store *store, uint32_t op, struct cst_err *err)
{
    return self(store)->read->ops->op_end(self(store)->read, op, err);
}

static void view_close(struct gpt_store *store, bool good)
{
    struct view *v = self(store);

    (void)gpt_gpu_wait(v->gpu, NULL);
    v->read->ops->close(v->read, good);
    gpt_gpu_free(v->gpu, v->weights);
    free(v);
}

static const struct gpt_store_ops view_ops = {
    .name = "view",
    .op_begin = view_op_begin,
    .op_end = view_op_end,
    .close = view_close,
};

int gpt_cuda_view_open(struct gpt_store **out, const struct gpt_gpu *gpu, struct gpt_store *from,
                       const struct gpt_model *model, struct cst_err *err)
{
    struct view *v = calloc(1, sizeof *v);
    int rc;

    if (v == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    v->head.ops = &view_ops;
    v->gpu = gpu;
    rc = gpt_store_read_open(&v->read, from, model, err);
    if (rc != 0) {
        goto err_free;
    }
    rc = gpt_gpu_alloc(gpu, gpt_store_read_bytes(model), "the weights of an operator", &v->weights,
                       err);
    if (rc != 0) {
        goto err_after_read;
    }
    *out = &v->head;
    return 0;
err_after_read:
    v->read->ops->close(v->read, false);
err_free:
    free(v);
    return rc;
}
