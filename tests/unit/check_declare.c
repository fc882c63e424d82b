/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of declarations: those that libcistern refuses without the daemon, and how the others are
 * sent. */
#include "proto/job_name.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fake_job f;

static void assert_says(const char *words)
{
    ck_assert_str_eq(cst_job_error(f.job)->text, words);
}

/* Errors that libcistern can find without the daemon are reported at once, with a message. */
START_TEST(test_declarations)
{
    int64_t four = 4, zero = 0, huge[2] = {1ll << 40, 2};
    int list[2] = {0, 0}, unknown = 7, negative = -22;
    char name[257];
    struct cst_tensor_spec spec = {
        .name = "b", .dtype = CST_BF16, .n_dims = 1, .shape = &four, .decay_scale = 1};

    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    ck_assert_int_eq(cst_tensor(f.job, "a", CST_BF16, 1, &four, CST_GROUP_ALL), 0);
    ck_assert_int_eq(cst_tensor(f.job, "a", CST_BF16, 1, &four, CST_GROUP_ALL), CST_EEXIST);
    ck_assert_ptr_nonnull(strstr(cst_job_error(f.job)->text, "'a'"));
    ck_assert_int_eq(cst_tensor(f.job, "b", CST_BF16, 1, &zero, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_tensor(f.job, "b", CST_BF16, 2, huge, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_tensor(f.job, "b", CST_BF16, 0, &four, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_tensor(f.job, "b", CST_BF16, 9, &four, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_tensor(f.job, "", CST_BF16, 1, &four, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_tensor(f.job, "b\n", CST_BF16, 1, &four, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_tensor(f.job, "b", (enum cst_dtype)9, 1, &four, CST_GROUP_ALL),
                     CST_EINVAL);
    spec.lr_scale = NAN;
    ck_assert_int_eq(cst_tensor_as(f.job, &spec), CST_EINVAL);
    assert_says("tensor 'b': lr_scale and decay_scale must be finite");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(cst_tensor(f.job, name, CST_BF16, 1, &four, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", list, 2), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", &unknown, 1), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", list, 0), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", &negative, 1), CST_EINVAL);
    assert_says("operator 'o' uses tensor -22, only 1 are declared");
    /* The list is not read, because no list of that length is valid. */
    ck_assert_int_eq(cst_operator(f.job, "o", list, UINT32_MAX), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", NULL, 1), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, NULL, list, 1), CST_EINVAL);
    ck_assert_int_eq(cst_tensor(f.job, NULL, CST_BF16, 1, &four, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_tensor(f.job, "b", CST_BF16, 1, NULL, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", list, 1), 0);
    ck_assert_int_eq(cst_operator(f.job, "o", list, 1), CST_EEXIST);
    ck_assert_int_eq(cst_tensor(f.job, "b", CST_BF16, 1, &four, CST_GROUP_ALL), 1);
    /* The refused operator with tensor 0 twice must not affect the next operator. */
    ck_assert_int_eq(cst_operator(f.job, "p", (int[]){0, 1}, 2), 1);
    fake_job_stop(&f);
}
END_TEST

static int declare_as(const char *name, struct cst_tensor_spec spec)
{
    static const int64_t shape[2] = {2, 4};

    spec.name = name;
    spec.dtype = CST_BF16;
    spec.n_dims = 2;
    spec.shape = shape;
    spec.lr_scale = spec.decay_scale = 1.0f;
    return cst_tensor_as(f.job, &spec);
}

/* A group consists of ranks of this job, each once. Tensors name groups, and an operator needs a
 * rank that holds all of its tensors. */
START_TEST(test_groups)
{
    struct cst_job_spec spec = {.name = "run7", .rank = 1, .world = 3};
    struct cst_err err = {0};
    uint32_t ranks[] = {2, 0, 2, 3};

    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    CK_OK(cst_job_open(&f.job, f.client, &spec, &err));
    ck_assert_int_eq(cst_group(f.job, ranks, 0), CST_EINVAL);
    ck_assert_int_eq(cst_group(f.job, NULL, 1), CST_EINVAL);
    ck_assert_int_eq(cst_group(f.job, ranks, 3), CST_EINVAL);
    assert_says("group 1 names rank 2 twice");
    ck_assert_int_eq(cst_group(f.job, ranks + 3, 1), CST_EINVAL);
    assert_says("group 1 has rank 3, but the job has 3 ranks");
    ck_assert_int_eq(cst_group(f.job, ranks, 2), 1);
    ck_assert_int_eq(cst_group(f.job, (uint32_t[]){1}, 1), 2);
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.group = 3}), CST_EINVAL);
    assert_says("tensor 'a' is of group 3, only 0..2 are declared");
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.group = -1}), CST_EINVAL);
    assert_says("tensor 'a' is of group -1, only 0..2 are declared");
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.group = 1}), 0);
    ck_assert_int_eq(declare_as("b", (struct cst_tensor_spec){.group = 2}), 1);
    ck_assert_int_eq(cst_operator(f.job, "p", (int[]){0, 1}, 2), CST_EINVAL);
    assert_says("operator 'p': no rank holds tensor 'b' and all those before it");
    ck_assert_int_eq(cst_operator(f.job, "p", (int[]){0}, 1), 0);
    for (int i = 3; i < 256; i++) {
        ck_assert_int_eq(cst_group(f.job, ranks, 1), i);
    }
    ck_assert_int_eq(cst_group(f.job, ranks, 1), CST_EINVAL);
    assert_says("more than 255 groups");
    fake_job_stop(&f);
}
END_TEST

/* A box is required for CST_PATTERN_TENSOR and possible for CST_PATTERN_FROZEN, and lies within the
 * whole tensor. */
START_TEST(test_patterns)
{
    const int64_t whole[2] = {2, 8}, first[2] = {0, 4}, beyond[2] = {0, 5}, before[2] = {-1, 0};

    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    ck_assert_int_eq(cst_tensor_as(f.job, NULL), CST_EINVAL);
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.pattern = CST_PATTERN_COUNT}),
                     CST_EINVAL);
    assert_says("tensor 'a': pattern 5 is unknown (known: 0 to 4)");
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.pattern = CST_PATTERN_TENSOR}),
                     CST_EINVAL);
    assert_says(
        "tensor 'a': pattern tensor needs the shape of the whole tensor and where the box begins");
    ck_assert_int_eq(
        declare_as("a", (struct cst_tensor_spec){.whole_shape = whole, .first = first}),
        CST_EINVAL);
    assert_says("tensor 'a': pattern shard has no box");
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.pattern = CST_PATTERN_TENSOR,
                                                              .whole_shape = whole,
                                                              .first = beyond}),
                     CST_EINVAL);
    assert_says(
        "tensor 'a': in dimension 1 its box has 4 elements from 5 on, but the whole tensor has 8");
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.pattern = CST_PATTERN_TENSOR,
                                                              .whole_shape = whole,
                                                              .first = before}),
                     CST_EINVAL);
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.pattern = CST_PATTERN_TENSOR,
                                                              .whole_shape = whole,
                                                              .first = first}),
                     0);
    ck_assert_int_eq(declare_as("b", (struct cst_tensor_spec){.pattern = CST_PATTERN_FROZEN}), 1);
    fake_job_stop(&f);
}
END_TEST

/* Hints must be valid numbers. */
START_TEST(test_hints)
{
    int zero = 0;

    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){0}), 0);
    ck_assert_int_eq(
        cst_operator_as(f.job, "o", &zero, 1, &(struct cst_operator_cost){.flops = NAN}),
        CST_EINVAL);
    ck_assert_int_eq(
        cst_operator_as(f.job, "o", &zero, 1, &(struct cst_operator_cost){.expected_uses = -1}),
        CST_EINVAL);
    assert_says("operator 'o': flops and expected uses must be finite and not negative");
    ck_assert_int_eq(
        cst_operator_as(f.job, "o", &zero, 1, &(struct cst_operator_cost){.flops = 1e9}), 0);
    fake_job_stop(&f);
}
END_TEST

/* Invalid options of a job are refused. */
START_TEST(test_specs)
{
    struct cst_job_spec spec = {.name = "run7", .world = 1, .updates.micro_batches = 65537};
    struct cst_err err = {0};

    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    ck_assert_int_eq(cst_job_open(&f.job, f.client, &spec, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "micro_batches 65537 is not a number from 1 to 65536");
    spec.updates.micro_batches = 0;
    spec.model.base = "a b";
    ck_assert_int_eq(cst_job_open(&f.job, f.client, &spec, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "base_job 'a b': the name of a job has " CST_JOB_NAME_RULE
                               "; this one has 3 bytes");
    fake_job_stop(&f);
}
END_TEST

/* The declarations that the daemon received. */
struct heard {
    uint64_t groups[4]; /* groups of the first Declare, as bit masks of ranks */
    uint32_t n_groups;
    uint32_t pattern, group; /* pattern and group of the last tensor */
    int64_t whole, first;    /* dimension 1 of the last tensor's box */
    double flops;            /* flops of the last operator */
};

static bool hear(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct heard *heard = arg;
    Cistern__Declare *msg;

    (void)fake;
    if (request->type != CISTERN__MSG_TYPE__MSG_DECLARE) {
        return false;
    }
    msg = cistern__declare__unpack(NULL, request->body_bytes, request->body);
    ck_assert_ptr_nonnull(msg);
    for (size_t i = 0; i < msg->n_groups; i++) {
        for (size_t r = 0; r < msg->groups[i]->n_ranks; r++) {
            heard->groups[heard->n_groups] |= UINT64_C(1) << msg->groups[i]->ranks[r];
        }
        heard->n_groups++;
    }
    for (size_t i = 0; i < msg->n_tensors; i++) {
        heard->pattern = msg->tensors[i]->pattern;
        heard->group = msg->tensors[i]->group;
        heard->whole = msg->tensors[i]->n_whole_shape == 2 ? msg->tensors[i]->whole_shape[1] : 0;
        heard->first = msg->tensors[i]->n_box_first == 2 ? msg->tensors[i]->box_first[1] : 0;
    }
    for (size_t i = 0; i < msg->n_operators; i++) {
        heard->flops = msg->operators[i]->flops;
    }
    cistern__declare__free_unpacked(msg, NULL);
    return false;
}

/* Groups are sent before the tensors that name them. Boxes and hints arrive unchanged. */
START_TEST(test_words_arrive)
{
    struct cst_job_spec spec = {.name = "run7", .world = 64};
    const int64_t whole[2] = {2, 8}, first[2] = {0, 4};
    uint32_t ranks[64];
    struct heard heard = {0};
    struct cst_err err = {0};
    int zero = 0;

    for (uint32_t i = 0; i < 64; i++) {
        ranks[i] = i;
    }
    f.fake.hook = hear;
    f.fake.hook_arg = &heard;
    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    CK_OK(cst_job_open(&f.job, f.client, &spec, &err));
    ck_assert_int_eq(cst_group(f.job, ranks, 64), 1);
    ck_assert_int_eq(cst_group(f.job, (uint32_t[]){63, 0}, 2), 2);
    ck_assert_int_eq(declare_as("a", (struct cst_tensor_spec){.group = 2,
                                                              .pattern = CST_PATTERN_TENSOR,
                                                              .whole_shape = whole,
                                                              .first = first}),
                     0);
    ck_assert_int_eq(
        cst_operator_as(f.job, "o", &zero, 1, &(struct cst_operator_cost){.flops = 1e9}), 0);
    CK_OK(cst_commit(f.job, NULL, &err));
    ck_assert_uint_eq(heard.n_groups, 2);
    ck_assert_uint_eq(heard.groups[0], UINT64_MAX);
    ck_assert_uint_eq(heard.groups[1], UINT64_C(1) << 63 | 1);
    ck_assert_uint_eq(heard.group, 2);
    ck_assert_uint_eq(heard.pattern, CST_PATTERN_TENSOR);
    ck_assert_int_eq(heard.whole, 8);
    ck_assert_int_eq(heard.first, 4);
    ck_assert_double_eq(heard.flops, 1e9);
    fake_job_stop(&f);
}
END_TEST

/* Thousands of tensors are sent in several messages, and their layout arrives in several pages. */
START_TEST(test_many_tensors)
{
    struct cst_err err = {0};
    struct cst_plan plan;

    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    fake_job_declare(&f, 3000);
    CK_OK(cst_commit(f.job, &plan, &err));
    ck_assert_uint_eq(plan.n_chunks, 1500);
    ck_assert_uint_eq(plan.block_bytes, FAKE_BLOCK_BYTES);
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_uint_eq(f.fake.n_tensors, 3000);
    ck_assert_uint_gt(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_DECLARE], 3);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_LAYOUT], 3);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EINVAL);
    fake_job_stop(&f);
}
END_TEST

/* 65536 tensors are accepted, and one more is refused. An operator that uses all of them is too
 * large for a message, and the error names it. */
START_TEST(test_most_tensors)
{
    struct cst_err err = {0};
    int64_t one = 1;
    int *all = calloc(65536, sizeof *all);
    char name[16];

    ck_assert_ptr_nonnull(all);
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    for (int i = 0; i < 65536; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        ck_assert_int_eq(cst_tensor(f.job, name, CST_BF16, 1, &one, CST_GROUP_ALL), i);
        all[i] = i;
    }
    ck_assert_int_eq(cst_tensor(f.job, "more", CST_BF16, 1, &one, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(cst_job_error(f.job)->text, "65536"));
    ck_assert_int_eq(cst_operator(f.job, "everything", all, 65536), 0);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "everything"));
    free(all);
    fake_job_stop(&f);
}
END_TEST

struct refusal {
    uint16_t type;  /* type of the request to refuse */
    uint32_t after; /* number of requests that are served before the refused one */
    bool done;
};

/* Refuse as the daemon does when ranks disagree: the declarations are forgotten. */
static bool refuse(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct refusal *refusal = arg;

    if (refusal->done || request->type != refusal->type || refusal->after-- > 0) {
        return false;
    }
    refusal->done = true;
    fake->n_tensors = 0;
    fake_daemon_error(fake, request, CST_EMISMATCH, "tensor 't0' differs");
    return true;
}

/* After ranks have disagreed, in a Declare or at the Commit, the next cst_commit declares
 * everything again. */
START_TEST(test_declare_anew)
{
    static const uint16_t types[] = {CISTERN__MSG_TYPE__MSG_DECLARE, CISTERN__MSG_TYPE__MSG_COMMIT};
    struct refusal refusal = {.type = types[_i], .after = _i == 0 ? 1 : 0};
    struct cst_err err = {0};

    f.fake.hook = refuse;
    f.fake.hook_arg = &refusal;
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    fake_job_declare(&f, 3000);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "tensor 't0' differs"));
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_uint_eq(f.fake.n_tensors, 3000);
    fake_job_stop(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("declare");
    TCase *tcase = suite_case(suite, "declare", NULL, NULL);

    tcase_add_test(tcase, test_declarations);
    tcase_add_test(tcase, test_groups);
    tcase_add_test(tcase, test_patterns);
    tcase_add_test(tcase, test_hints);
    tcase_add_test(tcase, test_specs);
    tcase_add_test(tcase, test_words_arrive);
    tcase_add_test(tcase, test_many_tensors);
    tcase_add_test(tcase, test_most_tensors);
    tcase_add_loop_test(tcase, test_declare_anew, 0, 2);
    return suite_run(suite);
}
