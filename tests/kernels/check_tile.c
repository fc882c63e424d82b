#include "kernels/tile.h"
#include "proto/status.h"
#include "tests/kernels/hostile.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define N_SPANS 5
#define CHUNK_ELEMS 30000
#define N_SRC 3

/* One tensor each: starts leave padding between them; the last but one is empty, the first is part
 * of a tile. */
static const uint64_t span_start[N_SPANS] = {0, 128, 8448, 20000, 20032};
static const uint64_t span_elems[N_SPANS] = {100, 8192, 11003, 0, 9001};

/* A job of one chunk, all of it shared with children, with an undo slot for each of two threads. */
struct job {
    struct cst_tile_work work;
    struct cst_undo_slot *undo; /* [2] */
    uint16_t *src[N_SRC];       /* contributions; [0] is the grad row */
    _Atomic uint64_t *step;     /* the step under way, from 1 */
    char *shared;               /* the mapping */
    size_t bytes;               /* of it */
};

static void *take(char **at, size_t bytes)
{
    char *p = *at;

    *at += (bytes + 63) & ~(size_t)63;
    return p;
}

static void fill_table(struct cst_table_header *table)
{
    struct cst_table_chunk *chunk = cst_table_chunks(table);
    struct cst_table_span *spans = cst_table_spans(table);
    uint64_t first_tile = 0;

    *chunk = (struct cst_table_chunk){.n_elems = CHUNK_ELEMS, .n_spans = N_SPANS};
    for (int i = 0; i < N_SPANS; i++) {
        spans[i] = (struct cst_table_span){
            .start = span_start[i],
            .n_elems = span_elems[i],
            .first_tile = first_tile,
            .lr_scale = i == 1 ? 0.5f : 1.0f,
            .decay_scale = i == 2 ? 0.0f : 1.0f,
        };
        first_tile += cst_table_n_tiles(span_elems[i]);
    }
}

static void job_open(struct job *job, const char *isa)
{
    struct cst_table_header header;
    uint64_t n_tiles = 0;
    uint64_t state = hostile_seed();
    struct cst_rows *rows = &job->work.rows;
    char *at;

    for (int i = 0; i < N_SPANS; i++) {
        n_tiles += cst_table_n_tiles(span_elems[i]);
    }
    cst_table_size(&header, 1, N_SPANS, n_tiles);
    job->bytes = header.total_bytes + 2 * sizeof *job->undo + CHUNK_ELEMS * 24 + 4096;
    job->shared = mmap(NULL, job->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(job->shared, MAP_FAILED);
    at = job->shared;
    job->work = (struct cst_tile_work){.kernels = cst_kernels_get(isa), .table_id = 7, .mark = 1};
    ck_assert_ptr_nonnull(job->work.kernels);
    job->work.table = take(&at, header.total_bytes);
    *job->work.table = header;
    fill_table(job->work.table);
    job->undo = take(&at, 2 * sizeof *job->undo);
    job->step = take(&at, sizeof *job->step);
    atomic_store(job->step, 1);
    rows->weight = take(&at, CHUNK_ELEMS * sizeof *rows->weight);
    rows->grad = take(&at, CHUNK_ELEMS * sizeof *rows->grad);
    rows->master = take(&at, CHUNK_ELEMS * sizeof *rows->master);
    rows->exp_avg = take(&at, CHUNK_ELEMS * sizeof *rows->exp_avg);
    rows->exp_avg_sq = take(&at, CHUNK_ELEMS * sizeof *rows->exp_avg_sq);
    job->src[0] = rows->grad;
    job->src[1] = take(&at, CHUNK_ELEMS * sizeof *job->src[1]);
    job->src[2] = take(&at, CHUNK_ELEMS * sizeof *job->src[2]);
    for (size_t i = 0; i < CHUNK_ELEMS; i++) {
        for (int r = 0; r < N_SRC; r++) {
            job->src[r][i] = cst_fp32_to_bf16(hostile_unit(&state));
        }
        rows->master[i] = hostile_unit(&state);
        rows->exp_avg[i] = rows->exp_avg_sq[i] = 0.0f;
        rows->weight[i] = (uint16_t)i;
    }
}

static void job_close(struct job *job)
{
    ck_assert_int_eq(munmap(job->shared, job->bytes), 0);
}

static const struct cst_tile_hyper hyper = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.5f};

static uint64_t reduce_all(struct job *job, struct cst_undo_slot *undo)
{
    return cst_tile_reduce_range(&job->work, N_SRC, (const uint16_t *const *)(const void *)job->src,
                                 0, UINT64_MAX, undo);
}

static uint64_t n_elems_all(void)
{
    uint64_t n = 0;

    for (int i = 0; i < N_SPANS; i++) {
        n += span_elems[i];
    }
    return n;
}

/* Same rows, same table. */
static void assert_same(const struct job *got, const struct job *want)
{
    const struct cst_rows *a = &got->work.rows;
    const struct cst_rows *b = &want->work.rows;

    ck_assert_mem_eq(a->grad, b->grad, CHUNK_ELEMS * sizeof *a->grad);
    ck_assert_mem_eq(a->weight, b->weight, CHUNK_ELEMS * sizeof *a->weight);
    ck_assert_mem_eq(a->master, b->master, CHUNK_ELEMS * sizeof *a->master);
    ck_assert_mem_eq(a->exp_avg, b->exp_avg, CHUNK_ELEMS * sizeof *a->exp_avg);
    ck_assert_mem_eq(a->exp_avg_sq, b->exp_avg_sq, CHUNK_ELEMS * sizeof *a->exp_avg_sq);
    ck_assert_mem_eq(got->work.table, want->work.table, got->work.table->total_bytes);
}

/* An update is AdamW over each span with the span's scales, and leaves the padding between spans
 * alone. */
START_TEST(test_update_is_adamw_over_spans)
{
    struct job got;
    struct job want;

    job_open(&got, NULL);
    job_open(&want, NULL);
    got.work.mark = 3;
    ck_assert_uint_eq(
        cst_tile_update_range(&got.work, &hyper, 0, cst_tile_count(&got.work), &got.undo[0]),
        n_elems_all());
    for (int i = 0; i < N_SPANS; i++) {
        const struct cst_table_span *span = &cst_table_spans(want.work.table)[i];
        const struct cst_rows *rows = &want.work.rows;
        struct cst_adamw adamw;

        cst_adamw_prepare(&adamw, hyper.lr * (double)span->lr_scale, hyper.beta1, hyper.beta2,
                          hyper.eps, hyper.weight_decay * (double)span->decay_scale,
                          hyper.grad_scale, 3);
        cst_adamw_ref(&adamw, span->n_elems, rows->grad + span->start, rows->master + span->start,
                      rows->exp_avg + span->start, rows->exp_avg_sq + span->start,
                      rows->weight + span->start);
        for (uint64_t k = 0; k < cst_table_n_tiles(span->n_elems); k++) {
            cst_table_tiles(want.work.table)[span->first_tile + k].update_mark = 3;
        }
    }
    assert_same(&got, &want);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A reduction sums every span and leaves per-tile sums; the norm over the tiles is that of the
 * whole. */
START_TEST(test_reduce_fills_tiles)
{
    struct job got;
    struct job want;
    double sum = 0.0;

    job_open(&got, NULL);
    job_open(&want, NULL);
    ck_assert_uint_eq(reduce_all(&got, &got.undo[0]), n_elems_all());
    for (int i = 0; i < N_SPANS; i++) {
        const struct cst_table_span *span = &cst_table_spans(want.work.table)[i];

        for (uint64_t k = 0; k < cst_table_n_tiles(span->n_elems); k++) {
            uint64_t at = span->start + k * CST_TILE_ELEMS;
            uint64_t n = span->n_elems - k * CST_TILE_ELEMS;
            struct cst_table_tile *tile = &cst_table_tiles(want.work.table)[span->first_tile + k];
            const uint16_t *src[N_SRC] = {want.src[0] + at, want.src[1] + at, want.src[2] + at};

            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            tile->sum_squares = cst_reduce_ref(n, N_SRC, src, want.work.rows.grad + at);
            tile->reduce_mark = 1;
            sum += tile->sum_squares;
        }
    }
    assert_same(&got, &want);
    ck_assert(sum > 0.0);
    ck_assert(cst_norm_sum(cst_table_tiles(got.work.table), got.work.table->n_tiles) == sum);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A command issued again changes nothing; the next one does. */
START_TEST(test_marks_skip_what_is_done)
{
    struct job got;
    struct job want;

    job_open(&got, NULL);
    job_open(&want, NULL);
    ck_assert_uint_eq(reduce_all(&got, &got.undo[0]), n_elems_all());
    ck_assert_uint_eq(reduce_all(&got, &got.undo[0]), 0);
    ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL), n_elems_all());
    ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL), 0);
    ck_assert_uint_eq(reduce_all(&want, NULL), n_elems_all());
    ck_assert_uint_eq(cst_tile_update_range(&want.work, &hyper, 0, UINT64_MAX, NULL),
                      n_elems_all());
    assert_same(&got, &want);
    got.work.mark = 2;
    ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL), n_elems_all());
    ck_assert_int_ne(memcmp(got.work.rows.master, want.work.rows.master, 400), 0);
    job_close(&got);
    job_close(&want);
}
END_TEST

struct half {
    struct job *job;
    uint64_t first;
    uint64_t count;
    struct cst_undo_slot *undo;
};

static void *update_half(void *arg)
{
    const struct half *half = arg;

    cst_tile_update_range(&half->job->work, &hyper, half->first, half->count, half->undo);
    return NULL;
}

/* Two threads with any division of the tiles, with and without undo, in any variant: the same bits.
 */
START_TEST(test_ranges_and_threads_give_the_same_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    struct job want;

    if (kernels == NULL) {
        return;
    }
    job_open(&want, "ref");
    cst_tile_update_range(&want.work, &hyper, 0, UINT64_MAX, NULL);
    for (uint64_t cut = 0; cut <= cst_tile_count(&want.work); cut++) {
        struct job got;
        struct half low = {.job = &got, .first = 0, .count = cut};
        struct half high = {.job = &got, .first = cut, .count = UINT64_MAX};
        pthread_t thread;

        job_open(&got, kernels->isa);
        low.undo = &got.undo[0];
        high.undo = cut % 2 == 0 ? &got.undo[1] : NULL;
        ck_assert_int_eq(pthread_create(&thread, NULL, update_half, &low), 0);
        update_half(&high);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        assert_same(&got, &want);
        ck_assert(!cst_undo_holds(&got.undo[0]) && !cst_undo_holds(&got.undo[1]));
        job_close(&got);
    }
    job_close(&want);
}
END_TEST

static int restore(struct job *job, struct cst_undo_slot *slot)
{
    return cst_undo_restore(slot, &job->work.rows, CHUNK_ELEMS, cst_table_tiles(job->work.table),
                            job->work.table->n_tiles);
}

/* The second tile of the second span. */
static struct cst_tile some_tile(struct job *job)
{
    return (struct cst_tile){.entry = &cst_table_tiles(job->work.table)[2],
                             .number = 2,
                             .start = 128 + CST_TILE_ELEMS,
                             .mark = 1,
                             .n_elems = CST_TILE_ELEMS,
                             .table = 7};
}

/* Ruin the elements that a slot says may be changed. */
static void scribble(struct job *job, const struct cst_undo_slot *slot)
{
    const struct cst_rows *rows = &job->work.rows;

    for (uint64_t i = slot->start; i < slot->start + slot->held; i++) {
        if (slot->kind == CST_UNDO_REDUCE) {
            rows->grad[i] ^= 0x5555;
        } else {
            rows->master[i] += 1.0f;
            rows->exp_avg[i] += 1.0f;
            rows->exp_avg_sq[i] += 1.0f;
        }
    }
}

/* At every stretch: what was saved is put back and nothing else is touched, also if restoring is
 * interrupted and done again. */
START_TEST(test_restore_puts_a_torn_tile_back)
{
    const enum cst_undo_kind kind = _i == 0 ? CST_UNDO_UPDATE : CST_UNDO_REDUCE;
    struct job got;
    struct job want;

    job_open(&got, NULL);
    job_open(&want, NULL);
    for (uint32_t s = 1; s <= CST_TILE_ELEMS; s = s * 3 + 1) {
        struct cst_undo_slot *slot = &got.undo[0];
        struct cst_tile tile = some_tile(&got);
        struct cst_undo_slot killed;

        cst_undo_begin(slot, kind, &tile);
        ck_assert(!cst_undo_holds(slot));
        for (uint32_t n = 0; n + s <= CST_TILE_ELEMS; n += s) {
            cst_undo_save(slot, &got.work.rows, s);
            ck_assert_uint_eq(slot->held, n + s);
        }
        ck_assert(cst_undo_holds(slot));
        ck_assert_uint_eq(slot->table, 7);
        ck_assert_uint_eq(slot->chunk, 0);
        scribble(&got, slot);
        killed = *slot;
        ck_assert_int_eq(restore(&got, &killed), CST_OK);
        assert_same(&got, &want);
        scribble(&got, slot);
        ck_assert_int_eq(restore(&got, slot), CST_OK);
        ck_assert(!cst_undo_holds(slot));
        assert_same(&got, &want);
        ck_assert_int_eq(restore(&got, slot), CST_OK);
        assert_same(&got, &want);
    }
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A tile whose mark was stored before the kill is whole: its new values stay. The other kind's mark
 * does not count. */
START_TEST(test_restore_keeps_a_marked_tile)
{
    const enum cst_undo_kind kind = _i == 0 ? CST_UNDO_UPDATE : CST_UNDO_REDUCE;
    struct job got;
    struct job want;
    struct cst_tile tile;

    job_open(&got, NULL);
    job_open(&want, NULL);
    tile = some_tile(&got);
    cst_undo_begin(&got.undo[0], kind, &tile);
    cst_undo_save(&got.undo[0], &got.work.rows, CST_TILE_ELEMS);
    *(_i == 0 ? &tile.entry->reduce_mark : &tile.entry->update_mark) = 1;
    scribble(&got, &got.undo[0]);
    got.undo[1] = got.undo[0];
    ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
    ck_assert_mem_eq(got.work.rows.master, want.work.rows.master, CHUNK_ELEMS * sizeof(float));
    ck_assert_mem_eq(got.work.rows.grad, want.work.rows.grad, CHUNK_ELEMS * sizeof(uint16_t));

    scribble(&want, &got.undo[1]);
    scribble(&got, &got.undo[1]);
    *(_i == 0 ? &tile.entry->update_mark : &tile.entry->reduce_mark) = 1;
    ck_assert_int_eq(restore(&got, &got.undo[1]), CST_OK);
    ck_assert(!cst_undo_holds(&got.undo[1]));
    ck_assert_mem_eq(got.work.rows.master, want.work.rows.master, CHUNK_ELEMS * sizeof(float));
    ck_assert_mem_eq(got.work.rows.grad, want.work.rows.grad, CHUNK_ELEMS * sizeof(uint16_t));
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A slot that was overwritten is refused and nothing is changed. */
START_TEST(test_restore_refuses_nonsense)
{
    struct job got;
    struct job want;
    struct cst_tile tile;
    struct cst_undo_slot bad[7];

    job_open(&got, NULL);
    job_open(&want, NULL);
    tile = some_tile(&got);
    cst_undo_begin(&got.undo[0], CST_UNDO_UPDATE, &tile);
    cst_undo_save(&got.undo[0], &got.work.rows, 1000);
    scribble(&got, &got.undo[0]);
    scribble(&want, &got.undo[0]);
    for (int i = 0; i < 7; i++) {
        bad[i] = got.undo[0];
    }
    bad[0].kind = 0;
    bad[1].kind = 3;
    bad[2].n_elems = 999;
    bad[3].n_elems = CST_TILE_ELEMS + 1;
    bad[4].start = CHUNK_ELEMS - CST_TILE_ELEMS + 1;
    bad[5].start = UINT64_MAX - 100;
    bad[6].tile = got.work.table->n_tiles;
    for (int i = 0; i < 7; i++) {
        ck_assert_int_eq(restore(&got, &bad[i]), CST_EINVAL);
        ck_assert(cst_undo_holds(&bad[i]));
        assert_same(&got, &want);
    }
    ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* Reduce in place, update, next step, from wherever the job stands up to the end of @n_steps. */
static void run_steps(struct job *job, uint64_t n_steps)
{
    uint64_t step;

    while ((step = atomic_load(job->step)) <= n_steps) {
        job->work.mark = step;
        reduce_all(job, &job->undo[0]);
        cst_tile_update_range(&job->work, &hyper, 0, UINT64_MAX, &job->undo[0]);
        atomic_store(job->step, step + 1);
    }
}

/* A child of the job that steps until it is killed, @ns after it has begun. */
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
        /* Pages faulted in first, where the kernel can: kills should fall into the tile loops. */
        (void)madvise(job->shared, job->bytes, MADV_POPULATE_WRITE);
        if (write(ready[1], &byte, 1) == 1) {
            run_steps(job, UINT64_MAX - 1);
        }
        _exit(1);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    /* Asleep, so that the child runs also where there is one processor; nothing relies on how far
     * it gets. */
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    close(ready[0]);
    close(ready[1]);
}

/* kill -9 at 300 random moments in a run of reductions in place and updates: after each the slot is
 * restored and the step under way is issued again; in the end all bits are those of an undisturbed
 * run. */
START_TEST(test_killed_at_any_moment)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed() + 1;
    unsigned held[3] = {0};
    struct job got;
    struct job want;
    uint64_t n_steps;

    if (kernels == NULL) {
        return;
    }
    job_open(&got, kernels->isa);
    job_open(&want, kernels->isa);
    for (int k = 0; k < 300; k++) {
        run_and_kill(&got, (long)(hostile_next(&state) % 1000000));
        held[cst_undo_holds(&got.undo[0]) ? got.undo[0].kind : 0]++;
        ck_assert_int_eq(restore(&got, &got.undo[0]), CST_OK);
    }
    n_steps = atomic_load(got.step) + 1;
    printf("%s: 300 kills in %llu steps: %u in an update, %u in a reduction, %u between\n",
           kernels->isa, (unsigned long long)n_steps, held[CST_UNDO_UPDATE], held[CST_UNDO_REDUCE],
           held[0]);
    ck_assert_uint_gt(held[CST_UNDO_UPDATE], 0);
    run_steps(&got, n_steps);
    run_steps(&want, n_steps);
    assert_same(&got, &want);
    job_close(&got);
    job_close(&want);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tile");
    TCase *tile = tcase_create("tile");
    TCase *undo = tcase_create("undo");

    tcase_add_test(tile, test_update_is_adamw_over_spans);
    tcase_add_test(tile, test_reduce_fills_tiles);
    tcase_add_test(tile, test_marks_skip_what_is_done);
    tcase_add_loop_test(tile, test_ranges_and_threads_give_the_same_bits, 0, hostile_n_rows());
    tcase_add_loop_test(undo, test_restore_puts_a_torn_tile_back, 0, 2);
    tcase_add_loop_test(undo, test_restore_keeps_a_marked_tile, 0, 2);
    tcase_add_test(undo, test_restore_refuses_nonsense);
    tcase_add_loop_test(undo, test_killed_at_any_moment, 0, hostile_n_rows());
    tcase_set_timeout(undo, 60);
    suite_add_tcase(suite, tile);
    suite_add_tcase(suite, undo);
    return hostile_main(suite);
}
