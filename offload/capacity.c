#include "offload/capacity.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MAX_WORK = 16 << 20 }; /* tensors and uses looked at, over all candidates */

struct candidate {
    uint64_t capacity; /* elements */
    uint64_t waste;    /* elements: chunks x capacity - parameters */
};

/* What the best capacity would need, for the words of CST_EPOOL. */
struct shortfall {
    uint64_t capacity;    /* elements */
    uint64_t needed;      /* bytes */
    uint32_t need_blocks; /* of 2 x capacity bytes */
    uint32_t op;          /* operator that needs them */
};

static int by_waste(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;

    if (x->waste != y->waste) {
        return x->waste < y->waste ? -1 : 1;
    }
    return (x->capacity > y->capacity) - (x->capacity < y->capacity);
}

static uint64_t block_bytes(uint64_t capacity)
{
    return 2 * capacity;
}

static int too_small(const struct cst_packing *packing, uint64_t pool_bytes,
                     const struct shortfall *s, struct cst_err *err)
{
    const struct cst_model *model = packing->model;

    return cst_err_set(err, CST_EPOOL,
                       "pool of %" PRIu64 " bytes: %" PRIu64 " blocks of %" PRIu64
                       " bytes, operator '%s' needs %" PRIu32 ": %" PRIu64 " bytes short",
                       pool_bytes, pool_bytes / block_bytes(s->capacity), block_bytes(s->capacity),
                       model->n_operators == 0 ? "" : model->operators[s->op].name, s->need_blocks,
                       s->needed - pool_bytes);
}

/* Blocks that this capacity needs; true if the pool holds them. Keeps the smallest demand in @s. */
static bool try_capacity(struct cst_packing *packing, uint64_t pool_bytes, uint64_t capacity,
                         uint32_t *need_out, struct shortfall *s)
{
    uint32_t op = 0;
    uint32_t need;
    uint64_t bytes;

    (void)cst_packing_pack(packing, capacity);
    need = cst_packing_need(packing, &op);
    bytes = need * block_bytes(capacity);
    if (s->needed == 0 || bytes < s->needed) {
        *s = (struct shortfall){
            .capacity = capacity, .needed = bytes, .need_blocks = need, .op = op};
    }
    *need_out = need;
    return bytes <= pool_bytes;
}

static int check_given(struct cst_packing *packing, const struct cst_layout_config *config,
                       uint64_t *capacity_out, struct cst_err *err)
{
    struct shortfall s = {0};
    uint32_t need;
    uint64_t capacity;

    if (config->chunk_elems > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        return cst_err_set(err, CST_EINVAL,
                           "chunks of %" PRIu64 " elements: at most %u are allowed",
                           config->chunk_elems, CST_LAYOUT_MAX_CHUNK_ELEMS);
    }
    capacity = cst_align_up(config->chunk_elems, CST_LAYOUT_CAPACITY_STEP);
    if (capacity < packing->largest) {
        return cst_err_set(err, CST_EINVAL,
                           "chunks of %" PRIu64
                           " elements are smaller than the largest tensor, %" PRIu64,
                           config->chunk_elems, packing->largest);
    }
    if (!try_capacity(packing, config->pool_bytes == 0 ? UINT64_MAX : config->pool_bytes, capacity,
                      &need, &s)) {
        return too_small(packing, config->pool_bytes, &s, err);
    }
    *capacity_out = capacity;
    return CST_OK;
}

/* Trying one takes time in proportion to tensors and uses, and the daemon waits for it: fewer for
 * models of very many. */
static uint32_t max_candidates(const struct cst_packing *packing)
{
    uint32_t n = MAX_WORK / (packing->model->n_tensors + packing->model->n_uses);

    return n < CST_CAPACITY_MAX_CANDIDATES ? n : CST_CAPACITY_MAX_CANDIDATES;
}

/* Evenly spaced multiples of the step from the largest tensor to what the pool could hold. */
static uint32_t list_candidates(const struct cst_packing *packing, uint64_t pool_bytes,
                                struct candidate *list)
{
    uint64_t step = CST_LAYOUT_CAPACITY_STEP;
    uint64_t low = cst_align_up(packing->largest, step);
    uint64_t high = cst_align_up(packing->model->n_params, step);
    uint32_t n = 0, max = max_candidates(packing);

    if (high >
        pool_bytes / block_bytes(3)) { /* need is 3 blocks at least: weight, gradient, one ahead */
        high = pool_bytes / block_bytes(3) / step * step;
    }
    if (high > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        high = CST_LAYOUT_MAX_CHUNK_ELEMS;
    }
    if (high > low) {
        step = cst_align_up((high - low) / max + 1, step);
    }
    for (uint64_t c = low; n == 0 || (c <= high && n < max); c += step) {
        uint64_t held = cst_packing_count(packing, c) * c;

        list[n++] = (struct candidate){.capacity = c, .waste = held - packing->model->n_params};
    }
    return n;
}

/* The candidates by waste: the first whose pool has blocks to spare, else the first that can run,
 * else 0. */
static uint64_t pick(struct cst_packing *packing, uint64_t pool_bytes, const struct candidate *list,
                     uint32_t n, struct shortfall *s)
{
    uint64_t fallback = 0;

    for (uint32_t i = 0; i < n; i++) {
        bool roomy = pool_bytes / block_bytes(list[i].capacity) >= CST_CAPACITY_GOOD_BLOCKS;
        uint32_t need;

        if (!roomy && fallback != 0) {
            continue;
        }
        if (!try_capacity(packing, pool_bytes, list[i].capacity, &need, s)) {
            continue;
        }
        if (roomy) {
            return list[i].capacity;
        }
        fallback = list[i].capacity;
    }
    return fallback;
}

/* The smallest demand among the candidates of a pool of @pool_bytes. */
static struct shortfall least_demand(struct cst_packing *packing, uint64_t pool_bytes,
                                     struct candidate *list)
{
    uint32_t n = list_candidates(packing, pool_bytes, list);
    struct shortfall s = {0};
    uint32_t need;

    for (uint32_t i = 0; i < n; i++) {
        (void)try_capacity(packing, pool_bytes, list[i].capacity, &need, &s);
    }
    return s;
}

/* The smallest pool that is accepted. A larger pool has more candidates, of which one may need less
 * than the few of a pool that is too small; but what is promised must be a candidate of that very
 * pool. The smallest capacity is one of every pool. */
static struct shortfall least_pool(struct cst_packing *packing, struct candidate *list)
{
    struct shortfall best = least_demand(packing, 0, list);
    struct shortfall next = least_demand(packing, best.needed, list);

    while (next.needed < best.needed) {
        struct shortfall after = least_demand(packing, next.needed, list);

        if (after.needed > next.needed) {
            break;
        }
        best = next;
        next = after;
    }
    return best;
}

static int choose(struct cst_packing *packing, uint64_t pool_bytes, uint64_t *capacity_out,
                  struct cst_err *err)
{
    struct candidate *list = malloc(CST_CAPACITY_MAX_CANDIDATES * sizeof *list);
    bool any =
        pool_bytes ==
        0; /* then as if the pool held all weights and gradients, but it is never too small */
    struct shortfall s = {0};
    uint64_t chosen;
    uint32_t n;

    if (list == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to choose a chunk capacity");
    }
    if (any) {
        pool_bytes = 2 * block_bytes(packing->model->n_params);
    }
    n = list_candidates(packing, pool_bytes, list);
    qsort(list, n, sizeof *list, by_waste);
    chosen = pick(packing, pool_bytes, list, n, &s);
    if (chosen == 0 && any) {
        chosen = s.capacity;
    }
    if (chosen == 0) {
        s = least_pool(packing, list);
    }
    free(list);
    if (chosen == 0) {
        return too_small(packing, pool_bytes, &s, err);
    }
    *capacity_out = chosen;
    return CST_OK;
}

int cst_capacity_choose(struct cst_packing *packing, const struct cst_layout_config *config,
                        uint64_t *capacity_out, struct cst_err *err)
{
    int status;

    if (packing->largest > CST_LAYOUT_MAX_CHUNK_ELEMS) {
        return cst_err_set(err, CST_EINVAL,
                           "the largest tensor has %" PRIu64 " elements, a chunk can have %u",
                           packing->largest, CST_LAYOUT_MAX_CHUNK_ELEMS);
    }
    status = config->chunk_elems != 0 ? check_given(packing, config, capacity_out, err)
                                      : choose(packing, config->pool_bytes, capacity_out, err);
    if (status == CST_OK) {
        (void)cst_packing_pack(packing, *capacity_out);
    }
    return status;
}
