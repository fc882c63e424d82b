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
#define PER_CHUNK 4 /* commands a step: reduce, update, copy up, copy on */
#define N_COMMANDS (N_STEPS * (N_CHUNKS * PER_CHUNK + 1))
#define N_ROUNDS 30
#define N_SLOTS 4

static const uint64_t chunk_elems[N_CHUNKS] = {9000, 20000, 8192 * 3, 2u << 20, 12345, 60000};

/* Three steps: each chunk is reduced in place, updated, its weights copied to one block and from
 * there to the next; the norm is taken between. Tickets from 1, in the order in which they are
 * issued. */
static void write_commands(const struct tiny_job *job, struct engine_command *commands)
{
    uint64_t ticket = 0, norm = 0, copied[N_CHUNKS] = {0};

    for (uint64_t step = 1; step <= N_STEPS; step++) {
        struct engine_command sum = {.kind = ENGINE__COMMAND_KIND__NORM,
                                     .table = job->ids[TINY_TABLE]};

        for (unsigned c = 0; c < N_CHUNKS; c++) {
            struct engine_command reduce = tiny_job_reduce(job, c, step);
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
    ck_assert_uint_eq(ticket, N_COMMANDS);
}

/* Killed again and again at random moments, the run ends with the same weights, states, gradients,
 * sums and marks. */
START_TEST(test_kill)
{
    static struct engine_command commands[N_COMMANDS];
    const char *env = getenv("CST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : (uint64_t)time(NULL), random;
    unsigned n_kills = 0, n_held = 0;
    struct tiny_job calm, job;

    tiny_job_open(&calm, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    tiny_job_open(&job, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    printf("seed: CST_SEED=%llu\n", (unsigned long long)seed);
    random = seed * 2 + 1;
    write_commands(&calm, commands);
    kill_run_to_end(&calm, commands, N_COMMANDS, 2, (bool[N_COMMANDS]){false});
    for (int round = 0; round < N_ROUNDS; round++) {
        bool done[N_COMMANDS] = {false};

        tiny_job_fill(&job, seed);
        for (uint64_t k = 1 + tiny_random(&random) % 3; k > 0; k--) {
            n_held += kill_run(&job, commands, N_COMMANDS, N_SLOTS, done, &random);
            n_kills++;
        }
        kill_run_to_end(&job, commands, N_COMMANDS, 1 + (uint32_t)(tiny_random(&random) % 3), done);
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
    tcase_add_test(tcase, test_kill);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
