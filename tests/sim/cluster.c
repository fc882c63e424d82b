/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/cluster.h"

#include "offload/core/core.h"
#include "tests/sim/cluster_engine.h"
#include "tests/sim/memory.h"
#include "tests/sim/moments.h"
#include "tests/lib/bits.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ELEMS CST_LAYOUT_CAPACITY_STEP
#define COMPUTE_NS 50000
#define RETURN_NS 5000000 /* time from a worker's death to its restart */
#define AGREE_NS 200000   /* time until all nodes know that all nodes have committed */
#define CHECK_EVERY 4096  /* number of events between checks of the cores' invariants */

/* A tag is that of the request, the rank, and what was asked in four bits. */
#define TAG_SHIFT 13

enum rank_state { RANK_GONE, RANK_IDLE, RANK_SYNCING, RANK_RUNS, RANK_STEPS, RANK_RESTS };
enum asked {
    ASKED_WEIGHT,
    ASKED_GRAD,
    ASKED_RELEASE,
    ASKED_HAND_IN,
    ASKED_END,
    ASKED_STEP,
    ASKED_SYNC
};

struct crank {
    enum rank_state state;
    uint64_t turn; /* Counts what the rank has begun. A moment with an older turn is ignored. */
    uint64_t first_tag; /* Replies to requests with a smaller tag are ignored. */
    uint64_t attempt, step;
    uint32_t micro;
    uint32_t at; /* number of operators of the micro-batch that are done, forward and backward */
    uint32_t waiting;      /* number of fetches that the rank waits for */
    uint64_t weight, grad; /* generations of the leases of weight and gradient */
};

struct node {
    struct cst_core *core;
    struct cst_actions actions;
    struct crank *ranks;
    uint64_t step, attempt;
    struct cluster_engine engine;
};

struct cluster {
    struct cluster_options options;
    struct cluster_totals totals;
    uint64_t rng, now, tag;
    struct cst_model model;
    struct cst_layout layout;
    uint32_t *segments;
    struct node *nodes;
    uint64_t step;          /* the last step that all nodes have committed */
    struct moments moments; /* moments in the future */
};

static void fail(const struct cluster *cl, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));

static void fail(const struct cluster *cl, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "cluster: seed %" PRIu64 ", %" PRIu64 " ns, step %" PRIu64 ": ",
            cl->options.seed, cl->now, cl->step);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    exit(EXIT_FAILURE);
}

static void *must(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

static uint32_t below(struct cluster *cl, uint32_t n)
{
    return (uint32_t)(memory_mix(cl->rng++, 0) % n);
}

/* Let the rank do @kind at the time @at, unless it begins something else before. */
static void turn(struct cluster *cl, uint32_t n, uint32_t rank, enum moment_kind kind, uint64_t at)
{
    moments_push(&cl->moments, (struct moment){.at = at,
                                               .kind = kind,
                                               .node = n,
                                               .rank = rank,
                                               .what = ++cl->nodes[n].ranks[rank].turn});
}

/* -- engines ----------------------------------------------------------------------------------- */

/* True for an update whose step is not committed. Steps are never skipped in a cluster. */
static bool is_early(const struct cluster *cl, const struct node *node,
                     const struct cst_command *command)
{
    struct cst_core_stats stats;

    if (command->kind != CST_COMMAND_UPDATE || cl->options.overlap != CST_OVERLAP_EARLY) {
        return false;
    }
    cst_core_stats(node->core, &stats);
    return stats.step < command->mark;
}

static void submit(struct cluster *cl, uint32_t n, const struct cst_command *command)
{
    struct node *node = &cl->nodes[n];
    char words[96];
    uint64_t at = cluster_engine_take(&node->engine, command, cl->now, words);

    if (at == 0) {
        fail(cl, "node %u: %s", n, words);
    }
    cl->totals.n_early += is_early(cl, node, command);
    moments_push(
        &cl->moments,
        (struct moment){.at = at, .kind = MOMENT_DONE, .node = n, .what = command->ticket});
    cl->totals.n_commands++;
}

/* -- answers ----------------------------------------------------------------------------------- */

static void go(struct cluster *cl, uint32_t n, uint32_t rank, uint64_t delay)
{
    turn(cl, n, rank, MOMENT_GO, cl->now + delay);
}

/* The rank is at @step. It begins when all nodes have committed the step before. */
static void start(struct cluster *cl, uint32_t n, uint32_t rank, uint64_t step)
{
    struct crank *r = &cl->nodes[n].ranks[rank];

    r->step = step;
    r->micro = 0;
    r->at = 0;
    r->state = step > cl->step ? RANK_RESTS : RANK_RUNS;
    if (r->state == RANK_RUNS) {
        go(cl, n, rank, 0);
    }
}

/* Choose the ranks that die in this step, and when they die. */
static void choose_deaths(struct cluster *cl)
{
    uint64_t step_ns =
        3ull * COMPUTE_NS * cl->options.n_chunks * cl->options.micro_batches; /* a lower bound */
    uint32_t span = step_ns < UINT32_MAX ? (uint32_t)step_ns : UINT32_MAX;

    for (uint32_t i = 0; i < cl->options.n_deaths; i++) {
        moments_push(&cl->moments, (struct moment){.at = cl->now + 1 + below(cl, span),
                                                   .kind = MOMENT_DEATH,
                                                   .node = below(cl, cl->options.n_nodes),
                                                   .rank = below(cl, cl->options.n_ranks)});
    }
}

static void node_committed(struct cluster *cl, uint32_t n, uint64_t step)
{
    uint64_t least = UINT64_MAX;

    if (step <= cl->nodes[n].step) {
        return;
    }
    cl->nodes[n].step = step;
    for (uint32_t i = 0; i < cl->options.n_nodes; i++) {
        least = cl->nodes[i].step < least ? cl->nodes[i].step : least;
    }
    if (least == cl->step) {
        return;
    }
    cl->step = least;
    for (uint32_t i = 0; i < cl->options.n_nodes; i++) {
        for (uint32_t rank = 0; rank < cl->options.n_ranks; rank++) {
            struct crank *r = &cl->nodes[i].ranks[rank];

            if (r->state == RANK_RESTS && r->step <= least) {
                r->state = RANK_RUNS;
                go(cl, i, rank, AGREE_NS + below(cl, COMPUTE_NS));
            }
        }
    }
    choose_deaths(cl);
}

static void give_up(struct cluster *cl, uint32_t n, uint32_t rank)
{
    struct crank *r = &cl->nodes[n].ranks[rank];

    r->state = RANK_IDLE;
    r->first_tag = cl->tag + 1;
    go(cl, n, rank, 1000);
}

static void synced(struct cluster *cl, uint32_t n, uint32_t rank, const struct cst_reply *reply)
{
    struct node *node = &cl->nodes[n];

    if (reply->attempt != node->attempt) {
        node->attempt = reply->attempt;
        cluster_engine_restart(&node->engine);
    }
    node->ranks[rank].attempt = reply->attempt;
    /* A rank that died before it was told may have committed the step. */
    node_committed(cl, n, reply->step);
    start(cl, n, rank, reply->step);
}

static void fetched(struct cluster *cl, uint32_t n, uint32_t rank)
{
    if (--cl->nodes[n].ranks[rank].waiting == 0) {
        turn(cl, n, rank, MOMENT_COMPUTED, cl->now + COMPUTE_NS + below(cl, COMPUTE_NS));
    }
}

static void answer(struct cluster *cl, uint32_t n, const struct cst_reply *reply)
{
    uint32_t rank = (uint32_t)(reply->tag >> 4) & (CST_CORE_MAX_WORLD - 1);
    enum asked asked = (enum asked)(reply->tag & 15);
    struct crank *r = &cl->nodes[n].ranks[rank];

    if (reply->tag >> TAG_SHIFT < r->first_tag) {
        return;
    }
    if (reply->status == CST_EPEERDIED) {
        give_up(cl, n, rank);
        return;
    }
    if (reply->status != CST_OK) {
        fail(cl, "node %u, rank %u, request %d: %s", n, rank, (int)asked, reply->err.text);
    }
    switch (asked) {
    case ASKED_WEIGHT:
        r->weight = reply->generation;
        fetched(cl, n, rank);
        break;
    case ASKED_GRAD:
        r->grad = reply->generation;
        fetched(cl, n, rank);
        break;
    case ASKED_STEP:
        node_committed(cl, n, reply->step);
        start(cl, n, rank, reply->step);
        break;
    case ASKED_SYNC:
        synced(cl, n, rank, reply);
        break;
    case ASKED_RELEASE:
    case ASKED_HAND_IN:
    case ASKED_END:
        break;
    }
}

static void feed(struct cluster *cl, uint32_t n, struct cst_event event)
{
    struct node *node = &cl->nodes[n];

    event.now = cl->now;
    cst_core_step(node->core, &event, &node->actions);
    for (size_t i = 0; i < node->actions.n; i++) {
        const struct cst_action *a = &node->actions.v[i];

        if (a->kind == CST_ACT_COMMAND) {
            submit(cl, n, &a->command);
        } else if (a->kind == CST_ACT_REPLY) {
            answer(cl, n, &a->reply);
        }
    }
    if (++cl->totals.n_events % CHECK_EVERY == 0 && cl->options.n_chunks < CHECK_EVERY) {
        const char *broken = cst_core_check(node->core);

        if (broken != NULL) {
            fail(cl, "node %u: not true that %s", n, broken);
        }
    }
}

/* Send a request of the rank. False if the rank's attempt is over. */
static bool ask(struct cluster *cl, uint32_t n, uint32_t rank, enum cst_event_kind kind,
                enum asked asked, uint32_t chunk, uint64_t generation)
{
    struct crank *r = &cl->nodes[n].ranks[rank];
    enum rank_state state = r->state;

    feed(cl, n,
         (struct cst_event){.kind = kind,
                            .tag = ++cl->tag << TAG_SHIFT | (uint64_t)rank << 4 | (uint64_t)asked,
                            .rank = rank,
                            .attempt = r->attempt,
                            .chunk = chunk,
                            .generation = generation,
                            .hyper = {.lr = 0.1f, .beta2 = 0.9f, .eps = 1e-8f, .grad_scale = 1}});
    return r->state == state;
}

/* -- workers ----------------------------------------------------------------------------------- */

/* Operator i uses tensor i alone. */
static uint32_t operator_at(const struct cluster *cl, uint32_t at)
{
    uint32_t n = cl->options.n_chunks;

    return at < n ? at : 2 * n - 1 - at;
}

static bool runs(const struct cluster *cl, uint32_t n, uint32_t rank, uint32_t op)
{
    const struct crank *r = &cl->nodes[n].ranks[rank];
    uint64_t salt = ((cl->options.seed << 20 | op) * 64 + rank) * 4096 + n;

    return cst_model_runs(&cl->model, &cl->model.operators[op], rank) &&
           (cl->model.tensors[op].pattern != CST_PATTERN_EXPERT ||
            memory_mix(salt, r->step * 16 + r->micro) % 3 != 0); /* sometimes no tokens are routed
                                                                  * to the expert */
}

static bool has_grad(const struct cluster *cl, const struct crank *r, uint32_t op)
{
    return r->at >= cl->options.n_chunks && cl->model.tensors[op].pattern != CST_PATTERN_FROZEN;
}

static void begin_operator(struct cluster *cl, uint32_t n, uint32_t rank, uint32_t op)
{
    struct crank *r = &cl->nodes[n].ranks[rank];
    uint32_t chunk = cl->model.tensors[op].chunk;
    bool grad = has_grad(cl, r, op);

    r->waiting = 1 + (uint32_t)grad;
    if (ask(cl, n, rank, CST_EV_FETCH_WEIGHT, ASKED_WEIGHT, chunk, 0) && grad) {
        (void)ask(cl, n, rank, CST_EV_FETCH_GRAD, ASKED_GRAD, chunk, 0);
    }
}

static void end_micro_batch(struct cluster *cl, uint32_t n, uint32_t rank)
{
    struct crank *r = &cl->nodes[n].ranks[rank];

    if (r->micro + 1 == cl->options.micro_batches) {
        r->state = RANK_STEPS;
        (void)ask(cl, n, rank, CST_EV_STEP, ASKED_STEP, 0, 0);
    } else if (ask(cl, n, rank, CST_EV_ACCUMULATE, ASKED_END, 0, 0)) {
        r->micro++;
        r->at = 0;
        go(cl, n, rank, 0);
    }
}

static void run(struct cluster *cl, uint32_t n, uint32_t rank)
{
    struct crank *r = &cl->nodes[n].ranks[rank];

    if (r->state == RANK_IDLE) {
        r->state = RANK_SYNCING;
        (void)ask(cl, n, rank, CST_EV_SYNC, ASKED_SYNC, 0, 0);
        return;
    }
    if (cl->options.overlap == CST_OVERLAP_EARLY && r->micro == 0 && r->at == 0 &&
        !ask(cl, n, rank, CST_EV_PREPARE, ASKED_END, 0, 0)) {
        return;
    }
    while (r->at < 2 * cl->options.n_chunks && !runs(cl, n, rank, operator_at(cl, r->at))) {
        r->at++;
    }
    if (r->at < 2 * cl->options.n_chunks) {
        begin_operator(cl, n, rank, operator_at(cl, r->at));
    } else {
        end_micro_batch(cl, n, rank);
    }
}

static void computed(struct cluster *cl, uint32_t n, uint32_t rank)
{
    struct node *node = &cl->nodes[n];
    struct crank *r = &node->ranks[rank];
    uint32_t op = operator_at(cl, r->at);
    uint32_t chunk = cl->model.tensors[op].chunk;

    if (has_grad(cl, r, op)) {
        /* The chunk's update of this step may have been issued before the attempt was
         * interrupted. */
        struct cluster_sum *sum = &node->engine.sums[chunk];
        uint32_t counts = sum->updated <= r->step;

        /* Counted before the request, because the core may issue the sum within it. */
        sum->handed += counts;
        if (!ask(cl, n, rank, CST_EV_HAND_IN, ASKED_HAND_IN, chunk, r->grad)) {
            sum->handed -= counts;
            return;
        }
    }
    if (ask(cl, n, rank, CST_EV_RELEASE, ASKED_RELEASE, chunk, r->weight)) {
        r->at++;
        go(cl, n, rank, 0);
    }
}

static void die(struct cluster *cl, uint32_t n, uint32_t rank)
{
    struct crank *r = &cl->nodes[n].ranks[rank];

    if (r->state == RANK_GONE) {
        return;
    }
    cl->totals.n_deaths++;
    r->state = RANK_GONE;
    r->first_tag = cl->tag + 1;
    feed(cl, n, (struct cst_event){.kind = CST_EV_DEAD, .rank = rank});
    turn(cl, n, rank, MOMENT_RETURN, cl->now + RETURN_NS);
}

static void come(struct cluster *cl, uint32_t n, uint32_t rank)
{
    cl->nodes[n].ranks[rank].state = RANK_IDLE;
    feed(cl, n, (struct cst_event){.kind = CST_EV_ATTACH, .rank = rank});
    go(cl, n, rank, 0);
}

/* -- the cluster ------------------------------------------------------------------------------- */

/* Of every eight chunks, all ranks hold six, the even ranks one, and the odd ranks one, an expert.
 * One of the six is frozen. */
static void declare(struct cluster *cl)
{
    struct cst_set halves[2] = {{{0}}};
    int64_t shape = CHUNK_ELEMS;
    char name[32];

    cst_model_init(&cl->model);
    cl->model.max_entries = cl->options.n_chunks;
    for (uint32_t rank = 0; rank < cl->options.n_ranks; rank++) {
        cst_set_add(&halves[rank % 2], rank);
    }
    if (cl->options.n_ranks > 1 && (cst_model_group(&cl->model, halves[0], NULL) != CST_OK ||
                                    cst_model_group(&cl->model, halves[1], NULL) != CST_OK)) {
        fail(cl, "a group was refused");
    }
    for (uint32_t i = 0; i < cl->options.n_chunks; i++) {
        struct cst_tensor_words words = {
            .name = name, .shape = &shape, .n_dims = 1, .lr_scale = 1, .decay_scale = 1};

        (void)snprintf(name, sizeof name, "t%u", i);
        words.group = cl->options.n_ranks > 1 && i % 8 == 5   ? 1
                      : cl->options.n_ranks > 1 && i % 8 == 6 ? 2
                                                              : 0;
        words.pattern = i % 8 == 6   ? CST_PATTERN_EXPERT
                        : i % 8 == 7 ? CST_PATTERN_FROZEN
                                     : CST_PATTERN_SHARD;
        if (cst_model_tensor(&cl->model, &words, NULL) != CST_OK ||
            cst_model_operator(&cl->model, name, &i, 1, NULL, NULL) != CST_OK) {
            fail(cl, "a tensor was refused");
        }
    }
}

static void open_node(struct cluster *cl, uint32_t n)
{
    struct node *node = &cl->nodes[n];
    struct cst_core_pool pools[CST_CORE_MAX_WORLD] = {0};
    struct cst_core_config config = {.model = &cl->model,
                                     .layout = &cl->layout,
                                     .world = cl->options.n_ranks,
                                     .arena_segments = cl->segments,
                                     .pools = pools,
                                     .first_ticket = 1,
                                     .peer_timeout_ns = CST_CORE_NEVER,
                                     .policy = {.overlap = cl->options.overlap},
                                     .micro_batches = cl->options.micro_batches};
    struct cst_err err;

    for (uint32_t rank = 0; rank < cl->options.n_ranks; rank++) {
        uint32_t blocks = cl->layout.needs[rank].min_blocks[0] + cl->options.n_chunks / 4;

        pools[rank].parts[0] =
            (struct cst_core_part){.n_blocks = blocks, .blocks_per_slab = blocks};
        pools[rank].segments = cl->segments;
    }
    if (cst_core_open(&node->core, &config, &err) != CST_OK) {
        fail(cl, "open: %s", err.text);
    }
    cst_actions_init(&node->actions);
    node->ranks = must(calloc(cl->options.n_ranks, sizeof *node->ranks));
    cluster_engine_open(&node->engine, &cl->layout);
    for (uint32_t rank = 0; rank < cl->options.n_ranks; rank++) {
        turn(cl, n, rank, MOMENT_RETURN, below(cl, 1000000));
    }
}

static void close_node(struct cluster *cl, uint32_t n)
{
    struct node *node = &cl->nodes[n];
    const char *broken = cst_core_check(node->core);
    struct cst_core_stats stats;

    cst_core_stats(node->core, &stats);
    cl->totals.n_dropped += stats.n_dropped;
    cl->totals.n_fused += node->engine.n_fused;
    if (broken != NULL) {
        fail(cl, "node %u: at the end it is not true that %s", n, broken);
    }
    cst_core_close(node->core);
    cst_actions_close(&node->actions);
    free(node->ranks);
    cluster_engine_close(&node->engine);
}

static void open_cluster(struct cluster *cl)
{
    /* The contributions of at most two ranks are summed in the update itself, in bf16. */
    bool fuses = cl->options.overlap == CST_OVERLAP_EARLY && cl->options.n_ranks <= 2 &&
                 cl->options.micro_batches == 1;
    struct cst_layout_config config = {
        .chunk_elems = CHUNK_ELEMS,
        .n_nodes = 1,
        .world = cl->options.n_ranks,
        .grad_bytes = fuses ? 2 : 4,
        .states = {.two_weights = cl->options.overlap != CST_OVERLAP_COMMIT}};
    struct cst_err err;

    declare(cl);
    if (cst_layout_build(&cl->layout, &cl->model, &config, &err) != CST_OK) {
        fail(cl, "layout: %s", err.text);
    }
    cl->segments = must(calloc(cl->layout.n_segments + 1, sizeof *cl->segments));
    cl->nodes = must(calloc(cl->options.n_nodes, sizeof *cl->nodes));
    for (uint32_t n = 0; n < cl->options.n_nodes; n++) {
        open_node(cl, n);
    }
    choose_deaths(cl);
}

static void close_cluster(struct cluster *cl)
{
    for (uint32_t n = 0; n < cl->options.n_nodes; n++) {
        close_node(cl, n);
    }
    free(cl->nodes);
    free(cl->segments);
    moments_close(&cl->moments);
    cst_layout_close(&cl->layout);
    cst_model_close(&cl->model);
}

static void play(struct cluster *cl, const struct moment *m)
{
    const struct crank *r = &cl->nodes[m->node].ranks[m->rank];

    cl->now = m->at;
    if (m->kind == MOMENT_DONE) {
        feed(cl, m->node, (struct cst_event){.kind = CST_EV_DONE, .ticket = m->what, .value = 1.0});
    } else if (m->kind == MOMENT_DEATH) {
        die(cl, m->node, m->rank);
    } else if (m->what == r->turn) {
        (m->kind == MOMENT_GO         ? run
         : m->kind == MOMENT_COMPUTED ? computed
                                      : come)(cl, m->node, m->rank);
    }
}

void cluster_run(const struct cluster_options *options, struct cluster_totals *out)
{
    struct cluster cl = {.options = *options, .rng = options->seed << 32};

    open_cluster(&cl);
    while (cl.step < options->n_steps) {
        struct moment m;

        if (cl.moments.n == 0) {
            fail(&cl, "nobody can do anything");
        }
        m = moments_pop(&cl.moments);
        play(&cl, &m);
    }
    cl.totals.ns = cl.now;
    close_cluster(&cl);
    *out = cl.totals;
}
