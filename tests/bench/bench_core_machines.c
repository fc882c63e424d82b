/* SPDX-License-Identifier: Apache-2.0 */
/* core_machines: the time of an event in the core of a job on 64 machines with 8 ranks each,
 * compared with a job on one machine with 8 ranks. There are no sockets, engines or other cores:
 * this program tells the core of machine 0 what the others would tell it. In a step each rank
 * fetches each chunk forward and backward and hands in its gradient. The time that the core needs
 * for a step is divided by the number of its events: requests, completions and messages. Reports
 * medians of steps.
 *
 * Usage: bench_core_machines --json FILE */
#include "offload/core/core.h"
#include "tests/bench/timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINES = 64, RANKS = 8, CHUNKS = 2048, STEPS = 9, ENGINE = 99 };

struct bench {
    uint32_t n, n_chunks;
    struct cst_model model;
    struct cst_layout layout;
    struct cst_table_header *table;
    uint32_t *segments;
    struct cst_core *core;
    struct cst_actions actions;
    uint64_t *tickets; /* ring of tickets of commands that are not done */
    size_t n_slots, head, tail;
    uint64_t tag, generation, replied, attempt, step, n_events;
};

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_core_machines: %s\n", what);
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

static void feed(struct bench *b, struct cst_event event)
{
    event.now = ++b->n_events;
    cst_core_step(b->core, &event, &b->actions);
    for (size_t i = 0; i < b->actions.n; i++) {
        const struct cst_action *a = &b->actions.v[i];

        if (a->kind == CST_ACT_COMMAND && !a->command.promised) {
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

static void complete_all(struct bench *b)
{
    while (b->head != b->tail) {
        feed(b, (struct cst_event){.kind = CST_EV_DONE,
                                   .ticket = b->tickets[b->head++ % b->n_slots],
                                   .value = 1.0});
    }
}

/* Send a request; @waits: its answer comes later. Returns the generation that was granted. */
static uint64_t request(struct bench *b, enum cst_event_kind kind, uint32_t rank, uint32_t chunk,
                        uint64_t generation, bool waits)
{
    struct cst_event event = {.kind = kind,
                              .tag = ++b->tag,
                              .rank = rank,
                              .attempt = b->attempt,
                              .chunk = chunk,
                              .generation = generation,
                              .hyper = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.9, .grad_scale = 1}};

    feed(b, event);
    while (!waits && b->replied != event.tag) {
        if (b->head == b->tail) {
            die("a request waits for nothing");
        }
        feed(b,
             (struct cst_event){.kind = CST_EV_DONE, .ticket = b->tickets[b->head++ % b->n_slots]});
    }
    return b->generation;
}

static void tell(struct bench *b, uint32_t machine, struct cst_machine_message message)
{
    message.epoch = 1;
    feed(b, (struct cst_event){.kind = CST_EV_TOLD, .machine = machine, .message = &message});
}

static struct cst_machine_message about(const struct bench *b, enum cst_message_kind kind,
                                        uint32_t chunk)
{
    return (struct cst_machine_message){
        .kind = kind, .attempt = b->attempt, .step = b->step, .chunk = chunk};
}

/* What the others tell when their part of the gradient of @chunk is complete. */
static void tell_gradient(struct bench *b, uint32_t chunk)
{
    struct cst_machine_message message = about(b, CST_MESSAGE_PARTIAL, chunk);
    static const double squares = 1;

    if (b->n > 1 && chunk % b->n != 0) {
        message.kind = CST_MESSAGE_SUMMED;
        message.squares = &squares;
        message.n_squares = 1;
        tell(b, chunk % b->n, message);
        return;
    }
    for (uint32_t m = 1; m < b->n; m++) {
        message.block = m;
        tell(b, m, message);
    }
}

static void tell_ready(struct bench *b)
{
    struct cst_machine_message message = about(b, CST_MESSAGE_READY, 0);
    double losses[RANKS] = {0};

    message.decision =
        (struct cst_decision){.step = b->step + 1,
                              .adam_step = b->step + 1,
                              .attempt = b->attempt,
                              .hyper = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.9, .grad_scale = 1},
                              .sum_squares = 1};
    message.losses = losses;
    message.n_losses = RANKS;
    for (uint32_t m = 1; m < b->n; m++) {
        message.rank_blocks = UINT64_C(1) << m;
        tell(b, m, message);
    }
    if (b->n > 1) {
        tell(b, 1, about(b, CST_MESSAGE_RECORDED, 0));
    }
}

static void train(struct bench *b)
{
    for (uint32_t c = 0; c < b->n_chunks; c++) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            uint64_t weight = request(b, CST_EV_FETCH_WEIGHT, rank, c, 0, false);

            (void)request(b, CST_EV_RELEASE, rank, c, weight, false);
        }
    }
    for (uint32_t c = b->n_chunks; c-- > 0;) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            uint64_t weight = request(b, CST_EV_FETCH_WEIGHT, rank, c, 0, false);
            uint64_t grad = request(b, CST_EV_FETCH_GRAD, rank, c, 0, false);

            (void)request(b, CST_EV_HAND_IN, rank, c, grad, false);
            (void)request(b, CST_EV_RELEASE, rank, c, weight, false);
        }
        complete_all(b);
        tell_gradient(b, c);
        complete_all(b);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        (void)request(b, CST_EV_STEP, rank, 0, 0, true);
    }
    complete_all(b);
    tell_ready(b);
    if (b->replied != b->tag) {
        die("the step was not committed");
    }
    b->step++;
    for (uint32_t c = 0; c < b->n_chunks; c++) {
        if (c % b->n != 0) {
            tell(b, c % b->n, about(b, CST_MESSAGE_WRITTEN, c));
        }
    }
    complete_all(b);
}

static void lay_out(struct bench *b)
{
    struct cst_layout_config config = {.chunk_elems = CST_LAYOUT_CAPACITY_STEP,
                                       .n_nodes = 1,
                                       .world = RANKS,
                                       .grad_bytes = 4,
                                       .machines = {.n = b->n, .copies = 1},
                                       .partials = {.n_here = 1, .n_come = b->n - 1}};
    int64_t shape = CST_LAYOUT_CAPACITY_STEP;
    struct cst_err err;
    char name[32];

    cst_model_init(&b->model);
    for (uint32_t i = 0; i < b->n_chunks; i++) {
        struct cst_tensor_words words = {
            .name = name, .shape = &shape, .n_dims = 1, .lr_scale = 1, .decay_scale = 1};

        (void)snprintf(name, sizeof name, "t%u", i);
        words.pattern = CST_PATTERN_SHARD;
        if (cst_model_tensor(&b->model, &words, &err) != CST_OK ||
            cst_model_operator(&b->model, name, &i, 1, NULL, &err) != CST_OK) {
            die(err.text);
        }
    }
    if (cst_layout_build(&b->layout, &b->model, &config, &err) != CST_OK) {
        die(err.text);
    }
    b->segments = make(b->layout.n_segments + 1, sizeof *b->segments);
}

static void open_core(struct bench *b)
{
    struct cst_core_machines machines = {
        .n = b->n, .copies = 1, .n_rank_blocks = b->n, .rank_blocks = 1, .engine = ENGINE};
    struct cst_core_pool pools[RANKS] = {0};
    struct cst_core_config config = {.model = &b->model,
                                     .layout = &b->layout,
                                     .world = RANKS,
                                     .arena_segments = b->segments,
                                     .pools = pools,
                                     .first_ticket = 1,
                                     .peer_timeout_ns = CST_CORE_NEVER,
                                     .block_ranks = RANKS,
                                     .machines = b->n > 1 ? &machines : NULL};
    struct cst_table_header header;
    struct cst_err err;

    cst_layout_size_table(&b->layout, &header);
    b->table = make(1, header.total_bytes);
    *b->table = header;
    cst_core_write_table(&config, b->table);
    config.table = b->table;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        pools[rank].parts[0] =
            (struct cst_core_part){.n_blocks = b->n_chunks / 4, .blocks_per_slab = b->n_chunks / 4};
        pools[rank].segments = b->segments;
    }
    if (cst_core_open(&b->core, &config, &err) != CST_OK) {
        die(err.text);
    }
    b->n_slots = 64ul * b->n_chunks;
    b->tickets = make(b->n_slots, sizeof *b->tickets);
    cst_actions_init(&b->actions);
}

static void open_bench(struct bench *b, uint32_t n, uint32_t n_chunks)
{
    *b = (struct bench){.n = n, .n_chunks = n_chunks};
    lay_out(b);
    open_core(b);
    if (n > 1) {
        feed(b, (struct cst_event){.kind = CST_EV_MACHINES,
                                   .epoch = 1,
                                   .members = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1});
    }
    for (uint32_t m = 1; m < n; m++) {
        tell(b, m,
             (struct cst_machine_message){.kind = CST_MESSAGE_RECORD,
                                          .rank_blocks = UINT64_C(1) << m});
        tell(b, m, (struct cst_machine_message){.kind = CST_MESSAGE_SYNCED});
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        feed(b, (struct cst_event){.kind = CST_EV_ATTACH, .rank = rank});
        (void)request(b, CST_EV_SYNC, rank, 0, 0, true);
    }
    if (b->attempt != 1) {
        die("no attempt has begun");
    }
    train(b);
}

/* Nanoseconds per event of one step. */
static double time_step(struct bench *b)
{
    uint64_t before = b->n_events;
    double began = bench_now();

    train(b);
    return (bench_now() - began) * 1e9 / (double)(b->n_events - before);
}

static void close_bench(struct bench *b)
{
    cst_core_close(b->core);
    cst_actions_close(&b->actions);
    cst_layout_close(&b->layout);
    cst_model_close(&b->model);
    free(b->table);
    free(b->segments);
    free(b->tickets);
}

int main(int argc, char **argv)
{
    uint32_t steps = bench_sized(STEPS, 1), n_chunks = bench_sized(CHUNKS, 128);
    double one_ns[STEPS], many_ns[STEPS];
    struct bench one, many;
    FILE *out;

    if (argc != 3 || strcmp(argv[1], "--json") != 0) {
        (void)fprintf(stderr, "usage: %s --json FILE\n", argv[0]);
        return 2;
    }
    open_bench(&one, 1, n_chunks);
    open_bench(&many, MACHINES, n_chunks);
    for (uint32_t i = 0; i < steps; i++) {
        one_ns[i] = time_step(&one);
        many_ns[i] = time_step(&many);
    }
    out = fopen(argv[2], "a");
    if (out == NULL) {
        die("cannot write");
    }
    (void)fprintf(out,
                  "{\"name\": \"core_machines\", \"value\": %.1f, \"unit\": \"ns\", "
                  "\"yardstick\": %.1f, \"ratio\": %.4f, \"runs\": %u}\n",
                  bench_median(many_ns, steps), bench_median(one_ns, steps),
                  bench_median(many_ns, steps) / bench_median(one_ns, steps), steps);
    if (fclose(out) != 0) {
        die("cannot write");
    }
    close_bench(&one);
    close_bench(&many);
    return 0;
}
