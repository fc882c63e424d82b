/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the planner with rivals that its search does not know, and with the optimum where that
 * can be computed. */
#include "tests/lib/plan_rules.h"
#include "tests/lib/suite.h"
#include "tests/unit/search_rig.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_RANDOM 40
#else
#define N_RANDOM 200
#endif
/* Factor of time that a plan may lose for less padding; see cst_search_cost. */
#define PADDING_LOSS 1.0025
#define MOST_LOST 1.0025 /* a rival's step may be shorter by this factor */

/* -- random models -------------------------------------------------------------------------- */

static uint64_t state;

static double draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0;
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)(draw() * n);
}

static double between(double low, double high)
{
    return low * pow(high / low, draw());
}

static uint32_t add_tensor(double elems, bool frozen)
{
    char name[32];
    const int64_t shape = (int64_t)elems + 1;
    const struct cst_tensor_words words = {.name = name,
                                           .shape = &shape,
                                           .n_dims = 1,
                                           .lr_scale = 1,
                                           .decay_scale = 1,
                                           .pattern =
                                               frozen ? CST_PATTERN_FROZEN : CST_PATTERN_SHARD};

    (void)snprintf(name, sizeof name, "t%" PRIu32, f.model.n_tensors);
    ck_assert_int_eq(cst_model_tensor(&f.model, &words, NULL), CST_OK);
    return f.model.n_tensors - 1;
}

static void add_operator(const uint32_t *tensors, uint32_t n, double tokens)
{
    struct cst_operator_hints hints = {.activation_bytes = (uint64_t)(tokens * 100)};
    char name[32];

    for (uint32_t i = 0; i < n; i++) {
        hints.flops += 2 * tokens * (double)f.model.tensors[tensors[i]].n_elems;
    }
    (void)snprintf(name, sizeof name, "op%" PRIu32, f.model.n_operators);
    ck_assert_int_eq(cst_model_operator(&f.model, name, tensors, n, &hints, NULL), CST_OK);
}

/* A model with equal or different layers, and an embedding that is large or small, tied or not. */
static void random_model(void)
{
    uint32_t n_layers = 2 + below(12), n_ops = 1 + below(4), kinds[8][4], n_of[8];
    double sizes[8][4], tokens = between(256, 32768), scale = between(2e5, 5e7);
    bool alike = draw() < 0.7, frozen = draw() < 0.1;
    uint32_t embedding = draw() < 0.6 ? add_tensor(scale * between(0.5, 8), frozen) : UINT32_MAX;

    if (embedding != UINT32_MAX) {
        add_operator(&embedding, 1, tokens / 1000);
    }
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        for (uint32_t op = 0; op < n_ops; op++) {
            if (layer == 0 || !alike) {
                n_of[op] = 1 + below(4);
            }
            for (uint32_t i = 0; i < n_of[op]; i++) {
                if (layer == 0 || !alike) {
                    sizes[op][i] = i % 2 == 1 ? between(64, 10000) : scale * between(0.2, 4);
                }
                kinds[op][i] = add_tensor(sizes[op][i], frozen && draw() < 0.8);
            }
            add_operator(kinds[op], n_of[op], tokens);
        }
    }
    if (embedding != UINT32_MAX && draw() < 0.7) {
        add_operator(&embedding, 1, tokens);
    }
}

static void random_machine(void)
{
    static const uint32_t worlds[] = {1, 1, 2, 4, 8};
    struct cst_rates_device *d;

    f.config.world = worlds[below(5)];
    cst_rates_a100(&f.rates, f.config.world);
    d = &f.rates.devices[0];
    if (draw() < 0.2) { /* the ranks compute on a processor */
        (void)snprintf(d->name, sizeof d->name, "host");
        d->flops = between(2e11, 4e12);
    } else {
        d->flops *= between(0.2, 3);
        d->up *= between(0.3, 3);
        d->up_both = 0.85 * d->up;
        d->down *= between(0.3, 3);
        d->down_both = 0.85 * d->down;
    }
    f.rates.nodes[0].update *= between(0.2, 3);
    f.config.micro_batches = draw() < 0.8 ? 1 : 2 + below(3);
    f.config.recompute = draw() < 0.5;
    f.budget.device_bytes =
        (uint64_t)(between(0.15, 10) * 2 * (double)f.model.n_params) + (uint64_t)between(1e6, 1e8);
    for (uint32_t i = 0; i < f.model.n_operators; i++) {
        f.budget.device_bytes += f.model.operators[i].activation_bytes;
    }
}

/* Step time of a choice. UINT64_MAX if @rc is an error or the choice cannot run. */
static uint64_t play(const struct cst_plan_choice *choice, int rc)
{
    struct cst_replay_result r = {.step_ns = UINT64_MAX};
    struct cst_err err;

    if (rc == CST_OK) {
        rc = cst_plan_replay(&f.config, choice, 3, NULL, NULL, &r, &err);
    }
    return rc == CST_OK ? r.step_ns : UINT64_MAX;
}

/* -- rivals --------------------------------------------------------------------------------- */

#define DRAWS 3 /* number of random plans of each random rival, per model */

/* Rivals that are not starting points of the search: a capacity between the powers of two; a
 * random capacity, order in which size classes get blocks and depth of prefetch; Elixir's rule. */
enum rival { CAPACITY, ANYTHING, ELIXIR, N_RIVALS };

static const char *const rivals[N_RIVALS] = {"a capacity", "all drawn", "Elixir's rule"};

static void shuffle(uint32_t order[CST_LAYOUT_MAX_CLASSES])
{
    memcpy(order, rule_in_turn, sizeof rule_in_turn);
    for (uint32_t i = CST_LAYOUT_MAX_CLASSES - 1; i > 0; i--) {
        uint32_t k = below(i + 1), kept = order[i];

        order[i] = order[k];
        order[k] = kept;
    }
}

/* Required means of the gains on accelerators: 0.7 of the observed gains above 1. */
static const double least_mean[N_RIVALS] = {1.047, 1.039, 1.12};

/* A capacity from one 1000th to one half of the model. */
static uint64_t draw_capacity(void)
{
    double n = (double)f.model.n_params;

    return (uint64_t)between(n / 1000, n / 2) / CST_LAYOUT_CAPACITY_STEP *
               CST_LAYOUT_CAPACITY_STEP +
           CST_LAYOUT_CAPACITY_STEP;
}

/* Step time of a plan of @rival. UINT64_MAX if the plan does not fit or cannot run. */
static uint64_t rival_step(enum rival rival)
{
    struct cst_plan_choice choice = {0};
    uint32_t order[CST_LAYOUT_MAX_CLASSES];
    struct cst_err err;
    int rc;

    memcpy(order, rule_in_turn, sizeof order);
    if (rival == ELIXIR) {
        return play(&choice, rule_elixir(&f.config, &choice, &err));
    }
    if (rival == ANYTHING) {
        shuffle(order);
    }
    rc = rule_capacity(&f.config, draw_capacity(), order, &choice, &err);
    choice.prefetch_depth = rival == ANYTHING ? below(6) : 0;
    return play(&choice, rc);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Check that a plan with limited padding loses at most the accepted factor. */
static void thrift(void)
{
    uint64_t step = f.plans.best.predicted.step_ns;

    f.config.max_padding = 0;
    search();
    ck_assert_double_le((double)f.plans.best.predicted.step_ns, PADDING_LOSS * (double)step);
}

/* -- gains of a plan ------------------------------------------------------------------------ */

/* Quotients of the rival's step time and the plan's, separately for ranks that compute on an
 * accelerator and on the processor. */
struct gains {
    double v[N_RANDOM * DRAWS];
    uint32_t n;
};

static struct gains gains[2][N_RIVALS];

static void compare_with(enum rival rival, unsigned seed, int rc, const struct cst_err *err)
{
    bool host = strcmp(f.rates.devices[0].name, "host") == 0;

    for (uint32_t i = 0; i < (rival == ELIXIR ? 1 : DRAWS); i++) {
        uint64_t step = rival_step(rival), own = f.plans.best.predicted.step_ns;
        struct gains *g = &gains[host][rival];

        if (step == UINT64_MAX) {
            continue;
        }
        ck_assert_msg(rc == CST_OK, "seed %u: %s fits, the plan does not: %s", seed, rivals[rival],
                      err->text);
        g->v[g->n++] = (double)step / (double)own;
    }
}

static void compare(unsigned seed)
{
    struct cst_err err;
    int rc;

    state = seed * 7919 + 1;
    search_rig_setup();
    random_model();
    random_machine();
    f.config.max_events = 150000;
    f.config.max_padding = 1e9; /* padding is ignored */
    rc = cst_plan_search(&f.plans, &f.config, &err);
    ck_assert_msg(rc == CST_OK || rc == CST_EPOOL || rc == CST_EBUDGET, "seed %u: %s", seed,
                  rc == CST_OK ? "" : err.text);
    ck_assert_msg(rc != CST_OK || f.plans.best.bound_ns <= f.plans.best.predicted.step_ns,
                  "seed %u: a step of %" PRIu64 " ns, at least %" PRIu64 " by arithmetic", seed,
                  f.plans.best.predicted.step_ns, f.plans.best.bound_ns);
    for (enum rival rival = 0; rival < N_RIVALS; rival++) {
        compare_with(rival, seed, rc, &err);
    }
    if (rc == CST_OK && seed % 10 == 0) {
        thrift();
    }
    search_rig_teardown();
}

/* The geometric mean of the gains. */
static double mean(const struct gains *g)
{
    double sum = 0;

    for (uint32_t i = 0; i < g->n; i++) {
        sum += log(g->v[i]);
    }
    return exp(sum / g->n);
}

static void check_gains(enum rival rival, bool host)
{
    struct gains *g = &gains[host][rival];

    ck_assert_uint_gt(g->n, host ? N_RANDOM / 40 : N_RANDOM / 4);
    qsort(g->v, g->n, sizeof g->v[0], by_value);
    printf("on %-15s against %-15s %3" PRIu32
           " comparisons: gain at least %.4f, median %.4f, mean %.4f, 90 %% at most %.3f\n",
           host ? "the processor" : "an accelerator", rivals[rival], g->n, g->v[0], g->v[g->n / 2],
           mean(g), g->v[g->n * 9 / 10]);
    ck_assert_msg(g->v[0] * MOST_LOST >= 1, "%s is faster: %.4f of the plan's step", rivals[rival],
                  g->v[0]);
    ck_assert_msg(host || mean(g) >= least_mean[rival], "%s: the mean gain is %.4f", rivals[rival],
                  mean(g));
}

/* On 200 random models, machines and budgets, no rival fits where no plan was found, and none is
 * faster by more than a quarter of a percent. On accelerators the rivals' steps are at least 3 %
 * longer on average. */
START_TEST(never_worse)
{
    for (unsigned seed = 0; seed < N_RANDOM; seed++) {
        compare(seed);
    }
    for (enum rival rival = 0; rival < N_RIVALS; rival++) {
        check_gains(rival, false);
        check_gains(rival, true);
    }
    search_rig_setup();
}
END_TEST

/* -- the optimum ---------------------------------------------------------------------------- */

struct exhaustive {
    struct cst_plan_choice choice;
    struct cst_layout layout;
    uint64_t room, best;
    uint64_t n;
};

/* Try all numbers of blocks of class @i and the classes after it, with all depths. */
static void try_blocks(struct exhaustive *e, uint32_t i, uint64_t room)
{
    const struct cst_layout_class *class = &e->layout.classes[i];
    struct cst_replay_result r;

    if (i == e->layout.n_classes) {
        for (uint32_t depth = 0; depth < 4; depth++) {
            e->choice.prefetch_depth = depth;
            e->n++;
            if (cst_plan_replay(&f.config, &e->choice, 3, NULL, NULL, &r, NULL) == CST_OK &&
                r.step_ns < e->best) {
                e->best = r.step_ns;
            }
        }
        return;
    }
    for (uint32_t n = class->min_blocks; n <= class->max_blocks; n++) {
        uint64_t bytes = n * 2 * class->capacity;

        if (bytes <= room) {
            e->choice.n_blocks[i] = n;
            try_blocks(e, i + 1, room - bytes);
        }
    }
}

static void try_layout(struct exhaustive *e, uint64_t elems, uint32_t max_classes, uint64_t *seen,
                       uint32_t *n_seen)
{
    const struct cst_layout_config config = {
        .chunk_elems = elems, .n_nodes = 1, .world = 1, .max_classes = max_classes};
    uint64_t fullest = 0;

    if (cst_layout_build(&e->layout, &f.model, &config, NULL) != CST_OK) {
        return;
    }
    for (uint32_t c = 0; c < e->layout.n_chunks; c++) {
        uint64_t n = e->layout.chunks[c].n_elems;

        fullest = e->layout.chunks[c].size_class == 0 && n > fullest ? n : fullest;
    }
    for (uint32_t i = 0; i < *n_seen; i++) {
        if (seen[i] == fullest * 8 + max_classes) { /* the packing is the same */
            cst_layout_close(&e->layout);
            return;
        }
    }
    seen[(*n_seen)++] = fullest * 8 + max_classes;
    e->choice = (struct cst_plan_choice){
        .layout = config, .n_classes = e->layout.n_classes, .n_chunks = e->layout.n_chunks};
    for (uint32_t i = 1; i < e->layout.n_classes; i++) {
        e->choice.layout.class_elems[i - 1] = e->layout.classes[i].capacity;
    }
    try_blocks(e, 0, e->room);
    cst_layout_close(&e->layout);
}

static void small_model(unsigned seed)
{
    double tokens;
    uint32_t n_ops;

    state = seed * 104729 + 3;
    tokens = between(100, 3000);
    n_ops = 3 + below(4);
    for (uint32_t i = 0; i < n_ops; i++) {
        uint32_t tensors[2] = {add_tensor(between(3000, 120000), false), 0};
        uint32_t n = 1;

        if (draw() < 0.4) {
            tensors[n++] = add_tensor(between(100, 20000), false);
        }
        add_operator(tensors, n, tokens);
    }
    f.rates.devices[0] = (struct cst_rates_device){.name = "small",
                                                   .up = between(3e8, 3e9),
                                                   .down = between(3e8, 3e9),
                                                   .copy_latency_s = 1e-6,
                                                   .flops = 1e11 * between(0.3, 3),
                                                   .update = 1e9,
                                                   .memory = 1e11};
    f.rates.nodes[0].update = between(3e7, 1e9);
    f.rates.request_s = 2e-6;
    f.config.recompute = draw() < 0.6;
    f.budget.activation_bytes = 1;
    f.budget.device_bytes = (uint64_t)(between(1, 4) * 2 * (double)f.model.n_params) + 60000;
}

/* On instances small enough for an exhaustive search (all packings, one class or several, all
 * numbers of blocks, all depths) the plan is within 3 % of the best. */
START_TEST(near_the_optimum)
{
    struct exhaustive e = {.best = UINT64_MAX};
    uint64_t seen[1024];
    uint32_t n_seen = 0;
    struct cst_err err;
    int rc;

    small_model((unsigned)_i);
    e.room = f.budget.device_bytes - 1;
    for (uint64_t elems = 4096; elems <= f.model.n_params + 4096; elems += 4096) {
        try_layout(&e, elems, 1, seen, &n_seen);
        try_layout(&e, elems, 4, seen, &n_seen);
    }
    rc = cst_plan_search(&f.plans, &f.config, &err);
    ck_assert_int_eq(rc == CST_OK, e.best != UINT64_MAX);
    if (rc == CST_OK) {
        double ratio = (double)f.plans.best.predicted.step_ns / (double)e.best;

        if (ratio > 1.0001 || _i % 20 == 0) {
            printf("seed %d: %" PRIu64 " plans played, the search %" PRIu64 ": %.4f of the best\n",
                   _i, e.n, f.plans.n_replayed, ratio);
        }
        ck_assert_double_le(ratio, 1.03);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan_rivals");
    TCase *tc = suite_case(suite, "rivals", NULL, search_rig_teardown);

    tcase_add_test(tc, never_worse);
    tc = suite_case(suite, "optimum", search_rig_setup, search_rig_teardown);
    suite_add_loop(tc, near_the_optimum, 0, 60);
    return suite_run(suite);
}
