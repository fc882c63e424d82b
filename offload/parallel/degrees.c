/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/parallel/degrees.h"

#include "offload/parallel/schedule_check.h"
#include "offload/parallel/schedule_time.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* -- one product ------------------------------------------------------------------------------ */

/* What is allocated while a product is tried. */
struct trial {
    const struct cst_degrees_input *input;
    struct cst_product *product;
    uint32_t per_rank; /* Stages of a rank. */
    struct cst_unit_cost *units;
    struct cst_unit_tie *ties;
    uint32_t *in_flight, *restored;
    struct cst_stage_cost *costs;
    uint64_t *peaks;
    bool *recomputes;
};

static int refuse(struct cst_product *product, const struct cst_err *err)
{
    product->err = *err;
    return err->status == CST_ENOMEM ? CST_ENOMEM : CST_OK;
}

/* Seconds of the sum of a unit, in one pass. */
static double sum_seconds(const struct trial *trial, const struct cst_degrees_unit *unit)
{
    const struct cst_degrees_input *input = trial->input;
    const double tp = trial->product->tp;

    return tp > 1 && unit->sum_bytes > 0
               ? 2 * (tp - 1) / tp * (double)unit->sum_bytes / input->link + input->link_latency
               : 0;
}

static double compute_seconds(const struct trial *trial, const struct cst_degrees_unit *unit)
{
    return unit->flops / trial->product->tp / trial->input->flops;
}

static uint64_t divided(uint64_t bytes, uint32_t parts)
{
    return (bytes + parts - 1) / parts;
}

static void divide_units(const struct trial *trial)
{
    const struct cst_degrees_input *input = trial->input;
    const uint32_t tp = trial->product->tp;

    for (uint32_t i = 0; i < input->n_units; i++) {
        const struct cst_degrees_unit *unit = &input->units[i];
        const double compute = compute_seconds(trial, unit), sum = sum_seconds(trial, unit);

        trial->units[i] = (struct cst_unit_cost){
            .forward = compute + sum,
            .backward = 2 * compute + sum,
            .send = (double)divided(unit->out_bytes, tp) / input->link + input->link_latency,
            .kept_bytes = divided(unit->kept_bytes, tp),
            .input_bytes = divided(unit->input_bytes, tp),
            .fixed_bytes = divided(unit->n_params, tp) * input->param_bytes,
        };
    }
    for (uint32_t i = 0; i < input->n_ties; i++) {
        trial->ties[i] = input->ties[i];
        trial->ties[i].bytes = input->ties[i].bytes / tp * input->param_bytes;
    }
}

/* The costs of the simulator for the cuts that were found. */
static void cost_stages(const struct trial *trial)
{
    for (uint32_t s = 0; s < trial->product->n_stages; s++) {
        const struct cst_stage_cut *cut = &trial->product->cuts[s];
        double weight = 0;

        for (uint32_t i = cut->first; i < cut->first + cut->n_units; i++) {
            weight += compute_seconds(trial, &trial->input->units[i]);
        }
        trial->recomputes[s] = cut->n_recomputed > 0;
        trial->costs[s] = (struct cst_stage_cost){
            .forward = cut->forward,
            .backward = cut->backward - weight,
            .weight = weight,
            .recompute = cut->recompute,
            .send = cut->send,
            .kept_bytes = cut->kept_bytes,
            .input_bytes = cut->reduced_bytes,
        };
    }
}

/* Add what the rank @rank receives in a step, and its memory, to the maxima of the product. */
static void count_rank(const struct trial *trial, uint32_t rank)
{
    const struct cst_degrees_input *input = trial->input;
    struct cst_product *p = trial->product;
    uint64_t sums = 0, messages = 0, params = 0, bytes = trial->peaks[rank];

    for (uint32_t s = rank; s < p->n_stages; s += p->pp) {
        const struct cst_stage_cut *cut = &p->cuts[s];
        const uint32_t end = cut->first + cut->n_units;

        for (uint32_t i = cut->first; i < end; i++) {
            const uint32_t passes = i < cut->first + cut->n_recomputed ? 3 : 2;

            sums += passes * 2 * (p->tp - 1) * divided(input->units[i].sum_bytes, p->tp);
        }
        if (p->pp > 1) {
            messages += s > 0 ? divided(input->units[cut->first - 1].out_bytes, p->tp) : 0;
            messages += end < input->n_units ? divided(input->units[end - 1].out_bytes, p->tp) : 0;
        }
        params += cut->fixed_bytes / input->param_bytes;
        bytes += cut->fixed_bytes;
    }
    sums *= p->n_micro;
    messages *= p->n_micro;
    p->sum_bytes = sums > p->sum_bytes ? sums : p->sum_bytes;
    p->message_bytes = messages > p->message_bytes ? messages : p->message_bytes;
    params *= input->param_bytes / 2;
    p->weight_bytes = params > p->weight_bytes ? params : p->weight_bytes;
    p->rank_bytes = bytes > p->rank_bytes ? bytes : p->rank_bytes;
}

/* Seconds from the last backward pass to the next step. */
static double commit_seconds(const struct trial *trial)
{
    const struct cst_degrees_input *input = trial->input;
    const struct cst_product *p = trial->product;
    double n = 0;

    for (uint32_t i = 0; i < input->n_units; i++) {
        n += (double)input->units[i].n_params;
    }
    for (uint32_t i = 0; i < input->n_ties; i++) {
        n -= (double)input->ties[i].bytes;
    }
    return (double)p->weight_bytes / input->to_host + n / input->updates +
           (p->dp > 1 ? n * (p->dp - 1) / input->sums : 0) +
           (double)p->weight_bytes / input->to_rank;
}

static void trial_close(struct trial *trial)
{
    free(trial->units);
    free(trial->ties);
    free(trial->in_flight);
    free(trial->restored);
    free(trial->costs);
    free(trial->peaks);
    free(trial->recomputes);
}

static int trial_open(struct trial *trial, struct cst_err *err)
{
    const struct cst_degrees_input *input = trial->input;
    const uint32_t n = trial->product->n_stages;

    trial->units = calloc(input->n_units, sizeof *trial->units);
    trial->ties = calloc(input->n_ties + 1U, sizeof *trial->ties);
    trial->in_flight = calloc(n, sizeof *trial->in_flight);
    trial->restored = calloc(n, sizeof *trial->restored);
    trial->costs = calloc(n, sizeof *trial->costs);
    trial->peaks = calloc(n, sizeof *trial->peaks);
    trial->recomputes = calloc(n, sizeof *trial->recomputes);
    trial->product->cuts = calloc(n, sizeof *trial->product->cuts);
    return trial->units != NULL && trial->ties != NULL && trial->in_flight != NULL &&
                   trial->restored != NULL && trial->costs != NULL && trial->peaks != NULL &&
                   trial->recomputes != NULL && trial->product->cuts != NULL
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM, "a product of %" PRIu32 " stages", n);
}

/* Make the schedule of the product. Without @recomputes no stage recomputes. */
static int make_schedule(struct cst_schedule *out, const struct trial *trial, struct cst_err *err)
{
    const struct cst_schedule_size size = {trial->product->pp, trial->product->n_stages,
                                           trial->product->n_micro, trial->recomputes};

    return cst_schedule_make(out, trial->product->kind, &size, err);
}

static int find_in_flight(const struct trial *trial, struct cst_err *err)
{
    struct cst_schedule schedule;
    int rc = make_schedule(&schedule, trial, err);

    if (rc == CST_OK) {
        rc = cst_schedule_in_flight(&schedule, trial->in_flight, trial->restored, err);
        cst_schedule_close(&schedule);
    }
    return rc;
}

static int find_cuts(const struct trial *trial, struct cst_err *err)
{
    const struct cst_degrees_input *input = trial->input;
    const struct cst_stages_input stages = {.units = trial->units,
                                            .n_units = input->n_units,
                                            .ties = trial->ties,
                                            .n_ties = input->n_ties,
                                            .n_stages = trial->product->n_stages,
                                            .n_micro = trial->product->n_micro,
                                            .in_flight = trial->in_flight,
                                            .restored = trial->restored,
                                            .recomputes = trial->recomputes,
                                            .stage_bytes = input->rank_bytes / trial->per_rank};
    double unused;

    for (uint32_t s = 0; s < trial->product->n_stages; s++) {
        trial->recomputes[s] =
            input->recompute && (s + 1 < trial->product->n_stages || !trial->product->kind->early);
    }
    return cst_stages_cut(trial->product->cuts, &unused, &stages, err);
}

static int simulate(const struct trial *trial, struct cst_err *err)
{
    struct cst_product *p = trial->product;
    struct cst_schedule_times times;
    struct cst_schedule schedule;
    int rc;

    cost_stages(trial);
    rc = make_schedule(&schedule, trial, err);
    if (rc != CST_OK) {
        return rc;
    }
    rc = cst_schedule_time(&times, &schedule, trial->costs, trial->peaks, NULL, err);
    cst_schedule_close(&schedule);
    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t rank = 0; rank < p->pp; rank++) {
        count_rank(trial, rank);
    }
    p->pipeline = times.makespan;
    p->bubble = times.bubble;
    p->commit = commit_seconds(trial);
    p->step = p->pipeline + p->commit;
    return CST_OK;
}

/* Check that the product divides what it must. */
static int check_product(const struct cst_degrees_input *input, const struct cst_product *p,
                         struct cst_err *err)
{
    if (p->tp > 1 && (input->heads == 0 || input->heads % p->tp != 0)) {
        return input->heads == 0
                   ? cst_err_set(err, CST_EINVAL,
                                 "the model does not say how it can be divided: "
                                 "wanted its number of heads")
                   : cst_err_set(err, CST_EINVAL,
                                 "%" PRIu32 " heads do not divide into %" PRIu32 " parts",
                                 input->heads, p->tp);
    }
    if (input->n_micro % p->dp != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " micro-batches do not divide among %" PRIu32 " replicas",
                           input->n_micro, p->dp);
    }
    return CST_OK;
}

int cst_degrees_try(struct cst_product *out, const struct cst_degrees_input *input, uint32_t dp,
                    uint32_t tp, uint32_t pp, const struct cst_schedule_kind *kind,
                    uint32_t per_rank, struct cst_err *err)
{
    struct trial trial = {.input = input, .product = out, .per_rank = per_rank};
    int rc;

    *out = (struct cst_product){.dp = dp, .tp = tp, .pp = pp, .kind = kind};
    rc = check_product(input, out, err);
    if (rc != CST_OK) {
        return refuse(out, err);
    }
    out->n_stages = pp * per_rank;
    out->n_micro = input->n_micro / dp;
    rc = trial_open(&trial, err);
    if (rc == CST_OK) {
        divide_units(&trial);
        rc = find_in_flight(&trial, err);
    }
    rc = rc == CST_OK ? find_cuts(&trial, err) : rc;
    rc = rc == CST_OK ? simulate(&trial, err) : rc;
    trial_close(&trial);
    if (rc != CST_OK) {
        free(out->cuts);
        *out = (struct cst_product){.dp = dp, .tp = tp, .pp = pp, .kind = kind};
        return refuse(out, err);
    }
    return CST_OK;
}

/* -- all products ----------------------------------------------------------------------------- */

/* Replace *best, and free what is not kept. The first refusal stays until something works. */
static void keep_better(struct cst_product *best, struct cst_product *other)
{
    const bool better =
        other->err.status == CST_OK && (best->err.status != CST_OK || other->step < best->step);

    if (better) {
        free(best->cuts);
        *best = *other;
    } else {
        free(other->cuts);
    }
}

/* Try all kinds of schedules that are wanted. A pipeline of one rank is the same with all. */
static int try_kinds(struct cst_product *best, const struct cst_degrees_input *input, uint32_t dp,
                     uint32_t tp, uint32_t pp, struct cst_err *err)
{
    const struct cst_schedule_kind *first = input->kind;
    int rc = first == NULL ? cst_schedule_find(&first, "1f1b", err) : CST_OK;

    rc = rc == CST_OK ? cst_degrees_try(best, input, dp, tp, pp, first, 1, err) : rc;
    for (uint32_t i = 0; rc == CST_OK && pp > 1 && cst_schedule_kind(i) != NULL; i++) {
        const struct cst_schedule_kind *kind = cst_schedule_kind(i);

        for (uint32_t v = 1; rc == CST_OK && v <= (kind->interleaves ? 2U : 1U); v++) {
            struct cst_product other;

            if (input->kind != NULL && input->kind != kind) {
                continue;
            }
            rc = cst_degrees_try(&other, input, dp, tp, pp, kind, v, err);
            if (rc == CST_OK) {
                keep_better(best, &other);
            }
        }
    }
    return rc;
}

static int compare(const void *a, const void *b)
{
    const struct cst_product *x = a, *y = b;
    const bool works = x->err.status == CST_OK;

    if (works != (y->err.status == CST_OK)) {
        return works ? -1 : 1;
    }
    if (x->step != y->step) {
        return x->step < y->step ? -1 : 1;
    }
    if (x->pp != y->pp) {
        return x->pp < y->pp ? -1 : 1;
    }
    return x->tp < y->tp ? -1 : x->tp > y->tp;
}

/* Add @n to *sum. False: it would be larger than the numbers can be. */
static bool count(uint64_t *sum, uint64_t n)
{
    if (n > CST_DEGREES_MOST || *sum > CST_DEGREES_MOST - n) {
        return false;
    }
    *sum += n;
    return true;
}

/* Check that sums over the units, times the micro-batches, are numbers. */
static int check_units(const struct cst_degrees_input *input, struct cst_err *err)
{
    uint64_t bytes = 0, params = 0;
    double flops = 0;
    bool good = input->n_micro <= CST_SCHEDULE_MAX_MICRO;

    for (uint32_t i = 0; good && i < input->n_units; i++) {
        const struct cst_degrees_unit *unit = &input->units[i];

        flops += unit->flops;
        good = unit->flops >= 0 && flops <= CST_DEGREES_MOST_FLOPS &&
               count(&bytes, unit->kept_bytes) && count(&bytes, unit->input_bytes) &&
               count(&bytes, unit->out_bytes) && count(&bytes, unit->sum_bytes) &&
               count(&params, unit->n_params);
    }
    return good ? CST_OK
                : cst_err_set(err, CST_EINVAL,
                              "the model is too large for a plan: there can be at most %d "
                              "micro-batches, and in all units together %g flops, %" PRIu64
                              " bytes and as many parameters",
                              CST_SCHEDULE_MAX_MICRO, CST_DEGREES_MOST_FLOPS, CST_DEGREES_MOST);
}

static int check_input(const struct cst_degrees_input *input, struct cst_err *err)
{
    if (input->n_units == 0 || input->n_ranks == 0 || input->n_micro == 0 ||
        input->param_bytes == 0) {
        return cst_err_set(err, CST_EINVAL, "a plan needs units, ranks and micro-batches");
    }
    if (!(input->flops > 0 && input->link > 0 && input->to_host > 0 && input->to_rank > 0 &&
          input->sums > 0 && input->updates > 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "a plan needs the speeds of ranks, links, sums and updates");
    }
    return check_units(input, err);
}

static uint32_t count_divisors(uint32_t n)
{
    uint32_t count = 0;

    for (uint32_t i = 1; i <= n; i++) {
        count += n % i == 0;
    }
    return count;
}

/* Return whether @dp and @tp divide the ranks, and are among the degrees that are tried. */
static bool is_wanted(const struct cst_degrees_input *input, uint32_t dp, uint32_t tp)
{
    const uint32_t pp = input->n_ranks / dp / tp;

    return dp * tp * pp == input->n_ranks && (input->dp == 0 || input->dp == dp) &&
           (input->tp == 0 || input->tp == tp) && (input->pp == 0 || input->pp == pp);
}

int cst_degrees_search(struct cst_products *out, const struct cst_degrees_input *input,
                       struct cst_err *err)
{
    const uint32_t n_divisors = count_divisors(input->n_ranks);
    struct cst_products all = {0};
    int rc = check_input(input, err);

    if (rc != CST_OK) {
        return rc;
    }
    all.products = calloc((size_t)n_divisors * n_divisors, sizeof *all.products);
    if (all.products == NULL) {
        return cst_err_set(err, CST_ENOMEM, "the products of %" PRIu32 " ranks", input->n_ranks);
    }
    for (uint32_t dp = 1; dp <= input->n_ranks; dp++) {
        for (uint32_t tp = 1; rc == CST_OK && tp <= input->n_ranks / dp; tp++) {
            if (is_wanted(input, dp, tp)) {
                struct cst_product *product = &all.products[all.n++];

                rc = try_kinds(product, input, dp, tp, input->n_ranks / dp / tp, err);
                all.n_working += rc == CST_OK && product->err.status == CST_OK;
            }
        }
    }
    if (rc == CST_OK && all.n == 0) {
        rc = cst_err_set(err, CST_EINVAL,
                         "no product of %" PRIu32
                         " ranks has the given degrees: data x tensor x pipeline must be %" PRIu32,
                         input->n_ranks, input->n_ranks);
    }
    if (rc != CST_OK) {
        cst_products_close(&all);
        return rc;
    }
    qsort(all.products, all.n, sizeof *all.products, compare);
    *out = all;
    return CST_OK;
}

void cst_products_close(struct cst_products *products)
{
    for (uint32_t i = 0; i < products->n; i++) {
        free(products->products[i].cuts);
    }
    free(products->products);
    *products = (struct cst_products){0};
}
