/* SPDX-License-Identifier: Apache-2.0 */
/* core_scale: the time of a request in the core at 100 000 chunks, compared with 1 000. There are
 * no sockets and no engines. One rank trains: forward over all chunks, backward with gradients,
 * step; its pool holds a quarter of the weights. The time that the core needs in such a step,
 * including completions and deadlines, is divided by the number of requests. Reports medians of
 * steps; the two sizes take turns.
 *
 * Usage: bench_core_scale --json FILE */
#include "offload/core/core.h"
#include "tests/bench/timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 1000, LARGE = 100000, ROUNDS = 7, LEARN = 3, CHUNK_ELEMS = 4096 };

struct bench {
    uint32_t n_chunks;
    struct cst_model model;
    struct cst_layout layout;
    struct cst_layout_operator *operators;
    uint32_t *used; /* per operator: its chunk */
    struct cst_core *core;
    struct cst_actions actions;
    uint64_t *tickets; /* ring of tickets of commands that are not done */
    size_t n_slots, head, tail;
    uint64_t tag;        /* tag of the last request */
    uint64_t generation; /* generation in the last reply */
    uint64_t replied;    /* tag of the last reply */
    uint64_t attempt;
    uint64_t n_requests;
};

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_core_scale: %s\n", what);
    exit(1);
}

static void *make(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (p == NULL) {
        die("no memory");
    }
    return p;
}

/* The layout is made by hand, because a declared model has fewer tensors than this one has
 * chunks. */
static void lay_out(struct bench *b)
{
    static struct cst_set rank_0 = {{1}};
    static struct cst_layout_need need = {.min_blocks = {3}};
    uint32_t n = b->n_chunks;

    b->operators = make(n, sizeof *b->operators);
    b->used = make(n, sizeof *b->used);
    b->model = (struct cst_model){.operators = b->operators, .n_operators = n, .n_groups = 1};
    b->layout = (struct cst_layout){.capacity = CHUNK_ELEMS,
                                    .n_classes = 1,
                                    .needs = &need,
                                    .groups = &rank_0,
                                    .n_chunks = n,
                                    .grad_bytes = 2};
    b->layout.classes[0] = (struct cst_layout_class){
        .capacity = CHUNK_ELEMS, .n_chunks = n, .min_blocks = 3, .max_blocks = 2 * n};
    b->layout.chunks = make(n, sizeof *b->layout.chunks);
    b->layout.uses = make(n, sizeof *b->layout.uses);
    for (uint32_t c = 0; c < n; c++) {
        b->used[c] = c;
        b->layout.uses[c] = (struct cst_layout_use){&b->used[c], 1};
        b->layout.chunks[c] = (struct cst_layout_chunk){
            .n_elems = CHUNK_ELEMS, .n_tensors = 1, .n_uses = 1, .ranks = &rank_0};
    }
}

static void feed(struct bench *b, struct cst_event event)
{
    event.now = 1;
    cst_core_step(b->core, &event, &b->actions);
    (void)cst_core_deadline(b->core);
    for (size_t i = 0; i < b->actions.n; i++) {
        const struct cst_action *a = &b->actions.v[i];

        if (a->kind == CST_ACT_COMMAND) {
            b->tickets[b->tail++ % b->n_slots] = a->command.ticket;
        } else if (a->kind == CST_ACT_REPLY) {
            if (a->reply.status != CST_OK) {
                die(a->reply.err.text);
            }
            b->replied = a->reply.tag;
            b->generation = a->reply.generation;
            b->attempt = a->reply.attempt != 0 ? a->reply.attempt : b->attempt;
        }
    }
}

static bool complete_one(struct bench *b)
{
    if (b->head == b->tail) {
        return false;
    }
    feed(b, (struct cst_event){
                .kind = CST_EV_DONE, .ticket = b->tickets[b->head++ % b->n_slots], .value = 1.0});
    return true;
}

/* Send a request. Its reply comes at once, or when the engine has completed what it waits for.
 * Meanwhile the engine completes two commands per request. Returns the generation that was
 * granted. */
static uint64_t request(struct bench *b, enum cst_event_kind kind, uint32_t chunk,
                        uint64_t generation)
{
    struct cst_event event = {.kind = kind,
                              .tag = ++b->tag,
                              .attempt = b->attempt,
                              .chunk = chunk,
                              .generation = generation,
                              .hyper = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.9f, .grad_scale = 1}};

    feed(b, event);
    while (b->replied != event.tag) {
        if (!complete_one(b)) {
            die("a request waits for nothing");
        }
    }
    generation = b->generation;
    b->n_requests++;
    for (int i = 0; i < 2; i++) {
        (void)complete_one(b);
    }
    return generation;
}

static void open_core(struct bench *b)
{
    static const uint32_t segments[2];
    uint32_t n_blocks = b->n_chunks / 4;
    struct cst_core_pool pool = {.parts[0] = {.n_blocks = n_blocks, .blocks_per_slab = n_blocks},
                                 .segments = segments};
    struct cst_core_config config = {.model = &b->model,
                                     .layout = &b->layout,
                                     .world = 1,
                                     .arena_segments = segments,
                                     .pools = &pool,
                                     .first_ticket = 1,
                                     .peer_timeout_ns = 1000000000};
    struct cst_err err;

    b->n_slots = 8ul * b->n_chunks + 64;
    b->tickets = make(b->n_slots, sizeof *b->tickets);
    cst_actions_init(&b->actions);
    if (cst_core_open(&b->core, &config, &err) != CST_OK) {
        die(err.text);
    }
    feed(b, (struct cst_event){.kind = CST_EV_ATTACH});
    (void)request(b, CST_EV_SYNC, 0, 0);
}

static void train(struct bench *b)
{
    for (uint32_t c = 0; c < b->n_chunks; c++) {
        (void)request(b, CST_EV_RELEASE, c, request(b, CST_EV_FETCH_WEIGHT, c, 0));
    }
    for (uint32_t c = b->n_chunks; c-- > 0;) {
        uint64_t weight = request(b, CST_EV_FETCH_WEIGHT, c, 0);
        uint64_t grad = request(b, CST_EV_FETCH_GRAD, c, 0);

        (void)request(b, CST_EV_HAND_IN, c, grad);
        (void)request(b, CST_EV_RELEASE, c, weight);
    }
    (void)request(b, CST_EV_STEP, 0, 0);
}

/* Nanoseconds per request, measured over @n_steps steps. */
static double time_steps(struct bench *b, uint32_t n_steps)
{
    double began = bench_now();
    uint64_t before = b->n_requests;

    for (uint32_t i = 0; i < n_steps; i++) {
        train(b);
    }
    return (bench_now() - began) * 1e9 / (double)(b->n_requests - before);
}

static void open_bench(struct bench *b, uint32_t n_chunks)
{
    struct cst_rank_stats before;
    struct cst_rank_stats after;

    *b = (struct bench){.n_chunks = n_chunks};
    lay_out(b);
    open_core(b);
    for (int i = 0; i < LEARN; i++) {
        cst_core_rank_stats(b->core, 0, &before);
        train(b);
    }
    cst_core_rank_stats(b->core, 0, &after);
    if (after.misses != before.misses || after.surprises != before.surprises) {
        die("a step that is known has misses");
    }
}

static void close_bench(struct bench *b)
{
    cst_core_close(b->core);
    cst_actions_close(&b->actions);
    free(b->tickets);
    free(b->layout.chunks);
    free(b->layout.uses);
    free(b->operators);
    free(b->used);
}

int main(int argc, char **argv)
{
    uint32_t n_large = bench_sized(LARGE, 2 * SMALL), rounds = bench_sized(ROUNDS, 1);
    struct bench small, large;
    double s[ROUNDS], l[ROUNDS];
    FILE *out;

    if (argc != 3 || strcmp(argv[1], "--json") != 0) {
        (void)fprintf(stderr, "usage: %s --json FILE\n", argv[0]);
        return 2;
    }
    open_bench(&small, SMALL);
    open_bench(&large, n_large);
    for (uint32_t i = 0; i < rounds; i++) {
        s[i] = time_steps(&small, n_large / SMALL);
        l[i] = time_steps(&large, 1);
    }
    bench_sort(s, rounds);
    bench_sort(l, rounds);
    out = fopen(argv[2], "a");
    if (out == NULL) {
        die("cannot write");
    }
    (void)fprintf(out,
                  "{\"name\": \"core_scale\", \"value\": %.1f, \"unit\": \"ns\", "
                  "\"yardstick\": %.1f, \"ratio\": %.4f, \"runs\": %u}\n",
                  l[rounds / 2], s[rounds / 2], l[rounds / 2] / s[rounds / 2], rounds);
    if (fclose(out) != 0) {
        die("cannot write");
    }
    close_bench(&small);
    close_bench(&large);
    return 0;
}
