/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/host_stash.h"

#include "client/gpt/pass_host.h"

static bool is_used(const struct gpt_pass_host *p, const struct gpt_store *store)
{
    return p->plan.n_stashed > 0 && store->ops->put_start != NULL;
}

int gpt_host_stash_before(struct gpt_pass_host *p, struct gpt_store *store,
                          const struct gpt_operator *op, enum cst_direction direction,
                          struct cst_err *err)
{
    const uint32_t next = op->layer + 1, held = p->plan.n_buffers;

    if (!is_used(p, store) || op->kind != GPT_OP_FCPROJ) {
        return 0;
    }
    if (direction == CST_BACKWARD) { /* The block's first operator. */
        return op->layer < p->plan.n_stashed ? store->ops->stash_wait(store, op->layer, err) : 0;
    }
    /* The operator writes the input of the next block to the next buffer. */
    return next >= held && next < p->head.model->layers
               ? store->ops->stash_wait(store, next - held, err)
               : 0;
}

int gpt_host_stash_after(struct gpt_pass_host *p, struct gpt_store *store,
                         const struct gpt_operator *op, enum cst_direction direction,
                         struct cst_err *err)
{
    const uint32_t held = p->plan.n_buffers;

    if (!is_used(p, store)) {
        return 0;
    }
    if (direction == CST_FORWARD && op->kind == GPT_OP_FCPROJ && op->layer < p->plan.n_stashed) {
        return store->ops->put_start(store, op->layer, p->blocks[op->layer].x, p->plan.block_bytes,
                                     err);
    }
    /* The block's last operator: its buffer is free. */
    if (direction == CST_BACKWARD && op->kind == GPT_OP_QKV && op->layer >= held) {
        return store->ops->take_start(store, op->layer - held, p->blocks[op->layer - held].x,
                                      p->plan.block_bytes, err);
    }
    return 0;
}

void gpt_host_stash_end(struct gpt_pass_host *p, struct gpt_store *store)
{
    struct cst_err ignored; /* The pass has failed for another reason, or no copy was started. */

    for (uint32_t i = 0; is_used(p, store) && i < p->plan.n_stashed; i++) {
        (void)store->ops->stash_wait(store, i, &ignored);
    }
}
