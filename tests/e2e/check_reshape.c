/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs that are opened again in place (`reshape`): the states are cut and joined without a
 * change of bits, what cannot be is refused, and whatever fails before the end leaves the job as it
 * was. After every test the daemon has its initial number of descriptors and bytes in use. */
#include "tests/lib/boxes.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include "kernels/math/split.h"
#include "cistern/cistern.h"
#include "proto/cistern.pb-c.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 96, COLUMNS = 192, ELEMS = ROWS * COLUMNS, MAX_PARTS = 3 };

static void teardown(void)
{
    settle_balanced(&witness);
    settle_remove_jobs(&witness);
    job_rig_teardown();
}

struct client {
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err;
};

static struct cst_job_spec spec_of(uint32_t world, bool reshape)
{
    return (struct cst_job_spec){.name = "j",
                                 .world = world,
                                 .limits.timeout_ms = (uint32_t)patience_ms(20000),
                                 .reshape = reshape};
}

static int open_as(struct client *c, const struct cst_job_spec *spec)
{
    memset(c, 0, sizeof *c);
    ck_assert_int_eq(cst_connect(&c->client, proc.socket, &c->err), CST_OK);
    return cst_job_open(&c->job, c->client, spec, &c->err);
}

static void open_well(struct client *c, const struct cst_job_spec *spec)
{
    ck_assert_msg(open_as(c, spec) == CST_OK, "%s", c->err.text);
}

#define CHECK(call_, c_) ck_assert_msg((call_) == CST_OK, "%s", (c_)->err.text)

static int declare(const struct client *c, const struct cst_tensor_spec *spec)
{
    int tensor = cst_tensor_as(c->job, spec);

    ck_assert_msg(tensor >= 0, "%s", cst_job_error(c->job)->text);
    ck_assert_int_ge(cst_operator(c->job, spec->name, &tensor, 1), 0);
    return tensor;
}

/* -- a matrix in parts ------------------------------------------------------------------------ */

/* The matrix is cut into parts of equal numbers of rows and of columns. */
struct cut {
    int64_t rows, columns;
};

static const int64_t whole[2] = {ROWS, COLUMNS};

static int64_t n_parts(const struct cut *cut)
{
    return cut->rows * cut->columns;
}

static void declare_cut(const struct client *c, const struct cut *cut)
{
    const int64_t shape[2] = {ROWS / cut->rows, COLUMNS / cut->columns};

    for (int64_t i = 0; i < n_parts(cut); i++) {
        const int64_t first[2] = {i / cut->columns * shape[0], i % cut->columns * shape[1]};
        bool boxes = n_parts(cut) > 1;
        char name[16];

        (void)snprintf(name, sizeof name, boxes ? "w.%d" : "w", (int)i);
        (void)declare(
            c, &(struct cst_tensor_spec){.name = name,
                                         .dtype = CST_BF16,
                                         .n_dims = 2,
                                         .shape = shape,
                                         .pattern = boxes ? CST_PATTERN_TENSOR : CST_PATTERN_SHARD,
                                         .lr_scale = 1.0f,
                                         .decay_scale = 1.0f,
                                         .whole_name = boxes ? "w" : NULL,
                                         .whole_shape = boxes ? whole : NULL,
                                         .first = boxes ? first : NULL});
    }
}

/* Read or write @state of all parts; @matrix is in the order of the whole. */
static void transfer(struct client *c, const struct cut *cut, enum cst_state state, float *matrix,
                     bool write)
{
    const int64_t rows = ROWS / cut->rows, columns = COLUMNS / cut->columns;
    float *part = malloc((size_t)(rows * columns) * sizeof *part);

    ck_assert_ptr_nonnull(part);
    for (int64_t i = 0; i < n_parts(cut); i++) {
        float *corner = matrix + i / cut->columns * rows * COLUMNS + i % cut->columns * columns;
        uint64_t n = (uint64_t)(rows * columns);

        for (int64_t r = 0; write && r < rows; r++) {
            memcpy(part + r * columns, corner + r * COLUMNS, (size_t)columns * sizeof *part);
        }
        if (write) {
            CHECK(cst_tensor_write(c->job, (int)i, state, 0, n, part, &c->err), c);
        } else {
            CHECK(cst_tensor_read(c->job, (int)i, state, 0, n, part, &c->err), c);
        }
        for (int64_t r = 0; !write && r < rows; r++) {
            memcpy(corner + r * COLUMNS, part + r * columns, (size_t)columns * sizeof *part);
        }
    }
    free(part);
}

struct states {
    float master[ELEMS], exp_avg[ELEMS], exp_avg_sq[ELEMS];
};

static void read_all(struct client *c, const struct cut *cut, struct states *out)
{
    transfer(c, cut, CST_STATE_MASTER, out->master, false);
    transfer(c, cut, CST_STATE_EXP_AVG, out->exp_avg, false);
    transfer(c, cut, CST_STATE_EXP_AVG_SQ, out->exp_avg_sq, false);
}

/* Open job "j" for one rank with the matrix cut as @cut. */
static void open_cut(struct client *c, const struct cut *cut, enum cst_moments moments,
                     bool reshape)
{
    struct cst_job_spec spec = spec_of(1, reshape);

    spec.states.moments = moments;
    open_well(c, &spec);
    declare_cut(c, cut);
    CHECK(cst_commit(c->job, NULL, &c->err), c);
}

static void leave(struct client *c)
{
    CHECK(cst_job_leave(c->job, &c->err), c);
    cst_disconnect(c->client);
}

/* Make job "j" with @cut and random states, and read them back. */
static void make_job(const struct cut *cut, enum cst_moments moments, struct states *out)
{
    struct client c;

    open_cut(&c, cut, moments, false);
    ck_assert(!cst_job_initialised(c.job));
    srandom(11);
    for (int i = 0; i < ELEMS; i++) {
        out->master[i] = (float)random() / 1e9f - 1.0f;
        out->exp_avg[i] = ((float)random() / 1e9f - 1.0f) * 1e-3f;
        out->exp_avg_sq[i] = (float)random() / 1e9f * 1e-6f;
    }
    transfer(&c, cut, CST_STATE_MASTER, out->master, true);
    transfer(&c, cut, CST_STATE_EXP_AVG, out->exp_avg, true);
    transfer(&c, cut, CST_STATE_EXP_AVG_SQ, out->exp_avg_sq, true);
    CHECK(cst_sync(c.job, NULL, &c.err), &c);
    read_all(&c, cut, out);
    leave(&c);
}

/* Two parts of rows, two of columns, the whole, three of rows and three of columns have the same
 * states, in every format of moments. */
START_TEST(parts_are_cut_and_joined)
{
    static const struct cut cuts[] = {{2, 1}, {1, 2}, {1, 1}, {3, 1}, {1, 3}, {1, 3}, {2, 1}};
    struct states *before = malloc(sizeof *before), *after = malloc(sizeof *after);
    struct client c;

    ck_assert(before != NULL && after != NULL);
    make_job(&cuts[0], (enum cst_moments)_i, before);
    for (unsigned i = 1; i < sizeof cuts / sizeof cuts[0]; i++) {
        open_cut(&c, &cuts[i], (enum cst_moments)_i, true);
        ck_assert(cst_job_initialised(c.job));
        read_all(&c, &cuts[i], after);
        ck_assert_int_eq(memcmp(before, after, sizeof *before), 0);
        CHECK(cst_sync(c.job, NULL, &c.err), &c);
        leave(&c);
    }
    free(before);
    free(after);
}
END_TEST

/* The states @s as a job of @spec, cut as @cutting says, has them when they are written. */
static struct boxes_states *as_written(const struct cst_job_spec *spec,
                                       const struct boxes_cutting *cutting, struct boxes_states *s)
{
    struct cst_job_spec other = *spec;
    struct boxes_states *read;
    struct boxes_job j;

    other.name = "other";
    other.reshape = false;
    j = boxes_open(&other, cutting);
    boxes_transfer(&j, s, true);
    boxes_all_ranks(&j, true);
    read = boxes_read(&j);
    boxes_leave(&j);
    ck_assert_int_eq(raw_job_remove(&witness, "other"), CST_OK);
    return read;
}

/* A job of two stages with two parts each becomes one of four stages, of three ranks with copies,
 * of one rank, and of parts drawn at random, in every format of moments and master weights: its
 * states are those of a job to which they were written. */
START_TEST(ranks_become_others)
{
    struct boxes_cutting cuts[] = {boxes_grid(2, 1), boxes_grid(1, 1), boxes_grid(1, 1),
                                   boxes_grid(2, 2), boxes_grid(1, 1), boxes_grid(1, 1),
                                   boxes_grid(2, 1)};
    static const uint32_t worlds[] = {4, 4, 3, 4, 1, 2, 4};
    struct cst_job_spec spec = spec_of(4, false);
    struct boxes_states *now, *expected;
    struct boxes_job j;

    srandom((unsigned)suite_seed());
    cuts[1].staged = true;
    cuts[5] = boxes_cut_at_random();
    spec.states.moments = (enum cst_moments)(_i % CST_MOMENTS_COUNT);
    spec.states.masters = (enum cst_masters)(_i / CST_MOMENTS_COUNT);
    now = boxes_draw();
    for (unsigned i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        spec.world = worlds[i];
        spec.reshape = i > 0;
        expected = as_written(&spec, &cuts[i], now);
        j = boxes_open(&spec, &cuts[i]);
        if (i == 0) {
            boxes_transfer(&j, now, true);
        }
        free(now);
        now = boxes_read(&j);
        boxes_assert_same(now, expected);
        free(expected);
        boxes_all_ranks(&j, true);
        boxes_leave(&j);
    }
    free(now);
}
END_TEST

/* Other formats of moments, too: those of fp32 are rounded to bf16 and stay so. */
START_TEST(moments_change_their_format)
{
    static const struct cut one = {1, 1}, rows = {2, 1};
    struct states *before = malloc(sizeof *before), *after = malloc(sizeof *after);
    struct client c;

    ck_assert(before != NULL && after != NULL);
    make_job(&one, CST_MOMENTS_FP32, before);
    open_cut(&c, &rows, CST_MOMENTS_BF16, true);
    read_all(&c, &rows, after);
    ck_assert_int_eq(memcmp(before->master, after->master, sizeof before->master), 0);
    for (int i = 0; i < ELEMS; i++) {
        ck_assert_float_eq_tol(after->exp_avg[i], before->exp_avg[i], 1e-5f);
    }
    leave(&c);
    open_cut(&c, &one, CST_MOMENTS_FP32, true);
    read_all(&c, &one, before);
    ck_assert_int_eq(memcmp(before, after, sizeof *before), 0);
    leave(&c);
    free(before);
    free(after);
}
END_TEST

static void refused(const struct cst_job_spec *spec, int status, const char *words)
{
    struct client c;

    ck_assert_int_eq(open_as(&c, spec), status);
    ck_assert_msg(strstr(c.err.text, words) != NULL, "%s", c.err.text);
    cst_disconnect(c.client);
}

/* Master weights can be split and joined, and keep their bits. The weights of split ones are a part
 * of them, and cannot be written. */
START_TEST(masters_change_their_format)
{
    static const struct cut one = {1, 1};
    struct states *before = malloc(sizeof *before), *after = malloc(sizeof *after);
    struct cst_job_spec spec = spec_of(1, true);
    uint16_t *weights = malloc(ELEMS * sizeof *weights);
    struct client c;

    ck_assert(before != NULL && after != NULL && weights != NULL);
    make_job(&one, CST_MOMENTS_FP32, before);
    spec.states.masters = CST_MASTERS_SPLIT;
    open_well(&c, &spec);
    declare_cut(&c, &one);
    CHECK(cst_commit(c.job, NULL, &c.err), &c);
    read_all(&c, &one, after);
    ck_assert_int_eq(memcmp(before, after, sizeof *before), 0);
    CHECK(cst_tensor_read(c.job, 0, CST_STATE_WEIGHT, 0, ELEMS, weights, &c.err), &c);
    for (int i = 0; i < ELEMS; i++) {
        uint16_t weight;
        int16_t remainder;

        cst_split_cut(before->master[i], &weight, &remainder);
        ck_assert_uint_eq(weights[i], weight);
    }
    ck_assert_int_eq(cst_tensor_write(c.job, 0, CST_STATE_WEIGHT, 0, 1, weights, &c.err),
                     CST_EUNSUPPORTED);
    ck_assert_msg(strstr(c.err.text, "write the master weights") != NULL, "%s", c.err.text);
    CHECK(cst_tensor_write(c.job, 0, CST_STATE_MASTER, 3, 1, &after->master[5], &c.err), &c);
    CHECK(cst_tensor_write(c.job, 0, CST_STATE_EXP_AVG, 3, 1, &before->exp_avg[3], &c.err), &c);
    CHECK(cst_tensor_write(c.job, 0, CST_STATE_EXP_AVG_SQ, 3, 1, &before->exp_avg_sq[3], &c.err),
          &c);
    before->master[3] = before->master[5];
    leave(&c);
    open_cut(&c, &one, CST_MOMENTS_FP32, true);
    read_all(&c, &one, after);
    ck_assert_int_eq(memcmp(before, after, sizeof *before), 0);
    leave(&c);
    spec.states.grad_over_weight = true;
    refused(&spec, CST_EINVAL, "grad_over_weight cannot be combined with masters split");
    free(before);
    free(after);
    free(weights);
}
END_TEST

/* -- what is refused -------------------------------------------------------------------------- */

/* Check that job "j" has the states @expected, and can be opened without `reshape`. */
static void check_untouched(const struct cut *cut, const struct states *expected)
{
    struct states *now = malloc(sizeof *now);
    struct client c;

    ck_assert_ptr_nonnull(now);
    open_cut(&c, cut, CST_MOMENTS_FP32, false);
    ck_assert(cst_job_initialised(c.job));
    read_all(&c, cut, now);
    ck_assert_int_eq(memcmp(now, expected, sizeof *now), 0);
    leave(&c);
    free(now);
}

static const struct cut two = {2, 1};

/* Without the flag, with a worker, and of another optimizer a job is refused with the reason. */
START_TEST(refusals_have_a_reason)
{
    struct states *states = malloc(sizeof *states);
    struct cst_job_spec spec = spec_of(2, false);
    struct client c;

    ck_assert_ptr_nonnull(states);
    make_job(&two, CST_MOMENTS_FP32, states);
    refused(&spec, CST_EMISMATCH,
            "has 1 ranks, not 2 as rank 0 wants (when it has no worker, "
            "'reshape' changes that)");
    spec.reshape = true;
    spec.states.optimizer = CST_OPTIMIZER_LION;
    refused(&spec, CST_EMISMATCH, "its optimizer is adamw, not lion");
    spec.states.optimizer = CST_OPTIMIZER_ADAMW;
    open_cut(&c, &two, CST_MOMENTS_FP32, false);
    refused(&spec, CST_EMISMATCH, "has 1 ranks, not 2");
    leave(&c);
    check_untouched(&two, states);
    free(states);
}
END_TEST

/* A declaration that lacks parameters of the job is refused when it is committed. */
START_TEST(other_tensors_are_refused)
{
    const int64_t shape[2] = {ROWS, COLUMNS - 1};
    struct states *states = malloc(sizeof *states);
    struct cst_job_spec spec = spec_of(1, true);
    struct client c;

    ck_assert_ptr_nonnull(states);
    make_job(&two, CST_MOMENTS_FP32, states);
    open_well(&c, &spec);
    (void)declare(&c, &(struct cst_tensor_spec){.name = "w",
                                                .dtype = CST_BF16,
                                                .n_dims = 2,
                                                .shape = shape,
                                                .lr_scale = 1.0f,
                                                .decay_scale = 1.0f});
    ck_assert_int_eq(cst_commit(c.job, NULL, &c.err), CST_EMISMATCH);
    ck_assert_msg(strstr(c.err.text, "job 'j' cannot be reshaped: tensor 'w' has another shape") !=
                      NULL,
                  "%s", c.err.text);
    cst_disconnect(c.client);
    check_untouched(&two, states);
    free(states);
}
END_TEST

/* Begin the commit of rank 0 until the daemon says that rank 1 is missing. */
static void begin_commit(struct client *c)
{
    uint64_t until = patience_until(20000);
    char missing[64] = "";
    struct cst_client *other;

    ck_assert_int_eq(cst_connect(&other, proc.socket, &c->err), CST_OK);
    while (strcmp(missing, "rank 1") != 0) {
        ck_assert(!patience_over(until));
        ck_assert_int_eq(cst_try_commit(c->job, NULL, &c->err), CST_EAGAIN);
        CHECK(cst_job_waits(other, "j", missing, sizeof missing, &c->err), c);
    }
    cst_disconnect(other);
}

/* A rank that dies, before or after its own commit, leaves the job as it was. Until then, nobody
 * opens the job without the flag. */
START_TEST(a_dead_rank_changes_nothing)
{
    struct states *states = malloc(sizeof *states);
    struct cst_job_spec spec = spec_of(2, true), plain = spec_of(1, false);
    struct client a, b;

    ck_assert_ptr_nonnull(states);
    make_job(&two, CST_MOMENTS_FP32, states);
    open_well(&a, &spec);
    spec.rank = 1;
    open_well(&b, &spec);
    declare_cut(&a, &two);
    declare_cut(&b, &two);
    refused(&plain, CST_EBUSY, "job 'j' is being reshaped to 2 ranks");
    if (_i == 1) {
        begin_commit(&a);
    }
    cst_disconnect(b.client);
    if (_i == 1) {
        ck_assert_int_eq(cst_commit(a.job, NULL, &a.err), CST_EPEERDIED);
    }
    cst_disconnect(a.client);
    check_untouched(&two, states);
    free(states);
}
END_TEST

/* A job that is removed takes the one that was to replace it along. */
START_TEST(removal_ends_both)
{
    struct states *states = malloc(sizeof *states);
    struct cst_job_spec spec = spec_of(2, true);
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    struct client c;

    ck_assert_ptr_nonnull(states);
    make_job(&two, CST_MOMENTS_FP32, states);
    open_well(&c, &spec);
    declare_cut(&c, &two);
    name.name = (char *)(uintptr_t) "j";
    ck_assert_int_eq(raw_call(&witness, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base), CST_OK);
    ck_assert_int_ne(cst_commit(c.job, NULL, &c.err), CST_OK);
    cst_disconnect(c.client);
    free(states);
}
END_TEST

/* Elements of one of four tensors that have 160 MiB of states together; the daemon has 256 MiB. */
static const int64_t large = 10 << 18;

/* Declare four tensors of @n elements. */
static void declare_four(const struct client *c, int64_t n)
{
    static const char *const names[] = {"a", "b", "c", "d"};

    for (int i = 0; i < 4; i++) {
        (void)declare(c, &(struct cst_tensor_spec){.name = names[i],
                                                   .dtype = CST_BF16,
                                                   .n_dims = 1,
                                                   .shape = &n,
                                                   .lr_scale = 1.0f,
                                                   .decay_scale = 1.0f});
    }
}

/* Write or check a value in the states of declare_four. */
static void mark_large(struct client *c, bool write)
{
    static const float value = 3.0f;
    float back = 0;

    if (write) {
        CHECK(cst_tensor_write(c->job, 1, CST_STATE_MASTER, 5, 1, &value, &c->err), c);
        CHECK(cst_sync(c->job, NULL, &c->err), c);
    } else {
        CHECK(cst_tensor_read(c->job, 1, CST_STATE_MASTER, 5, 1, &back, &c->err), c);
        ck_assert_float_eq(back, value);
    }
}

/* If all chunks are where they were, the states stay in their memory: no second one is needed, and
 * nothing is copied. */
START_TEST(states_stay_in_their_memory)
{
    struct cst_job_spec spec = spec_of(1, false);
    struct client c;

    spec.planning.chunk_elems = 10 << 18;
    for (int i = 0; i < 4; i++) {
        spec.memory.pool_bytes = (uint64_t)(20 - 5 * (i % 2)) << 20;
        spec.reshape = i > 0;
        open_well(&c, &spec);
        declare_four(&c, large);
        CHECK(cst_commit(c.job, NULL, &c.err), &c);
        mark_large(&c, i == 0);
        leave(&c);
    }
    ck_assert(daemon_proc_logged(&proc, "is reshaped from 1 to 1 ranks, 0 B were copied"));
}
END_TEST

/* If the daemon may choose the chunks, and there is no memory to copy the states to others, it
 * keeps those that there are. */
START_TEST(chunks_stay_if_memory_is_short)
{
    struct cst_job_spec spec = spec_of(1, false);
    struct client c;

    spec.memory.pool_bytes = 50 << 20;
    spec.planning.chunk_elems = 20 << 18; /* The daemon would choose fewer for such a pool. */
    open_well(&c, &spec);
    declare_four(&c, large);
    CHECK(cst_commit(c.job, NULL, &c.err), &c);
    mark_large(&c, true);
    leave(&c);
    spec.reshape = true;
    spec.planning.chunk_elems = 0;
    open_well(&c, &spec);
    declare_four(&c, large);
    CHECK(cst_commit(c.job, NULL, &c.err), &c);
    mark_large(&c, false);
    leave(&c);
    ck_assert(daemon_proc_logged(&proc, "there is no memory for other chunks"));
    ck_assert(daemon_proc_logged(&proc, "0 B were copied"));
}
END_TEST

/* Make a job of four tensors of @n elements with @spec, in four chunks, and mark its states. */
static void make_four(struct cst_job_spec *spec, int64_t n)
{
    struct client c;

    spec->memory.pool_bytes = 20 << 20;
    spec->planning.chunk_elems = (uint64_t)n;
    open_well(&c, spec);
    declare_four(&c, n);
    CHECK(cst_commit(c.job, NULL, &c.err), &c);
    mark_large(&c, true);
    leave(&c);
    spec->reshape = true;
}

/* Reshape a job of four tensors of @n elements to gradients of fp32, which take 18 bytes per
 * element instead of 16. */
static void reshape_four(int64_t n)
{
    struct cst_job_spec spec = spec_of(1, false);
    struct client c;

    make_four(&spec, n);
    spec.updates.micro_batches = 2;
    open_well(&c, &spec);
    declare_four(&c, n);
    CHECK(cst_commit(c.job, NULL, &c.err), &c);
    mark_large(&c, false);
    leave(&c);
}

/* If memory is short for both states, they are moved in portions. */
START_TEST(states_are_moved_if_memory_is_short)
{
    reshape_four(large);
    ck_assert(daemon_proc_logged(&proc, "moving them in 4 portions needs 68.0 MiB more"));
}
END_TEST

/* The states fit twice, in 251.8 of 256 MiB, but the 8 MiB through which they are copied do not. */
START_TEST(states_are_moved_if_copying_lacks_memory)
{
    reshape_four(474 * 4096);
    ck_assert(daemon_proc_logged(&proc, "moving them in 4 portions"));
}
END_TEST

/* The states fit twice, together with the 8 MiB. */
START_TEST(states_are_copied_if_they_fit_twice)
{
    reshape_four(454 * 4096);
    ck_assert(!daemon_proc_logged(&proc, "portions"));
}
END_TEST

/* If memory is short even for that, the numbers are told and the job stays. */
START_TEST(short_memory_has_numbers)
{
    struct cst_job_spec spec = spec_of(1, false);
    struct client c;

    make_four(&spec, large);
    spec.memory.pool_bytes = 80 << 20;
    spec.planning.chunk_elems =
        40 << 18; /* One chunk, which has to exist before the first portion ends. */
    open_well(&c, &spec);
    declare_four(&c, large);
    ck_assert_int_eq(cst_commit(c.job, NULL, &c.err), CST_EBUDGET);
    ck_assert_msg(strstr(c.err.text, "reshaping moves the old states of 160.0 MiB") != NULL &&
                      strstr(c.err.text, "bytes) short") != NULL,
                  "%s", c.err.text);
    cst_disconnect(c.client);
    spec.reshape = false;
    spec.memory.pool_bytes = 20 << 20;
    spec.planning.chunk_elems = 10 << 18;
    open_well(&c, &spec);
    declare_four(&c, large);
    CHECK(cst_commit(c.job, NULL, &c.err), &c);
    mark_large(&c, false);
    leave(&c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reshape");
    TCase *tcase = suite_case(suite, "reshape", job_rig_setup, teardown);

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, parts_are_cut_and_joined, 0, CST_MOMENTS_COUNT);
    tcase_add_loop_test(tcase, ranks_become_others, 0, CST_MOMENTS_COUNT * CST_MASTERS_COUNT);
    tcase_add_test(tcase, moments_change_their_format);
    tcase_add_test(tcase, masters_change_their_format);
    tcase_add_test(tcase, refusals_have_a_reason);
    tcase_add_test(tcase, other_tensors_are_refused);
    tcase_add_loop_test(tcase, a_dead_rank_changes_nothing, 0, 2);
    tcase_add_test(tcase, removal_ends_both);
    tcase_add_test(tcase, states_stay_in_their_memory);
    tcase_add_test(tcase, chunks_stay_if_memory_is_short);
    tcase_add_test(tcase, states_are_moved_if_memory_is_short);
    tcase_add_test(tcase, states_are_moved_if_copying_lacks_memory);
    tcase_add_test(tcase, states_are_copied_if_they_fit_twice);
    tcase_add_test(tcase, short_memory_has_numbers);
    return suite_run(suite);
}
