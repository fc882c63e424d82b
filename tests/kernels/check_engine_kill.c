/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the restart of an engine: it is killed at random moments, and the commands that had not
 * completed are issued again to another engine on the same memory. The result must have the bits of
 * an undisturbed run. */
#include "tests/lib/kill_run.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_CHUNKS 6
#define N_STEPS 3
/* Commands of a step: reduce, 4 copies up, update, 4 copies down, copy up, copy on. */
#define MAX_PER_CHUNK 12
#define MAX_COMMANDS (N_STEPS * (N_CHUNKS * MAX_PER_CHUNK + 1u))
#define N_ROUNDS (suite_is_sparse() ? 3 : 10)
#define N_SLOTS 4

static const uint64_t chunk_elems[N_CHUNKS] = {9024, 20032, 8192 * 3, 1u << 20, 12352, 60032};

/* The form of the updates. */
enum way {
    IN_PLACE, /* REDUCE, then UPDATE */
    MICRO,    /* two micro-batches are added to an fp32 row, then UPDATE */
    /* The update sums in the same pass, with a guard, and writes the two weight rows in turn. */
    FUSED,
    ELSEWHERE, /* REDUCE, copies up, update there, copies down */
};

static const struct kind {
    enum way way;
    struct tiny_states states;
} kinds[] = {
    {IN_PLACE, {.optimizer = CST_OPTIMIZER_ADAMW}},
    {MICRO, {.optimizer = CST_OPTIMIZER_ADAMW, .grad_bytes = 4}},
    {IN_PLACE, {.optimizer = CST_OPTIMIZER_ADAM, .moments = CST_MOMENTS_BF16}},
    {MICRO, {.optimizer = CST_OPTIMIZER_LION, .moments = CST_MOMENTS_MX8, .grad_bytes = 4}},
    {IN_PLACE, {.optimizer = CST_OPTIMIZER_ADAMW, .moments = CST_MOMENTS_MX8}},
    {FUSED, {.optimizer = CST_OPTIMIZER_ADAMW, .two_weights = true}},
    {FUSED,
     {.optimizer = CST_OPTIMIZER_SGD,
      .moments = CST_MOMENTS_BF16,
      .grad_bytes = 4,
      .two_weights = true}},
    {FUSED, {.optimizer = CST_OPTIMIZER_ADAMW, .moments = CST_MOMENTS_MX8, .two_weights = true}},
    {ELSEWHERE, {.optimizer = CST_OPTIMIZER_ADAMW, .reservation = true}},
    {ELSEWHERE,
     {.optimizer = CST_OPTIMIZER_ADAMW, .moments = CST_MOMENTS_MX8, .reservation = true}},
};

#define N_KINDS ((int)(sizeof kinds / sizeof kinds[0]))

/* A list of commands that is being written. */
struct list {
    const struct tiny_job *job;
    const struct kind *kind;
    struct engine_command v[MAX_COMMANDS];
    size_t n;
    uint64_t norm;              /* ticket of the last NORM */
    uint64_t copied[N_CHUNKS];  /* ticket of the last copy of each chunk's weights */
    uint64_t down[N_CHUNKS][4]; /* tickets of the last copies down of each chunk's rows */
};

static struct engine_command *add(struct list *list, struct engine_command command)
{
    ck_assert_uint_lt(list->n, MAX_COMMANDS);
    list->v[list->n] = command;
    list->v[list->n].ticket = list->n + 1;
    return &list->v[list->n++];
}

static void after(struct engine_command *command, uint64_t ticket)
{
    if (ticket != 0) {
        command->after[command->n_after++] = ticket;
    }
}

static struct engine_command copy(struct cst_place dst, struct cst_place src, uint64_t bytes)
{
    return engine_command_copy(dst, src, bytes);
}

/* The reduction of micro-batch @m of a step: of blocks with contributions and one block with
 * weights, which differ in each step. The first micro-batch is stored, and the second is added. */
static struct engine_command micro_batch(const struct tiny_job *job, unsigned c, uint64_t step,
                                         unsigned m)
{
    struct engine_command reduce = tiny_job_reduce(job, c, 2 * step - 1 + m);

    reduce.src[m == 0 ? 1 : 0] = tiny_job_block(job, c, 3);
    reduce.accumulate = m > 0;
    return reduce;
}

/* @command begins the chunk's step. It waits until the ends of the commands that wrote the previous
 * step's weights are known, because workers compute contributions only after that. */
static void begin(const struct list *list, unsigned c, struct engine_command *command)
{
    command->after_ack = true;
    after(command, list->copied[c]);
    after(command, list->norm);
}

/* Add the sums of the chunk's step. Returns the last ticket. */
static uint64_t add_sums(struct list *list, unsigned c, uint64_t step)
{
    bool micro = list->kind->way == MICRO;
    struct engine_command *reduce =
        add(list, micro ? micro_batch(list->job, c, step, 0) : tiny_job_reduce(list->job, c, step));

    begin(list, c, reduce);
    for (int i = 0; i < 4; i++) {
        after(reduce, list->down[c][i]);
    }
    if (micro) {
        uint64_t first = reduce->ticket;

        reduce = add(list, micro_batch(list->job, c, step, 1));
        after(reduce, first);
    }
    return reduce->ticket;
}

/* The weight row that a step writes. */
static enum cst_row side(const struct list *list, uint64_t step)
{
    return list->job->states.two_weights && step % 2 == 1 ? (enum cst_row)CST_ROW_WEIGHT_OTHER
                                                          : CST_ROW_WEIGHT;
}

static uint64_t add_fused(struct list *list, unsigned c, uint64_t step)
{
    struct engine_command *update = add(list, tiny_job_update(list->job, c, step));

    update->src[update->n_src++] = tiny_job_block(list->job, c, 0);
    update->src[update->n_src++] = tiny_job_block(list->job, c, 3);
    update->out[update->n_out++] = (struct engine_row){
        .row = CST_ROW_WEIGHT, .place = tiny_job_row(list->job, c, side(list, step))};
    update->guard = true;
    begin(list, c, update);
    return update->ticket;
}

static void name(struct engine_row *rows, unsigned *n, enum cst_row row, struct cst_place place)
{
    rows[(*n)++] = (struct engine_row){.row = (uint32_t)row, .place = place};
}

/* Add the copies up of all rows that are read, the update, and the copies down of all rows that it
 * wrote. The copies down wait until the end of the update is known, because they overwrite what a
 * repeated copy up would read. */
static uint64_t add_elsewhere(struct list *list, unsigned c, uint64_t step, uint64_t sum)
{
    static const enum cst_row rows[] = {CST_ROW_GRAD, CST_ROW_WEIGHT, CST_ROW_MASTER,
                                        CST_ROW_MOMENT, CST_ROW_MOMENT + 1};
    const struct tiny_job *job = list->job;
    struct engine_command there = tiny_job_update(job, c, step);
    uint64_t update;

    for (int i = 0; i < CST_ROW_COUNT; i++) {
        struct cst_place from = tiny_job_reservation(job, c, rows[i], false);

        if (rows[i] != CST_ROW_WEIGHT) {
            struct engine_command *up = add(list, copy(from, tiny_job_row(job, c, rows[i]),
                                                       tiny_job_row_bytes(job, c, rows[i])));

            after(up, sum);
            after(&there, up->ticket);
            name(there.in, &there.n_in, rows[i], from);
        }
        if (rows[i] != CST_ROW_GRAD) {
            name(there.out, &there.n_out, rows[i], tiny_job_reservation(job, c, rows[i], true));
        }
    }
    update = add(list, there)->ticket;
    for (int i = 1; i < CST_ROW_COUNT; i++) {
        struct engine_command *down = add(list, copy(tiny_job_row(job, c, rows[i]),
                                                     tiny_job_reservation(job, c, rows[i], true),
                                                     tiny_job_row_bytes(job, c, rows[i])));

        down->after_ack = true;
        after(down, update);
        list->down[c][i - 1] = down->ticket;
    }
    return list->down[c][0];
}

/* Add the chunk's sums and its update, in the list's form. *@sum receives the ticket after which
 * the tiles' sums are complete. Returns the ticket after which the weights are. */
static uint64_t add_update(struct list *list, unsigned c, uint64_t step, uint64_t *sum)
{
    struct engine_command *update;

    if (list->kind->way == FUSED) {
        return *sum = add_fused(list, c, step);
    }
    *sum = add_sums(list, c, step);
    if (list->kind->way == ELSEWHERE) {
        return add_elsewhere(list, c, step, *sum);
    }
    update = add(list, tiny_job_update(list->job, c, step));
    after(update, *sum);
    return update->ticket;
}

/* Write steps: each chunk is updated, its weights are copied to one block and from there to the
 * next, and the norm is computed in between. Tickets count from 1 in the order of issue. */
static void write_commands(struct list *list)
{
    const struct tiny_job *job = list->job;

    for (uint64_t step = 1; step <= N_STEPS; step++) {
        struct engine_command sum = {.kind = ENGINE__COMMAND_KIND__NORM,
                                     .table = job->ids[TINY_TABLE]};

        for (unsigned c = 0; c < N_CHUNKS; c++) {
            uint64_t summed, updated = add_update(list, c, step, &summed), up_ticket;
            struct engine_command *up =
                add(list, copy(tiny_job_block(job, c, 2), tiny_job_row(job, c, side(list, step)),
                               job->n_elems[c] * 2));
            struct engine_command *on;

            after(up, updated);
            up_ticket = up->ticket;
            on = add(list, copy(tiny_job_block(job, c, 3), tiny_job_block(job, c, 2),
                                job->n_elems[c] * 2));
            on->priority = ENGINE__PRIORITY__EVICTION;
            on->after_ack = true; /* repeated sums still read that block */
            after(on, up_ticket);
            list->copied[c] = on->ticket;
            after(&sum, summed);
        }
        list->norm = add(list, sum)->ticket;
    }
}

/* The engine is killed repeatedly at random moments. The run ends with the expected weights,
 * states, gradients, sums and marks. */
START_TEST(test_kill)
{
    static struct list list;
    const char *env = getenv("CST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : (uint64_t)time(NULL), random;
    unsigned n_kills = 0, n_held = 0;
    struct tiny_job calm, job;

    tiny_job_open_as(&calm, &kinds[_i].states, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    tiny_job_open_as(&job, &kinds[_i].states, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    printf("seed: CST_SEED=%llu\n", (unsigned long long)seed);
    random = seed * 2 + 1;
    list = (struct list){.job = &calm, .kind = &kinds[_i]};
    write_commands(&list);
    kill_run_to_end(&calm, list.v, list.n, 2, (bool[MAX_COMMANDS]){false});
    for (int round = 0; round < N_ROUNDS; round++) {
        bool done[MAX_COMMANDS] = {false};

        tiny_job_fill(&job, seed);
        for (uint64_t k = 1 + tiny_random(&random) % 3; k > 0; k--) {
            n_held += kill_run(&job, list.v, list.n, N_SLOTS, done, &random);
            n_kills++;
        }
        kill_run_to_end(&job, list.v, list.n, 1 + (uint32_t)(tiny_random(&random) % 3), done);
        ck_assert_msg(tiny_job_same(&calm, &job), "seed %llu, kind %d, round %d: the bits differ",
                      (unsigned long long)seed, _i, round);
    }
    printf("kind %d: %u kills left %u tiles half done\n", _i, n_kills, n_held);
    tiny_job_close(&calm);
    tiny_job_close(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_kill");
    TCase *tcase = suite_case(suite, "kill", NULL, NULL);

    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_kill, 0, N_KINDS);
    return suite_run(suite);
}
