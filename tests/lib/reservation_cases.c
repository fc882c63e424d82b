/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/reservation_cases.h"

#include "tests/lib/kill_run.h"
#include "tests/lib/reservation_update.h"
#include "tests/lib/suite.h"
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_CHUNKS = 5, N_STEPS = 3, N_ROUNDS = 12, N_SLOTS = 3, RESERVATION_CHUNK = N_CHUNKS };

#define MAX_COMMANDS (N_STEPS * N_CHUNKS * RESERVATION_UPDATE_COMMANDS)

/* The last chunk is not updated: its blocks in the pool are the reservation. */
static const uint64_t chunk_elems[N_CHUNKS + 1] = {8192 + 64,      20032, 8192 * 3,
                                                   8192 + 64 * 65, 60032, 1u << 20};

static const struct tiny_states kinds[] = {
    {.optimizer = CST_OPTIMIZER_ADAMW, .moments = CST_MOMENTS_FP32},
    {.optimizer = CST_OPTIMIZER_ADAMW, .moments = CST_MOMENTS_MX8},
    {.optimizer = CST_OPTIMIZER_ADAM, .moments = CST_MOMENTS_BF16},
    {.optimizer = CST_OPTIMIZER_LION, .moments = CST_MOMENTS_MX8},
    {.optimizer = CST_OPTIMIZER_SGD, .moments = CST_MOMENTS_FP32, .grad_bytes = 4},
};

enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const struct reservation_device *device;
static struct tiny_job calm, job;
static uint64_t seed;

static void open_jobs(const struct tiny_states *states)
{
    const char *env = getenv("CST_SEED");

    seed = env != NULL ? strtoull(env, NULL, 0) : (uint64_t)time(NULL);
    printf("seed: CST_SEED=%" PRIu64 "\n", seed);
    tiny_job_open_as(&calm, states, N_CHUNKS + 1, chunk_elems, N_SLOTS, seed);
    tiny_job_open_as(&job, states, N_CHUNKS + 1, chunk_elems, N_SLOTS, seed);
}

static void close_jobs(void)
{
    tiny_job_close(&calm);
    tiny_job_close(&job);
}

/* Do all steps of all chunks in place, with a host's engine. */
static void update_in_place(void)
{
    static struct engine_command commands[N_STEPS * N_CHUNKS];
    bool done[N_STEPS * N_CHUNKS] = {false};
    size_t n = 0;

    for (uint64_t step = 1; step <= N_STEPS; step++) {
        for (unsigned c = 0; c < N_CHUNKS; c++) {
            commands[n] = tiny_job_update(&calm, c, step);
            commands[n].ticket = n + 1;
            commands[n].after[0] = n + 1 - N_CHUNKS;
            commands[n].n_after = step > 1;
            n++;
        }
    }
    device->use_host();
    kill_run_to_end(&calm, commands, n, 2, done);
}

/* Write the commands of all steps through the reservation, in which each chunk has its own part. */
static size_t write_commands(struct engine_command *commands)
{
    struct cst_place reservation = tiny_job_block(&job, RESERVATION_CHUNK, 0), at[N_CHUNKS];
    unsigned n_last[N_CHUNKS] = {0};
    uint64_t last[N_CHUNKS] = {0};
    size_t n = 0;

    for (unsigned c = 0; c < N_CHUNKS; c++) {
        at[c] = reservation;
        reservation.offset += reservation_update_bytes(&job, c);
    }
    ck_assert_uint_le(reservation.offset, job.bytes[TINY_POOL]);
    for (uint64_t step = 1; step <= N_STEPS; step++) {
        for (unsigned c = 0; c < N_CHUNKS; c++) {
            n += reservation_update_write(&job, c, step, at[c], n, last[c], n_last[c], commands + n,
                                          &n_last[c]);
            last[c] = n;
        }
    }
    ck_assert_uint_le(n, MAX_COMMANDS);
    return n;
}

/* Check that @bytes from @at on of row @row of chunk @c are equal in both jobs. */
static void check_bytes(unsigned c, enum cst_row row, uint64_t at, uint64_t bytes, int round)
{
    at += tiny_job_row(&job, c, row).offset;
    ck_assert_msg(
        memcmp((char *)calm.base[TINY_ARENA] + at, (char *)job.base[TINY_ARENA] + at, bytes) == 0,
        "seed %" PRIu64 ", round %d: row %d of chunk %u differs", seed, round, (int)row, c);
}

static void check_span(unsigned c, const struct cst_table_span *span, enum cst_row row, int round)
{
    uint64_t n = job.n_elems[c];
    uint64_t bytes = tiny_job_row_bytes(&job, c, row), size = bytes / n;

    check_bytes(c, row, span->start * size, span->n_elems * size, round);
    if (bytes > n * size) { /* the row has exponents */
        check_bytes(c, row, n + span->start / CST_MX8_BLOCK,
                    (span->n_elems + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK, round);
    }
}

/* Check that all elements that updates write are equal in both jobs. The bytes between tensors come
 * from the reservation, and may differ. */
static void check_rows(int round)
{
    for (unsigned i = 0; i < N_CHUNKS * TINY_SPANS; i++) {
        for (enum cst_row row = CST_ROW_WEIGHT; row < CST_ROW_COUNT; row++) {
            if (row != CST_ROW_GRAD && tiny_job_has(&job, row)) {
                check_span(i / TINY_SPANS, &cst_table_spans(job.table)[i], row, round);
            }
        }
    }
}

/* With every kind of states, device updates have the bits of the host's updates. */
START_TEST(test_bits)
{
    static struct engine_command commands[MAX_COMMANDS];
    bool done[MAX_COMMANDS] = {false};
    size_t n;

    open_jobs(&kinds[_i]);
    update_in_place();
    tiny_job_use_gpu(&job);
    device->use();
    n = write_commands(commands);
    kill_run_to_end(&job, commands, n, 2, done);
    check_rows(0);
    close_jobs();
}
END_TEST

/* The bits are also equal if the engine is killed at random moments and the commands that had not
 * completed are issued again. */
START_TEST(test_kill)
{
    static struct engine_command commands[MAX_COMMANDS];
    uint64_t random;
    unsigned n_held = 0;
    size_t n;

    open_jobs(&kinds[_i]);
    update_in_place();
    random = seed * 2 + 1;
    tiny_job_use_gpu(&job);
    device->use();
    n = write_commands(commands);
    for (int round = 0; round < N_ROUNDS; round++) {
        bool done[MAX_COMMANDS] = {false};

        tiny_job_fill(&job, seed);
        for (uint64_t k = 1 + tiny_random(&random) % 3; k > 0; k--) {
            n_held += kill_run(&job, commands, n, N_SLOTS, done, &random);
        }
        kill_run_to_end(&job, commands, n, 1 + (uint32_t)(tiny_random(&random) % 3), done);
        check_rows(round);
    }
    ck_assert_uint_eq(n_held, 0); /* no undo slot is in use */
    close_jobs();
}
END_TEST

/* An accelerator refuses updates in place, and updates that read or write rows in host memory. */
START_TEST(test_refused)
{
    struct engine_command commands[RESERVATION_UPDATE_COMMANDS], *update = NULL, wrong;
    struct engine_proc proc;
    unsigned n_last;
    size_t n;

    open_jobs(&kinds[0]);
    tiny_job_use_gpu(&job);
    device->use();
    tiny_job_start(&job, &proc, 2, 2, 0);
    n = reservation_update_write(&job, 0, 1, tiny_job_block(&job, RESERVATION_CHUNK, 0), 0, 0, 0,
                                 commands, &n_last);
    for (size_t i = 0; i < n; i++) {
        update = commands[i].kind == ENGINE__COMMAND_KIND__UPDATE ? &commands[i] : update;
    }
    for (int i = 0; i < 3; i++) {
        wrong = i == 0 ? tiny_job_update(&job, 0, 1) : *update;
        if (i == 1) {
            wrong.n_in--; /* then the row is the table's, in host memory */
        } else if (i == 2) {
            wrong.out[0].place = tiny_job_row(&job, 0, CST_ROW_WEIGHT);
        }
        wrong.ticket = 100 + (uint64_t)i;
        wrong.n_after = 0;
        engine_proc_submit(&proc, &wrong, 1);
        ck_assert_int_eq(engine_proc_wait(&proc, wrong.ticket)->status,
                         i == 0 ? CST_EUNSUPPORTED : CST_EINVAL);
    }
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    close_jobs();
}
END_TEST

void reservation_cases_add(TCase *tcase, const struct reservation_device *which)
{
    device = which;
    suite_add_loop(tcase, test_bits, 0, N_KINDS);
    suite_add_loop(tcase, test_kill, 0, 2);
    tcase_add_test(tcase, test_refused);
}
