/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/capacity.h"

#include "offload/layout/min_blocks.h"
#include "offload/layout/size_classes.h"
#include "proto/round_up.h"
#include "proto/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_WORK = 16 << 20, /* Maximum number of items and uses to look at, over all candidates. */
    MIN_CANDIDATES = 16,
};

static uint64_t block_bytes(uint64_t capacity)
{
    return 2 * capacity;
}

static const char *op_name(const struct cst_packing *packing, uint32_t op)
{
    return packing->model->n_operators == 0 ? "" : packing->model->operators[op].name;
}

static int too_small(const struct cst_packing *packing, uint64_t pool_bytes,
                     const struct cst_capacity *s, struct cst_err *err)
{
    char further[120] = "", pool[CST_SIZE_EXACT], block[CST_SIZE_TEXT], lacks[CST_SIZE_EXACT],
         enough[CST_SIZE_EXACT];
    size_t used = 0;

    for (uint32_t k = 1; k < s->sizes.n && used < sizeof further; k++) {
        used += (size_t)snprintf(further + used, sizeof further - used, ", and %" PRIu32 " of %s",
                                 s->need.min_blocks[k],
                                 cst_size_text(block_bytes(s->sizes.v[k]), block));
    }
    return cst_err_set(
        err, CST_EPOOL,
        "pool of %s: %" PRIu64 " blocks of %s, operator '%s' needs %" PRIu32
        "%s: %s short; a pool of %s, %" PRIu64 "%% of the job's weights, is enough",
        cst_size_exact(pool_bytes, pool), pool_bytes / block_bytes(s->sizes.v[0]),
        cst_size_text(block_bytes(s->sizes.v[0]), block), op_name(packing, s->need.min_operator[0]),
        s->need.min_blocks[0], further, cst_size_exact(s->bytes - pool_bytes, lacks),
        cst_size_exact(s->bytes, enough), cst_layout_percent(packing->model, s->bytes));
}

/* Compute the costs of @c's capacities. With @cut they are first reduced to what the fullest chunks
 * need, which does not change the chunks. */
static void cost(struct cst_packing *packing, bool cut, struct cst_capacity *c)
{
    struct cst_sizes *sizes = &c->sizes;

    cst_packing_pack(packing, sizes);
    c->need = cst_min_blocks_of_all(packing);
    c->waste = c->further = 0;
    for (uint32_t k = 0; k < sizes->n; k++) {
        if (cut) {
            sizes->v[k] = cst_round_up(packing->class_places[k], CST_LAYOUT_CAPACITY_STEP);
        }
        c->waste += packing->class_chunks[k] * sizes->v[k];
        c->further += k > 0 ? c->need.min_blocks[k] * block_bytes(sizes->v[k]) : 0;
    }
    c->waste -= packing->n_places;
    c->bytes = c->further + c->need.min_blocks[0] * block_bytes(sizes->v[0]);
}

/* -- given capacities ------------------------------------------------------------------------- */

static int check_limit(uint64_t elems, struct cst_err *err)
{
    if (elems > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        return cst_err_set(err, CST_EINVAL,
                           "chunks of %" PRIu64 " elements: at most %u are allowed", elems,
                           CST_LAYOUT_MAX_CHUNK_ELEMS);
    }
    return CST_OK;
}

/* Read the further classes from @config. */
static int take_given(const struct cst_layout_config *config, struct cst_sizes *sizes,
                      struct cst_err *err)
{
    const uint64_t *given = config->class_elems;
    int status = CST_OK;

    for (uint32_t i = 0; i < CST_LAYOUT_MAX_CLASSES && given[i] != 0 && status == CST_OK; i++) {
        uint64_t before = sizes->v[sizes->n - 1];

        status = check_limit(given[i], err);
        if (status == CST_OK && sizes->n == CST_LAYOUT_MAX_CLASSES) {
            status = cst_err_set(err, CST_EINVAL, "more than %d classes of chunks",
                                 CST_LAYOUT_MAX_CLASSES);
        } else if (status == CST_OK && given[i] <= before) {
            status = cst_err_set(err, CST_EINVAL,
                                 "classes of chunks must grow: %" PRIu64 " elements after %" PRIu64,
                                 given[i], before);
        } else if (status == CST_OK) {
            sizes->v[sizes->n++] = cst_round_up(given[i], CST_LAYOUT_CAPACITY_STEP);
        }
    }
    return status;
}

static int check_holds(const struct cst_packing *packing, const struct cst_sizes *sizes,
                       struct cst_err *err)
{
    uint64_t last = sizes->v[sizes->n - 1];

    if (last < packing->largest) {
        return cst_err_set(err, CST_EINVAL,
                           "chunks of %" PRIu64
                           " elements are smaller than the largest tensor, %" PRIu64,
                           last, packing->largest);
    }
    if (sizes->v[0] < packing->smallest) {
        return cst_err_set(err, CST_EINVAL,
                           "chunks of %" PRIu64
                           " elements are smaller than the smallest tensor, %" PRIu64,
                           sizes->v[0], packing->smallest);
    }
    return CST_OK;
}

static void fit_given(const struct cst_packing *packing, uint32_t max_classes,
                      struct cst_sizes *sizes)
{
    struct cst_size_classes outliers;

    cst_size_classes_find(&outliers, packing, sizes->v[0]);
    cst_size_classes_fit(&outliers, sizes->v[0], max_classes, 0, sizes);
}

static int check_given(struct cst_packing *packing, const struct cst_layout_config *config,
                       struct cst_sizes *sizes_out, struct cst_err *err)
{
    struct cst_sizes sizes = {.v = {cst_round_up(config->chunk_elems, CST_LAYOUT_CAPACITY_STEP)},
                              .n = 1};
    struct cst_capacity c;
    int status = check_limit(config->chunk_elems, err);

    if (status == CST_OK && config->class_elems[0] != 0) {
        status = take_given(config, &sizes, err);
    } else if (status == CST_OK && config->max_classes > 1) {
        fit_given(packing, config->max_classes, &sizes);
    }
    if (status == CST_OK) {
        status = check_holds(packing, &sizes, err);
    }
    if (status != CST_OK) {
        return status;
    }
    c.sizes = sizes;
    cost(packing, false, &c);
    if (c.bytes > config->pool_bytes && config->pool_bytes != 0) {
        return too_small(packing, config->pool_bytes, &c, err);
    }
    *sizes_out = sizes;
    return CST_OK;
}

/* -- chosen capacities ------------------------------------------------------------------------ */

/* The time of a candidate is proportional to the items and to the uses of each leader, and the
 * daemon waits for it. So large models get fewer candidates. */
static uint32_t max_candidates(const struct cst_packing *packing)
{
    uint32_t n_leaders = cst_set_count(&packing->leaders);
    uint64_t each = packing->n_items + (uint64_t)packing->model->n_uses * n_leaders;
    uint64_t n = MAX_WORK / each;

    n = n < MIN_CANDIDATES ? MIN_CANDIDATES : n;
    return n < CST_CAPACITY_MAX_CANDIDATES ? (uint32_t)n : CST_CAPACITY_MAX_CANDIDATES;
}

static bool same_sizes(const struct cst_sizes *a, const struct cst_sizes *b)
{
    return a->n == b->n && memcmp(a->v, b->v, a->n * sizeof *a->v) == 0;
}

/* Add the candidate with capacity @first, unless it is equal to the one before. */
static void add_candidate(struct cst_capacities *choice, uint64_t first)
{
    struct cst_capacity *c = &choice->list[choice->n];

    cst_size_classes_fit(&choice->outliers, first, choice->max_classes, choice->price, &c->sizes);
    cost(choice->packing, true, c);
    choice->n += choice->n == 0 || !same_sizes(&c->sizes, &c[-1].sizes);
}

/* Each capacity is larger than the one before by the same factor, and by at least one step. As (1 +
 * 1/d)^d >= 2, d capacities for each doubling are enough. */
static void list_candidates(struct cst_capacities *choice)
{
    uint32_t max = max_candidates(choice->packing), n_doublings = 1, n_tried = 0;
    uint64_t d;

    while (choice->low << n_doublings < choice->high) {
        n_doublings++;
    }
    d = max > n_doublings ? max / n_doublings : 1;
    for (uint64_t c = choice->low; n_tried < max && c <= choice->high; n_tried++) {
        add_candidate(choice, c);
        c = cst_round_up(c + c / d + 1, CST_LAYOUT_CAPACITY_STEP);
    }
}

int cst_capacities_open(struct cst_capacities *choice, struct cst_packing *packing,
                        uint32_t max_classes)
{
    uint64_t largest = cst_round_up(packing->largest, CST_LAYOUT_CAPACITY_STEP);
    uint64_t all = cst_round_up(packing->n_places, CST_LAYOUT_CAPACITY_STEP), good;

    *choice = (struct cst_capacities){.packing = packing,
                                      .max_classes = max_classes,
                                      .low = largest,
                                      .price = packing->n_places / CST_CAPACITY_CLASS_PRICE};
    if (max_classes > 1 && cst_size_classes_least(packing, &choice->low) != CST_OK) {
        return CST_ENOMEM;
    }
    choice->list = malloc(CST_CAPACITY_MAX_CANDIDATES * sizeof *choice->list);
    if (choice->list == NULL) {
        return CST_ENOMEM;
    }
    cst_size_classes_find(&choice->outliers, packing, choice->low);
    good = 2 * largest > CST_CAPACITY_MOST_ELEMS ? 2 * largest : CST_CAPACITY_MOST_ELEMS;
    choice->high = all < good ? all : good;
    if (choice->high > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        choice->high = CST_LAYOUT_MAX_CHUNK_ELEMS;
    }
    list_candidates(choice);
    return CST_OK;
}

/* Elements lost, including the price of further classes. A small loss counts as none, so that it
 * does not decide against a better capacity. */
static uint64_t loss(const struct cst_capacities *choice, const struct cst_capacity *c)
{
    uint64_t lost = c->waste + (c->sizes.n - 1) * choice->price;

    return lost > CST_CAPACITY_LITTLE * choice->price ? lost : 0;
}

/* How far the capacity is from the best one, as a factor. */
static double distance(const struct cst_capacity *c)
{
    double factor = (double)c->sizes.v[0] / (double)CST_CAPACITY_GOOD_ELEMS;

    return factor < 1 ? 1 / factor : factor;
}

/* True if @b is better than @a, or if @a is NULL. */
static bool is_better(const struct cst_capacities *choice, const struct cst_capacity *a,
                      const struct cst_capacity *b, uint64_t pool_bytes)
{
    const uint64_t good = CST_CAPACITY_GOOD_BLOCKS;
    bool a_roomy, b_roomy;

    if (a == NULL) {
        return true;
    }
    a_roomy = a->further + good * block_bytes(a->sizes.v[0]) <= pool_bytes;
    b_roomy = b->further + good * block_bytes(b->sizes.v[0]) <= pool_bytes;
    if (a_roomy != b_roomy) {
        return b_roomy;
    }
    if (loss(choice, a) != loss(choice, b)) {
        return loss(choice, b) < loss(choice, a);
    }
    return loss(choice, a) > 0 ? b->sizes.v[0] < a->sizes.v[0] : distance(b) < distance(a);
}

static const struct cst_capacity *pick(const struct cst_capacities *choice, uint64_t pool_bytes)
{
    const struct cst_capacity *best = NULL;

    for (uint32_t i = 0; i < choice->n; i++) {
        const struct cst_capacity *c = &choice->list[i];

        if (c->bytes <= pool_bytes && is_better(choice, best, c, pool_bytes)) {
            best = c;
        }
    }
    return best;
}

static const struct cst_capacity *find_least(const struct cst_capacities *choice)
{
    const struct cst_capacity *least = &choice->list[0];

    for (uint32_t i = 1; i < choice->n; i++) {
        least = choice->list[i].bytes < least->bytes ? &choice->list[i] : least;
    }
    return least;
}

/* If no pool is given, choose as if it held all weights and gradients; it is then never too
 * small. */
static int choose(struct cst_packing *packing, const struct cst_layout_config *config,
                  struct cst_sizes *sizes_out, struct cst_err *err)
{
    uint64_t pool_bytes = config->pool_bytes;
    const struct cst_capacity *chosen;
    struct cst_capacities choice;
    int status = cst_capacities_open(&choice, packing, config->max_classes);

    if (status != CST_OK) {
        return cst_err_set(err, status, "no memory to choose a chunk capacity");
    }
    chosen = pick(&choice, pool_bytes != 0 ? pool_bytes : 2 * block_bytes(packing->n_places));
    if (chosen == NULL && pool_bytes == 0) {
        chosen = find_least(&choice);
    }
    if (chosen != NULL) {
        *sizes_out = chosen->sizes;
    } else {
        status = too_small(packing, pool_bytes, find_least(&choice), err);
    }
    free(choice.list);
    return status;
}

static int check_largest(const struct cst_packing *packing, struct cst_err *err)
{
    if (packing->largest > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        return cst_err_set(err, CST_EINVAL,
                           "the largest tensor has %" PRIu64 " elements, a chunk can have %u",
                           packing->largest, CST_LAYOUT_MAX_CHUNK_ELEMS);
    }
    return CST_OK;
}

int cst_capacity_choose(struct cst_packing *packing, const struct cst_layout_config *config,
                        struct cst_sizes *sizes_out, struct cst_err *err)
{
    int status = check_largest(packing, err);

    if (status != CST_OK) {
        return status;
    }
    status = config->chunk_elems != 0 ? check_given(packing, config, sizes_out, err)
                                      : choose(packing, config, sizes_out, err);
    if (status == CST_OK) {
        cst_packing_pack(packing, sizes_out);
    }
    return status;
}
