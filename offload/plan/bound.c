/* SPDX-License-Identifier: Apache-2.0 */
/* Lower bound and estimate of a step's time. Each resource has an amount of work and cannot be
 * faster than its rate; the longest of these times is the bound. The estimate adds what is at the
 * begin and the end of a step and overlaps with nothing. */
#include "offload/plan/drives.h"

/* Seconds of work, of one rank or of the node. */
struct work {
    double up, down; /* Of one device. */
    double update;
    double reduce, copy; /* Of a node's cores. */
    double first, last;  /* Before the first operator, and after the last one. */
};

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double over(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

static double sum_update(const struct cst_rates *rates)
{
    double sum = 0;

    for (uint32_t i = 0; i < rates->n_nodes; i++) {
        sum += rates->nodes[i].update;
    }
    return sum;
}

/* Elements that are updated in the time of an operation of a product of Muon, by whatever of nodes
 * and accelerators it delays least. */
static double elems_per_flop(const struct cst_search *s, const struct cst_plan_point *point)
{
    const struct cst_rates_device *d = &s->rates.devices[s->accelerator];
    double products = 0, nodes, device = over(d->update, cst_rates_products(d));

    for (uint32_t i = 0; i < s->rates.n_nodes; i++) {
        products += s->rates.nodes[i].products;
    }
    nodes = over(sum_update(&s->rates), products);
    return cst_search_updates_there(point) && device < nodes ? device : nodes;
}

/* Elements whose update takes at least as long as that of @chunk with its products. */
static double update_elems(const struct cst_search *s, const struct cst_plan_point *point,
                           const struct cst_layout_chunk *chunk)
{
    return (double)chunk->n_elems + chunk->muon_flops * elems_per_flop(s, point);
}

/* Elements/s of all updates, if accelerators always work at their full rate. */
static double update_rate(const struct cst_search *s, const struct cst_plan_point *point)
{
    return sum_update(&s->rates) +
           (cst_search_updates_there(point)
                ? s->n_reservations * s->rates.devices[s->accelerator].update
                : 0);
}

/* Likely duration of the updates, in seconds: those of chunks whose states are copied up and down
 * are limited by the links. */
static double likely_update(const struct cst_search *s, const struct cst_plan_point *point,
                            const struct cst_layout *layout)
{
    const struct cst_rates_device *d = &s->rates.devices[s->accelerator];
    double one_way = cst_layout_update_bytes(&layout->states, layout->grad_bytes, CST_BF16) / 2;
    double link = most(d->up, d->up_both) < most(d->down, d->down_both)
                      ? most(d->up, d->up_both)
                      : most(d->down, d->down_both);
    double through = link / one_way < d->update ? link / one_way : d->update;
    double staying = 0, others = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        double elems = update_elems(s, point, &layout->chunks[c]);
        bool trains = cst_layout_has_states(&layout->chunks[c]);
        uint32_t tier = layout->chunks[c].tier;
        bool stays = cst_tier_is_apart(tier) && !cst_drives_have(s, tier);

        staying += stays ? elems : 0;
        others += trains && !stays ? elems : 0;
    }
    return !cst_search_updates_there(point)
               ? over(others, sum_update(&s->rates))
               : most(over(staying, s->n_reservations * d->update),
                      over(others, sum_update(&s->rates) + s->n_reservations * through));
}

/* Elements of the chunks whose weights are in host memory. */
struct elements {
    double states; /* Elements that are updated, with products (update_elems). */
    /* The other fields count what each pass uses: without experts, which may be idle, and without
     * what no operator uses. */
    double trained, frozen; /* Bytes of weights. */
    double sums;            /* Bytes of the grad rows of the trained chunks. */
    /* Bytes of gradients that are copied down in a micro-batch: those that land
     * (offload/gradient/landing.h) as they are, the others in the format of the grad rows. */
    double down;
};

static bool is_in_each_pass(const struct cst_layout_chunk *chunk)
{
    return chunk->n_uses > 0 && !cst_pattern(chunk->pattern)->sparse;
}

static bool lands(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    return layout->landings != NULL && cst_set_count(chunk->ranks) == 1;
}

static struct elements count_elements(const struct cst_search *s,
                                      const struct cst_plan_point *point,
                                      const struct cst_layout *layout)
{
    struct elements n = {0};

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        double weights = (double)cst_layout_weight_bytes(chunk);
        double sum = (double)cst_layout_grad_bytes(layout, chunk);
        bool trains = cst_layout_has_states(chunk);

        n.states += trains ? update_elems(s, point, chunk) : 0;
        n.trained += trains && is_in_each_pass(chunk) ? weights : 0;
        n.frozen += !trains && is_in_each_pass(chunk) ? weights : 0;
        if (trains && is_in_each_pass(chunk)) {
            n.sums += sum;
            n.down += lands(layout, chunk) ? weights : sum;
        }
    }
    return n;
}

/* Least number of bytes of weights that are copied up in a step. A pass finds at most as many
 * weights in blocks as the pool keeps. The first pass of a step finds frozen weights
 * only, because the others are new. */
static double loaded_bytes(const struct cst_search *s, const struct cst_plan_point *point,
                           const struct elements *n)
{
    double pool = (double)point->pool_bytes, all = n->trained + n->frozen;
    double first = n->trained + most(n->frozen - pool, 0);

    return first + (2.0 * s->config->micro_batches - 1) * most(all - pool, 0);
}

static void add_up(const struct cst_search *s, const struct cst_plan_point *point,
                   const struct cst_layout *layout, struct work *w)
{
    const struct cst_rates_device *d = &s->rates.devices[0];
    const struct cst_rates_node *n = &s->rates.nodes[0];
    struct elements elements = count_elements(s, point, layout);
    double loaded, n_down = s->config->micro_batches;

    /* What each rank keeps, or how often it begins a stage, is not known here, so take the safe
     * lower bound. */
    if ((cst_search_stands_for(s, point) == 1 && s->world > 1) || s->config->model->n_stages > 0) {
        elements.trained = elements.frozen = elements.sums = elements.down = 0;
    }
    loaded = loaded_bytes(s, point, &elements);
    w->up = over(loaded, d->up);
    /* The ranks' devices share the sum of a chunk's gradient. */
    w->down = over(elements.down * n_down / s->world, d->down);
    w->update = over(elements.states, update_rate(s, point));
    if (s->host) { /* Updates can make the sums in the same pass. */
        double ranks = s->world;

        w->copy = over(loaded * ranks, n->copy);
        w->reduce = s->config->overlap == CST_OVERLAP_EARLY
                        ? 0
                        : over(n_down * (elements.trained * ranks + elements.sums) / 6, n->reduce);
        w->up = w->down = 0;
    }
}

/* Least duration of a step because fetches wait for updates: the last weights of the first forward
 * pass can be used when everything that the pass uses is updated, and then the later passes remain
 * to be computed. 0 if updates do not wait for the commit, or if the first forward pass of a stage
 * is not the first one of the step. */
static double behind_updates(const struct cst_search *s, const struct cst_plan_point *point,
                             const struct cst_layout *layout)
{
    double passes = s->config->recompute ? 4 : 3, used = 0;

    if (s->config->overlap != CST_OVERLAP_COMMIT || s->config->model->n_stages > 0) {
        return 0;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_pattern *pattern = cst_pattern(layout->chunks[c].pattern);

        used += layout->chunks[c].n_uses > 0 && pattern->has_states && !pattern->sparse
                    ? update_elems(s, point, &layout->chunks[c])
                    : 0;
    }
    return over(used, update_rate(s, point)) +
           s->compute_ns / 1e9 * (1 - 1 / (passes * s->config->micro_batches));
}

static void add_ends(const struct cst_search *s, const struct cst_plan_point *point,
                     const struct cst_layout *layout, struct work *w)
{
    const struct cst_rates_device *d = &s->rates.devices[0];
    /* The gradient of the first chunk, which has as many bytes, is the last one to be complete. */
    double bytes = (double)cst_layout_weight_bytes(&layout->chunks[0]);

    w->first = over(update_elems(s, point, &layout->chunks[0]), s->rates.nodes[0].update) +
               over(bytes, d->up);
    w->last = over(bytes, d->down);
    w->first += 4 * s->rates.request_s;
    w->last += 4 * s->rates.request_s +
               over((double)layout->n_tiles * 16, most(s->rates.nodes[0].pass / 8, 1e9));
}

/* Convert to ns, limited to 2^62 whatever the rates are. */
static uint64_t to_ns(double seconds)
{
    return seconds < 0x1p62 / 1e9 ? (uint64_t)(seconds * 1e9) : UINT64_C(1) << 62;
}

void cst_search_bound(const struct cst_search *s, struct cst_plan_point *point,
                      const struct cst_layout *layout)
{
    struct work w = {0};
    double compute = s->compute_ns / 1e9, bound, others, likely;
    const double drives = cst_drives_least_s(s, layout);

    add_up(s, point, layout, &w);
    add_ends(s, point, layout, &w);
    if (s->host) { /* Everything uses the same cores, but copies do not use all of them. */
        bound = compute + w.reduce + (point->device_update_bytes > 0 ? 0 : w.update);
        bound = most(most(bound, w.update), w.copy);
        others = 0.5 * w.copy;
    } else {
        bound = most(most(compute, w.update), most(w.up, w.down));
        bound = most(bound, behind_updates(s, point, layout));
        /* A rough share of the work that does not overlap; only the estimate uses it. */
        others = 0.2 * (w.up + w.down + w.update);
    }
    bound = most(bound, drives);
    likely = most(likely_update(s, point, layout), drives);
    others += likely > w.update ? likely - w.update : 0;
    point->bound_ns = to_ns(bound);
    point->estimate_ns =
        to_ns(bound + others + w.first + w.last + 0.1 * point->n_chunks * s->rates.request_s);
}
