/* Declarations: what libcistern says of them without the daemon, and how they get there. */
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fake_job f;

/* What can be known without the daemon is said at once, with words. */
START_TEST(test_declarations)
{
    int64_t four = 4, zero = 0, huge[2] = {1ll << 40, 2};
    int list[2] = {0, 0}, unknown = 7;
    char name[80];

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
    ck_assert_int_eq(cst_tensor_scaled(f.job, "b", CST_BF16, 1, &four, CST_GROUP_ALL, NAN, 1.0f),
                     CST_EINVAL);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(cst_tensor(f.job, name, CST_BF16, 1, &four, CST_GROUP_ALL), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", list, 2), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", &unknown, 1), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", list, 0), CST_EINVAL);
    ck_assert_int_eq(cst_operator(f.job, "o", list, 1), 0);
    ck_assert_int_eq(cst_operator(f.job, "o", list, 1), CST_EEXIST);
    ck_assert_int_eq(cst_tensor(f.job, "b", CST_BF16, 1, &four, CST_GROUP_ALL), 1);
    /* The failed try with tensor 0 twice must not stain the next operator. */
    ck_assert_int_eq(cst_operator(f.job, "p", (int[]){0, 1}, 2), 1);
    fake_job_stop(&f);
}
END_TEST

/* Thousands of tensors go up in several messages, and the layout comes down in several pages. */
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

/* 65536 tensors are accepted, one more is not; an operator over all of them is too large for a
 * message and is named. */
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
    uint16_t type;  /* of the request */
    uint32_t after; /* so many of them are served */
    bool done;
};

/* As the daemon does when ranks disagree: what was declared is forgotten. */
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

/* After ranks have disagreed, in a Declare or at the Commit, the next cst_commit declares all
 * again.
 */
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
    TCase *tcase = tcase_create("declare");

    tcase_add_test(tcase, test_declarations);
    tcase_add_test(tcase, test_many_tensors);
    tcase_add_test(tcase, test_most_tensors);
    tcase_add_loop_test(tcase, test_declare_anew, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
