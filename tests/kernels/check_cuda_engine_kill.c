/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the restart of a GPU's engine on tests/lib/fakecuda. The engine is killed at random moments
 * during copies, sums on the GPU and sums in place. The commands that had not completed are issued
 * again, to another engine that imports the same memory. The result must have the bits of an
 * undisturbed engine of the host. */
#include "tests/lib/fake_gpu.h"
#include "tests/lib/kill_run.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_CHUNKS 6
#define N_STEPS 3
#define PER_CHUNK 4 /* commands of a step: reduce, copy up, copy on, copy down */
#define N_COMMANDS (N_STEPS * N_CHUNKS * PER_CHUNK)

enum way { ON_GPU, IN_PLACE, WIDE, N_WAYS }; /* how sums are made */
#define N_ROUNDS (suite_is_sparse() ? 5 : 16)
#define N_SLOTS 4

static const uint64_t chunk_elems[N_CHUNKS] = {9000, 20000, 900000, 2u << 20, 12345, 60000};

/* Write the commands of three steps. Each chunk is reduced: in place if its number is odd, or with
 * IN_PLACE; otherwise from blocks of the GPU only. The sum is copied to one of these blocks, which
 * the next step adds again, from there to another block, and to the weights. Tickets count from 1
 * in the order of issue. */
static void write_commands(const struct tiny_job *job, enum way way,
                           struct engine_command *commands)
{
    uint64_t ticket = 0, last[N_CHUNKS] = {0};

    for (uint64_t step = 1; step <= N_STEPS; step++) {
        for (unsigned c = 0; c < N_CHUNKS; c++) {
            struct cst_place grad = tiny_job_row(job, c, CST_ROW_GRAD);
            struct cst_place block = tiny_job_block(job, c, 1), other = tiny_job_block(job, c, 3);
            uint64_t bytes = job->n_elems[c] * 2;
            struct engine_command chain[PER_CHUNK] = {
                tiny_job_reduce(job, c, step), engine_command_copy(block, grad, bytes),
                engine_command_copy(other, block, bytes),
                engine_command_copy(tiny_job_row(job, c, CST_ROW_WEIGHT), other, bytes)};

            if (c % 2 == 0 && way == ON_GPU) {
                chain[0].src[0] = tiny_job_block(job, c, 2);
            }
            chain[3].priority = ENGINE__PRIORITY__EVICTION;
            if (way == WIDE) {
                chain[0] = tiny_job_reduce(job, c, 2 * step - 1);
                chain[0].src[chain[0].n_src++] = tiny_job_block(job, c, 2);
                chain[0].accumulate = step > 1;
                chain[1].src[0] = tiny_job_row(job, c, CST_ROW_WEIGHT);
                chain[3] = tiny_job_reduce(job, c, 2 * step);
                chain[3].accumulate = true;
            }
            for (int i = 0; i < PER_CHUNK; i++) {
                chain[i].ticket = ++ticket;
                chain[i].after_ack = i == 0 || (way == WIDE && i == 3); /* as the core does */
                chain[i].after[chain[i].n_after++] = last[c];
                last[c] = ticket;
                *commands++ = chain[i];
            }
        }
    }
    ck_assert_uint_eq(ticket, N_COMMANDS);
}

/* Number of chunks of which some tiles have a mark that the chunk does not have. */
static unsigned n_half_done(const struct tiny_job *job)
{
    unsigned n = 0;

    for (unsigned c = 0; c < N_CHUNKS; c++) {
        const struct cst_table_chunk *chunk = &cst_table_chunks(job->table)[c];
        const struct cst_table_span *span = cst_table_spans(job->table) + chunk->first_span;
        uint32_t mark = cst_table_tiles(job->table)[span->first_tile].reduce_mark;

        n += mark != (uint32_t)chunk->reduce_mark;
    }
    return n;
}

/* The engine is killed repeatedly at random moments, while streams are slow or, if all sums are in
 * place, fast. The run ends with the expected weights, gradients, sums and marks, in host memory
 * and in the GPU's. Afterwards no memory of the GPU is allocated. */
START_TEST(test_kill)
{
    static struct engine_command commands[N_COMMANDS];
    void (*open)(struct tiny_job *, unsigned, const uint64_t *, unsigned, uint64_t) =
        _i == WIDE ? tiny_job_open_wide : tiny_job_open;
    const char *env = getenv("CST_FAKECUDA_SEED"), *uuid = fake_gpu_uuid(0);
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : (uint64_t)time(NULL), random;
    unsigned n_kills = 0, n_held = 0, n_unfinished = 0;
    struct tiny_job calm, job;

    printf("seed: CST_FAKECUDA_SEED=%" PRIu64 "\n", seed);
    fake_gpu_open_ledger();
    (void)setenv("CST_FAKECUDA_DELAY_US", _i == ON_GPU ? "300" : "0", 1);
    open(&calm, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    open(&job, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    tiny_job_use_gpu(&job);
    random = seed * 2 + 1;
    write_commands(&calm, (enum way)_i, commands);
    engine_proc_use("./cistern-engine-host", NULL);
    kill_run_to_end(&calm, commands, N_COMMANDS, 2, (bool[N_COMMANDS]){false});
    engine_proc_use(FAKE_GPU_ENGINE, uuid);
    for (int round = 0; round < N_ROUNDS; round++) {
        bool done[N_COMMANDS] = {false};

        tiny_job_fill(&job, seed);
        for (uint64_t k = 1 + tiny_random(&random) % 3; k > 0; k--) {
            n_held += kill_run(&job, commands, N_COMMANDS, N_SLOTS, done, &random);
            n_unfinished += n_half_done(&job);
            n_kills++;
        }
        kill_run_to_end(&job, commands, N_COMMANDS, 2, done);
        ck_assert_msg(tiny_job_same(&calm, &job), "seed %" PRIu64 ", round %d: the bits differ",
                      seed, round);
    }
    printf("%u kills left %u tiles and %u chunks half done\n", n_kills, n_held, n_unfinished);
    ck_assert_uint_eq(fake_gpu_used(), job.gpu_bytes);
    tiny_job_close(&calm);
    tiny_job_close(&job);
    ck_assert_uint_eq(fake_gpu_used(), 0);
    fake_gpu_close_ledger();
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_engine_kill");
    TCase *tcase = suite_case(suite, "kill", NULL, NULL);

    (void)argc;
    fake_gpu_use(argv);
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_kill, 0, N_WAYS);
    return suite_run(suite);
}
