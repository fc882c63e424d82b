/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/layout_rig.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Check sends a message to the parent process for each assertion, which is slow for hundreds of
 * thousands of them. This macro calls Check only for assertions that fail. */
#define must(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            ck_abort_msg("%s", #what);                                                             \
        }                                                                                          \
    } while (0)
#define must_op(a, op, b)                                                                          \
    do {                                                                                           \
        if (!((uint64_t)(a)op(uint64_t)(b))) {                                                     \
            ck_abort_msg("%s " #op " %s: %llu, %llu", #a, #b, (unsigned long long)(a),             \
                         (unsigned long long)(b));                                                 \
        }                                                                                          \
    } while (0)
#define must_eq(a, b) must_op(a, ==, b)
#define must_ne(a, b) must_op(a, !=, b)
#define must_lt(a, b) must_op(a, <, b)
#define must_le(a, b) must_op(a, <=, b)
#define must_gt(a, b) must_op(a, >, b)
#define must_ge(a, b) must_op(a, >=, b)

uint32_t rig_below(uint32_t n)
{
    return (uint32_t)rand() % n;
}

static uint64_t world_ranks(uint32_t world)
{
    return world >= 64 ? UINT64_MAX : (UINT64_C(1) << (world == 0 ? 1 : world)) - 1;
}

static bool trained(enum cst_pattern_kind pattern)
{
    return pattern != CST_PATTERN_FROZEN;
}

/* -- chunks --------------------------------------------------------------------------------- */

static uint32_t first_op(const struct cst_model *model, uint32_t tensor)
{
    for (uint32_t i = 0; i < model->n_operators; i++) {
        for (uint32_t k = 0; k < model->operators[i].n_tensors; k++) {
            if (model->operators[i].tensors[k] == tensor) {
                return i;
            }
        }
    }
    return model->n_operators;
}

static uint32_t last_stage(const struct cst_model *model, uint32_t tensor)
{
    for (uint32_t i = model->n_operators; i-- > 0;) {
        for (uint32_t k = 0; k < model->operators[i].n_tensors; k++) {
            if (model->operators[i].tensors[k] == tensor) {
                return model->operators[i].stage;
            }
        }
    }
    return 0;
}

static uint32_t first_stage(const struct cst_model *model, uint32_t tensor)
{
    uint32_t op = first_op(model, tensor);

    return op < model->n_operators ? model->operators[op].stage : 0;
}

static bool same_stages(const struct cst_model *model, uint32_t t, uint32_t other)
{
    return model->n_stages == 0 || (first_stage(model, t) == first_stage(model, other) &&
                                    last_stage(model, t) == last_stage(model, other));
}

/* The number of bf16 elements that take the memory of @n_elems elements. */
static uint64_t places(enum cst_dtype dtype, uint64_t n_elems)
{
    return dtype == CST_FP32 ? 2 * n_elems : n_elems;
}

static void check_kind(const struct cst_layout *layout, const struct cst_model *model,
                       const struct cst_layout_chunk *chunk, uint32_t world)
{
    uint32_t first = layout->order[chunk->first_tensor];

    must_ne(word_of(chunk->ranks), 0);
    for (uint32_t k = 0; k < chunk->n_tensors; k++) {
        uint32_t number = layout->order[chunk->first_tensor + k];
        const struct cst_layout_tensor *t = &model->tensors[number];

        must_eq(t->pattern, chunk->pattern);
        must_eq(t->dtype, chunk->dtype);
        must_eq(cst_model_group_ranks(model, t->group).words[0] & world_ranks(world),
                word_of(chunk->ranks));
        if (chunk->base_chunk == CST_LAYOUT_OWN) {
            uint32_t k_class = chunk->size_class;

            must(k_class == 0 ||
                 places(t->dtype, t->n_elems) > layout->classes[k_class - 1].capacity);
        }
        if (t->pattern == CST_PATTERN_EXPERT) {
            must_eq(first_op(model, number), first_op(model, first));
        }
        must(same_stages(model, number, first));
    }
}

/* Check that no tensor of the next chunk of the same kind would have fitted into chunk @c. */
static void check_next_fit(const struct cst_layout *layout, const struct cst_model *model,
                           uint32_t c)
{
    const struct cst_layout_chunk *chunk = &layout->chunks[c];

    for (uint32_t d = c + 1; d < layout->n_chunks; d++) {
        const struct cst_layout_chunk *next = &layout->chunks[d];

        if (cst_set_equal(next->ranks, chunk->ranks) && next->pattern == chunk->pattern &&
            next->dtype == chunk->dtype && next->muon == chunk->muon &&
            next->size_class == chunk->size_class && next->base_chunk == CST_LAYOUT_OWN &&
            same_stages(model, layout->order[chunk->first_tensor],
                        layout->order[next->first_tensor])) {
            uint32_t mine = layout->order[chunk->first_tensor];
            uint32_t theirs = layout->order[next->first_tensor];

            must(places(chunk->dtype, chunk->n_elems + model->tensors[theirs].n_elems) >
                     layout->classes[chunk->size_class].capacity ||
                 (chunk->pattern == CST_PATTERN_EXPERT &&
                  first_op(model, mine) != first_op(model, theirs)));
            return;
        }
    }
}

static uint32_t check_chunk(const struct cst_layout *layout, const struct cst_model *model,
                            uint32_t c, uint32_t world)
{
    const struct cst_layout_chunk *chunk = &layout->chunks[c];
    uint64_t fill = 0;

    must_gt(chunk->n_tensors, 0);
    must_lt(chunk->size_class, layout->n_classes);
    must_le(places(chunk->dtype, chunk->n_elems), layout->classes[chunk->size_class].capacity);
    for (uint32_t k = 0; k < chunk->n_tensors; k++) {
        const struct cst_layout_tensor *t = &model->tensors[layout->order[chunk->first_tensor + k]];

        must_eq(t->chunk, c);
        must_eq(t->offset % CST_LAYOUT_ALIGN_ELEMS, 0);
        must_ge(t->offset, fill);
        fill = t->offset + t->n_elems;
    }
    must_le(fill, chunk->n_elems);
    check_kind(layout, model, chunk, world);
    if (chunk->base_chunk == CST_LAYOUT_OWN) {
        must_lt(chunk->n_elems - fill, CST_LAYOUT_ALIGN_ELEMS);
        check_next_fit(layout, model, c);
    }
    return chunk->n_tensors;
}

static void check_chunks(const struct cst_layout *layout, const struct cst_model *model,
                         uint32_t world)
{
    bool *seen = calloc(model->n_tensors, sizeof *seen);
    uint32_t at = 0, spans = 0;
    uint64_t tiles = 0;

    ck_assert_ptr_nonnull(seen);
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        must_eq(layout->chunks[c].first_tensor, at);
        must_eq(layout->chunks[c].first_span, spans);
        at += check_chunk(layout, model, c, world);
        spans += trained(layout->chunks[c].pattern) ? layout->chunks[c].n_tensors : 0;
    }
    must_eq(at, model->n_tensors);
    must_eq(spans, layout->n_spans);
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        must(!seen[layout->order[i]]);
        seen[layout->order[i]] = true;
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        must_eq(model->tensors[t].first_tile, tiles);
        tiles +=
            trained(model->tensors[t].pattern) ? cst_table_n_tiles(model->tensors[t].n_elems) : 0;
    }
    must_eq(tiles, layout->n_tiles);
    free(seen);
}

/* -- rows ----------------------------------------------------------------------------------- */

static void check_row(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                      uint32_t r, uint64_t *end, uint32_t *n_rows)
{
    const struct cst_layout_row *row = &chunk->rows[r];
    bool wide = chunk->dtype == CST_FP32;
    uint64_t bytes = chunk->n_elems * (r == CST_ROW_WEIGHT && !wide ? 2
                                       : r == CST_ROW_GRAD && !wide ? layout->grad_bytes
                                                                    : 4);

    /* The weights of fp32 tensors are their master weights. */
    if ((r != CST_ROW_WEIGHT && !trained(chunk->pattern)) || (r == CST_ROW_MASTER && wide)) {
        must_eq(row->segment, CST_LAYOUT_NO_ROW);
        return;
    }
    if (r == CST_ROW_MOMENT + 1 && chunk->muon) {
        must_eq(row->segment, CST_LAYOUT_NO_ROW);
        return;
    }
    must_lt(row->segment, layout->n_segments);
    must_eq(layout->segments[row->segment].node, chunk->node);
    must_eq(row->offset % 4096, 0);
    must_le(row->offset + bytes, layout->segments[row->segment].bytes);
    must(layout->segments[row->segment].is_base == (chunk->base_chunk != CST_LAYOUT_OWN));
    if (chunk->base_chunk == CST_LAYOUT_OWN) { /* tensors of the base job have another order */
        must_ge(row->offset, end[row->segment]);
        end[row->segment] = row->offset + bytes;
        n_rows[row->segment]++;
    }
}

/* Check that exactly the nodes with chunks that Muon updates have scratch, in segments of their
 * own, and count these. */
static void check_scratches(const struct cst_layout *layout, uint32_t n_nodes, uint32_t *n_rows)
{
    bool any = false;

    for (uint32_t node = 0; node < n_nodes; node++) {
        bool muon = false;

        for (uint32_t c = 0; c < layout->n_chunks; c++) {
            muon = muon || (layout->chunks[c].muon && layout->chunks[c].node == node);
        }
        any = any || muon;
        if (muon) {
            const struct cst_layout_row *scratch = &layout->scratches[node];

            must_lt(scratch->segment, layout->n_segments);
            must_eq(scratch->offset, 0);
            must_eq(layout->segments[scratch->segment].node, node);
            must_eq(n_rows[scratch->segment]++, 0);
        } else if (layout->scratches != NULL) {
            must_eq(layout->scratches[node].segment, CST_LAYOUT_NO_ROW);
        }
    }
    must(any == (layout->scratches != NULL));
}

static void check_rows(const struct cst_layout *layout, uint32_t n_nodes)
{
    uint64_t *end = calloc(layout->n_segments, sizeof *end);
    uint32_t *n_rows = calloc(layout->n_segments, sizeof *n_rows);
    uint64_t bytes = 0;

    ck_assert_ptr_nonnull(end);
    ck_assert_ptr_nonnull(n_rows);
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        for (uint32_t r = 0; r < CST_ROW_COUNT; r++) {
            check_row(layout, &layout->chunks[c], r, end, n_rows);
        }
    }
    check_scratches(layout, n_nodes, n_rows);
    for (uint32_t s = 0; s < layout->n_segments; s++) {
        const struct cst_layout_segment *segment = &layout->segments[s];

        must(segment->is_base || segment->bytes <= CST_LAYOUT_SEGMENT_BYTES || n_rows[s] == 1);
        must(segment->is_base || n_rows[s] > 0);
        must_eq(segment->bytes % 4096, 0);
        bytes += segment->is_base ? 0 : segment->bytes;
    }
    must_eq(bytes, layout->arena_bytes);
    free(end);
    free(n_rows);
}

/* -- classes -------------------------------------------------------------------------------- */

static void check_classes(const struct cst_layout *layout, uint32_t world)
{
    uint32_t n[CST_LAYOUT_MAX_CLASSES] = {0};

    must_ge(layout->n_classes, 1);
    must_le(layout->n_classes, CST_LAYOUT_MAX_CLASSES);
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        n[layout->chunks[c].size_class]++;
    }
    for (uint32_t k = 0; k < layout->n_classes; k++) {
        const struct cst_layout_class *class = &layout->classes[k];
        uint32_t min = 0, max = 0;

        must_eq(class->n_chunks, n[k]);
        must_eq(class->capacity % CST_LAYOUT_CAPACITY_STEP, 0);
        must(k == 0 || class->capacity > layout->classes[k - 1].capacity);
        for (uint32_t r = 0; r < (world == 0 ? 1 : world); r++) {
            const struct cst_layout_need *need = &layout->needs[r];

            min = need->min_blocks[k] > min ? need->min_blocks[k] : min;
            max = need->max_blocks[k] > max ? need->max_blocks[k] : max;
        }
        must_eq(class->min_blocks, min);
        must_eq(class->max_blocks, max);
    }
    must_eq(layout->capacity, layout->classes[0].capacity);
}

static void check_uses(const struct cst_layout *layout, const struct cst_model *model)
{
    for (uint32_t i = 0; i < model->n_operators; i++) {
        const struct cst_layout_operator *op = &model->operators[i];
        const struct cst_layout_use *use = &layout->uses[i];
        uint32_t n = 0;

        for (uint32_t k = 0; k < op->n_tensors; k++) {
            uint32_t chunk = model->tensors[op->tensors[k]].chunk;
            bool repeated = false;

            for (uint32_t j = 0; j < n && !repeated; j++) {
                repeated = use->chunks[j] == chunk;
            }
            if (!repeated) {
                must_lt(n, use->n_chunks);
                must_eq(use->chunks[n++], chunk);
            }
        }
        must_eq(use->n_chunks, n);
    }
}

void rig_check_layout(const struct cst_layout *layout, const struct cst_model *model,
                      const struct cst_layout_config *config)
{
    check_chunks(layout, model, config->world);
    check_rows(layout, config->n_nodes);
    check_classes(layout, config->world);
    check_uses(layout, model);
    must_eq(layout->grad_bytes, config->grad_bytes == 4 ? 4 : 2);
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        must_lt(layout->chunks[c].node, config->n_nodes);
    }
}

/* -- needs ---------------------------------------------------------------------------------- */

/* A worker's counts during a step. */
struct worker {
    const struct cst_layout *layout;
    const struct cst_model *model;
    uint32_t rank;
    uint32_t *uses_left; /* per chunk: uses by operators of all ranks whose backward is to come */
    uint64_t *users;     /* per chunk: ranks that run these operators */
    bool *open;          /* per chunk: its gradient is open */
    bool *mine;          /* per chunk: an operator of this rank uses it */
    uint32_t most[CST_LAYOUT_MAX_CLASSES]; /* per size class: the most blocks held at once */
};

static bool runs(const struct worker *w, uint32_t op)
{
    return cst_model_runs(w->model, &w->model->operators[op], w->rank);
}

static bool is_sparse(const struct cst_model *model, uint32_t op)
{
    for (uint32_t k = 0; k < model->operators[op].n_tensors; k++) {
        if (model->tensors[model->operators[op].tensors[k]].pattern == CST_PATTERN_EXPERT) {
            return true;
        }
    }
    return false;
}

static bool uses(const struct cst_layout_use *use, uint32_t chunk)
{
    for (uint32_t k = 0; k < use->n_chunks; k++) {
        if (use->chunks[k] == chunk) {
            return true;
        }
    }
    return false;
}

/* Count the blocks while @op is begun: its weights, open gradients, and one prefetched chunk of
 * another operator per size class. */
static void count_blocks(struct worker *w, uint32_t op)
{
    const struct cst_layout_use *use = &w->layout->uses[op];
    uint32_t held[CST_LAYOUT_MAX_CLASSES] = {0};
    bool other[CST_LAYOUT_MAX_CLASSES] = {false};

    for (uint32_t c = 0; c < w->layout->n_chunks; c++) {
        uint32_t k = w->layout->chunks[c].size_class;

        held[k] += uses(use, c) + w->open[c];
        other[k] = other[k] || (w->mine[c] && !uses(use, c));
    }
    for (uint32_t k = 0; k < CST_LAYOUT_MAX_CLASSES; k++) {
        w->most[k] = held[k] + other[k] > w->most[k] ? held[k] + other[k] : w->most[k];
    }
}

/* This rank runs the backward pass of @op. */
static void open_gradients(struct worker *w, uint32_t op)
{
    const struct cst_layout_use *use = &w->layout->uses[op];

    for (uint32_t k = 0; k < use->n_chunks; k++) {
        if (trained(w->layout->chunks[use->chunks[k]].pattern)) {
            w->open[use->chunks[k]] = true;
        }
    }
    count_blocks(w, op);
}

/* All ranks that run @op have done its backward pass. The gradient is summed when all ranks of the
 * chunk have contributed, and stays where it is if one has no operator for that. */
static void sum_gradients(struct worker *w, uint32_t op)
{
    const struct cst_layout_use *use = &w->layout->uses[op];

    for (uint32_t k = 0; k < use->n_chunks; k++) {
        const uint32_t c = use->chunks[k];

        if (--w->uses_left[c] == 0 && (word_of(w->layout->chunks[c].ranks) & ~w->users[c]) == 0) {
            w->open[c] = false;
        }
    }
}

static void walk(struct worker *w, bool leave_out)
{
    uint32_t n = w->model->n_operators;

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < w->layout->uses[i].n_chunks; k++) {
            const uint32_t c = w->layout->uses[i].chunks[k];

            w->uses_left[c]++;
            w->users[c] |= cst_model_runners(w->model, &w->model->operators[i]).words[0];
            w->mine[c] = w->mine[c] || runs(w, i);
        }
    }
    for (uint32_t i = 0; i < 2 * n; i++) {
        uint32_t op = i < n ? i : 2 * n - 1 - i;

        if (leave_out && is_sparse(w->model, op) && rand() % 2 == 0) {
            continue;
        }
        if (runs(w, op) && i < n) {
            count_blocks(w, op);
        } else if (runs(w, op)) {
            open_gradients(w, op);
        }
        if (i >= n) {
            sum_gradients(w, op);
        }
    }
}

static void check_rank(const struct cst_layout *layout, const struct cst_model *model,
                       uint32_t rank, bool leave_out)
{
    struct worker w = {.layout = layout,
                       .model = model,
                       .rank = rank,
                       .uses_left = calloc(layout->n_chunks, sizeof *w.uses_left),
                       .users = calloc(layout->n_chunks, sizeof *w.users),
                       .open = calloc(layout->n_chunks, sizeof *w.open),
                       .mine = calloc(layout->n_chunks, sizeof *w.mine),
                       .most = {1}};
    const struct cst_layout_need *need = &layout->needs[rank];
    bool exact = !leave_out;

    must(w.uses_left != NULL && w.users != NULL && w.open != NULL && w.mine != NULL);
    walk(&w, leave_out);
    for (uint32_t i = 0; i < model->n_operators; i++) {
        exact = exact && !is_sparse(model, i);
    }
    for (uint32_t k = 0; k < layout->n_classes; k++) {
        must_le(w.most[k], need->min_blocks[k]);
        must(!exact || w.most[k] == need->min_blocks[k]);
        must_le(need->min_blocks[k], need->max_blocks[k] > 0 ? need->max_blocks[k] : 1);
    }
    free(w.uses_left);
    free(w.users);
    free(w.open);
    free(w.mine);
}

void rig_check_needs(const struct cst_layout *layout, const struct cst_model *model, uint32_t world,
                     unsigned seed)
{
    srand(seed);
    for (uint32_t r = 0; r < world; r++) {
        check_rank(layout, model, r, false);
        for (int i = 0; i < 4; i++) {
            check_rank(layout, model, r, true);
        }
    }
}

/* -- models --------------------------------------------------------------------------------- */

static void random_tensor(struct cst_model *model, uint32_t i, bool sparse)
{
    static const uint32_t patterns[] = {CST_PATTERN_SHARD,  CST_PATTERN_SHARD,
                                        CST_PATTERN_FROZEN, CST_PATTERN_REPLICATE,
                                        CST_PATTERN_TENSOR, CST_PATTERN_EXPERT};
    int64_t shape[2] = {1 + rig_below(100), 1 + rig_below(100)}, whole[2], first[2] = {0, 3};
    struct cst_tensor_words words = {.n_dims = 2, .shape = shape, .lr_scale = 1, .decay_scale = 1};
    struct cst_err err;
    char name[32];

    (void)snprintf(name, sizeof name, "t%u", i);
    if (rig_below(20) == 0) {
        shape[0] *= 1 + rig_below(30);
    }
    words.name = name;
    words.group = rig_below(model->n_groups);
    words.dtype = rig_below(4) == 0 ? CST_FP32 : CST_BF16;
    words.pattern = patterns[rig_below(sparse ? 6 : 5)];
    if (words.pattern == CST_PATTERN_TENSOR) {
        whole[0] = shape[0];
        whole[1] = shape[1] + 3;
        words.whole = whole;
        words.first = first;
        words.update = CST_TENSOR_UPDATE_ADAMW; /* Muon needs whole matrices. */
    }
    ck_assert_msg(cst_model_tensor(model, &words, &err) == CST_OK, "%s", err.text);
}

void rig_random_model(struct cst_model *model, uint32_t world)
{
    uint32_t n_tensors = 1 + rig_below(60), n_ops = rig_below(80);
    bool sparse = rig_below(2) == 0, staged = rig_below(3) == 0;
    struct cst_err err;

    for (uint32_t g = rig_below(5); g > 0; g--) {
        uint64_t ranks = ((uint64_t)rand() << 20 ^ (uint64_t)rand()) & world_ranks(world);

        ck_assert_int_eq(cst_model_group(model, bits(ranks != 0 ? ranks : 1), &err), CST_OK);
    }
    for (uint32_t i = 0; i < n_tensors; i++) {
        random_tensor(model, i, sparse);
    }
    for (uint32_t i = 0; i < n_ops;
         i++) { /* The tensors are mostly near each other. Some operators are refused because no
                 * rank holds all their tensors. */
        uint32_t tensors[4], n = 0, at = i * n_tensors / n_ops;
        char name[32];

        for (uint32_t k = 1 + rig_below(4); k > 0; k--) {
            uint32_t t = rig_below(6) == 0 ? rig_below(n_tensors) : (at + k) % n_tensors;
            bool twice = false;

            for (uint32_t j = 0; j < n; j++) {
                twice = twice || tensors[j] == t;
            }
            if (!twice) {
                tensors[n++] = t;
            }
        }
        (void)snprintf(name, sizeof name, "op%u", i);
        if (staged && (i == 0 || rig_below(8) == 0)) {
            (void)cst_model_stage(model, &err); /* Refused if the last stage is empty. */
        }
        (void)cst_model_operator(model, name, tensors, n, NULL, &err);
    }
}
