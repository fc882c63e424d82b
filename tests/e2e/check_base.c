/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs that share the frozen tensors of a base job: there is one copy, counted once, that
 * all jobs read and none writes, and the base job stays as long as they use it. After every test
 * the daemon has its initial number of descriptors and bytes in use. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct train_report *reports[TRAIN_MAX_WORLD];
static const struct train_bad none = {.step = TRAIN_NEVER};

static void setup(void)
{
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        reports[r] = train_report_new();
    }
    job_rig_setup();
}

static void teardown(void)
{
    settle_balanced(&witness);
    settle_remove_jobs(&witness);
    job_rig_teardown();
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        train_report_free(reports[r]);
    }
}

struct client {
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err;
};

static int open_job(struct client *c, const char *name, const char *base)
{
    struct cst_job_spec spec = {.name = name, .world = 1, .model.base = base};

    memset(c, 0, sizeof *c);
    ck_assert_int_eq(cst_connect(&c->client, proc.socket, &c->err), CST_OK);
    return cst_job_open(&c->job, c->client, &spec, &c->err);
}

static int declare(const struct client *c, const char *name, int64_t n,
                   enum cst_pattern_kind pattern)
{
    const struct cst_tensor_spec spec = {.name = name,
                                         .dtype = CST_BF16,
                                         .n_dims = 1,
                                         .shape = &n,
                                         .pattern = pattern,
                                         .lr_scale = 1.0f,
                                         .decay_scale = 1.0f};
    int tensor = cst_tensor_as(c->job, &spec);

    ck_assert_int_ge(tensor, 0);
    ck_assert_int_ge(cst_operator(c->job, name, &tensor, 1), 0);
    return tensor;
}

/* Write a tensor's initial weights as train_model.c defines them. */
static void write_start(struct client *c, int tensor, const struct train_tensor *from)
{
    float *master = malloc(from->n_elems * sizeof *master);

    ck_assert_ptr_nonnull(master);
    for (uint64_t i = 0; i < from->n_elems; i++) {
        master[i] = train_start(from->start + i);
    }
    ck_assert_int_eq(
        cst_tensor_write(c->job, tensor, CST_STATE_MASTER, 0, from->n_elems, master, &c->err),
        CST_OK);
    free(master);
}

/* Make job "base" with the frozen tensors of the mixture for @world ranks, in another order and
 * with further tensors, one of which is trained. Its worker leaves. */
static void make_base(uint32_t world)
{
    struct train_model model;
    const struct train_tensor *frozen, *tiny;
    struct client c;
    int tensors[2];

    train_mixture(&model, world);
    frozen = &model.tensors[train_find(&model, "frozen")];
    tiny = &model.tensors[train_find(&model, "tiny")];
    ck_assert_int_eq(open_job(&c, "base", NULL), CST_OK);
    tensors[0] = declare(&c, "tiny", (int64_t)tiny->n_elems, CST_PATTERN_FROZEN);
    (void)declare(&c, "more", 3000, CST_PATTERN_FROZEN);
    (void)declare(&c, "head", 200, CST_PATTERN_SHARD);
    tensors[1] = declare(&c, "frozen", (int64_t)frozen->n_elems, CST_PATTERN_FROZEN);
    ck_assert_msg(cst_commit(c.job, NULL, &c.err) == CST_OK, "%s", c.err.text);
    write_start(&c, tensors[0], tiny);
    write_start(&c, tensors[1], frozen);
    ck_assert_int_eq(cst_sync(c.job, NULL, &c.err), CST_OK);
    ck_assert_int_eq(cst_job_leave(c.job, &c.err), CST_OK);
    cst_disconnect(c.client);
}

static pid_t start(const char *name, uint32_t rank, uint32_t world, uint64_t n_steps,
                   uint32_t report)
{
    const struct train_order order = {.socket = proc.socket,
                                      .name = name,
                                      .base = "base",
                                      .mixture = true,
                                      .bad = none,
                                      .rank = rank,
                                      .world = world,
                                      .micro_batches = 2,
                                      .n_steps = n_steps,
                                      .die_at = UINT32_MAX,
                                      .kill_at = UINT32_MAX};

    memset(reports[report], 0, sizeof *reports[report]);
    return train_worker_start(&order, reports[report]);
}

/* Two jobs of two ranks train on one base job at a time; each has the expected states, to the
 * bit. */
START_TEST(two_jobs_train_on_one_base)
{
    pid_t pids[4];

    make_base(2);
    for (uint32_t r = 0; r < 4; r++) {
        pids[r] = start(r < 2 ? "one" : "two", r % 2, 2, 3, r);
    }
    for (uint32_t r = 0; r < 4; r++) {
        train_worker_join(pids[r], reports[r]);
    }
    train_check(reports, 2, 0, 3, none);
    train_check(reports + 2, 2, 0, 3, none);
}
END_TEST

/* An engine that dies loses its mapping of the base job, and the next one maps it again. _i: with
 * two jobs, the point at which the engine is killed. */
START_TEST(an_engine_dies)
{
    struct train_order order = {.socket = proc.socket,
                                .name = "killer",
                                .base = "base",
                                .mixture = true,
                                .bad = none,
                                .world = 1,
                                .micro_batches = 1,
                                .n_steps = 2,
                                .die_at = UINT32_MAX};
    pid_t pid;

    make_base(1);
    order.kill_at = 5 + 7 * (uint32_t)_i;
    order.victim = raw_stat(&witness)->engines[0]->pid;
    pid = train_worker_start(&order, reports[0]);
    train_worker_join(pid, reports[0]);
    train_check(reports, 1, 0, 2, none);
    ck_assert_uint_eq(raw_stat(&witness)->engines[0]->restarts, 1);
}
END_TEST

/* Frozen tensors take 2 bytes per parameter in the base job, and none in a job that uses them, by
 * the jobs' statistics and by the daemon's budget. */
START_TEST(bytes_are_counted_once)
{
    const Cistern__JobInfo *info;
    uint64_t before, without, with, used;
    struct client c;

    ck_assert_int_eq(open_job(&c, "base", NULL), CST_OK);
    (void)declare(&c, "big", 1 << 20, CST_PATTERN_FROZEN);
    ck_assert_int_eq(cst_commit(c.job, NULL, &c.err), CST_OK);
    ck_assert_int_eq(cst_sync(c.job, NULL, &c.err), CST_OK);
    ck_assert_int_eq(cst_job_leave(c.job, &c.err), CST_OK);
    cst_disconnect(c.client);
    info = raw_job_info(&witness, "base");
    ck_assert_uint_ge(info->arena_bytes, 2 << 20);
    ck_assert_uint_lt(info->arena_bytes, (2 << 20) + 65536);
    for (int i = 0; i < 2; i++) {
        before = raw_stat(&witness)->host_used;
        ck_assert_int_eq(open_job(&c, i == 0 ? "without" : "with", i == 0 ? NULL : "base"), CST_OK);
        (void)declare(&c, "big", 1 << 20, CST_PATTERN_FROZEN);
        (void)declare(&c, "adapter", 4096, CST_PATTERN_SHARD);
        ck_assert_int_eq(cst_commit(c.job, NULL, &c.err), CST_OK);
        used = raw_stat(&witness)->host_used - before;
        info = raw_job_info(&witness, i == 0 ? "without" : "with");
        *(i == 0 ? &without : &with) = info->arena_bytes;
        /* The budget is also charged for what the daemon needs to save the job (upkeep.h). */
        ck_assert_uint_ge(used, info->arena_bytes);
        ck_assert_uint_lt(used, info->arena_bytes + (2 << 20));
        ck_assert_uint_eq(info->base_bytes, i == 0 ? 0 : 2 << 20);
        cst_disconnect(c.client);
    }
    ck_assert_uint_eq(without, with + (2 << 20));
}
END_TEST

/* The base job cannot be removed while a job uses it, and the error names that job. Afterwards it
 * can, and all memory is free. */
START_TEST(a_base_stays_as_long_as_it_is_used)
{
    struct client users[2];
    const Cistern__JobInfo *info;

    make_base(1);
    ck_assert_int_eq(open_job(&users[0], "one", "base"), CST_OK);
    ck_assert_int_eq(open_job(&users[1], "two", "base"), CST_OK);
    ck_assert_int_eq(raw_job_remove(&witness, "base"), CST_EBUSY);
    raw_says(&witness, "job 'base' cannot be removed: it is the base of jobs 'one', 'two'");
    info = raw_job_info(&witness, "base");
    ck_assert_uint_eq(info->n_users, 2);
    ck_assert_str_eq(info->users[1], "two");
    ck_assert_str_eq(raw_job_info(&witness, "two")->base_job, "base");
    /* A worker removes its own job. */
    ck_assert_int_eq(cst_job_remove(users[0].client, "one", &users[0].err), CST_OK);
    ck_assert_int_eq(cst_job_remove(users[0].client, "one", &users[0].err), CST_ENOTFOUND);
    ck_assert_int_eq(cst_job_remove(users[0].client, "base", &users[0].err), CST_EBUSY);
    ck_assert_ptr_nonnull(strstr(users[0].err.text, "it is the base of job 'two'"));
    ck_assert_int_eq(cst_job_leave(users[0].job, &users[0].err), CST_ENOTFOUND);
    (void)declare(&users[1], "frozen", 5000, CST_PATTERN_FROZEN);
    ck_assert_int_eq(cst_commit(users[1].job, NULL, &users[1].err), CST_OK);
    ck_assert_int_eq(raw_job_remove(&witness, "two"), CST_OK);
    ck_assert_int_eq(raw_job_remove(&witness, "base"), CST_OK);
    ck_assert_uint_eq(raw_stat(&witness)->host_used, 0);
    cst_disconnect(users[0].client);
    cst_disconnect(users[1].client);
}
END_TEST

/* A base job whose ttl is over stays as long as a job uses it, and that job can read its
 * tensors. */
START_TEST(a_base_outlives_its_time)
{
    struct cst_job_spec spec = {.name = "base", .world = 1, .limits.ttl_s = 1};
    struct client base = {0}, user;
    uint16_t weight[4] = {1, 2, 3, 4}, got[4] = {0};

    ck_assert_int_eq(cst_connect(&base.client, proc.socket, &base.err), CST_OK);
    ck_assert_int_eq(cst_job_open(&base.job, base.client, &spec, &base.err), CST_OK);
    (void)declare(&base, "frozen", 4, CST_PATTERN_FROZEN);
    ck_assert_int_eq(cst_commit(base.job, NULL, &base.err), CST_OK);
    ck_assert_int_eq(cst_tensor_write(base.job, 0, CST_STATE_WEIGHT, 0, 4, weight, &base.err),
                     CST_OK);
    ck_assert_int_eq(cst_sync(base.job, NULL, &base.err), CST_OK);
    ck_assert_int_eq(open_job(&user, "user", "base"), CST_OK);
    ck_assert_int_eq(cst_job_leave(base.job, &base.err), CST_OK);
    cst_disconnect(base.client);
    while (raw_job_info(&witness, "base")->idle_s < 1.5) { /* the timer has expired by then */
        (void)poll(NULL, 0, 20);
    }
    (void)declare(&user, "frozen", 4, CST_PATTERN_FROZEN);
    ck_assert_int_eq(cst_commit(user.job, NULL, &user.err), CST_OK);
    ck_assert_int_eq(cst_tensor_read(user.job, 0, CST_STATE_WEIGHT, 0, 4, got, &user.err), CST_OK);
    ck_assert_mem_eq(got, weight, sizeof got);
    ck_assert_int_eq(raw_job_remove(&witness, "user"), CST_OK);
    cst_disconnect(user.client);
}
END_TEST

/* Shared tensors can be written neither by their users nor, meanwhile, in the base job. Other
 * tensors of the base job can. */
START_TEST(shared_tensors_are_not_written)
{
    struct client base, user;
    uint16_t weight[4] = {0};

    ck_assert_int_eq(open_job(&base, "base", NULL), CST_OK);
    (void)declare(&base, "frozen", 4, CST_PATTERN_FROZEN);
    (void)declare(&base, "head", 4, CST_PATTERN_SHARD);
    ck_assert_int_eq(cst_commit(base.job, NULL, &base.err), CST_OK);
    ck_assert_int_eq(cst_sync(base.job, NULL, &base.err), CST_OK);
    ck_assert_int_eq(open_job(&user, "user", "base"), CST_OK);
    (void)declare(&user, "frozen", 4, CST_PATTERN_FROZEN);
    ck_assert_int_eq(cst_commit(user.job, NULL, &user.err), CST_OK);
    ck_assert_int_eq(cst_tensor_write(user.job, 0, CST_STATE_WEIGHT, 0, 4, weight, &user.err),
                     CST_EDENIED);
    ck_assert_int_eq(cst_tensor_write(base.job, 0, CST_STATE_WEIGHT, 0, 4, weight, &base.err),
                     CST_EBUSY);
    ck_assert_str_eq(base.err.text,
                     "frozen tensor 'frozen' of job 'base' cannot be written: it is the "
                     "base of job 'user'");
    ck_assert_int_eq(cst_tensor_write(base.job, 1, CST_STATE_WEIGHT, 0, 4, weight, &base.err),
                     CST_OK);
    ck_assert_int_eq(raw_job_remove(&witness, "user"), CST_OK);
    ck_assert_int_eq(cst_tensor_write(base.job, 0, CST_STATE_WEIGHT, 0, 4, weight, &base.err),
                     CST_OK);
    cst_disconnect(base.client);
    cst_disconnect(user.client);
}
END_TEST

static void assert_refused(const char *name, const char *base, int status, const char *words)
{
    struct client c;

    ck_assert_int_eq(open_job(&c, name, base), status);
    ck_assert_msg(strstr(c.err.text, words) != NULL, "%s", c.err.text);
    cst_disconnect(c.client);
}

/* A base job is refused if it does not exist, is not initialised, is the job itself, or has a base
 * job of its own. */
START_TEST(bases_that_cannot_be)
{
    struct client empty, user;

    make_base(1);
    ck_assert_int_eq(open_job(&empty, "empty", NULL), CST_OK);
    ck_assert_int_eq(open_job(&user, "user", "base"), CST_OK);
    assert_refused("x", "nobody", CST_ENOTFOUND, "has no job 'nobody'");
    assert_refused("x", "x", CST_EINVAL, "job 'x' cannot be the base of itself");
    assert_refused("x", "empty", CST_EINVAL, "job 'empty' has no weights yet");
    assert_refused("x", "user", CST_EINVAL,
                   "job 'user' has a base of its own, 'base': use that one");
    cst_disconnect(empty.client);
    cst_disconnect(user.client);
}
END_TEST

/* A job that is being reshaped is refused as a base, because its end would remove its users. When
 * the rank that reshapes it has died, it is accepted again. */
START_TEST(a_base_that_is_reshaped)
{
    struct cst_job_spec spec = {.name = "base", .world = 2, .reshape = true};
    struct client next = {0}, user;

    make_base(1);
    ck_assert_int_eq(cst_connect(&next.client, proc.socket, &next.err), CST_OK);
    ck_assert_int_eq(cst_job_open(&next.job, next.client, &spec, &next.err), CST_OK);
    assert_refused("user", "base", CST_EBUSY,
                   "base of job 'user': job 'base' is being reshaped to 2 ranks");
    cst_disconnect(next.client);
    while (strcmp(raw_job_info(&witness, "base")->state, "reshaping") == 0) {
        (void)poll(NULL, 0, 1);
    }
    ck_assert_int_eq(open_job(&user, "user", "base"), CST_OK);
    cst_disconnect(user.client);
}
END_TEST

static void assert_commit_refused(const char *tensor, int64_t n, int status, const char *words)
{
    struct client c;

    ck_assert_int_eq(open_job(&c, "user", "base"), CST_OK);
    (void)declare(&c, tensor, n, CST_PATTERN_FROZEN);
    ck_assert_int_eq(cst_commit(c.job, NULL, &c.err), status);
    ck_assert_msg(strstr(c.err.text, words) != NULL, "%s", c.err.text);
    cst_disconnect(c.client);
    while (raw_job_info(&witness, "base")->n_users > 0) { /* the job goes with its connection */
        (void)poll(NULL, 0, 1);
    }
}

/* A job is refused if the base job lacks a frozen tensor, trains it, or has it in another shape. */
START_TEST(tensors_that_the_base_lacks)
{
    make_base(1);
    assert_commit_refused(
        "other", 10, CST_ENOTFOUND,
        "frozen tensor 'other' of job 'user': its base 'base' has no such tensor");
    assert_commit_refused("head", 200, CST_EINVAL,
                          "frozen tensor 'head' of job 'user' is trained in its base 'base'");
    assert_commit_refused(
        "frozen", 4999, CST_EMISMATCH,
        "frozen tensor 'frozen' of job 'user' has 4999 elements in 1 dimensions, in "
        "its base 'base' 5000 in 1: shapes differ");
}
END_TEST

/* Declare rows @first to @first + 4 of the matrix "w" of 8 rows as the frozen tensor @name. */
static void declare_rows(struct client *c, const char *name, int64_t first)
{
    const int64_t shape[2] = {4, 6}, whole[2] = {8, 6}, begin[2] = {first, 0};
    const struct cst_tensor_spec spec = {.name = name,
                                         .dtype = CST_BF16,
                                         .n_dims = 2,
                                         .shape = shape,
                                         .pattern = CST_PATTERN_FROZEN,
                                         .whole_name = "w",
                                         .whole_shape = whole,
                                         .first = begin};
    const int t = cst_tensor_as(c->job, &spec);

    ck_assert_msg(t >= 0, "%s", cst_job_error(c->job)->text);
    ck_assert_int_ge(cst_operator(c->job, name, &t, 1), 0);
}

/* Parts of a larger tensor are shared if they are the same in the base job, and refused if they are
 * others, or if the base has it whole. _i: whether the base has it whole. */
START_TEST(parts_of_a_base)
{
    const char *const words = _i == 0
                                  ? "frozen tensor 'top' of job 'user' is another part of a larger "
                                    "tensor than in its base 'base'"
                                  : "frozen tensor 'top' of job 'user': its base 'base' has 'w' "
                                    "whole, not this part of it";
    struct client base, user;
    uint16_t weight[24], got[24];

    for (uint16_t i = 0; i < 24; i++) {
        weight[i] = (uint16_t)(0x3f80 + i);
    }
    ck_assert_int_eq(open_job(&base, "base", NULL), CST_OK);
    if (_i == 0) {
        declare_rows(&base, "top", 0);
        declare_rows(&base, "bottom", 4);
    } else {
        (void)declare(&base, "w", 48, CST_PATTERN_FROZEN);
    }
    ck_assert_int_eq(cst_commit(base.job, NULL, &base.err), CST_OK);
    ck_assert_int_eq(cst_tensor_write(base.job, 0, CST_STATE_WEIGHT, 0, 24, weight, &base.err),
                     CST_OK);
    ck_assert_int_eq(cst_sync(base.job, NULL, &base.err), CST_OK);
    ck_assert_int_eq(open_job(&user, "user", "base"), CST_OK);
    declare_rows(&user, "top", _i == 0 ? 4 : 0);
    ck_assert_int_eq(cst_commit(user.job, NULL, &user.err),
                     _i == 0 ? CST_EMISMATCH : CST_ENOTFOUND);
    ck_assert_msg(strstr(user.err.text, words) != NULL, "%s", user.err.text);
    cst_disconnect(user.client);
    while (raw_job_info(&witness, "base")->n_users > 0) { /* the job goes with its connection */
        (void)poll(NULL, 0, 1);
    }
    if (_i == 0) {
        ck_assert_int_eq(open_job(&user, "user", "base"), CST_OK);
        declare_rows(&user, "top", 0);
        ck_assert_int_eq(cst_commit(user.job, NULL, &user.err), CST_OK);
        ck_assert_uint_gt(raw_job_info(&witness, "user")->base_bytes, 0);
        ck_assert_int_eq(cst_tensor_read(user.job, 0, CST_STATE_WEIGHT, 0, 24, got, &user.err),
                         CST_OK);
        ck_assert_mem_eq(got, weight, sizeof got);
        ck_assert_int_eq(raw_job_remove(&witness, "user"), CST_OK);
        cst_disconnect(user.client);
    }
    cst_disconnect(base.client);
}
END_TEST

/* The daemon refuses invalid options even if the client did not check them. */
START_TEST(specs_that_cannot_be)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;

    open.name = (char *)(uintptr_t) "user";
    open.world = 1;
    open.has_micro_batches = 1;
    open.micro_batches = 65537;
    ck_assert_int_eq(raw_call(&witness, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base), CST_EINVAL);
    raw_says(&witness, "micro_batches 65537 is not a number from 1 to 65536");
    open.micro_batches = 0; /* equivalent to 1 */
    open.base_job = (char *)(uintptr_t) "a/b";
    ck_assert_int_eq(raw_call(&witness, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base), CST_EINVAL);
    raw_says(&witness, "base_job 'a/b': the name of a job has 1 to 63");
    open.base_job = NULL;
    open.has_optimizer = 1;
    open.optimizer = 9;
    ck_assert_int_eq(raw_call(&witness, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base), CST_EINVAL);
    raw_says(&witness, "optimizer 9 is unknown, this version knows 0 to 4");
}
END_TEST

/* All ranks must name one base job and one number of micro-batches, when they open the job and when
 * they return. */
START_TEST(ranks_that_disagree)
{
    const struct {
        struct cst_job_spec spec;
        const char *words;
    } cases[] = {
        {{.name = "user", .rank = 1, .world = 2, .model.base = "base"},
         "job 'user' was opened with micro_batches 4, not 1 as rank 1 wants"},
        {{.name = "user", .rank = 1, .world = 2, .updates.micro_batches = 4},
         "job 'user' was opened with base 'base', not '' as rank 1 wants"},
        {{.name = "user", .rank = 1, .world = 2, .updates.micro_batches = 4, .model.base = "other"},
         "job 'user' was opened with base 'base', not 'other' as rank 1 wants"}};
    struct cst_job_spec first = {
        .name = "user", .world = 2, .updates.micro_batches = 4, .model.base = "base"};
    struct client c = {0}, other = {0};

    make_base(1);
    ck_assert_int_eq(cst_connect(&c.client, proc.socket, &c.err), CST_OK);
    ck_assert_int_eq(cst_job_open(&c.job, c.client, &first, &c.err), CST_OK);
    ck_assert_int_eq(cst_connect(&other.client, proc.socket, &other.err), CST_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(cst_job_open(&other.job, other.client, &cases[i].spec, &other.err),
                         CST_EMISMATCH);
        ck_assert_str_eq(other.err.text, cases[i].words);
    }
    cst_disconnect(other.client);
    cst_disconnect(c.client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *tcase = suite_case(suite, "base", setup, teardown);

    tcase_add_test(tcase, two_jobs_train_on_one_base);
    tcase_add_loop_test(tcase, an_engine_dies, 0, 6);
    tcase_add_test(tcase, bytes_are_counted_once);
    tcase_add_test(tcase, a_base_stays_as_long_as_it_is_used);
    tcase_add_test(tcase, a_base_outlives_its_time);
    tcase_add_test(tcase, shared_tensors_are_not_written);
    tcase_add_test(tcase, bases_that_cannot_be);
    tcase_add_test(tcase, a_base_that_is_reshaped);
    tcase_add_test(tcase, tensors_that_the_base_lacks);
    tcase_add_loop_test(tcase, parts_of_a_base, 0, 2);
    tcase_add_test(tcase, specs_that_cannot_be);
    tcase_add_test(tcase, ranks_that_disagree);
    return suite_run(suite);
}
