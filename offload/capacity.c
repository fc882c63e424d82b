#include "offload/capacity.h"

#include "offload/need.h"
#include "offload/outliers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_WORK = 16 << 20 }; /* items and uses looked at, over all candidates */

struct candidate {
    struct cst_sizes sizes;
    uint64_t waste; /* elements: what chunks do not fill, and the price of further classes */
};

/* What the sizes that need least would need, for the words of CST_EPOOL. */
struct shortfall {
    struct cst_sizes sizes;
    struct cst_layout_need need;
    uint64_t bytes; /* of all blocks needed; 0: nothing was tried */
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
                     const struct shortfall *s, struct cst_err *err)
{
    char further[120] = "";
    size_t used = 0;

    for (uint32_t k = 1; k < s->sizes.n && used < sizeof further; k++) {
        used += (size_t)snprintf(further + used, sizeof further - used,
                                 ", and %" PRIu32 " of %" PRIu64 " bytes", s->need.min_blocks[k],
                                 block_bytes(s->sizes.v[k]));
    }
    return cst_err_set(err, CST_EPOOL,
                       "pool of %" PRIu64 " bytes: %" PRIu64 " blocks of %" PRIu64
                       " bytes, operator '%s' needs %" PRIu32 "%s: %" PRIu64 " bytes short",
                       pool_bytes, pool_bytes / block_bytes(s->sizes.v[0]),
                       block_bytes(s->sizes.v[0]), op_name(packing, s->need.min_operator[0]),
                       s->need.min_blocks[0], further, s->bytes - pool_bytes);
}

/* Bytes that @sizes need; *further_out (may be NULL): of them, for classes behind the first. Keeps
 * the smallest demand in @s. */
static uint64_t try_sizes(struct cst_packing *packing, const struct cst_sizes *sizes,
                          struct shortfall *s, uint64_t *further_out)
{
    struct cst_layout_need need;
    uint64_t further = 0, bytes;

    cst_packing_pack(packing, sizes);
    need = cst_need_of_all(packing);
    for (uint32_t k = 1; k < sizes->n; k++) {
        further += need.min_blocks[k] * block_bytes(sizes->v[k]);
    }
    bytes = further + need.min_blocks[0] * block_bytes(sizes->v[0]);
    if (s->bytes == 0 || bytes < s->bytes) {
        *s = (struct shortfall){.sizes = *sizes, .need = need, .bytes = bytes};
    }
    if (further_out != NULL) {
        *further_out = further;
    }
    return bytes;
}

/* -- given ---------------------------------------------------------------------------------- */

static int check_limit(uint64_t elems, struct cst_err *err)
{
    if (elems > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        return cst_err_set(err, CST_EINVAL,
                           "chunks of %" PRIu64 " elements: at most %u are allowed", elems,
                           CST_LAYOUT_MAX_CHUNK_ELEMS);
    }
    return CST_OK;
}

/* The further classes that @config gives. */
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
            status =
                cst_err_set(err, CST_EINVAL,
                            "classes of chunks must grow: %" PRIu64 " elements behind %" PRIu64,
                            given[i], before);
        } else if (status == CST_OK) {
            sizes->v[sizes->n++] = cst_align_up(given[i], CST_LAYOUT_CAPACITY_STEP);
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
    struct cst_outliers outliers;

    cst_outliers_find(&outliers, packing, sizes->v[0]);
    cst_outliers_fit(&outliers, sizes->v[0], max_classes, 0, sizes);
}

static int check_given(struct cst_packing *packing, const struct cst_layout_config *config,
                       struct cst_sizes *sizes_out, struct cst_err *err)
{
    struct cst_sizes sizes = {.v = {cst_align_up(config->chunk_elems, CST_LAYOUT_CAPACITY_STEP)},
                              .n = 1};
    struct shortfall s = {0};
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
    if (try_sizes(packing, &sizes, &s, NULL) > config->pool_bytes && config->pool_bytes != 0) {
        return too_small(packing, config->pool_bytes, &s, err);
    }
    *sizes_out = sizes;
    return CST_OK;
}

/* -- chosen --------------------------------------------------------------------------------- */

/* What is being chosen from. */
struct choice {
    struct cst_packing *packing;
    struct cst_outliers outliers; /* sizes above `low` */
    struct candidate *list;       /* owned */
    uint32_t n;
    uint32_t max_classes;
    uint64_t low, high; /* capacities of the first class */
    uint64_t price;     /* of a further class, elements */
};

static int by_waste(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;

    if (x->waste != y->waste) {
        return x->waste < y->waste ? -1 : 1;
    }
    return (x->sizes.v[0] > y->sizes.v[0]) - (x->sizes.v[0] < y->sizes.v[0]);
}

/* Trying one takes time in proportion to items and each rank's uses, and the daemon waits for it:
 * fewer for models of very many. */
static uint32_t max_candidates(const struct cst_packing *packing)
{
    uint32_t n_leaders = (uint32_t)__builtin_popcountll(packing->leaders);
    uint64_t each = packing->n_items + (uint64_t)packing->model->n_uses * n_leaders;
    uint64_t n = MAX_WORK / each;

    n = n < 16 ? 16 : n;
    return n < CST_CAPACITY_MAX_CANDIDATES ? (uint32_t)n : CST_CAPACITY_MAX_CANDIDATES;
}

/* The candidate of capacity @first: its classes cut down to what the chunks fill, which changes no
 * chunk. */
static void add_candidate(struct choice *choice, uint64_t first)
{
    struct cst_packing *p = choice->packing;
    struct candidate *c = &choice->list[choice->n++];

    cst_outliers_fit(&choice->outliers, first, choice->max_classes, choice->price, &c->sizes);
    cst_packing_pack(p, &c->sizes);
    c->waste = (c->sizes.n - 1) * choice->price;
    for (uint32_t k = 0; k < c->sizes.n; k++) {
        c->sizes.v[k] = cst_align_up(p->class_elems[k], CST_LAYOUT_CAPACITY_STEP);
        c->waste += p->class_chunks[k] * c->sizes.v[k];
    }
    c->waste -= p->n_elems;
}

/* Each by the same factor larger than the one before, and by a step at least: (1 + 1/d)^d >= 2, so
 * d of them for each doubling are enough. */
static void list_candidates(struct choice *choice)
{
    uint32_t max = max_candidates(choice->packing), n_doublings = 1;
    uint64_t d;

    while (choice->low << n_doublings < choice->high) {
        n_doublings++;
    }
    d = max > n_doublings ? max / n_doublings : 1;
    for (uint64_t c = choice->low; choice->n < max && c <= choice->high;
         c = cst_align_up(c + c / d + 1, CST_LAYOUT_CAPACITY_STEP)) {
        add_candidate(choice, c);
    }
}

/* The candidates by waste: the first whose pool has blocks to spare, else the first that can run,
 * else NULL. */
static const struct candidate *pick(const struct choice *choice, uint64_t pool_bytes,
                                    struct shortfall *s)
{
    const struct candidate *fallback = NULL;

    for (uint32_t i = 0; i < choice->n; i++) {
        const struct candidate *c = &choice->list[i];
        uint64_t good = CST_CAPACITY_GOOD_BLOCKS * block_bytes(c->sizes.v[0]);
        uint64_t further;

        if (fallback != NULL && good > pool_bytes) {
            continue;
        }
        if (try_sizes(choice->packing, &c->sizes, s, &further) > pool_bytes) {
            continue;
        }
        if (further + good <= pool_bytes) {
            return c;
        }
        fallback = fallback != NULL ? fallback : c;
    }
    return fallback;
}

static int open_choice(struct choice *choice, struct cst_packing *packing, uint32_t max_classes)
{
    uint64_t largest = cst_align_up(packing->largest, CST_LAYOUT_CAPACITY_STEP);
    uint64_t all = cst_align_up(packing->n_elems, CST_LAYOUT_CAPACITY_STEP), good;
    int status = CST_OK;

    choice->packing = packing;
    choice->n = 0;
    choice->max_classes = max_classes;
    choice->price = packing->n_elems / CST_CAPACITY_CLASS_PRICE;
    choice->list = malloc(CST_CAPACITY_MAX_CANDIDATES * sizeof *choice->list);
    if (choice->list == NULL) {
        return CST_ENOMEM;
    }
    choice->low = largest;
    if (max_classes > 1) {
        status = cst_outliers_least(packing, &choice->low);
    }
    if (status != CST_OK) {
        free(choice->list);
        return status;
    }
    cst_outliers_find(&choice->outliers, packing, choice->low);
    good = 2 * largest > CST_CAPACITY_GOOD_ELEMS ? 2 * largest : CST_CAPACITY_GOOD_ELEMS;
    choice->high = all < good ? all : good;
    if (choice->high > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        choice->high = CST_LAYOUT_MAX_CHUNK_ELEMS;
    }
    list_candidates(choice);
    qsort(choice->list, choice->n, sizeof *choice->list, by_waste);
    return CST_OK;
}

/* No pool is given: as if it held all weights and gradients, but it is never too small. */
static int choose(struct cst_packing *packing, const struct cst_layout_config *config,
                  struct cst_sizes *sizes_out, struct cst_err *err)
{
    uint64_t pool_bytes = config->pool_bytes;
    struct shortfall s = {0};
    const struct candidate *chosen;
    struct choice choice;
    int status = open_choice(&choice, packing, config->max_classes);

    if (status != CST_OK) {
        return cst_err_set(err, status, "no memory to choose a chunk capacity");
    }
    chosen = pick(&choice, pool_bytes != 0 ? pool_bytes : 2 * block_bytes(packing->n_elems), &s);
    if (chosen != NULL) {
        *sizes_out = chosen->sizes;
    } else if (pool_bytes == 0) {
        *sizes_out = s.sizes;
    } else {
        status = too_small(packing, pool_bytes, &s, err);
    }
    free(choice.list);
    return status;
}

int cst_capacity_choose(struct cst_packing *packing, const struct cst_layout_config *config,
                        struct cst_sizes *sizes_out, struct cst_err *err)
{
    int status;

    if (packing->largest > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        return cst_err_set(err, CST_EINVAL,
                           "the largest tensor has %" PRIu64 " elements, a chunk can have %u",
                           packing->largest, CST_LAYOUT_MAX_CHUNK_ELEMS);
    }
    status = config->chunk_elems != 0 ? check_given(packing, config, sizes_out, err)
                                      : choose(packing, config, sizes_out, err);
    if (status == CST_OK) {
        cst_packing_pack(packing, sizes_out);
    }
    return status;
}
