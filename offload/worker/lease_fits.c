/* SPDX-License-Identifier: Apache-2.0 */
/* cst_lease_fits: whether gradients can be handed in that are not the next ones in the declared
 * order. It plays the backward passes that have not ended. */
#include "offload/worker/lease.h"

/* A play: how many gradients are open in it, per size class. What it knows of each chunk is in the
 * chunk's fields play_left and play_open. */
struct play {
    struct cst_leases *leases;
    uint32_t n_open[CST_LEASE_MAX_CLASSES];
};

void cst_lease_count_most(struct cst_leases *leases)
{
    const struct cst_lease_model *model = &leases->model;
    uint32_t n_trained[CST_LEASE_MAX_CLASSES] = {0};

    for (uint32_t c = 0; c < model->n_chunks; c++) {
        n_trained[model->traits[c].size_class] += model->traits[c].trains;
    }
    for (uint32_t i = 0; i < leases->n_way; i++) {
        uint32_t n, in_class[CST_LEASE_MAX_CLASSES] = {0};
        const uint32_t *chunks = cst_lease_op_chunks(leases, leases->way[i], &n);

        for (uint32_t k = 0; k < n; k++) {
            uint32_t class = model->traits[chunks[k]].size_class;

            if (++in_class[class] > leases->most_weights[class]) {
                leases->most_weights[class] = in_class[class];
            }
        }
    }
    leases->always_fits = true;
    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        if (n_trained[class] + leases->most_weights[class] > model->blocks[class]) {
            leases->always_fits = false;
        }
    }
}

static struct play begin_play(struct cst_leases *leases)
{
    struct play play = {.leases = leases};

    for (uint32_t c = 0; c < leases->model.n_chunks; c++) {
        struct cst_lease_chunk *chunk = &leases->chunks[c];

        chunk->play_left = chunk->uses_left;
        chunk->play_open = chunk->grad.state != CST_LEASE_FREE;
    }
    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        play.n_open[class] = leases->n_open_in[class];
    }
    return play;
}

/* Play the backward pass of @op. Return whether the pool has blocks for it. */
static bool play_op(struct play *play, uint32_t op)
{
    const struct cst_lease_model *model = &play->leases->model;
    const struct cst_lease_operator *o = &model->operators[op];
    uint32_t n, n_weights[CST_LEASE_MAX_CLASSES] = {0};
    const uint32_t *chunks = cst_lease_op_chunks(play->leases, op, &n);

    for (uint32_t i = 0; i < n; i++) {
        const struct cst_lease_trait *trait = &model->traits[chunks[i]];
        struct cst_lease_chunk *chunk = &play->leases->chunks[chunks[i]];

        n_weights[trait->size_class]++;
        play->n_open[trait->size_class] += trait->trains && !chunk->play_open;
        chunk->play_open = trait->trains;
    }
    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        if (n_weights[class] > 0 && n_weights[class] + play->n_open[class] > model->blocks[class]) {
            return false;
        }
    }
    for (uint32_t i = 0; !play->leases->op_done[op] && i < o->n_tensors; i++) {
        uint32_t c = model->tensor_chunk[o->tensors[i]];
        struct cst_lease_chunk *chunk = &play->leases->chunks[c];

        if (--chunk->play_left == 0 && chunk->play_open) {
            chunk->play_open = false;
            play->n_open[model->traits[c].size_class]--;
        }
    }
    return true;
}

/* Return whether the weights of any operator find blocks beside the open gradients. */
static bool has_room_for_weights(const struct play *play)
{
    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        uint32_t most = play->leases->most_weights[class];

        if (most > 0 && play->n_open[class] + most > play->leases->model.blocks[class]) {
            return false;
        }
    }
    return true;
}

bool cst_lease_fits(struct cst_leases *leases, uint32_t op)
{
    struct play play;

    if (leases->always_fits) {
        return true;
    }
    play = begin_play(leases);
    if (!play_op(&play, op) || !has_room_for_weights(&play)) {
        return false;
    }
    for (uint32_t i = leases->n_way; i-- > 0;) {
        uint32_t next = leases->way[i];

        if (next != op && !leases->op_done[next] && !play_op(&play, next)) {
            return false;
        }
    }
    return true;
}
