/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/min_blocks.h"

#include <string.h>

/* A sweep through the backward passes of the operators, as one rank sees it. */
struct sweep {
    struct cst_packing *p;
    uint32_t rank;
    uint32_t n_used[CST_LAYOUT_MAX_CLASSES];    /* Chunks that its operators use. */
    uint32_t n_open[CST_LAYOUT_MAX_CLASSES];    /* Open gradients. */
    uint32_t n_weights[CST_LAYOUT_MAX_CLASSES]; /* Chunks of the current operator. */
};

static const struct cst_kind *kind_of(const struct cst_packing *p, uint32_t chunk)
{
    return &p->kinds[p->chunks[chunk].kind];
}

static bool has_gradient(const struct cst_packing *p, uint32_t chunk)
{
    return kind_of(p, chunk)->has_states;
}

/* True if the rank runs @op. */
static bool runs(const struct sweep *s, uint32_t op)
{
    return cst_sets_has(&s->p->op_runners, op, s->rank);
}

/* True if the rank or one that it waits for runs @op: one that holds a tensor of it, too. */
static bool concerns(const struct sweep *s, uint32_t op)
{
    return cst_sets_has(&s->p->op_holders, op, s->rank);
}

static void count_op(struct sweep *s, uint32_t op)
{
    struct cst_packing *p = s->p;
    const bool own = runs(s, op);

    for (uint32_t k = p->op_first[op]; k < p->op_first[op + 1]; k++) {
        uint32_t chunk = p->chunk_of[p->op_items[k]];
        struct cst_swept *c = &p->swept[chunk];

        s->n_used[p->chunks[chunk].size_class] += own && !c->used;
        c->used = c->used || own;
        c->n_ops += c->seen != op + 1;
        c->seen = op + 1;
        c->uses_left++;
        c->sparse = c->sparse || p->op_sparse[op];
        cst_sets_join(&p->users, chunk, &p->op_runners, op);
    }
}

/* The backward pass of @op begins: its weights are in blocks, and its gradients are opened. */
static void begin_op(struct sweep *s, uint32_t op)
{
    struct cst_packing *p = s->p;

    memset(s->n_weights, 0, sizeof s->n_weights);
    for (uint32_t k = p->op_first[op]; k < p->op_first[op + 1]; k++) {
        uint32_t chunk = p->chunk_of[p->op_items[k]];
        struct cst_swept *c = &p->swept[chunk];

        s->n_weights[p->chunks[chunk].size_class] += c->seen != op + 1;
        c->seen = op + 1;
        if (!c->open && has_gradient(p, chunk)) {
            c->open = true;
            s->n_open[p->chunks[chunk].size_class]++;
        }
    }
}

/* True if all ranks that hold the chunk run operators that use it. */
static bool all_use(const struct cst_packing *p, uint32_t chunk)
{
    const struct cst_set users = cst_sets_get(&p->users, chunk);

    return cst_set_within(&p->groups[kind_of(p, chunk)->group], &users);
}

/* The backward pass of @op ends, in all ranks that run it: gradients with no further use are
 * summed, unless an operator may have been left out, or a rank that holds the chunk has no operator
 * for it and goes on at the end of the micro-batch. */
static void end_op(struct sweep *s, uint32_t op)
{
    struct cst_packing *p = s->p;

    for (uint32_t k = p->op_first[op]; k < p->op_first[op + 1]; k++) {
        uint32_t chunk = p->chunk_of[p->op_items[k]];
        struct cst_swept *c = &p->swept[chunk];

        if (--c->uses_left == 0 && c->open && !(c->sparse && c->n_ops > 1) && all_use(p, chunk)) {
            c->open = false;
            s->n_open[p->chunks[chunk].size_class]--;
        }
    }
}

static void keep_min(const struct sweep *s, uint32_t op, struct cst_layout_need *need)
{
    for (uint32_t k = 0; k < CST_LAYOUT_MAX_CLASSES; k++) {
        /* One more block, if there is another chunk, to fetch its weights ahead. */
        uint32_t n = s->n_weights[k] + s->n_open[k] + (s->n_weights[k] < s->n_used[k]);

        if (n > need->min_blocks[k]) {
            need->min_blocks[k] = n;
            need->min_operator[k] = op;
        }
    }
}

static void count_max(const struct cst_packing *p, uint32_t rank, struct cst_layout_need *need)
{
    for (uint32_t c = 0; c < p->n_chunks; c++) {
        const struct cst_kind *kind = &p->kinds[p->chunks[c].kind];

        if (cst_set_has(&p->groups[kind->group], rank)) {
            need->max_blocks[p->chunks[c].size_class] += kind->has_states ? 2 : 1;
        }
    }
}

/* Only backward passes need a sweep: there an operator uses the blocks of its forward pass, and
 * those of gradients in addition. */
struct cst_layout_need cst_min_blocks_of_rank(struct cst_packing *packing, uint32_t rank)
{
    const struct cst_model *model = packing->model;
    struct cst_layout_need need = {.min_blocks = {1}};
    struct sweep s = {.p = packing, .rank = rank};

    memset(packing->swept, 0, packing->n_chunks * sizeof *packing->swept);
    cst_sets_clear(&packing->users, 0, packing->n_chunks);
    for (uint32_t i = 0; i < model->n_operators; i++) {
        if (concerns(&s, i)) {
            count_op(&s, i);
        }
    }
    for (uint32_t c = 0; c < packing->n_chunks; c++) {
        packing->swept[c].seen = 0;
    }
    for (uint32_t i = model->n_operators; i-- > 0;) {
        if (runs(&s, i)) {
            begin_op(&s, i);
            keep_min(&s, i, &need);
        }
        if (concerns(&s, i)) {
            end_op(&s, i);
        }
    }
    count_max(packing, s.rank, &need);
    return need;
}

struct cst_layout_need cst_min_blocks_of_all(struct cst_packing *packing)
{
    struct cst_layout_need most = {0};

    CST_SET_EACH (rank, &packing->leaders) {
        struct cst_layout_need need = cst_min_blocks_of_rank(packing, rank);

        for (uint32_t k = 0; k < CST_LAYOUT_MAX_CLASSES; k++) {
            if (need.min_blocks[k] > most.min_blocks[k]) {
                most.min_blocks[k] = need.min_blocks[k];
                most.min_operator[k] = need.min_operator[k];
            }
            if (need.max_blocks[k] > most.max_blocks[k]) {
                most.max_blocks[k] = need.max_blocks[k];
            }
        }
    }
    return most;
}
