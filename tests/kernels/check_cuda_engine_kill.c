/* Restart safety of a GPU's engine, on tests/lib/fakecuda: kill -9 at any moment, in copies, in
 * sums on the GPU and in sums in place, and the commands that had not completed issued again, to
 * another engine that imports the same memory, give the bits of a host engine that nobody
 * disturbed. */
#include "tests/lib/engine_proc.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/tiny_job.h"

#include "kernels/undo.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_CHUNKS 6
#define N_STEPS 3
#define PER_CHUNK 4 /* commands a step: reduce, copy up, copy on, copy down */
#define N_COMMANDS (N_STEPS * N_CHUNKS * PER_CHUNK)
#define N_ROUNDS 16
#define N_SLOTS 4

static const uint64_t chunk_elems[N_CHUNKS] = {9000, 20000, 900000, 2u << 20, 12345, 60000};

static struct engine_command copy(struct cst_place dst, struct cst_place src, uint64_t bytes)
{
    return (struct engine_command){.kind = ENGINE__COMMAND_KIND__COPY,
                                   .src = {src},
                                   .n_src = 1,
                                   .dst = {dst},
                                   .n_dst = 1,
                                   .bytes = bytes};
}

/* Three steps. Each chunk is reduced: in place where its number is odd or @in_place, of blocks of
 * the GPU alone elsewhere; the sums go up to one of those blocks, which the next step will add
 * again, from there to another, and down to the weights. Tickets from 1, in the order in which they
 * are issued.
 */
static void write_commands(const struct tiny_job *job, bool in_place,
                           struct engine_command *commands)
{
    uint64_t ticket = 0, last[N_CHUNKS] = {0};

    for (uint64_t step = 1; step <= N_STEPS; step++) {
        for (unsigned c = 0; c < N_CHUNKS; c++) {
            struct cst_place grad = tiny_job_row(job, c, CST_ROW_GRAD);
            struct cst_place block = tiny_job_block(job, c, 1), other = tiny_job_block(job, c, 3);
            uint64_t bytes = job->n_elems[c] * 2;
            struct engine_command chain[PER_CHUNK] = {
                tiny_job_reduce(job, c, step), copy(block, grad, bytes), copy(other, block, bytes),
                copy(tiny_job_row(job, c, CST_ROW_WEIGHT), other, bytes)};

            if (c % 2 == 0 && !in_place) {
                chain[0].src[0] = tiny_job_block(job, c, 2);
            }
            chain[3].priority = ENGINE__PRIORITY__EVICTION;
            for (int i = 0; i < PER_CHUNK; i++) {
                chain[i].ticket = ++ticket;
                chain[i].after[chain[i].n_after++] = last[c];
                last[c] = ticket;
                *commands++ = chain[i];
            }
        }
    }
    ck_assert_uint_eq(ticket, N_COMMANDS);
}

/* Issue what is not marked done. */
static void issue(struct engine_proc *proc, const struct engine_command *commands, const bool *done)
{
    static struct engine_command open[N_COMMANDS];
    size_t n = 0;

    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!done[i]) {
            open[n++] = commands[i];
        }
    }
    engine_proc_submit(proc, open, n);
}

static void note_done(const struct engine_proc *proc, bool *done)
{
    for (size_t i = 0; i < proc->n_done; i++) {
        ck_assert_msg(proc->done[i].status == 0, "ticket %llu: %s",
                      (unsigned long long)proc->done[i].ticket, proc->done[i].text);
        done[proc->done[i].ticket - 1] = true;
    }
}

static void run_to_end(struct tiny_job *job, const struct engine_command *commands, bool *done)
{
    struct engine_proc proc;

    tiny_job_start(job, &proc, 2, 2, 0);
    issue(&proc, commands, done);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        ck_assert(done[i] || engine_proc_wait(&proc, commands[i].ticket) != NULL);
    }
    note_done(&proc, done);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}

/* Not synchronisation: this is the random moment. */
static void pause_us(uint64_t us)
{
    struct timespec ts = {.tv_nsec = (long)us * 1000};

    (void)nanosleep(&ts, NULL);
}

struct left {
    unsigned n_held;       /* undo slots that hold a tile */
    unsigned n_unfinished; /* chunks of which some tiles carry a mark that the chunk does not */
};

/* Start, issue, let some commands complete, wait a moment more, kill. What the engine left. */
static struct left run_and_kill(struct tiny_job *job, const struct engine_command *commands,
                                bool *done, uint64_t *random)
{
    const struct cst_undo_slot *slots = job->base[TINY_UNDO];
    size_t n_open = 0, n_wanted;
    struct left left = {0};
    struct engine_proc proc;

    for (size_t i = 0; i < N_COMMANDS; i++) {
        n_open += !done[i];
    }
    tiny_job_start(job, &proc, 1 + (uint32_t)(tiny_random(random) % 3), 2,
                   (unsigned)(tiny_random(random) % 3));
    issue(&proc, commands, done);
    n_wanted = tiny_random(random) % (n_open + 1) / 2;
    while (proc.n_done < n_wanted) {
        ck_assert(engine_proc_read(&proc, -1));
    }
    pause_us(tiny_random(random) % 3000);
    engine_proc_kill(&proc);
    note_done(&proc, done);
    (void)engine_proc_close(&proc);
    for (unsigned i = 0; i < N_SLOTS; i++) {
        left.n_held += cst_undo_holds(&slots[i]);
    }
    for (unsigned c = 0; c < N_CHUNKS; c++) {
        const struct cst_table_chunk *chunk = &cst_table_chunks(job->table)[c];
        const struct cst_table_span *span = cst_table_spans(job->table) + chunk->first_span;
        uint32_t mark = cst_table_tiles(job->table)[span->first_tile].reduce_mark;

        left.n_unfinished += mark != (uint32_t)chunk->reduce_mark;
    }
    return left;
}

/* Killed again and again at random moments, while streams run late or, where all is in place, at
 * once, the run ends with the same weights, gradients, sums and marks, in host memory and in the
 * GPU's; and when all is closed no memory of the GPU is left. */
START_TEST(test_kill)
{
    static struct engine_command commands[N_COMMANDS];
    const char *env = getenv("CST_FAKECUDA_SEED"), *uuid = fake_gpu_uuid(0);
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : (uint64_t)time(NULL), random;
    unsigned n_kills = 0, n_held = 0, n_unfinished = 0;
    struct tiny_job calm, job;

    printf("seed: CST_FAKECUDA_SEED=%" PRIu64 "\n", seed);
    fake_gpu_open_ledger();
    (void)setenv("CST_FAKECUDA_DELAY_US", _i == 0 ? "300" : "0", 1);
    tiny_job_open(&calm, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    tiny_job_open(&job, N_CHUNKS, chunk_elems, N_SLOTS, seed);
    tiny_job_use_gpu(&job);
    random = seed * 2 + 1;
    write_commands(&calm, _i == 1, commands);
    engine_proc_use("./cistern-engine-host", NULL);
    run_to_end(&calm, commands, (bool[N_COMMANDS]){false});
    engine_proc_use(FAKE_GPU_ENGINE, uuid);
    for (int round = 0; round < N_ROUNDS; round++) {
        bool done[N_COMMANDS] = {false};

        tiny_job_fill(&job, seed);
        for (uint64_t k = 1 + tiny_random(&random) % 3; k > 0; k--) {
            struct left left = run_and_kill(&job, commands, done, &random);

            n_held += left.n_held;
            n_unfinished += left.n_unfinished;
            n_kills++;
        }
        run_to_end(&job, commands, done);
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
    TCase *tcase = tcase_create("kill");

    (void)argc;
    fake_gpu_use(argv);
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_kill, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
