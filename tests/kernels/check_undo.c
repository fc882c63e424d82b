/* SPDX-License-Identifier: Apache-2.0 */
#include "cistern/status.h"
#include "tests/lib/adamw.h"
#include "tests/kernels/tile_job.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

static int restore(struct job *job, struct cst_undo_slot *slot)
{
    return cst_undo_restore(slot, &job->work, CHUNK_ELEMS);
}

/* The second tile of the second span. */
static struct cst_tile some_tile(const struct job *job)
{
    return (struct cst_tile){.entry = &cst_table_tiles(job->work.table)[2],
                             .number = 2,
                             .start = 128 + CST_TILE_ELEMS,
                             .mark = 1,
                             .n_elems = CST_TILE_ELEMS,
                             .table = 7};
}

/* Leave @tile as after SIGKILL during its update: elements before @first are new, the next @n
 * elements are destroyed with their old values in @buffer, and the others are old. */
static void tear(struct job *job, struct cst_tile tile, const struct cst_update_scalars *adamw,
                 uint32_t first, uint32_t n, uint32_t buffer)
{
    const struct cst_rows *rows = &job->work.rows;
    struct cst_undo_slot *slot = &job->undo[0];
    uint64_t at = tile.start + first;

    cst_undo_begin_update(slot, CST_UNDO_UPDATE, &tile, adamw, false);
    adamw_update(&cst_update_ref, adamw, first, rows->grad + tile.start, NULL,
                 rows->master + tile.start, exp_avg(rows) + tile.start,
                 exp_avg_sq(rows) + tile.start, rows->weight + tile.start);
    memcpy(slot->states.old[buffer].master, rows->master + at, n * sizeof(float));
    memcpy(slot->states.old[buffer].moments[0], exp_avg(rows) + at, n * sizeof(float));
    memcpy(slot->states.old[buffer].moments[1], exp_avg_sq(rows) + at, n * sizeof(float));
    cst_update_undo_hold(&slot->states, cst_update_undo_word(first, n, buffer));
    for (uint32_t i = 0; i < n; i++) {
        rows->master[at + i] += 1.0f;
        exp_avg(rows)[at + i] += 1.0f;
        exp_avg_sq(rows)[at + i] += 1.0f;
        rows->weight[at + i] = 1;
    }
}

/* Wherever an update was interrupted, restoring completes the tile and changes nothing else,
 * whether the update held whole groups or halves. A second restore does nothing. */
START_TEST(test_restore_finishes_a_torn_update)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    struct cst_update_scalars adamw;
    struct cst_tile_done done = {0};
    struct cst_tile tile;
    struct job want;

    if (kernels == NULL) {
        return;
    }
    cst_update_prepare(&adamw, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.5f, 1);
    job_open(&want, "ref");
    tile = some_tile(&want);
    ck_assert(cst_tile_update(&want.work, &adamw, &tile, NULL, &done));
    for (int k = 0; k < 100; k++) {
        uint32_t n = k % 3 == 2 ? CST_UPDATE_GROUP / 2 : CST_UPDATE_GROUP;
        uint32_t first = (uint32_t)(hostile_next(&state) % (CST_TILE_ELEMS / n)) * n;
        struct job got;

        first = k == 0 ? 0 : k == 1 ? CST_TILE_ELEMS - n : first;
        job_open(&got, kernels->isa);
        tear(&got, some_tile(&got), &adamw, first, n, (uint32_t)k / 2 % 2);
        ck_assert(cst_undo_holds(&got.undo[0]));
        ck_assert_uint_eq(got.undo[0].table, 7);
        ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
        ck_assert(!cst_undo_holds(&got.undo[0]));
        assert_same(&got, &want);
        ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
        assert_same(&got, &want);
        job_close(&got);
    }
    job_close(&want);
}
END_TEST

/* An interrupted reduction is undone: the tile has its old values and mark. Restoring may itself be
 * interrupted and repeated. */
START_TEST(test_restore_puts_a_torn_reduction_back)
{
    struct job got;
    struct job want;
    struct cst_tile tile;
    struct cst_undo_slot killed;

    job_open(&got, NULL);
    job_open(&want, NULL);
    tile = some_tile(&got);
    cst_undo_begin_reduce(&got.undo[0], &tile, got.work.rows.grad + tile.start);
    ck_assert(cst_undo_holds(&got.undo[0]));
    for (uint32_t i = 0; i < tile.n_elems; i++) {
        got.work.rows.grad[tile.start + i] ^= 0x5555;
    }
    killed = got.undo[0];
    ck_assert_int_eq(restore(&got, &killed), CST_OK);
    assert_same(&got, &want);
    got.work.rows.grad[tile.start] ^= 1;
    ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
    ck_assert(!cst_undo_holds(&got.undo[0]));
    assert_same(&got, &want);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* An interrupted addition to an fp32 row is undone in this way, too. */
START_TEST(test_restore_puts_a_torn_addition_back)
{
    struct job got;
    struct job want;
    struct cst_tile tile;
    struct cst_undo_slot killed;

    job_open_wide(&got, NULL);
    job_open_wide(&want, NULL);
    tile = some_tile(&got);
    cst_undo_begin_accumulate(&got.undo[0], &tile, got.work.rows.grad_f32 + tile.start);
    ck_assert(cst_undo_holds(&got.undo[0]));
    for (uint32_t i = 0; i < tile.n_elems; i++) {
        got.work.rows.grad_f32[tile.start + i] += 1.0f;
    }
    killed = got.undo[0];
    ck_assert_int_eq(restore(&got, &killed), CST_OK);
    assert_same(&got, &want);
    got.work.rows.grad_f32[tile.start] = 17.0f;
    killed = got.undo[0];
    killed.kind = CST_UNDO_REDUCE; /* a reduction of a job whose row is bf16 */
    ck_assert_int_eq(restore(&got, &killed), CST_EINVAL);
    ck_assert(got.work.rows.grad_f32[tile.start] == 17.0f);
    ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
    ck_assert(!cst_undo_holds(&got.undo[0]));
    assert_same(&got, &want);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A tile whose mark was stored before the kill is complete and keeps its values. The mark of the
 * other kind of command does not count. */
START_TEST(test_restore_keeps_a_marked_tile)
{
    const bool update = _i == 0;
    struct cst_update_scalars adamw;
    struct job got;
    struct job want;
    struct cst_tile tile;

    cst_update_prepare(&adamw, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.5f, 1);
    for (int other = 0; other < 2; other++) {
        job_open(&got, NULL);
        job_open(&want, NULL);
        tile = some_tile(&got);
        if (update) {
            tear(&got, some_tile(&got), &adamw, 4064, 32, 1);
            tear(&want, some_tile(&want), &adamw, 4064, 32, 1);
        } else {
            cst_undo_begin_reduce(&got.undo[0], &tile, got.work.rows.grad + tile.start);
            got.work.rows.grad[tile.start] ^= 1;
            want.work.rows.grad[tile.start] ^= 1;
        }
        if (update == (other == 0)) {
            tile.entry->update_mark = some_tile(&want).entry->update_mark = 1;
        } else {
            tile.entry->reduce_mark = some_tile(&want).entry->reduce_mark = 1;
        }
        ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
        ck_assert(!cst_undo_holds(&got.undo[0]));
        if (other == 0) {
            assert_same(&got, &want);
        } else {
            ck_assert_int_ne(
                memcmp(&got.work.rows.master[tile.start + 4064],
                       &want.work.rows.master[tile.start + 4064], 128) |
                    memcmp(&got.work.rows.grad[tile.start], &want.work.rows.grad[tile.start], 2),
                0);
        }
        job_close(&got);
        job_close(&want);
    }
}
END_TEST

/* A slot that was overwritten is refused, and nothing changes. */
START_TEST(test_restore_refuses_nonsense)
{
    struct cst_update_scalars adamw;
    struct job got;
    struct job want;
    struct cst_undo_slot bad[14];
    const int n_bad = sizeof bad / sizeof bad[0];

    cst_update_prepare(&adamw, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.5f, 1);
    job_open(&got, NULL);
    job_open(&want, NULL);
    tear(&got, some_tile(&got), &adamw, 64, 32, 1);
    tear(&want, some_tile(&want), &adamw, 64, 32, 1);
    for (int i = 0; i < n_bad; i++) {
        bad[i] = got.undo[0];
    }
    bad[0].kind = 0;
    bad[1].kind = 5;
    bad[2].n_elems = 95;
    bad[3].n_elems = CST_TILE_ELEMS + 1;
    bad[4].start = CHUNK_ELEMS - CST_TILE_ELEMS + 1;
    bad[5].start = UINT64_MAX - 100;
    bad[6].tile = got.work.table->n_tiles;
    bad[7].states.held = cst_update_undo_word(64, 33, 0);
    bad[8].states.held = cst_update_undo_word(64, 0, 1);
    bad[9].states.held = cst_update_undo_word(64, 32, 2);
    bad[10].grad_held = CST_TILE_ELEMS;
    bad[11].kind = CST_UNDO_REDUCE;
    bad[12].kind = CST_UNDO_ACCUMULATE;
    bad[13].states.held = cst_update_undo_word(72, 16, 0);
    for (int i = 0; i < n_bad; i++) {
        ck_assert_msg(restore(&got, &bad[i]) == CST_EINVAL, "bad[%d] was taken", i);
        ck_assert(cst_undo_holds(&bad[i]));
        assert_same(&got, &want);
        cst_undo_drop(&bad[i]);
        ck_assert(!cst_undo_holds(&bad[i]));
    }
    /* Only with fp32 moments, half a group may be held. */
    bad[0].states.held = cst_update_undo_word(80, 16, 0);
    bad[0].kind = CST_UNDO_UPDATE;
    got.work.table->moments = CST_MOMENTS_BF16;
    ck_assert_int_eq(restore(&got, &bad[0]), CST_EINVAL);
    got.work.table->moments = CST_MOMENTS_FP32;
    assert_same(&got, &want);
    ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
    job_close(&got);
    job_close(&want);
}
END_TEST

#define MICRO_BATCHES 3
#define N_KILLS (suite_is_sparse() ? 10 : 100)

static bool is_in_place(const struct job *job)
{
    return job->work.rows.grad_f32 == NULL || (void *)job->src[0] == job->work.rows.grad_f32;
}

/* Reduce in place, or once per micro-batch into an fp32 row, with @step's marks. Nothing is done if
 * the update sums. */
static void reduce_step(struct job *job, uint64_t step)
{
    uint64_t n = is_in_place(job) ? 1 : MICRO_BATCHES;
    /* The marks tell the last reduction that a tile has. Reductions before that one must not be
     * repeated. */
    uint64_t done = cst_table_chunks(job->work.table)->reduce_mark;

    for (uint64_t mark = (step - 1) * n + 1; mark <= step * n; mark++) {
        if (mark <= done || job->work.n_src > 0) {
            continue;
        }
        job->work.mark = mark;
        job->work.accumulate = n > 1 && mark % n != 1;
        reduce_all(job, &job->undo[0]);
        atomic_signal_fence(memory_order_seq_cst);
        *(volatile uint64_t *)&cst_table_chunks(job->work.table)->reduce_mark = mark;
    }
}

/* Reduce and update, from the job's current step to the end of @n_steps. */
static void run_steps(struct job *job, uint64_t n_steps)
{
    uint64_t step;

    while ((step = atomic_load(job->step)) <= n_steps) {
        reduce_step(job, step);
        job->work.mark = step;
        cst_tile_update_range(&job->work, &hyper, 0, UINT64_MAX, &job->undo[0]);
        atomic_store(job->step, step + 1);
    }
}

/* Start a child of the job that steps, and kill it after @ns. */
static void run_and_kill(struct job *job, long ns)
{
    int ready[2];
    char byte = 0;
    pid_t pid;
    int status;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        /* Fault in the pages first, if the kernel supports that, so that kills hit the tile
         * loops. */
        (void)madvise(job->shared, job->bytes, MADV_POPULATE_WRITE);
        if (write(ready[1], &byte, 1) == 1) {
            run_steps(job, UINT64_MAX - 1);
        }
        _exit(1);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    /* Sleep, so that the child also runs on a single processor. The test does not depend on how far
     * it gets. */
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    close(ready[0]);
    close(ready[1]);
}

/* Kill a run of reductions (in place or of micro-batches) and updates of every kind at many random
 * moments. After each kill the slot is restored and the current step is issued again. In the end
 * all bits are those of an undisturbed run. */
START_TEST(test_killed_at_any_moment)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_WAYS);
    const struct job_way *way = &job_ways[_i % N_WAYS];
    uint64_t state = hostile_seed() + 1;
    const unsigned aim = way->fused ? CST_UNDO_FUSED : CST_UNDO_UPDATE;
    unsigned held[5] = {0};
    int n_kills = 0;
    struct job got;
    struct job want;
    uint64_t n_steps;

    if (kernels == NULL) {
        return;
    }
    job_open_way(&got, kernels->isa, way);
    job_open_way(&want, kernels->isa, way);
    /* Where a kill hits is up to the machine. Go on until an update was hit at least once. */
    while (n_kills < N_KILLS || held[aim] == 0) {
        n_kills++;
        run_and_kill(&got, (long)(hostile_next(&state) % 1000000));
        held[cst_undo_holds(&got.undo[0]) ? got.undo[0].kind : 0]++;
        ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
    }
    n_steps = atomic_load(got.step) + 1;
    printf("%s, %s: %d kills in %llu steps: %u in an update, %u in a reduction, %u in an addition, "
           "%u between\n",
           kernels->isa, way->name, n_kills, (unsigned long long)n_steps,
           held[CST_UNDO_UPDATE] + held[CST_UNDO_FUSED], held[CST_UNDO_REDUCE],
           held[CST_UNDO_ACCUMULATE], held[0]);
    run_steps(&got, n_steps);
    run_steps(&want, n_steps);
    assert_same(&got, &want);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A tile small enough for single steps: it is no whole number of groups, and its weights do not
 * begin at a cache line. */
static struct cst_tile stepped_tile(const struct job *job)
{
    return (struct cst_tile){.entry = &cst_table_tiles(job->work.table)[1],
                             .number = 1,
                             .start = 128 + 5,
                             .mark = 1,
                             .n_elems = 109,
                             .table = 7,
                             .accumulate = !is_in_place(job),
                             .fp32 = cst_tile_dtype(&job->work) == CST_FP32};
}

/* Reduce one tile in place, or add it to an fp32 row, and update it; or do both in the update. */
static void step_tile(struct job *job, const struct cst_update_scalars *adamw)
{
    const struct cst_tile tile = stepped_tile(job);
    struct cst_tile_done done = {0};

    if (job->work.n_src > 0) {
        cst_tile_update(&job->work, adamw, &tile, &job->undo[0], &done);
        return;
    }
    cst_tile_reduce(job->work.kernels, N_SRC, (const void *const *)(const void *)job->src,
                    &job->work.rows, &tile, &job->undo[0], &done);
    cst_tile_update(&job->work, adamw, &tile, &job->undo[0], &done);
}

/* Elements of each row that are compared, up to the end of that tile and beyond. */
#define STEPPED_ELEMS 1024

/* Copy the table, the slot, and the compared part of the rows of @from to @to. */
static void copy_stepped(struct job *to, const struct job *from)
{
    const struct cst_rows *rows = &from->work.rows;

    memcpy(to->work.table, from->work.table, from->work.table->total_bytes);
    to->undo[0] = from->undo[0];
    if (rows->weight != NULL) {
        memcpy(to->work.rows.weight, rows->weight, STEPPED_ELEMS * sizeof *rows->weight);
    }
    memcpy(to->src[0], from->src[0], STEPPED_ELEMS * sizeof *from->src[0]);
    if (rows->grad_f32 != NULL) {
        memcpy(to->work.rows.grad_f32, rows->grad_f32, STEPPED_ELEMS * sizeof *rows->grad_f32);
    }
    memcpy(master_row(&to->work.rows), master_row(rows), master_bytes(rows, STEPPED_ELEMS));
    for (int k = 0; k < 2; k++) {
        const uint8_t *moments = rows->moments[k].values;
        uint8_t *to_moments = to->work.rows.moments[k].values;

        memcpy(to_moments, moments, STEPPED_ELEMS * sizeof(float));
        memcpy(to_moments + CHUNK_ELEMS, moments + CHUNK_ELEMS, STEPPED_ELEMS / CST_MX8_BLOCK);
    }
}

/* Check the memory that the process would leave behind if it died now: after a restore and a
 * repetition the result must be that of an undisturbed run. */
static void check_image(const struct job *stepped, struct job *image, const struct job *want,
                        const struct cst_update_scalars *adamw, uint64_t instruction)
{
    const struct cst_rows *a = &image->work.rows;
    const struct cst_rows *b = &want->work.rows;

    copy_stepped(image, stepped);
    ck_assert_int_eq(restore(image, &image->undo[0]), CST_OK);
    step_tile(image, adamw);
    if ((a->weight != NULL &&
         memcmp(a->weight, b->weight, STEPPED_ELEMS * sizeof *a->weight) != 0) ||
        memcmp(image->src[0], want->src[0], STEPPED_ELEMS * sizeof *want->src[0]) != 0 ||
        (a->grad_f32 != NULL &&
         memcmp(a->grad_f32, b->grad_f32, STEPPED_ELEMS * sizeof *a->grad_f32) != 0) ||
        memcmp(master_row(a), master_row(b), master_bytes(a, STEPPED_ELEMS)) != 0 ||
        memcmp(exp_avg(a), exp_avg(b), STEPPED_ELEMS * sizeof(float)) != 0 ||
        memcmp(exp_avg_sq(a), exp_avg_sq(b), STEPPED_ELEMS * sizeof(float)) != 0 ||
        memcmp((uint8_t *)exp_avg(a) + CHUNK_ELEMS, (uint8_t *)exp_avg(b) + CHUNK_ELEMS,
               STEPPED_ELEMS / CST_MX8_BLOCK) != 0 ||
        memcmp(image->work.table, want->work.table, want->work.table->total_bytes) != 0) {
        ck_abort_msg("killed after %llu instructions: other bits", (unsigned long long)instruction);
    }
}

/* What the child does in single steps: the work, or the restore of an interrupted update. */
enum stepped {
    STEP_WORK,
    STEP_RESTORE_0, /* restore; the current group is in buffer 0 */
    STEP_RESTORE_1,
    STEP_WIDE,  /* work on an fp32 row, to which it adds */
    STEP_OVER,  /* work that writes weights to the gradient's place */
    STEP_FUSED, /* work in which the update sums; mx8 */
    STEP_SPLIT, /* work on split masters */
    STEP_FP32,  /* work on an fp32 tensor */
    N_STEPPED,
};

/* Reduce @job's tile, and interrupt its update if that is to be restored. */
static void prepare_stepped(struct job *job, enum stepped what,
                            const struct cst_update_scalars *adamw)
{
    const struct cst_tile tile = stepped_tile(job);
    struct cst_tile_done done = {0};

    if (what == STEP_RESTORE_0 || what == STEP_RESTORE_1) {
        cst_tile_reduce(job->work.kernels, N_SRC, (const void *const *)(const void *)job->src,
                        &job->work.rows, &tile, NULL, &done);
        tear(job, tile, adamw, 32, 32, what == STEP_RESTORE_0 ? 0 : 1);
    }
}

/* The child: it stops at once, and its parent then steps it. */
static void run_stepped(struct job *job, enum stepped what, const struct cst_update_scalars *adamw)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
        _exit(77);
    }
    raise(SIGSTOP);
    if (what == STEP_RESTORE_0 || what == STEP_RESTORE_1) {
        (void)restore(job, &job->undo[0]);
    } else {
        step_tile(job, adamw);
    }
    _exit(0);
}

/* SIGKILL after every single instruction of a reduction in place, an update, and the restore of an
 * interrupted update. A child is single-stepped through them; after each step a copy of the memory
 * that it would leave behind is restored, and the work is issued again. */
START_TEST(test_killed_at_every_instruction)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_STEPPED);
    const enum stepped what = (enum stepped)(_i % N_STEPPED);
    const struct job_way *way = &job_ways[what == STEP_WIDE    ? 1
                                          : what == STEP_OVER  ? 2
                                          : what == STEP_FUSED ? 5
                                          : what == STEP_SPLIT ? 11
                                          : what == STEP_FP32  ? 13
                                                               : 0];
    uint64_t n_steps = 0;
    unsigned n_held = 0;
    struct cst_update_scalars adamw;
    struct job stepped;
    struct job image;
    struct job want;
    pid_t pid;
    int status;

    if (kernels == NULL || (suite_is_sparse() && _i >= N_STEPPED)) {
        return;
    }
    cst_update_prepare(&adamw, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.5f, 1);
    job_open_way(&stepped, kernels->isa, way);
    job_open_way(&image, kernels->isa, way);
    job_open_way(&want, kernels->isa, way);
    /* Also binds the functions of libm and libc that the child calls. */
    step_tile(&want, &adamw);
    prepare_stepped(&stepped, what, &adamw);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        run_stepped(&stepped, what, &adamw);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        printf("ptrace is not allowed here: not tested\n");
        return;
    }
    while (cst_table_tiles(stepped.work.table)[1].update_mark == 0 ||
           cst_undo_holds(&stepped.undo[0])) {
        ck_assert(WIFSTOPPED(status));
        ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        n_held += cst_undo_holds(&stepped.undo[0]) ? 1 : 0;
        if (++n_steps % (suite_is_sparse() ? 29 : 1) == 0) {
            check_image(&stepped, &image, &want, &adamw, n_steps);
        }
    }
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    printf("%s, %s, %s: %llu instructions, the slot holds after %u\n", kernels->isa, way->name,
           what == STEP_RESTORE_0 || what == STEP_RESTORE_1 ? "restore" : "work",
           (unsigned long long)n_steps, n_held);
    ck_assert_uint_gt(n_held, 100);
    job_close(&stepped);
    job_close(&image);
    job_close(&want);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("undo");
    TCase *restore_case = suite_case(suite, "restore", NULL, NULL);
    TCase *kill_case = suite_case(suite, "kill", NULL, NULL);

    suite_add_loop(restore_case, test_restore_finishes_a_torn_update, 0, hostile_n_rows());
    tcase_add_test(restore_case, test_restore_puts_a_torn_reduction_back);
    tcase_add_test(restore_case, test_restore_puts_a_torn_addition_back);
    suite_add_loop(restore_case, test_restore_keeps_a_marked_tile, 0, 2);
    tcase_add_test(restore_case, test_restore_refuses_nonsense);
    suite_add_loop(kill_case, test_killed_at_every_instruction, 0, N_STEPPED * hostile_n_rows());
    suite_add_loop(kill_case, test_killed_at_any_moment, 0, N_WAYS * hostile_n_rows());
    tcase_set_timeout(kill_case, 120);
    return hostile_main(suite);
}
