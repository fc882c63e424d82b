/* Restart safety: kill -9 at any moment and the commands that had not completed issued again, to
 * another engine on the same memory, give the bits of an undisturbed run. */
#include "tests/lib/kill_run.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_CHUNKS 6
#define N_STEPS 3
#define PER_CHUNK                                                                                  \
    4 /* commands a step: reduce, update, copy up, copy on; a reduction more for a second          \
         micro-batch */
#define N_COMMANDS(wide) (N_STEPS * (N_CHUNKS * ((wide) ? PER_CHUNK + 1u : PER_CHUNK) + 1u))
#define MAX_COMMANDS N_COMMANDS(true)
#define N_ROUNDS 24
#define N_SLOTS 4

static const uint64_t chunk_elems[N_CHUNKS] = {9000, 20000, 8192 * 3, 2u << 20, 12345, 60000};

/* The reduction of micro-batch @m of a step: of blocks that hold contributions and one that holds
 * weights, which differ in each step. The first is stored, the second added to it. */
static struct engine_command micro_batch(const struct tiny_job *job, unsigned c, uint64_t step,
                                         unsigned m)
{
    struct engine_command reduce = tiny_job_reduce(job, c, 2 * step - 1 + m);

    reduce.src[m == 0 ? 1 : 0] = tiny_job_block(job, c, 3);
    reduce.accumulate = m > 0;
    return reduce;
}

/* Three steps: each chunk is reduced in place, or in two micro-batches into an fp32 row, updated,
 * its weights copied to one block and from there to the next; the norm is taken between. Tickets
 * from 1, in the order in which they are issued. */
static void write_commands(const struct tiny_job *job, struct engine_command *commands)
{
    bool wide = job->states.grad_bytes == 4;
    uint64_t ticket = 0, norm = 0, copied[N_CHUNKS] = {0};

    for (uint64_t step = 1; step <= N_STEPS; step++) {
        struct engine_command sum = {.kind = ENGINE__COMMAND_KIND__NORM,
                                     .table = job->ids[TINY_TABLE]};

        for (unsigned c = 0; c < N_CHUNKS; c++) {
            struct engine_command reduce =
                wide ? micro_batch(job, c, step, 0) : tiny_job_reduce(job, c, step);
            struct engine_command update = tiny_job_update(job, c, step);
            struct engine_command up = {.kind = ENGINE__COMMAND_KIND__COPY,
                                        .src = {tiny_job_row(job, c, CST_ROW_WEIGHT)},
                                        .n_src = 1,
                                        .dst = {tiny_job_block(job, c, 2)},
                                        .n_dst = 1,
                                        .bytes = job->n_elems[c] * 2};
            struct engine_command on = up;

            on.src[0] = tiny_job_block(job, c, 2);
            on.dst[0] = tiny_job_block(job, c, 3);
            on.priority = ENGINE__PRIORITY__EVICTION;
            reduce.ticket = ++ticket;
            reduce.after[reduce.n_after++] = copied[c];
            reduce.after[reduce.n_after++] = norm;
            if (wide) {
                *commands++ = reduce;
                reduce = micro_batch(job, c, step, 1);
                reduce.after[reduce.n_after++] = ticket;
                reduce.ticket = ++ticket;
            }
            update.ticket = ++ticket;
            update.after[update.n_after++] = reduce.ticket;
            up.ticket = ++ticket;
            up.after[up.n_after++] = update.ticket;
            on.ticket = ++ticket;
            on.after[on.n_after++] = up.ticket;
            copied[c] = on.ticket;
            sum.after[sum.n_after++] = reduce.ticket;
            *commands++ = reduce;
            *commands++ = update;
            *commands++ = up;
            *commands++ = on;
        }
        sum.ticket = norm = ++ticket;
        *commands++ = sum;
    }
    ck_assert_uint_eq(ticket, N_COMMANDS(wide));
}

/* Killed again and again at random moments, the run ends with the same weights, states, gradients,
 * sums and marks. */
START_TEST(test_kill)
{
    static struct engine_command commands[MAX_COMMANDS];
    void (*open)(struct tiny_job *, unsigned, const uint64_t *, unsigned, uint64_t) =
        _i == 0 ? tiny_job_open : tiny_job_open_wide;
    const size_t n_commands = N_COMMANDS(_i == 1);
    const char *env = getenv("CST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : (uint64_t)time(NULL), random;
    unsigned n_kills = 0, n_held = 0;
    struct tiny_job calm, job;

    open(&calm, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    open(&job, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    printf("seed: CST_SEED=%llu\n", (unsigned long long)seed);
    random = seed * 2 + 1;
    write_commands(&calm, commands);
    kill_run_to_end(&calm, commands, n_commands, 2, (bool[MAX_COMMANDS]){false});
    for (int round = 0; round < N_ROUNDS; round++) {
        bool done[MAX_COMMANDS] = {false};

        tiny_job_fill(&job, seed);
        for (uint64_t k = 1 + tiny_random(&random) % 3; k > 0; k--) {
            n_held += kill_run(&job, commands, n_commands, N_SLOTS, done, &random);
            n_kills++;
        }
        kill_run_to_end(&job, commands, n_commands, 1 + (uint32_t)(tiny_random(&random) % 3), done);
        ck_assert_msg(tiny_job_same(&calm, &job), "seed %llu, round %d: the bits differ",
                      (unsigned long long)seed, round);
    }
    printf("%u kills left %u tiles half done\n", n_kills, n_held);
    tiny_job_close(&calm);
    tiny_job_close(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_kill");
    TCase *tcase = tcase_create("kill");

    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_kill, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
