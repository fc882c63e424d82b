/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of whole runs on the local store: the bits do not depend on the way of running, the loss
 * falls, files have the right contents, and a step that became void is repeated. */
#include "client/gpt/run.h"
#include "client/gpt/train.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE                                                                                       \
    "--store local --layers 2 --heads 2 --width 32 --context 40 --batch 3 --lr 5e-3 --warmup 3 "   \
    "--quiet --data x --matmul fp32 "

/* Options for a small run. Its files are @name.w and @name.l. */
static struct gpt_options small_run(const char *more, unsigned slot, const char *name)
{
    struct gpt_options o = test_text_options(BASE, more);
    char file[32];

    (void)snprintf(file, sizeof file, "%s.w", name);
    o.dump_weights = test_path(2 * slot + 1, file);
    (void)snprintf(file, sizeof file, "%s.l", name);
    o.loss_file = test_path(2 * slot + 2, file);
    return o;
}

static void run(const struct gpt_options *o)
{
    struct cst_err err = {0};

    ck_assert_msg(gpt_run(o, &err) == 0, "%s", err.text);
}

static void assert_same_file(const char *a, const char *b)
{
    size_t n, m;
    void *x = test_read(a, &n), *y = test_read(b, &m);

    ck_assert_uint_gt(n, 0);
    ck_assert_uint_eq(n, m);
    ck_assert_int_eq(memcmp(x, y, n), 0);
    free(x);
    free(y);
}

/* Losses and weights of a run do not depend on the number of the team's threads, nor on timing. */
START_TEST(runs_are_equal_bit_for_bit)
{
    struct gpt_options a = small_run("--world 2 --steps 8 --threads 1 --engine-threads 1", 0, "a");
    struct gpt_options b = small_run("--world 2 --steps 8 --threads 1 --engine-threads 2", 1, "b");

    run(&a);
    run(&b);
    assert_same_file(a.dump_weights, b.dump_weights);
    assert_same_file(a.loss_file, b.loss_file);
}
END_TEST

/* Another seed gives other weights. This shows that the comparison above can fail. */
START_TEST(seeds_differ)
{
    struct gpt_options a = small_run("--steps 1 --seed 1", 0, "a");
    struct gpt_options b = small_run("--steps 1 --seed 2", 1, "b");
    size_t n, m;
    char *x, *y;

    run(&a);
    run(&b);
    x = test_read(a.dump_weights, &n);
    y = test_read(b.dump_weights, &m);
    ck_assert_uint_eq(n, m);
    ck_assert_int_ne(memcmp(x, y, n), 0);
    free(x);
    free(y);
}
END_TEST

static double loss_at(const char *path, int step)
{
    FILE *f = fopen(path, "r");
    double loss = NAN;

    ck_assert_ptr_nonnull(f);
    for (int s = 0; s <= step; s++) {
        ck_assert_int_eq(fscanf(f, "%la", &loss), 1);
    }
    (void)fclose(f);
    return loss;
}

/* The loss starts at that of guessing, ln 256 = 5.545, and falls. The JSON log has one object per
 * step. */
START_TEST(loss_falls_and_is_logged)
{
    struct gpt_options o = small_run("--steps 40 --world 2", 0, "a");
    const char *p;
    char *json;
    size_t n, lines = 0;

    o.log_json = test_path(5, "log.json");
    run(&o);
    ck_assert_double_eq_tol(loss_at(o.loss_file, 0), 5.545, 0.05);
    ck_assert_double_lt(loss_at(o.loss_file, 39), 2.6);
    json = test_read(o.log_json, &n);
    json[n] = '\0';
    ck_assert_int_eq(strncmp(json, "{\"step\": 1, \"loss\": 5.5", 23), 0);
    for (p = json; (p = strchr(p, '\n')) != NULL; p++) {
        lines++;
    }
    ck_assert_uint_eq(lines, 40);
    free(json);
}
END_TEST

/* A file that cannot be made is refused before the run. If a file cannot be written the run ends
 * with an error text that names the file, and no rank waits forever. */
START_TEST(unwritable_files_are_told)
{
    struct gpt_options o = small_run("--steps 2 --world 2", 0, "a");
    struct cst_err err = {0};

    o.loss_file = "/nonexistent/losses";
    ck_assert_int_eq(gpt_run(&o, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, "/nonexistent/losses") != NULL, "%s", err.text);
    o.loss_file = "/dev/full";
    ck_assert_int_eq(gpt_run(&o, &err), CST_EIO);
    ck_assert_msg(strstr(err.text, "/dev/full") != NULL, "%s", err.text);
}
END_TEST

/* -- a store whose peers die ------------------------------------------------------------------ */

/* A store that passes all calls on to the local store, except that the @fail_at-th fallible call
 * fails. */
struct dying {
    struct gpt_store head;
    struct gpt_store *inner;
    uint64_t calls, fail_at;
    int status;     /* status of the failing calls */
    bool void_step; /* the step is void, and all calls fail until the next sync */
    unsigned n_syncs;
};

static struct dying *self(struct gpt_store *store)
{
    return (struct dying *)(void *)store;
}

static int pass_or_die(struct dying *d, struct cst_err *err)
{
    d->void_step = d->void_step || ++d->calls == d->fail_at;
    return d->void_step ? cst_err_set(err, d->status, "a peer died") : 0;
}

static bool dying_initialised(const struct gpt_store *store)
{
    const struct dying *d = (const struct dying *)(const void *)store;

    return d->inner->ops->initialised(d->inner);
}

static uint64_t dying_steps(const struct gpt_store *store)
{
    const struct dying *d = (const struct dying *)(const void *)store;

    return d->inner->ops->steps(d->inner);
}

static int dying_sync(struct gpt_store *store, uint64_t *step, struct cst_err *err)
{
    struct dying *d = self(store);

    d->void_step = false;
    d->n_syncs++;
    return d->inner->ops->sync(d->inner, step, err);
}

static int dying_op_begin(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                          struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    struct dying *d = self(store);
    int rc = pass_or_die(d, err);

    return rc != 0 ? rc : d->inner->ops->op_begin(d->inner, op, direction, io, n_io, err);
}

static int dying_op_end(struct gpt_store *store, uint32_t op, struct cst_err *err)
{
    struct dying *d = self(store);
    int rc = pass_or_die(d, err);

    return rc != 0 ? rc : d->inner->ops->op_end(d->inner, op, err);
}

static int dying_step(struct gpt_store *store, const struct cst_hyper_params *params,
                      struct cst_step_result *result, struct cst_err *err)
{
    struct dying *d = self(store);
    int rc = pass_or_die(d, err);

    return rc != 0 ? rc : d->inner->ops->step(d->inner, params, result, err);
}

static int dying_read(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                      uint64_t first, uint64_t n_elems, void *data, struct cst_err *err)
{
    struct dying *d = self(store);

    return d->inner->ops->read(d->inner, tensor, state, first, n_elems, data, err);
}

static int dying_write(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                       uint64_t first, uint64_t n_elems, const void *data, struct cst_err *err)
{
    struct dying *d = self(store);

    return d->inner->ops->write(d->inner, tensor, state, first, n_elems, data, err);
}

static int dying_stat(struct gpt_store *store, struct cst_rank_stat *out, struct cst_err *err)
{
    struct dying *d = self(store);

    return d->inner->ops->stat(d->inner, out, err);
}

static const struct gpt_store_ops dying_ops = {
    .name = "dying",
    .initialised = dying_initialised,
    .steps = dying_steps,
    .sync = dying_sync,
    .op_begin = dying_op_begin,
    .op_end = dying_op_end,
    .step = dying_step,
    .read = dying_read,
    .write = dying_write,
    .stat = dying_stat,
};

/* Train two steps on a store that fails at call @fail_at. Returns the number of calls. */
static uint64_t train_dying(const struct gpt_options *o, uint64_t fail_at, int status,
                            unsigned n_syncs)
{
    struct dying d = {.head.ops = &dying_ops, .fail_at = fail_at, .status = status};
    struct gpt_device *device;
    struct gpt_model model;
    struct gpt_texts texts = {0};
    struct cst_err err = {0};

    ck_assert_int_eq(gpt_model_init(&model, o, &err), 0);
    ck_assert_int_eq(gpt_data_open(&texts.train, o->data, o->tokens, o->vocab, o->context, &err),
                     0);
    ck_assert_int_eq(gpt_device_open(&device, o, &err), 0);
    ck_assert_int_eq(device->ops->open_states(device, &model, &err), 0);
    ck_assert_int_eq(device->ops->open_store(device, 0, &d.inner, &err), 0);
    ck_assert_msg(gpt_train(o, &model, &texts, device, &d.head, NULL, 0, &err) == 0, "%s",
                  err.text);
    ck_assert_uint_eq(d.n_syncs, n_syncs);
    d.inner->ops->close(d.inner, true);
    device->ops->close(device);
    gpt_data_close(&texts.train);
    gpt_model_close(&model);
    return d.calls;
}

/* Whichever call of a step fails because a peer died, the step is repeated, and weights and losses
 * are those of an undisturbed run. */
START_TEST(void_steps_are_done_again)
{
    struct gpt_options calm = small_run("--steps 2 --layers 1", 0, "calm");
    struct gpt_options wild = small_run("--steps 2 --layers 1", 1, "wild");
    const uint64_t n_calls = train_dying(&calm, 0, 0, 1);

    ck_assert_uint_gt(n_calls, 20);
    for (uint64_t at = 1; at <= n_calls; at++) {
        (void)train_dying(&wild, at, at % 2 == 0 ? CST_EPEERDIED : CST_ESTALE, 2);
        assert_same_file(calm.dump_weights, wild.dump_weights);
        assert_same_file(calm.loss_file, wild.loss_file);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("training");
    TCase *tcase = suite_case(suite, "training", NULL, NULL);

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, runs_are_equal_bit_for_bit);
    tcase_add_test(tcase, seeds_differ);
    tcase_add_test(tcase, loss_falls_and_is_logged);
    tcase_add_test(tcase, unwritable_files_are_told);
    tcase_add_test(tcase, void_steps_are_done_again);
    return suite_run(suite);
}
