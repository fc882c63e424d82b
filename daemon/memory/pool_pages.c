/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/pool_pages.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"

#include <stdlib.h>
#include <string.h>

/* -- slabs ------------------------------------------------------------------------------------ */

static uint32_t count_slabs(const struct cstd_memory *memory)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < memory->world; r++) {
        n += cstd_memory_n_slabs(memory, r);
    }
    return n;
}

/* Slab number @i of all pools. The slabs of the ranks follow each other. */
static struct cstd_segment *slab(const struct cstd_memory *memory, uint32_t i)
{
    return memory->segments[(uint32_t)(memory->pools[0].segments - memory->ids) + i];
}

/* Engines leave the pages of a sparse segment alone when they map it. */
static void set_sparse(struct cstd_memory *memory, bool sparse)
{
    const uint32_t n = count_slabs(memory);

    for (uint32_t i = 0; i < n; i++) {
        struct cstd_segment *segment = slab(memory, i);

        segment->sparse = sparse;
        segment->population = sparse || segment->adopted ? NULL : &memory->population;
    }
}

static void discharge(struct cstd_memory *memory)
{
    const uint32_t n = count_slabs(memory);

    for (uint32_t i = 0; i < n; i++) {
        struct cstd_segment *segment = slab(memory, i);

        cstd_budget_give(segment->budget, segment->account, segment->charged);
        segment->charged = 0;
    }
}

static void charge(struct cstd_memory *memory)
{
    const uint32_t n = count_slabs(memory);

    for (uint32_t i = 0; i < n; i++) {
        struct cstd_segment *segment = slab(memory, i);

        segment->charged = segment->bytes;
        cstd_budget_force(segment->budget, segment->account, segment->charged);
    }
}

/* Bytes of the slabs from number @first on that have the budget of that one; 0: one before it has
 * the same budget. */
static uint64_t bytes_of_budget(const struct cstd_memory *memory, uint32_t first, uint32_t n)
{
    const struct cstd_budget *budget = slab(memory, first)->budget;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (i < first && slab(memory, i)->budget == budget) {
            return 0;
        }
        bytes += slab(memory, i)->budget == budget ? slab(memory, i)->bytes : 0;
    }
    return bytes;
}

static int check_budgets(const struct cstd_memory *memory, struct cst_err *err)
{
    const uint32_t n = count_slabs(memory);
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        const uint64_t bytes = bytes_of_budget(memory, i, n);

        if (bytes > 0) {
            rc = cstd_budget_check(slab(memory, i)->budget, memory->account, bytes, memory->name,
                                   err);
        }
    }
    return rc;
}

/* -- work in the thread ----------------------------------------------------------------------- */

static int start(struct cstd_memory *memory, bool remove, cstd_page_work_cb done,
                 struct cst_err *err)
{
    const uint32_t n = count_slabs(memory);
    struct cstd_pages *pages = calloc(n + 1u, sizeof *pages);
    int rc;

    if (pages == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of %u slabs", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        pages[i] = (struct cstd_pages){
            .segment = slab(memory, i), .bytes = slab(memory, i)->bytes, .remove = remove};
    }
    rc = cstd_page_work_start(&memory->pool_pages.work, &memory->daemon->loop, pages, n, done,
                              memory, err);
    free(pages);
    return rc;
}

static void end(struct cstd_memory *memory, enum cstd_pool_pages_state state,
                const struct cst_err *err)
{
    const struct cst_err why = *err;

    memory->pool_pages.state = state;
    memory->pool_pages.work = NULL;
    memory->daemon->status_changed = true;
    memory->pool_pages.done(memory, &why);
}

static void on_given(void *arg, const struct cst_err *err)
{
    struct cstd_memory *memory = arg;

    if (err->status != CST_OK) {
        set_sparse(memory, false);
        end(memory, CSTD_POOL_PAGES_WHOLE, err);
        return;
    }
    discharge(memory);
    memory->pool_bytes -= memory->pool_pages.bytes;
    end(memory, CSTD_POOL_PAGES_GIVEN, err);
}

/* What was added before a failure is given back again. */
static void on_undone(void *arg, const struct cst_err *err)
{
    struct cstd_memory *memory = arg;

    (void)err;
    discharge(memory);
    end(memory, CSTD_POOL_PAGES_GIVEN, &memory->pool_pages.err);
}

static void on_taken(void *arg, const struct cst_err *err)
{
    struct cstd_memory *memory = arg;
    struct cst_err unused = {0};

    if (err->status == CST_OK) {
        set_sparse(memory, false);
        memory->pool_bytes += memory->pool_pages.bytes;
        end(memory, CSTD_POOL_PAGES_WHOLE, err);
        return;
    }
    memory->pool_pages.err = *err;
    if (start(memory, true, on_undone, &unused) != CST_OK) {
        on_undone(memory, &unused);
    }
}

/* -- the pages of all pools ------------------------------------------------------------------- */

bool cstd_pool_pages_can(const struct cstd_memory *memory)
{
    bool can = true;

    for (uint32_t r = 0; r < memory->world; r++) {
        can = can && !memory->tiers[r]->kind->handles;
    }
    CST_SET_EACH (engine, &memory->gpu_engines) {
        const struct cstd_tier *tier = cstd_tiers_of_number(memory->daemon, engine);

        can = can && (tier == NULL || !tier->kind->handles);
    }
    return can;
}

int cstd_pool_pages_give(struct cstd_memory *memory, cstd_pool_pages_cb done, struct cst_err *err)
{
    struct cstd_pool_pages *pages = &memory->pool_pages;
    const uint32_t n = count_slabs(memory);
    int rc = start(memory, true, on_given, err);

    if (rc != CST_OK) {
        return rc;
    }
    set_sparse(memory, true);
    pages->state = CSTD_POOL_PAGES_GIVING;
    pages->done = done;
    pages->bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        pages->bytes += slab(memory, i)->bytes;
    }
    return CST_OK;
}

int cstd_pool_pages_take(struct cstd_memory *memory, cstd_pool_pages_cb done, struct cst_err *err)
{
    int rc = check_budgets(memory, err);

    rc = rc == CST_OK ? start(memory, false, on_taken, err) : rc;
    if (rc == CST_OK) {
        charge(memory);
        memory->pool_pages.state = CSTD_POOL_PAGES_TAKING;
        memory->pool_pages.done = done;
    }
    return rc;
}

void cstd_pool_pages_forget(struct cstd_memory *memory)
{
    struct cstd_pool_pages *pages = &memory->pool_pages;

    cstd_page_work_abandon(pages->work);
    if (pages->state == CSTD_POOL_PAGES_GIVEN || pages->state == CSTD_POOL_PAGES_TAKING) {
        memory->pool_bytes += pages->bytes; /* The release of each slab subtracts its bytes. */
    }
    memset(pages, 0, sizeof *pages);
}

bool cstd_pool_pages_are_moving(const struct cstd_memory *memory)
{
    return memory->pool_pages.state == CSTD_POOL_PAGES_GIVING ||
           memory->pool_pages.state == CSTD_POOL_PAGES_TAKING;
}
