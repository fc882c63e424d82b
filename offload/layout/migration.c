/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/migration.h"

#include "offload/layout/rows.h"

#include <stdlib.h>
#include <string.h>

/* While a plan is made. All arrays are owned. */
struct draft {
    const struct cst_reshard *reshard;
    const struct cst_layout *old, *layout;
    uint32_t n_items;
    uint32_t *items_from, *items_to; /* Parameter of each tensor of either model. */
    uint32_t *portions;              /* Portion of each parameter. */
    /* Portion of each chunk of the new and of the old layout. UINT32_MAX: the chunk's rows are
     * another job's. */
    uint32_t *begins, *ends;
};

/* One more of each, because calloc(0) may return NULL. */
static uint32_t *make_list(uint32_t n)
{
    return calloc((size_t)n + 1, sizeof(uint32_t));
}

static int make_draft(struct draft *draft, struct cst_err *err)
{
    draft->items_from = make_list(draft->reshard->from->n_tensors);
    draft->items_to = make_list(draft->reshard->to->n_tensors);
    draft->begins = make_list(draft->layout->n_chunks);
    draft->ends = make_list(draft->old->n_chunks);
    /* There are at most as many parameters as tensors. */
    draft->portions = make_list(draft->reshard->from->n_tensors);
    if (draft->items_from == NULL || draft->items_to == NULL || draft->begins == NULL ||
        draft->ends == NULL || draft->portions == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to plan a move of states");
    }
    return cst_reshard_number(draft->reshard, draft->old, draft->items_from, draft->items_to,
                              &draft->n_items, err);
}

static void free_draft(struct draft *draft)
{
    free(draft->items_from);
    free(draft->items_to);
    free(draft->begins);
    free(draft->ends);
    free(draft->portions);
}

static bool is_own(const struct cst_layout *layout, const struct cst_model *model, uint32_t t)
{
    return cst_layout_is_own(&layout->chunks[model->tensors[t].chunk]);
}

/* Set the last parameter of each old chunk, and from that the portions: one ends with each
 * parameter that is the last one of a chunk. Returns the number of portions. */
static uint32_t divide(struct draft *draft)
{
    const struct cst_model *from = draft->reshard->from;
    uint32_t n = 0;

    memset(draft->ends, 0xff, draft->old->n_chunks * sizeof *draft->ends);
    for (uint32_t t = 0; t < from->n_tensors; t++) {
        uint32_t *last = &draft->ends[from->tensors[t].chunk], item = draft->items_from[t];

        if (is_own(draft->old, from, t) && (*last == UINT32_MAX || item > *last)) {
            *last = item;
        }
    }
    for (uint32_t c = 0; c < draft->old->n_chunks; c++) {
        if (draft->ends[c] != UINT32_MAX) {
            draft->portions[draft->ends[c]] = 1;
        }
    }
    for (uint32_t i = 0; i < draft->n_items; i++) {
        uint32_t ends = draft->portions[i];

        draft->portions[i] = n;
        n += ends;
    }
    /* Parameters after the last end are another job's; nothing of them moves. */
    return draft->n_items > 0 && draft->portions[draft->n_items - 1] == n ? n + 1 : n;
}

/* Turn the parameters of chunks into portions. */
static void place_chunks(struct draft *draft)
{
    const struct cst_model *to = draft->reshard->to;

    for (uint32_t c = 0; c < draft->old->n_chunks; c++) {
        if (draft->ends[c] != UINT32_MAX) {
            draft->ends[c] = draft->portions[draft->ends[c]];
        }
    }
    memset(draft->begins, 0xff, draft->layout->n_chunks * sizeof *draft->begins);
    for (uint32_t t = 0; t < to->n_tensors; t++) {
        uint32_t *first = &draft->begins[to->tensors[t].chunk];
        uint32_t portion = draft->portions[draft->items_to[t]];

        if (is_own(draft->layout, to, t) && (*first == UINT32_MAX || portion < *first)) {
            *first = portion;
        }
    }
}

static uint64_t chunk_bytes(const struct cst_layout *layout, uint32_t c)
{
    struct cst_layout_row place;
    uint64_t bytes = 0;

    for (uint32_t r = 0; r < CST_ROWS_COUNT; r++) {
        bytes += cst_rows_in_host(layout, &layout->chunks[c], r, &place);
    }
    return bytes;
}

/* The portion of entry @i of a list; UINT32_MAX: the entry is in no portion. */
typedef uint32_t (*portion_of)(const struct draft *draft, uint32_t i);

static uint32_t portion_of_tensor(const struct draft *draft, uint32_t i)
{
    return draft->portions[draft->items_to[draft->layout->order[i]]];
}

static uint32_t portion_of_begun(const struct draft *draft, uint32_t c)
{
    return draft->begins[c];
}

static uint32_t portion_of_ended(const struct draft *draft, uint32_t c)
{
    return draft->ends[c];
}

/* Sort the numbers below @n by portion into @list; those of one portion keep their order. ends[s]
 * gets the place where the numbers of portion s end; it has @n_portions + 1 elements. */
static void sort(const struct draft *draft, portion_of portion, uint32_t n, uint32_t n_portions,
                 uint32_t *ends, uint32_t *list)
{
    memset(ends, 0, ((size_t)n_portions + 1) * sizeof *ends);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = portion(draft, i);

        if (s != UINT32_MAX) {
            ends[s + 1]++;
        }
    }
    for (uint32_t s = 0; s < n_portions; s++) {
        ends[s + 1] += ends[s];
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = portion(draft, i);

        if (s != UINT32_MAX) {
            list[ends[s]++] = i;
        }
    }
}

static void fill_lists(struct cst_migration *out, const struct draft *draft, uint32_t *ends)
{
    const struct cst_layout *layout = draft->layout;
    uint32_t n = draft->reshard->to->n_tensors;

    sort(draft, portion_of_tensor, n, out->n_portions, ends, out->tensors);
    for (uint32_t s = 0; s < out->n_portions; s++) {
        out->portions[s].tensors_end = ends[s];
    }
    for (uint32_t i = 0; i < n; i++) { /* They were sorted by place. */
        out->tensors[i] = layout->order[out->tensors[i]];
    }
    sort(draft, portion_of_begun, layout->n_chunks, out->n_portions, ends, out->begun);
    for (uint32_t s = 0; s < out->n_portions; s++) {
        out->portions[s].begun_end = ends[s];
    }
    sort(draft, portion_of_ended, draft->old->n_chunks, out->n_portions, ends, out->ended);
    for (uint32_t s = 0; s < out->n_portions; s++) {
        out->portions[s].ended_end = ends[s];
    }
}

/* Find the most pages of both layouts. */
static void count_pages(struct cst_migration *out, const struct draft *draft)
{
    int64_t more = (int64_t)draft->layout->arena_bytes, most;

    for (uint32_t c = 0; c < draft->layout->n_chunks; c++) {
        more -= (int64_t)chunk_bytes(draft->layout, c);
    }
    most = more;
    for (uint32_t s = 0; s < out->n_portions; s++) {
        const struct cst_migration_portion from = cst_migration_begin(out, s),
                                           *portion = &out->portions[s];

        for (uint32_t i = from.begun_end; i < portion->begun_end; i++) {
            more += (int64_t)chunk_bytes(draft->layout, out->begun[i]);
        }
        most = more > most ? more : most;
        for (uint32_t i = from.ended_end; i < portion->ended_end; i++) {
            more -= (int64_t)chunk_bytes(draft->old, out->ended[i]);
        }
    }
    out->extra_bytes = most > 0 ? (uint64_t)most : 0;
}

static int make_plan(struct cst_migration *out, struct draft *draft, struct cst_err *err)
{
    uint32_t *ends;

    out->n_portions = divide(draft);
    place_chunks(draft);
    ends = make_list(out->n_portions);
    out->portions = calloc((size_t)out->n_portions + 1, sizeof *out->portions);
    out->tensors = make_list(draft->reshard->to->n_tensors);
    out->begun = make_list(draft->layout->n_chunks);
    out->ended = make_list(draft->old->n_chunks);
    if (ends == NULL || out->portions == NULL || out->tensors == NULL || out->begun == NULL ||
        out->ended == NULL) {
        free(ends);
        return cst_err_set(err, CST_ENOMEM, "no memory to plan a move of states");
    }
    fill_lists(out, draft, ends);
    count_pages(out, draft);
    free(ends);
    return CST_OK;
}

int cst_migration_open(struct cst_migration *out, const struct cst_reshard *reshard,
                       const struct cst_layout *old, const struct cst_layout *layout,
                       struct cst_err *err)
{
    struct draft draft = {.reshard = reshard, .old = old, .layout = layout};
    struct cst_migration made = {0};
    int rc = make_draft(&draft, err);

    rc = rc == CST_OK ? make_plan(&made, &draft, err) : rc;
    free_draft(&draft);
    if (rc != CST_OK) {
        cst_migration_close(&made);
        return rc;
    }
    *out = made;
    return CST_OK;
}

void cst_migration_close(struct cst_migration *migration)
{
    free(migration->portions);
    free(migration->tensors);
    free(migration->begun);
    free(migration->ended);
    *migration = (struct cst_migration){0};
}
