/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/job/declare: what ranks are told when they disagree, and that they can declare
 * again. */
#include "daemon/job/declare.h"
#include "offload/layout/model_bytes.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

enum { WORLD = 6 };

static struct cstd_worker workers[WORLD];
static struct cstd_job job;
static struct cstd_budget host;
static struct cstd_pending waiting; /* stands for a Commit that waits for the other ranks */
static struct cst_err err, broken;
static unsigned n_broken;

/* Do what daemon/job/commit.c does after a disagreement: the Commits that wait fail. */
static void disagree(struct cstd_worker *worker, const struct cst_err *why)
{
    if (!cstd_declare_drop(&job, worker, why)) {
        return;
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        n_broken += workers[r].commit != NULL;
        workers[r].commit = NULL;
    }
    broken = *why;
}

static void forget(uint32_t rank)
{
    struct cst_err why = {0};

    ck_assert_int_eq(cstd_declare_forget(&workers[rank], &why), CST_OK);
}

static void setup(void)
{
    memset(&job, 0, sizeof job);
    memset(workers, 0, sizeof workers);
    job.world = WORLD;
    job.workers = workers;
    job.state = CSTD_JOB_DECLARING;
    host = (struct cstd_budget){.name = "host memory", .limit = 1 << 20};
    job.declared.budget = &host;
    cst_model_init(&job.model);
    for (uint32_t r = 0; r < WORLD; r++) {
        workers[r] = (struct cstd_worker){.job = &job, .rank = r, .present = r < 3};
    }
    n_broken = 0;
}

static void teardown(void)
{
    ck_assert_uint_eq(host.used, job.declared.bytes);
    cstd_declare_close(&job);
    ck_assert_uint_eq(host.used, 0);
}

/* Do what the daemon does with a Declare of tensor @name with @n elements or, if @n is 0, of an
 * operator @name that uses @tensor. */
static int declare(uint32_t rank, const char *name, int64_t n, uint32_t tensor)
{
    Cistern__TensorDecl t = CISTERN__TENSOR_DECL__INIT, *ts = &t;
    Cistern__OperatorDecl o = CISTERN__OPERATOR_DECL__INIT, *os = &o;
    Cistern__Declare message = CISTERN__DECLARE__INIT;
    int rc;

    t.name = o.name = (char *)(uintptr_t)name;
    t.dtype = 1;
    t.shape = &n;
    t.n_shape = 1;
    o.tensors = &tensor;
    o.n_tensors = 1;
    message.n_tensors = n > 0;
    message.tensors = &ts;
    message.n_operators = n == 0;
    message.operators = &os;
    rc = cstd_declare(&workers[rank], &message, &err);
    if (rc == CST_EMISMATCH) {
        disagree(&workers[rank], &err);
    }
    return rc;
}

/* Declare operator @name over tensor 0, in @stage if @has_stage. */
static int declare_in_stage(uint32_t rank, const char *name, bool has_stage, uint32_t stage)
{
    Cistern__OperatorDecl o = CISTERN__OPERATOR_DECL__INIT, *os = &o;
    Cistern__Declare message = CISTERN__DECLARE__INIT;
    uint32_t tensor = 0;

    o.name = (char *)(uintptr_t)name;
    o.tensors = &tensor;
    o.n_tensors = 1;
    o.has_stage = has_stage;
    o.stage = stage;
    message.n_operators = 1;
    message.operators = &os;
    return cstd_declare(&workers[rank], &message, &err);
}

/* Declare tensor "a" of ten elements, with one external name. */
static int declare_external(uint32_t rank, const char *name, int64_t rows, bool has_rows)
{
    Cistern__TensorDecl t = CISTERN__TENSOR_DECL__INIT, *ts = &t;
    Cistern__Declare message = CISTERN__DECLARE__INIT;
    char *names[] = {(char *)(uintptr_t)name};
    int64_t shape = 10;

    t.name = (char *)(uintptr_t) "a";
    t.dtype = 1;
    t.shape = &shape;
    t.n_shape = 1;
    t.external_name = names;
    t.n_external_name = 1;
    t.external_rows = &rows;
    t.n_external_rows = has_rows;
    message.n_tensors = 1;
    message.tensors = &ts;
    return cstd_declare(&workers[rank], &message, &err);
}

/* Declare tensor "a" of ten elements, which differs in one property if @kind is not 0. */
static int declare_other(uint32_t rank, uint32_t kind)
{
    Cistern__TensorDecl t = CISTERN__TENSOR_DECL__INIT, *ts = &t;
    Cistern__Declare message = CISTERN__DECLARE__INIT;
    int64_t shape = kind == 1 ? 11 : 10;

    t.name = (char *)(uintptr_t) "a";
    t.dtype = kind == 2 ? CST_FP32 : CST_BF16;
    t.shape = &shape;
    t.n_shape = 1;
    t.has_pattern = true;
    t.pattern = kind == 3 ? CST_PATTERN_FROZEN : CST_PATTERN_SHARD;
    t.has_param_group = t.has_update = true;
    t.param_group = kind == 4;
    t.update = kind == 5 ? CST_TENSOR_UPDATE_ADAMW : CST_TENSOR_UPDATE_AUTO;
    message.n_tensors = 1;
    message.tensors = &ts;
    return cstd_declare(&workers[rank], &message, &err);
}

static int commit(uint32_t rank, uint32_t n_tensors, uint32_t n_operators)
{
    int rc = cstd_declare_check(&workers[rank], n_tensors, n_operators, &err);

    if (rc == CST_EMISMATCH) {
        disagree(&workers[rank], &err);
    } else if (rc == CST_OK) {
        workers[rank].commit = &waiting;
    }
    return rc;
}

static int declare_all(uint32_t rank, int64_t elems)
{
    int rc = declare(rank, "a", 10, 0);

    rc = rc == CST_OK ? declare(rank, "b", elems, 0) : rc;
    rc = rc == CST_OK ? declare(rank, "p", 0, 0) : rc;
    rc = rc == CST_OK ? declare(rank, "q", 0, 1) : rc;
    return rc == CST_OK ? commit(rank, 2, 2) : rc;
}

static void assert_says(const char *words)
{
    ck_assert_msg(strcmp(err.text, words) == 0, "'%s' where '%s' was expected", err.text, words);
}

/* If the last of three ranks disagrees, the ranks that wait are told at once with the same message.
 * Then any of them may declare first, either model. _i: which rank is first. */
START_TEST(all_are_told_and_begin_anew)
{
    const char *words = "tensor 'b': dimension 0 is 21 in rank 2 and 20 in ranks 0, 1";

    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare_all(1, 20), CST_OK);
    ck_assert_int_eq(declare_all(2, 21), CST_EMISMATCH);
    assert_says(words);
    ck_assert_uint_eq(n_broken, 2);
    ck_assert_str_eq(broken.text, words);
    ck_assert_int_eq(broken.status, CST_EMISMATCH);
    ck_assert_uint_eq(job.model.n_tensors, 0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(declare_all((i + (uint32_t)_i) % 3, _i == 0 ? 20 : 21), CST_OK);
    }
    ck_assert_uint_eq(job.model.n_tensors, 2);
    ck_assert_uint_eq(job.model.n_operators, 2);
    ck_assert_uint_eq(job.model.n_params, _i == 0 ? 30 : 31);
}
END_TEST

/* A rank that is still declaring gets the error with its next declaration, once, and then begins
 * again as well. */
START_TEST(who_declares_hears_it_next)
{
    ck_assert_int_eq(declare(0, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(2, "c", 10, 0), CST_EMISMATCH);
    assert_says("tensor 0 is 'c' in rank 2 and 'a' in ranks 0, 1");
    ck_assert_int_eq(_i == 0 ? declare(0, "b", 20, 0) : commit(0, 1, 0), CST_EMISMATCH);
    assert_says("tensor 0 is 'c' in rank 2 and 'a' in ranks 0, 1");
    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare_all(2, 20), CST_OK);
    /* Rank 1 hears late, and nobody else is affected. */
    ck_assert_int_eq(declare(1, "b", 20, 0), CST_EMISMATCH);
    ck_assert_uint_eq(n_broken, 0);
    ck_assert_int_eq(declare_all(1, 20), CST_OK);
}
END_TEST

/* If there are fewer, more or other operators, the error says what differs, with both sides. */
START_TEST(what_differs_is_named)
{
    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(1, "p", 0, 0), CST_OK);
    ck_assert_int_eq(commit(1, 1, 1), CST_EMISMATCH);
    assert_says("rank 1 declared 1 tensors, but rank 0 declared 2: 'b' is missing in rank 1");

    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(1, "b", 20, 0), CST_OK);
    ck_assert_int_eq(declare(1, "c", 5, 0), CST_EMISMATCH);
    assert_says("rank 1 declares tensor 'c' as number 2, but rank 0 committed 2 tensors");

    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(1, "b", 20, 0), CST_OK);
    ck_assert_int_eq(declare(1, "q", 0, 1), CST_EMISMATCH);
    assert_says("operator 0 is 'q' in rank 1 and 'p' in rank 0");

    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(1, "b", 20, 0), CST_OK);
    ck_assert_int_eq(declare(1, "p", 0, 1), CST_EMISMATCH);
    assert_says("operator 'p': its tensor 0 is number 1 in rank 1 and 0 in rank 0");
    ck_assert_uint_eq(n_broken, 4);
}
END_TEST

/* Of many ranks that agree, the error names the first four. */
START_TEST(many_ranks_are_counted)
{
    for (uint32_t r = 0; r < WORLD; r++) {
        workers[r].present = true;
        ck_assert_int_eq(declare(r, r == WORLD - 1 ? "z" : "a", 10, 0),
                         r == WORLD - 1 ? CST_EMISMATCH : CST_OK);
    }
    assert_says("tensor 0 is 'z' in rank 5 and 'a' in ranks 0, 1, 2, 3 and 1 more");
}
END_TEST

/* A rank that leaves takes with it what only this rank declared: its successor need not declare the
 * model of a dead rank. */
START_TEST(the_dead_do_not_disagree)
{
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(0, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(0, "b", 99, 0), CST_OK);
    ck_assert_int_eq(declare(0, "p", 0, 1), CST_OK);
    forget(0);
    ck_assert_uint_eq(job.model.n_tensors, 1);
    ck_assert_uint_eq(job.model.n_operators, 0);
    ck_assert_uint_eq(cst_model_find(&job.model, "b"), UINT32_MAX);
    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare(1, "b", 20, 0), CST_OK);
}
END_TEST

/* A rank that leaves takes its own declarations along. Those of the others are not made again,
 * however many they are. */
START_TEST(the_model_of_the_others_is_not_touched)
{
    const char *first;

    ck_assert_int_eq(declare(0, "a", 10, 0), CST_OK);
    first = job.model.tensors[0].name;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
        ck_assert_int_eq(declare(1, "b", 10, 0), CST_OK);
        forget(1);
        ck_assert_uint_eq(job.model.n_tensors, 1);
        ck_assert_ptr_eq(job.model.tensors[0].name, first);
        ck_assert_uint_eq(host.used, cst_model_bytes(&job.model));
    }
}
END_TEST

/* An operator of one rank uses a tensor that only another one declared, which leaves: all begin
 * again. */
START_TEST(a_tensor_that_others_use_ends_the_model)
{
    ck_assert_int_eq(declare(0, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(1, "b", 10, 0), CST_OK);
    ck_assert_int_eq(declare(0, "o", 0, 1), CST_OK);
    ck_assert_int_eq(cstd_declare_forget(&workers[1], &err), CST_EMISMATCH);
    ck_assert_uint_eq(job.model.n_tensors, 0);
    ck_assert_int_eq(declare(0, "b", 10, 0), CST_EMISMATCH);
    ck_assert_int_eq(declare_all(0, 20), CST_OK);
}
END_TEST

/* A copy has no names of files: two tensors that differ there alone can be copied. */
START_TEST(a_copy_has_no_names_of_files)
{
    static const char *const x = "x", *const y = "y";
    static const int64_t shape[] = {2}, whole[] = {4}, first[] = {0};
    const struct cst_tensor_words a = {.name = "a",
                                       .shape = shape,
                                       .n_dims = 1,
                                       .external_names = &x,
                                       .external_rows = shape,
                                       .n_external = 1},
                                  part = {.name = "part",
                                          .shape = shape,
                                          .n_dims = 1,
                                          .pattern = CST_PATTERN_TENSOR,
                                          .whole_name = "a",
                                          .whole = whole,
                                          .first = first,
                                          .external_names = &y,
                                          .external_rows = whole,
                                          .n_external = 1};
    const struct cst_model_extent all = {.n_tensors = 2};
    struct cst_model model, copy;

    cst_model_init(&model);
    ck_assert_int_eq(cst_model_tensor(&model, &a, &err), CST_OK);
    ck_assert_int_eq(cst_model_tensor(&model, &part, &err), CST_OK);
    ck_assert_msg(cstd_declare_copy(&copy, &model, &all, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(copy.n_tensors, 2);
    ck_assert_int_eq(copy.tensors[1].box->whole[0], 4);
    cst_model_close(&copy);
    cst_model_close(&model);
}
END_TEST

/* A committed job keeps its model. A rank that returns with another model gets the error alone, and
 * may then declare the right model. */
START_TEST(a_committed_model_stands)
{
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert_int_eq(declare_all(r, 20), CST_OK);
    }
    job.state = CSTD_JOB_READY;
    for (uint32_t r = 0; r < 3; r++) {
        workers[r].commit = NULL;
    }
    forget(1);
    ck_assert_int_eq(declare_all(1, 21), CST_EMISMATCH);
    assert_says("tensor 'b': dimension 0 is 21 in rank 1 and 20 in ranks 0, 2");
    ck_assert_uint_eq(job.model.n_tensors, 2);
    ck_assert_uint_eq(workers[0].n_tensors, 2);
    ck_assert_int_eq(declare_all(1, 20), CST_OK);
    ck_assert_uint_eq(n_broken, 0);
}
END_TEST

/* Only a rank that leaves in DECLARING can shorten the model: cstd_commit_break, which is called
 * when this fails, is allowed in no other state. */
START_TEST(who_leaves_later_changes_no_model)
{
    static const enum cstd_job_state later[] = {CSTD_JOB_POPULATING, CSTD_JOB_READY,
                                                CSTD_JOB_CLOSING};

    ck_assert_int_eq(declare(0, "a", 10, 0), CST_OK);
    ck_assert_int_eq(declare(0, "b", 20, 0), CST_OK);
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    job.state = later[_i];
    forget(0);
    ck_assert_uint_eq(job.model.n_tensors, 2);
    job.state = CSTD_JOB_DECLARING;
    forget(0);
    ck_assert_uint_eq(job.model.n_tensors, 1);
}
END_TEST

static int declare_group(uint32_t rank, uint32_t *ranks, size_t n)
{
    Cistern__GroupDecl g = CISTERN__GROUP_DECL__INIT, *gs = &g;
    Cistern__Declare message = CISTERN__DECLARE__INIT;
    int rc;

    g.ranks = ranks;
    g.n_ranks = n;
    message.n_groups = 1;
    message.groups = &gs;
    rc = cstd_declare(&workers[rank], &message, &err);
    if (rc == CST_EMISMATCH) {
        disagree(&workers[rank], &err);
    }
    return rc;
}

static int declare_kind(uint32_t rank, uint32_t group, uint32_t pattern, int64_t whole,
                        int64_t first, size_t n_box)
{
    int64_t shape = 4, wholes[2] = {whole, whole}, firsts[2] = {first, first};
    Cistern__TensorDecl t = CISTERN__TENSOR_DECL__INIT, *ts = &t;
    Cistern__Declare message = CISTERN__DECLARE__INIT;
    int rc;

    t.name = (char *)(uintptr_t) "k";
    t.dtype = 1;
    t.shape = &shape;
    t.n_shape = 1;
    t.group = group;
    t.pattern = pattern;
    t.whole_shape = wholes;
    t.box_first = firsts;
    t.n_whole_shape = t.n_box_first = n_box;
    message.n_tensors = 1;
    message.tensors = &ts;
    rc = cstd_declare(&workers[rank], &message, &err);
    if (rc == CST_EMISMATCH) {
        disagree(&workers[rank], &err);
    }
    return rc;
}

/* If groups, patterns or boxes differ, the error says what differs, with both sides and the
 * ranks. */
START_TEST(kinds_that_differ_are_named)
{
    uint32_t ranks[] = {0, 1, 2};

    ck_assert_int_eq(declare_group(0, ranks, 2), CST_OK);
    ck_assert_int_eq(declare_group(1, ranks, 3), CST_EMISMATCH);
    assert_says("group 1 has rank 2 in rank 1 and not in rank 0");

    ck_assert_int_eq(declare(0, "a", 10, 0), CST_EMISMATCH); /* the rank gets the error */
    ck_assert_int_eq(declare_group(0, ranks, 2), CST_OK);
    ck_assert_int_eq(declare_kind(0, 1, CST_PATTERN_SHARD, 0, 0, 0), CST_OK);
    ck_assert_int_eq(declare_group(1, ranks, 2), CST_OK);
    ck_assert_int_eq(declare_kind(1, 0, CST_PATTERN_SHARD, 0, 0, 0), CST_EMISMATCH);
    assert_says("tensor 'k' is of group 0 in rank 1 and of group 1 in rank 0");

    ck_assert_int_eq(declare(0, "a", 10, 0), CST_EMISMATCH);
    ck_assert_int_eq(declare_kind(0, 0, CST_PATTERN_EXPERT, 0, 0, 0), CST_OK);
    ck_assert_int_eq(declare_kind(1, 0, CST_PATTERN_FROZEN, 0, 0, 0), CST_EMISMATCH);
    assert_says("tensor 'k' is frozen in rank 1 and expert in rank 0");

    ck_assert_int_eq(declare(0, "a", 10, 0), CST_EMISMATCH);
    ck_assert_int_eq(declare_kind(0, 0, CST_PATTERN_TENSOR, 8, 0, 1), CST_OK);
    ck_assert_int_eq(declare_kind(1, 0, CST_PATTERN_TENSOR, 8, 4, 1), CST_EMISMATCH);
    assert_says("tensor 'k': its box begins at 4 of dimension 0 in rank 1 and at 0 in rank 0");
}
END_TEST

/* A rank that declares fewer groups than others, or more than were committed, gets an error. Groups
 * that only a leaving rank declared are forgotten. */
START_TEST(groups_are_counted)
{
    uint32_t ranks[] = {0, 1, 2};

    ck_assert_int_eq(declare_group(0, ranks, 2), CST_OK);
    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare_all(1, 20), CST_EMISMATCH);
    assert_says("rank 1 declared 0 groups, but rank 0 declared 1");

    ck_assert_int_eq(declare_all(0, 20), CST_OK);
    ck_assert_int_eq(declare_group(1, ranks, 2), CST_EMISMATCH);
    assert_says("rank 1 declares group 1, but rank 0 committed 0 groups");

    ck_assert_int_eq(declare(2, "a", 10, 0), CST_EMISMATCH); /* the rank gets the error */
    ck_assert_int_eq(declare_group(2, ranks, 1), CST_OK);
    ck_assert_int_eq(declare_group(0, ranks, 1), CST_OK);
    ck_assert_int_eq(declare_group(0, ranks, 3), CST_OK);
    forget(0);
    ck_assert_uint_eq(job.model.n_groups, 2);
    forget(2);
    ck_assert_uint_eq(job.model.n_groups, 1);
}
END_TEST

/* Invalid groups and boxes are refused from any rank, and nothing is declared. */
START_TEST(bad_kinds_are_refused)
{
    uint32_t twice[] = {1, 1}, unknown = WORLD;

    ck_assert_int_eq(declare_group(0, twice, 2), CST_EINVAL);
    assert_says("group 1 names rank 1 twice");
    ck_assert_int_eq(declare_group(0, &unknown, 1), CST_EINVAL);
    assert_says("group 1 has rank 6, but the job has 6 ranks");
    ck_assert_int_eq(declare_group(0, twice, 0), CST_EINVAL);
    ck_assert_int_eq(declare_kind(0, 1, CST_PATTERN_SHARD, 0, 0, 0), CST_EINVAL);
    assert_says("tensor 'k' is of group 1, but rank 0 has declared 0 groups");
    ck_assert_int_eq(declare_kind(0, 0, CST_PATTERN_COUNT, 0, 0, 0), CST_EINVAL);
    ck_assert_int_eq(declare_kind(0, 0, CST_PATTERN_TENSOR, 8, 0, 2), CST_EINVAL);
    assert_says("tensor 'k' has 1 dimensions, but its whole shape has 2 and its first element 2");
    ck_assert_int_eq(declare_kind(0, 0, CST_PATTERN_TENSOR, 8, 5, 1), CST_EINVAL);
    ck_assert_int_eq(declare_kind(0, 0, CST_PATTERN_TENSOR, 8, 0, 0), CST_EINVAL);
    ck_assert_int_eq(declare_kind(0, 0, CST_PATTERN_SHARD, 8, 0, 1), CST_EINVAL);
    ck_assert_uint_eq(job.model.n_tensors, 0);
    ck_assert_uint_eq(job.model.n_groups, 1);
    ck_assert_uint_eq(workers[0].n_groups, 0);
}
END_TEST

/* So is a box with another number of numbers of ranges than of dimensions. */
START_TEST(bad_ranges_are_refused)
{
    int64_t numbers[2] = {4, 1};
    Cistern__TensorDecl t = CISTERN__TENSOR_DECL__INIT, *ts = &t;
    Cistern__Declare message = CISTERN__DECLARE__INIT;

    t.name = (char *)(uintptr_t) "k";
    t.dtype = 1;
    t.shape = t.box_packed = numbers;
    t.n_shape = 1;
    t.n_box_packed = 2;
    message.n_tensors = 1;
    message.tensors = &ts;
    ck_assert_int_eq(cstd_declare(&workers[0], &message, &err), CST_EINVAL);
    assert_says("tensor 'k' has 1 dimensions, and numbers of ranges of 2");
}
END_TEST

/* External names have numbers of rows, and are the same in all ranks. */
START_TEST(external_names_are_checked)
{
    ck_assert_int_eq(declare_external(0, "file", 10, false), CST_EINVAL);
    assert_says("tensor 'a' has 1 external names and 0 numbers of rows");
    ck_assert_int_eq(declare_external(0, "file", 9, true), CST_EINVAL);
    ck_assert_int_eq(declare_external(0, "file", INT64_MIN, true), CST_EINVAL);
    ck_assert_int_eq(declare_external(0, "file", 10, true), CST_OK);
    ck_assert_int_eq(declare_external(1, "file", 10, true), CST_OK);
    ck_assert_int_eq(declare_external(2, "other", 10, true), CST_EMISMATCH);
    assert_says("tensor 'a': external name 0 is 'other' with 10 rows in rank 2 and 'file' with 10 "
                "in ranks 0, 1");
}
END_TEST

/* Stages come in order, and all operators are in stages or none is, in all ranks. */
START_TEST(stages_are_compared)
{
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert_int_eq(declare(r, "a", 10, 0), CST_OK);
    }
    ck_assert_int_eq(declare_in_stage(0, "p", true, UINT32_MAX), CST_EINVAL);
    ck_assert_int_eq(declare_in_stage(0, "p", true, 1), CST_EINVAL);
    ck_assert_int_eq(declare_in_stage(0, "p", true, 0), CST_OK);
    ck_assert_int_eq(declare_in_stage(0, "q", true, 2), CST_EINVAL);
    ck_assert_int_eq(declare_in_stage(0, "q", false, 0), CST_EINVAL);
    ck_assert_int_eq(declare_in_stage(0, "q", true, 1), CST_OK);
    ck_assert_int_eq(declare_in_stage(1, "p", true, 0), CST_OK);
    ck_assert_int_eq(declare_in_stage(2, "p", false, 0), CST_EMISMATCH);
    assert_says("operator 'p' is in no stage in rank 2 and in one in ranks 0, 1");
}
END_TEST

/* Declarations are charged as they come. What does not fit is refused and leaves the model as it
 * was, and what another rank repeats costs nothing. */
START_TEST(declarations_are_charged)
{
    uint64_t used;

    ck_assert_int_eq(declare(0, "a", 10, 0), CST_OK);
    used = host.used;
    ck_assert_uint_eq(used, cst_model_bytes(&job.model));
    ck_assert_uint_gt(used, sizeof(struct cst_layout_tensor));
    host.limit = used + 16;
    ck_assert_int_eq(declare(0, "b", 10, 0), CST_EBUDGET);
    ck_assert_int_eq(declare(0, "o", 0, 0), CST_EBUDGET);
    ck_assert_uint_eq(job.model.n_tensors, 1);
    ck_assert_uint_eq(job.model.n_operators, 0);
    ck_assert_uint_eq(host.used, used);
    ck_assert_int_eq(declare(1, "a", 10, 0), CST_OK);
    ck_assert_uint_eq(host.used, used);
    host.limit = 1 << 20;
    ck_assert_int_eq(declare(0, "b", 10, 0), CST_OK);
    ck_assert_uint_gt(host.used, used);
}
END_TEST

/* The reason of a disagreement says in what the tensors differ. */
START_TEST(tensors_differ_for_a_reason)
{
    static const enum cst_reason reasons[] = {CST_REASON_MODEL, CST_REASON_DTYPE,
                                              CST_REASON_PATTERN, CST_REASON_PARAM_GROUP,
                                              CST_REASON_TENSOR_UPDATE};

    ck_assert_int_eq(declare_other(0, 0), CST_OK);
    ck_assert_int_eq(declare_other(1, (uint32_t)_i + 1), CST_EMISMATCH);
    ck_assert_int_eq(err.reason, reasons[_i]);
}
END_TEST

/* A rank that hears of a disagreement later is told the reason, too. */
START_TEST(a_reason_is_told_later)
{
    ck_assert_int_eq(declare_other(0, 0), CST_OK);
    ck_assert_int_eq(declare_other(1, 2), CST_EMISMATCH);
    disagree(&workers[1], &err);
    err = (struct cst_err){0};
    ck_assert_int_eq(declare_other(0, 0), CST_EMISMATCH);
    ck_assert_int_eq(err.reason, CST_REASON_DTYPE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("disagree");
    TCase *tcase = suite_case(suite, "disagree", setup, teardown);

    tcase_add_loop_test(tcase, all_are_told_and_begin_anew, 0, 3);
    tcase_add_loop_test(tcase, who_declares_hears_it_next, 0, 2);
    tcase_add_test(tcase, what_differs_is_named);
    tcase_add_test(tcase, many_ranks_are_counted);
    tcase_add_test(tcase, the_dead_do_not_disagree);
    tcase_add_test(tcase, the_model_of_the_others_is_not_touched);
    tcase_add_test(tcase, a_tensor_that_others_use_ends_the_model);
    tcase_add_test(tcase, a_copy_has_no_names_of_files);
    tcase_add_test(tcase, a_committed_model_stands);
    tcase_add_loop_test(tcase, who_leaves_later_changes_no_model, 0, 3);
    tcase_add_test(tcase, kinds_that_differ_are_named);
    tcase_add_loop_test(tcase, tensors_differ_for_a_reason, 0, 5);
    tcase_add_test(tcase, a_reason_is_told_later);
    tcase_add_test(tcase, groups_are_counted);
    tcase_add_test(tcase, declarations_are_charged);
    tcase_add_test(tcase, bad_kinds_are_refused);
    tcase_add_test(tcase, bad_ranges_are_refused);
    tcase_add_test(tcase, external_names_are_checked);
    tcase_add_test(tcase, stages_are_compared);
    return suite_run(suite);
}
