/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/stash.h"

#include "client/gpt/store.h"
#include "proto/size.h"

int gpt_stash_plan_fit(uint32_t layers, uint64_t block_bytes, uint64_t rest_bytes, uint64_t limit,
                       struct gpt_stash_plan *out, struct cst_err *err)
{
    const uint32_t least = layers < 2 ? layers : 2;
    uint64_t most = layers;
    char asked[CST_SIZE_EXACT], needed[CST_SIZE_EXACT];

    if (limit > 0) {
        most = limit > rest_bytes ? (limit - rest_bytes) / block_bytes : 0;
        most = most < layers ? most : layers;
    }
    if (most < least) {
        return cst_err_set(
            err, CST_EINVAL, "--activation-memory: %s; the activations of a pass take at least %s",
            cst_size_exact(limit, asked), cst_size_exact(rest_bytes + least * block_bytes, needed));
    }
    *out = (struct gpt_stash_plan){.n_buffers = (uint32_t)most,
                                   .n_stashed = layers - (uint32_t)most,
                                   .block_bytes = block_bytes,
                                   .held_bytes = rest_bytes + most * block_bytes};
    return 0;
}

static bool is_used(const struct gpt_stash *stash, const struct gpt_store *store)
{
    return stash->plan.n_stashed > 0 && store->ops->put_start != NULL;
}

static void *buffer_of(const struct gpt_stash *stash, uint32_t layer)
{
    return stash->buffers + layer % stash->plan.n_buffers * stash->plan.block_bytes;
}

int gpt_stash_before(const struct gpt_stash *stash, struct gpt_store *store,
                     const struct gpt_operator *op, enum cst_direction direction,
                     struct cst_err *err)
{
    const uint32_t next = op->layer + 1, held = stash->plan.n_buffers;

    if (!is_used(stash, store) || op->kind != GPT_OP_FCPROJ) {
        return 0;
    }
    if (direction == CST_BACKWARD) { /* The block's first operator. */
        return op->layer < stash->plan.n_stashed ? store->ops->stash_wait(store, op->layer, err)
                                                 : 0;
    }
    /* The operator writes the input of the next block to the next buffer. */
    return next >= held && next < stash->layers ? store->ops->stash_wait(store, next - held, err)
                                                : 0;
}

int gpt_stash_after(const struct gpt_stash *stash, struct gpt_store *store,
                    const struct gpt_operator *op, enum cst_direction direction,
                    struct cst_err *err)
{
    const uint32_t held = stash->plan.n_buffers;

    if (!is_used(stash, store)) {
        return 0;
    }
    if (direction == CST_FORWARD && op->kind == GPT_OP_FCPROJ &&
        op->layer < stash->plan.n_stashed) {
        return store->ops->put_start(store, op->layer, buffer_of(stash, op->layer),
                                     stash->plan.block_bytes, err);
    }
    /* The block's last operator: its buffer is free. */
    if (direction == CST_BACKWARD && op->kind == GPT_OP_QKV && op->layer >= held) {
        return store->ops->take_start(store, op->layer - held, buffer_of(stash, op->layer),
                                      stash->plan.block_bytes, err);
    }
    return 0;
}

void gpt_stash_end(const struct gpt_stash *stash, struct gpt_store *store)
{
    struct cst_err ignored; /* The pass has failed for another reason, or no copy was started. */

    for (uint32_t i = 0; is_used(stash, store) && i < stash->plan.n_stashed; i++) {
        (void)store->ops->stash_wait(store, i, &ignored);
    }
}
