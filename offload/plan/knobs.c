/* SPDX-License-Identifier: Apache-2.0 */
/* The values of each knob. */
#include "offload/plan/knobs.h"

#include "offload/layout/packing.h"
#include "offload/plan/reservation.h"
#include "proto/round_up.h"

#include <math.h>
#include <string.h>

#define MAX_SITES 40 /* Maximum number of capacities of the first class to start from. */
#define MIN_SITES 6
/* Maximum number of tensors and uses to look at, over all capacities. */
#define MAX_WORK (16u << 20)
/* Number of layouts with states on accelerators that is allowed for any model. */
#define LEAST_LAYOUTS 100

/* -- capacity --------------------------------------------------------------------------------- */

/* Tensors and uses to look at for one layout. */
static uint64_t work_of(const struct cst_model *model)
{
    return model->n_tensors + model->n_uses + 1ull;
}

uint64_t cst_knobs_split_layouts(const struct cst_model *model)
{
    uint64_t n = 2 * (uint64_t)MAX_WORK / work_of(model);

    return n > LEAST_LAYOUTS ? n : LEAST_LAYOUTS;
}

/* Maximum number of layouts with states on accelerators for one capacity. */
static uint64_t layouts_of_site(const struct cst_search *s)
{
    uint32_t classes = cst_reservation_is_chosen(s) ? CST_LAYOUT_MAX_CLASSES : 1;

    return 2 + classes * CST_SEARCH_SPLITS * (cst_reservation_may_keep(s) ? 2 : 1);
}

/* Number of capacities to start from. Half of the layouts are reserved for the descent. */
static uint64_t count_sites(const struct cst_search *s)
{
    uint64_t n = MAX_WORK / work_of(s->config->model);

    if (s->splits) {
        n = cst_knobs_split_layouts(s->config->model) / 2 / layouts_of_site(s);
    } else if (n < MIN_SITES) {
        n = MIN_SITES;
    }
    return n < MAX_SITES ? n : MAX_SITES;
}

/* The @i-th of @n geometric steps, from the smallest useful chunks to one chunk for everything. */
static uint64_t site(const struct cst_search *s, uint32_t i, uint64_t n)
{
    uint64_t params = s->config->model->weight_bytes / 2; /* As if all of them were bf16. */
    uint64_t low = cst_round_up(params / 2048 + 1, CST_LAYOUT_CAPACITY_STEP);
    uint64_t high = cst_round_up(params, CST_LAYOUT_CAPACITY_STEP);
    double ratio;

    high = high < CST_LAYOUT_MAX_CHUNK_ELEMS ? high : CST_LAYOUT_MAX_CHUNK_ELEMS;
    ratio = low < high ? pow((double)high / (double)low, 1.0 / (double)(n > 0 ? n : 1)) : 1;
    return cst_round_up((uint64_t)((double)low * pow(ratio, i)), CST_LAYOUT_CAPACITY_STEP);
}

/* If layouts are expensive and there is a plan without states on accelerators, the search starts
 * from its capacity only. */
static int start_capacity(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    uint64_t n = count_sites(s), only = s->config->chunk_elems;

    if (only == 0 && n < MIN_SITES && s->best != UINT32_MAX) {
        only = s->points[s->best].sizes[0];
    }
    if (i > (only > 0 ? 0 : n + 1)) {
        return CST_ENOTFOUND;
    }
    return cst_search_set_capacity(s, only > 0 ? only : i == 0 ? 0 : site(s, i - 1, n), p);
}

static int near_capacity(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    static const double factors[] = {0.5, 0.7, 0.85, 0.93, 1.08, 1.2, 1.5, 2};

    if (s->config->chunk_elems != 0 || i == sizeof factors / sizeof *factors) {
        return CST_ENOTFOUND;
    }
    p->pool_limit = UINT64_MAX;
    return cst_search_set_capacity(
        s, cst_round_up((uint64_t)((double)p->sizes[0] * factors[i]), CST_LAYOUT_CAPACITY_STEP), p);
}

/* -- updates on accelerators ------------------------------------------------------------------ */

static bool may_reserve(const struct cst_search *s, const struct cst_plan_point *p)
{
    (void)p;
    return s->n_reservations > 0;
}

/* A device reservation of a given size is for all classes. */
static int start_reservation(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    uint32_t first = !cst_reservation_is_chosen(s) ? p->n_sizes : s->splits ? 1 : 0;

    p->update_classes = first + i;
    return first + i <= p->n_sizes ? CST_OK : CST_ENOTFOUND;
}

static int near_reservation(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    p->update_classes = i;
    p->lends = false;
    return cst_reservation_is_chosen(s) && i <= p->n_sizes ? CST_OK : CST_ENOTFOUND;
}

static bool may_lend(const struct cst_search *s, const struct cst_plan_point *p)
{
    (void)p;
    return cst_reservation_may_lend(s) && !s->splits;
}

/* Memory that pools lend takes the place of a device reservation. */
static int start_lent(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    (void)s;
    p->lends = i == 1;
    return i == 0 || (i == 1 && p->update_classes == 0) ? CST_OK : CST_ENOTFOUND;
}

static int near_lent(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    (void)s;
    p->lends = !p->lends;
    p->update_classes = 0;
    p->keeps_gradients = false;
    p->pool_limit = UINT64_MAX;
    return i == 0 && p->states_asked == 0 ? CST_OK : CST_ENOTFOUND;
}

static bool may_split(const struct cst_search *s, const struct cst_plan_point *p)
{
    return s->splits && p->update_classes > 0;
}

/* The ways to divide a device, without and with gradients that are kept there. */
static int start_states(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    p->keeps_gradients = i >= CST_SEARCH_SPLITS && cst_reservation_may_keep(s);
    return cst_search_split(s, p, p->keeps_gradients ? i - CST_SEARCH_SPLITS : i, &p->states_asked);
}

static int near_states(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    static const double shares[] = {0.8, 0.95, 1.05, 1.25};
    const uint32_t n = sizeof shares / sizeof *shares;

    if (i >= n) {
        return start_states(s, i - n, p);
    }
    p->states_asked = (uint64_t)((double)p->device_states * shares[i]);
    return CST_OK;
}

/* -- pools ------------------------------------------------------------------------------------ */

static int set_first_class(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    (void)s;
    p->first_class = i;
    return i < p->n_sizes ? CST_OK : CST_ENOTFOUND;
}

static int near_pool(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    static const double shares[] = {0.5, 0.8, 0.95};

    (void)s;
    p->pool_limit = i < 3 ? (uint64_t)((double)p->pool_bytes * shares[i]) : UINT64_MAX;
    return i <= 3 ? CST_OK : CST_ENOTFOUND;
}

static int near_depth(struct cst_search *s, uint32_t i, struct cst_plan_point *p)
{
    static const uint32_t depths[] = {0, 1, 2, 3, 4, 8, CST_CORE_NO_PREFETCH};

    (void)s;
    if (i == sizeof depths / sizeof *depths) {
        return CST_ENOTFOUND;
    }
    p->depth = depths[i];
    return CST_OK;
}

/* -- the table -------------------------------------------------------------------------------- */

#define SHOWS(field)                                                                               \
    .offset = offsetof(struct cst_plan_point, field),                                              \
    .bytes = sizeof(((struct cst_plan_point *)0)->field)

const struct cst_knob cst_knobs[CST_KNOBS] = {
    [CST_KNOB_SIZES] = {"chunk sizes", NULL, start_capacity, near_capacity, SHOWS(sizes)},
    [CST_KNOB_RESERVATION] = {"memory for updates", may_reserve, start_reservation,
                              near_reservation, SHOWS(device_update_bytes)},
    [CST_KNOB_LENT] = {"lent memory", may_lend, start_lent, near_lent, SHOWS(lends)},
    [CST_KNOB_STATES] = {"states on accelerators", may_split, start_states, near_states,
                         SHOWS(device_states)},
    [CST_KNOB_BLOCKS] = {"blocks", NULL, set_first_class, set_first_class, SHOWS(n_blocks),
                         .is_minor = true},
    [CST_KNOB_POOL] = {"pool", NULL, NULL, near_pool, SHOWS(n_blocks), .is_minor = true},
    [CST_KNOB_DEPTH] = {"prefetch depth", NULL, NULL, near_depth, SHOWS(depth), .is_minor = true},
};

bool cst_knob_fits(const struct cst_knob *knob, const struct cst_search *s,
                   const struct cst_plan_point *p)
{
    return knob->fits == NULL || knob->fits(s, p);
}

bool cst_knob_differs(const struct cst_knob *knob, const struct cst_plan_point *a,
                      const struct cst_plan_point *b)
{
    return memcmp((const char *)a + knob->offset, (const char *)b + knob->offset, knob->bytes) != 0;
}
