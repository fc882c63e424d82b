/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of readers of weights: what they see, byte for byte, how long, and what they cannot do. A
 * step without gradients changes the weights by their decay. */
#include "cistern/cistern.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"
#include "tests/lib/user.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_TENSORS = 4, ELEMS = 5000 };

static struct cst_client *client;
static struct cst_job *job;
static struct cst_reader *reader;
static struct cst_err err;

static const struct {
    const char *name;
    enum cst_dtype dtype;
    enum cst_pattern_kind pattern;
} tensors[N_TENSORS] = {
    {"bf16", CST_BF16, CST_PATTERN_SHARD},
    {"frozen", CST_BF16, CST_PATTERN_FROZEN},
    {"fp32", CST_FP32, CST_PATTERN_SHARD},
    {"more", CST_BF16, CST_PATTERN_SHARD},
};

static void must(int rc)
{
    ck_assert_msg(rc == CST_OK, "%s: %s", cst_status_name(rc), err.text);
}

static void open_job(const struct cst_job_spec *spec)
{
    const int64_t n = ELEMS;
    float master[ELEMS];

    must(cst_connect(&client, proc.socket, &err));
    must(cst_job_open(&job, client, spec, &err));
    for (int i = 0; i < N_TENSORS; i++) {
        const struct cst_tensor_spec what = {.name = tensors[i].name,
                                             .dtype = tensors[i].dtype,
                                             .n_dims = 1,
                                             .shape = &n,
                                             .pattern = tensors[i].pattern,
                                             .lr_scale = 1.0f,
                                             .decay_scale = 1.0f};
        int t = cst_tensor_as(job, &what);

        ck_assert_int_eq(t, i);
        ck_assert_int_ge(cst_operator(job, tensors[i].name, &t, 1), 0);
    }
    must(cst_commit(job, NULL, &err));
    for (int i = 0; i < N_TENSORS && !cst_job_initialised(job); i++) {
        for (int k = 0; k < ELEMS; k++) {
            master[k] = (float)(k % 997 + 7 * i + 1) / 64;
        }
        must(cst_tensor_write(job, i, CST_STATE_MASTER, 0, ELEMS, master, &err));
    }
    must(cst_sync(job, NULL, &err));
}

static const struct cst_hyper_params decays = {.lr = 0.125, .weight_decay = 0.5};

static void step(void)
{
    must(cst_step(job, &decays, NULL, &err));
}

/* The newest version after @after, or the newest one. */
static struct cst_reader_version next_of(struct cst_reader *from, bool any, uint64_t after,
                                         bool keep)
{
    const struct cst_reader_wish wish = {.any = any, .after = after, .keep = keep};
    struct cst_reader_version version;

    must(cst_reader_next(from, &wish, patience_ms(20000), &version, &err));
    return version;
}

static struct cst_reader_version next(bool any, uint64_t after, bool keep)
{
    return next_of(reader, any, after, keep);
}

/* The version has the weights that the job has now. */
static void check_weights(const struct cst_reader_version *version)
{
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const struct cst_reader_tensor *tensor = cst_reader_tensor(reader, i);
        char weights[ELEMS * 4];

        ck_assert_str_eq(tensor->name, tensors[i].name);
        ck_assert_int_eq(cst_reader_find(reader, tensors[i].name), (int)i);
        ck_assert_uint_eq(tensor->bytes, (tensors[i].dtype == CST_FP32 ? 4 : 2) * (uint64_t)ELEMS);
        ck_assert(tensor->frozen == (tensors[i].pattern == CST_PATTERN_FROZEN));
        must(cst_tensor_read(job, (int)i, CST_STATE_WEIGHT, 0, ELEMS, weights, &err));
        ck_assert_mem_eq(cst_reader_weights(reader, version, i), weights, tensor->bytes);
    }
    must(cst_reader_check(reader, version, &err));
}

static void close_all(void)
{
    cst_reader_close(reader);
    reader = NULL;
    must(cst_job_leave(job, &err));
    cst_disconnect(client);
    settle_remove_jobs(&witness);
}

/* Formats and times of updates, with one version and with two. */
static struct cst_job_spec spec_of(int i)
{
    struct cst_job_spec spec = {
        .name = "read", .world = 1, .limits.timeout_ms = (uint32_t)patience_ms(20000)};

    spec.states.versions = i % 2 == 0 ? 0 : 2;
    spec.states.masters = i / 2 % 2 == 0 ? CST_MASTERS_FP32 : CST_MASTERS_SPLIT;
    spec.updates.overlap = (enum cst_overlap)(i / 4);
    return spec;
}

/* Each version has the bytes of its step, and lasts as long as was said. */
START_TEST(versions)
{
    const struct cst_job_spec spec = spec_of(_i);
    const bool two = spec.states.versions == 2 || spec.updates.overlap != CST_OVERLAP_COMMIT;
    struct cst_reader_version held, last;

    open_job(&spec);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    ck_assert_uint_eq(cst_reader_count(reader), N_TENSORS);
    ck_assert_uint_eq(cst_reader_versions(reader), two ? 2 : 1);
    ck_assert_int_eq(cst_reader_find(reader, "none"), -1);
    last = next(true, 0, false);
    ck_assert_uint_eq(last.step, 0);
    check_weights(&last);
    for (uint64_t s = 1; s <= 6; s++) {
        held = last;
        step();
        last = next(false, s - 1, false);
        ck_assert_uint_eq(last.step, s);
        check_weights(&last);
        ck_assert_int_eq(cst_reader_check(reader, &held, &err), two ? CST_OK : CST_ESTALE);
        ck_assert_int_eq(cst_reader_check(reader, &last, &err), CST_OK);
        must(cst_reader_release(reader, &held, &err));
    }
    step();
    step();
    held = next(false, 7, false);
    ck_assert_int_eq(cst_reader_check(reader, &last, &err), CST_ESTALE);
    ck_assert_msg(strstr(err.text, "after step 6") != NULL, "%s", err.text);
    must(cst_reader_release(reader, &last, &err));
    ck_assert_int_eq(cst_reader_release(reader, &last, &err), CST_EINVAL);
    ck_assert_int_eq(cst_reader_check(reader, &last, &err), CST_EINVAL);
    must(cst_reader_release(reader, &held, &err));
    close_all();
}
END_TEST

/* A step waits for a reader that keeps the version which it overwrites. */
START_TEST(steps_wait)
{
    const struct cst_job_spec spec = spec_of(_i);
    const bool two = spec.states.versions == 2 || spec.updates.overlap != CST_OVERLAP_COMMIT;
    struct cst_reader_version kept, last;

    open_job(&spec);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    kept = next(true, 0, true);
    for (uint64_t s = 0; two && s < 1; s++) {
        step();
        last = next(false, s, false);
        must(cst_reader_release(reader, &last, &err));
    }
    ck_assert_int_eq(cst_try_step(job, &decays, NULL, &err), CST_EAGAIN);
    must(cst_reader_check(reader, &kept, &err));
    ck_assert_int_eq(cst_try_step(job, &decays, NULL, &err), CST_EAGAIN);
    must(cst_reader_release(reader, &kept, &err));
    step();
    last = next(false, two ? 1 : 0, false);
    check_weights(&last);
    close_all();
}
END_TEST

/* A reader that dies, or is slower than the time limit of the job, does not hold it up. */
START_TEST(readers_do_not_hold_a_job_up)
{
    const struct cst_job_spec spec = {
        .name = "read", .world = 1, .limits.timeout_ms = _i == 0 ? 200 : 0};
    struct cst_reader_version kept;

    open_job(&spec);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    kept = next(true, 0, true);
    if (_i == 0) {
        step();
        ck_assert_int_eq(cst_reader_check(reader, &kept, &err), CST_ESTALE);
    } else {
        ck_assert_int_eq(cst_try_step(job, &decays, NULL, &err), CST_EAGAIN);
        cst_reader_close(reader);
        reader = NULL;
        step();
    }
    close_all();
}
END_TEST

/* What is written between steps is part of the next version. A version that has it is lost, also
 * one that is kept; of a frozen tensor, all have it. */
START_TEST(writes)
{
    const struct cst_job_spec spec = {.name = "read", .world = 1, .states.versions = 2};
    const struct cst_reader_wish any = {.any = true};
    const float value = 3;
    struct cst_reader_version before, held;

    open_job(&spec);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    before = next(true, 0, true);
    step();
    held = next(false, 0, true);
    must(cst_tensor_write(job, 0, CST_STATE_MASTER, 0, 1, &value, &err));
    ck_assert_int_eq(cst_reader_check(reader, &held, &err), CST_ESTALE);
    must(cst_reader_check(reader, &before, &err));
    must(cst_tensor_write(job, 1, CST_STATE_MASTER, 0, 1, &value, &err));
    ck_assert_int_eq(cst_reader_check(reader, &before, &err), CST_ESTALE);
    must(cst_reader_release(reader, &held, &err));
    must(cst_reader_release(reader, &before, &err));
    ck_assert_int_eq(cst_reader_next(reader, &any, 10, &held, &err), CST_ETIMEDOUT);
    step();
    held = next(true, 0, false);
    ck_assert_uint_eq(held.step, 2);
    check_weights(&held);
    close_all();
}
END_TEST

/* A load of an earlier step leaves no version of the steps after it. */
START_TEST(earlier_steps)
{
    const struct cst_job_spec spec = {.name = "read", .world = 1, .states.versions = 2};
    const float value = 3;
    struct cst_reader_version held;

    open_job(&spec);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    for (int s = 0; s < 4; s++) {
        step();
    }
    held = next(false, 3, true);
    must(cst_tensor_write(job, 0, CST_STATE_MASTER, 0, 1, &value, &err));
    must(cst_set_steps(job, 1, 0, NULL, &err));
    ck_assert_int_eq(cst_reader_check(reader, &held, &err), CST_ESTALE);
    held = next(true, 0, false);
    ck_assert_uint_eq(held.step, 1);
    check_weights(&held);
    close_all();
}
END_TEST

/* A reader that keeps the newest version again and again does not prolong the wait for another. */
START_TEST(others_do_not_prolong_a_wait)
{
    const struct cst_job_spec spec = {
        .name = "read", .world = 1, .states.versions = 2, .limits.timeout_ms = 500};
    struct cst_reader_version kept, newest;
    int rc = CST_EAGAIN;

    open_job(&spec);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    kept = next(true, 0, true);
    step();
    for (int i = 0; i < 1000000 && rc == CST_EAGAIN; i++) {
        rc = cst_try_step(job, &decays, NULL, &err);
        if (rc == CST_EAGAIN) {
            newest = next(true, 0, true);
            must(cst_reader_release(reader, &newest, &err));
        }
    }
    must(rc);
    ck_assert_int_eq(cst_reader_check(reader, &kept, &err), CST_ESTALE);
    close_all();
}
END_TEST

/* Wrong or impossible requests have an error and change nothing. */
START_TEST(refusals)
{
    const struct cst_job_spec spec = {.name = "read", .world = 1};
    const struct cst_reader_wish later = {.after = 5}, any = {.any = true};
    struct cst_reader_version held[5], none;

    open_job(&spec);
    ck_assert_int_eq(cst_reader_open(&reader, proc.socket, "none", &err), CST_ENOTFOUND);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    ck_assert_int_eq(cst_reader_next(reader, &later, 10, &none, &err), CST_ETIMEDOUT);
    ck_assert_int_eq(cst_reader_next(reader, &later, 0, &none, &err), CST_ETIMEDOUT);
    for (int i = 0; i < 4; i++) {
        must(cst_reader_next(reader, &any, 0, &held[i], &err));
    }
    ck_assert_int_eq(cst_reader_next(reader, &any, 0, &none, &err), CST_EBUSY);
    must(cst_reader_release(reader, &held[2], &err));
    must(cst_reader_next(reader, &any, 0, &held[4], &err));
    close_all();
}
END_TEST

/* The memory cannot be made writable. */
START_TEST(readers_cannot_write)
{
    const struct cst_job_spec spec = {.name = "read", .world = 1};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct cst_reader_version held;
    uintptr_t at;

    open_job(&spec);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    held = next(true, 0, false);
    at = (uintptr_t)cst_reader_weights(reader, &held, 0);
    ck_assert_int_eq(mprotect((void *)(at - at % page), page, PROT_READ | PROT_WRITE), -1);
    ck_assert_int_eq(errno, EACCES);
    close_all();
}
END_TEST

/* The end of the job ends its readers, and their mappings hold no memory of it. */
START_TEST(ends)
{
    const struct cst_job_spec spec = {.name = "read", .world = 1};
    const struct cst_reader_wish later = {.after = 5}, any = {.any = true};
    struct cst_reader_version held;

    open_job(&spec);
    must(cst_reader_open(&reader, proc.socket, "read", &err));
    held = next(true, 0, false);
    ck_assert_int_eq(raw_job_remove(&witness, "read"), CST_OK);
    ck_assert_int_eq(cst_reader_check(reader, &held, &err), CST_ENOTFOUND);
    ck_assert_int_eq(cst_reader_next(reader, &later, -1, &held, &err), CST_ENOTFOUND);
    ck_assert_int_eq(cst_reader_next(reader, &any, -1, &held, &err), CST_ENOTFOUND);
    cst_reader_close(reader);
    reader = NULL;
    cst_disconnect(client);
}
END_TEST

START_TEST(gradients_in_the_place_of_weights)
{
    const struct cst_job_spec spec = {.name = "read", .world = 1, .states.grad_over_weight = true};

    open_job(&spec);
    ck_assert_int_eq(cst_reader_open(&reader, proc.socket, "read", &err), CST_EUNSUPPORTED);
    close_all();
}
END_TEST

/* A job of adapters: the frozen weights of its base are read through it. */
START_TEST(base)
{
    const struct cst_job_spec spec = {.name = "read", .world = 1}, policy = {.name = "policy",
                                                                             .world = 1,
                                                                             .model.base = "read",
                                                                             .states.versions = 2};
    const int64_t n = ELEMS;
    struct cst_reader_version held;
    char weights[ELEMS * 2];
    float master[ELEMS];
    int t[2];

    open_job(&spec);
    must(cst_tensor_read(job, 1, CST_STATE_WEIGHT, 0, ELEMS, weights, &err));
    must(cst_job_leave(job, &err));
    cst_disconnect(client);
    must(cst_connect(&client, proc.socket, &err));
    must(cst_job_open(&job, client, &policy, &err));
    for (int i = 0; i < 2; i++) {
        const struct cst_tensor_spec what = {.name = tensors[i].name,
                                             .dtype = tensors[i].dtype,
                                             .n_dims = 1,
                                             .shape = &n,
                                             .pattern = tensors[i].pattern,
                                             .lr_scale = 1.0f,
                                             .decay_scale = 1.0f};

        t[i] = cst_tensor_as(job, &what);
        ck_assert_int_ge(cst_operator(job, tensors[i].name, &t[i], 1), 0);
    }
    must(cst_commit(job, NULL, &err));
    for (int k = 0; k < ELEMS; k++) {
        master[k] = (float)k;
    }
    must(cst_tensor_write(job, t[0], CST_STATE_MASTER, 0, ELEMS, master, &err));
    must(cst_sync(job, NULL, &err));
    must(cst_reader_open(&reader, proc.socket, "policy", &err));
    for (uint64_t s = 1; s < 4; s++) {
        step();
        held = next(false, s - 1, false);
        ck_assert_mem_eq(cst_reader_weights(reader, &held, 1), weights, sizeof weights);
        must(cst_reader_release(reader, &held, &err));
    }
    close_all();
}
END_TEST

/* A process of another user cannot read the job. */
START_TEST(other_users)
{
    const struct cst_job_spec spec = {.name = "read", .world = 1};
    int status;
    pid_t pid;

    user_admit(&proc);
    open_job(&spec);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        user_become(USER_ALICE);
        _exit(cst_reader_open(&reader, proc.socket, "read", &err) == CST_ENOTFOUND ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    close_all();
}
END_TEST

int main(int argc, char **argv)
{
    const char *lacks = argc > 0 ? user_lacks(argv) : NULL;
    Suite *suite = suite_create("reader");
    TCase *tcase = suite_case(suite, "reader", job_rig_setup, job_rig_teardown);

    tcase_add_loop_test(tcase, versions, 0, 12);
    tcase_add_loop_test(tcase, steps_wait, 0, 12);
    tcase_add_loop_test(tcase, readers_do_not_hold_a_job_up, 0, 2);
    tcase_add_test(tcase, writes);
    tcase_add_test(tcase, earlier_steps);
    tcase_add_test(tcase, others_do_not_prolong_a_wait);
    tcase_add_test(tcase, refusals);
    tcase_add_test(tcase, readers_cannot_write);
    tcase_add_test(tcase, ends);
    tcase_add_test(tcase, gradients_in_the_place_of_weights);
    tcase_add_test(tcase, base);
    if (lacks == NULL) {
        tcase_add_test(tcase, other_users);
    } else {
        printf("not tested: readers of other users: %s\n", lacks);
    }
    return suite_run(suite);
}
