/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ranks that disagree before the job is committed. All ranks are told at once the tensor,
 * operator or option, the difference and the ranks. No rank waits any longer, nothing is kept, and
 * the ranks can declare again. */
#include "cistern/cistern.h"
#include "cistern/optimizer.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <string.h>

/* Open three ranks without deadlines, so that no wait ends by itself. Ranks 0 and 1 declare two
 * tensors and send Commit; @id receives the request ids. */
static void open_two_of_three(struct raw_client client[3], uint64_t id[3])
{
    for (uint32_t r = 0; r < 3; r++) {
        job_rig_open(&client[r], r, 3);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(raw_declare_many(&client[r], 2, 1000), CST_OK);
        id[r] = raw_commit(&client[r], 2, 2);
    }
}

/* Check that the Commits of ranks 0 and 1 fail with rank 2's error @words and its reason, which is
 * @reason. Then let all three agree. */
static void end_disagreement(struct raw_client client[3], uint64_t id[3], enum cst_reason reason,
                             const char *words)
{
    raw_says(&client[2], words);
    ck_assert_int_eq(client[2].err.reason, reason);
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(raw_status(&client[r], id[r]), CST_EMISMATCH);
        ck_assert_str_eq(client[r].err.text, client[2].err.text);
        ck_assert_int_eq(client[r].err.reason, client[2].err.reason);
    }
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert_msg(raw_declare_many(&client[r], 3, 500) == CST_OK, "%s", client[r].err.text);
        id[r] = raw_commit(&client[r], 3, 3);
    }
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert_msg(raw_status(&client[r], id[r]) == CST_OK, "%s", client[r].err.text);
        raw_close(&client[r]);
    }
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}

/* A rank that declares a tensor differently ends the wait of all at once: they are told the tensor,
 * the difference and the ranks. */
START_TEST(declarations_that_disagree_are_named)
{
    static const int64_t shape[] = {1000, 2};
    struct raw_client client[3];
    uint64_t id[3];

    open_two_of_three(client, id);
    ck_assert_int_eq(raw_declare(&client[2], "t0", _i == 0 ? 2 : 1, _i == 0 ? shape : shape + 1),
                     CST_EMISMATCH);
    end_disagreement(client, id, CST_REASON_MODEL,
                     _i == 0 ? "'t0' has 2 dimensions in rank 2 and 1 in ranks 0, 1"
                             : "'t0': dimension 0 is 2 in rank 2 and 1000 in ranks 0, 1");
}
END_TEST

/* A rank with fewer or more tensors ends the wait of all, too. */
START_TEST(numbers_that_disagree_are_named)
{
    static const int64_t shape[] = {1000};
    struct raw_client client[3];
    uint64_t id[3];

    open_two_of_three(client, id);
    ck_assert_int_eq(raw_declare(&client[2], "t0", 1, shape), CST_OK);
    if (_i == 0) {
        ck_assert_int_eq(raw_status(&client[2], raw_commit(&client[2], 2, 0)), CST_EINVAL);
        ck_assert_int_eq(raw_declare_operator(&client[2], "o0", 0), CST_OK);
        ck_assert_int_eq(raw_status(&client[2], raw_commit(&client[2], 1, 1)), CST_EMISMATCH);
    } else {
        ck_assert_int_eq(raw_declare(&client[2], "t1", 1, shape), CST_OK);
        ck_assert_int_eq(raw_declare(&client[2], "t2", 1, shape), CST_EMISMATCH);
    }
    end_disagreement(
        client, id, CST_REASON_MODEL,
        _i == 0 ? "rank 2 declared 1 tensors, but ranks 0, 1 declared 2: 't1' is missing in rank 2"
                : "rank 2 declares tensor 't2' as number 2, but ranks 0, 1 committed 2");
}
END_TEST

/* A rank whose operators have another order, or use other tensors, ends the wait of all, too. */
START_TEST(operators_that_disagree_are_named)
{
    static const int64_t shape[] = {1000};
    struct raw_client client[3];
    uint64_t id[3];

    open_two_of_three(client, id);
    ck_assert_int_eq(raw_declare(&client[2], "t0", 1, shape), CST_OK);
    ck_assert_int_eq(raw_declare(&client[2], "t1", 1, shape), CST_OK);
    ck_assert_int_eq(raw_declare_operator(&client[2], _i == 0 ? "o1" : "o0", 1), CST_EMISMATCH);
    end_disagreement(client, id, CST_REASON_OPERATORS,
                     _i == 0 ? "operator 0 is 'o1' in rank 2 and 'o0' in ranks 0, 1"
                             : "'o0': its tensor 0 is number 1 in rank 2 and 0 in ranks 0, 1");
}
END_TEST

/* A worker that wants another number of ranks, another chunk capacity, other formats of moments or
 * another optimizer is refused, and the ranks that wait for it are told why. It does not affect a
 * committed job. */
START_TEST(options_that_disagree_are_named)
{
    static const struct {
        const char *words;
        enum cst_reason reason;
    } cases[] = {{"has 3 ranks, not 4 as rank 2 wants", CST_REASON_WORLD},
                 {"chunk_elems 0, not 8192 as rank 2 wants", CST_REASON_OPTION},
                 {"moments fp32, not mx8 as rank 2 wants", CST_REASON_OPTION},
                 {"optimizer adamw, not lion as rank 2 wants", CST_REASON_FIXED_OPTION}};
    struct raw_job other = {.name = "j", .rank = 2, .world = 3};
    struct raw_client client[3], late;
    uint64_t id[3];

    for (uint32_t r = 0; r < 2; r++) {
        job_rig_declare(&client[r], r, 3, 2);
        id[r] = raw_commit(&client[r], 2, 2);
    }
    raw_open(&client[2], proc.socket);
    other.world += _i == 0;
    other.chunk_elems = _i == 1 ? 8192 : 0;
    other.moments = _i == 2 ? CST_MOMENTS_MX8 : CST_MOMENTS_FP32;
    other.optimizer = _i == 3 ? CST_OPTIMIZER_LION : CST_OPTIMIZER_ADAMW;
    ck_assert_int_eq(raw_job_open(&client[2], &other), CST_EMISMATCH);
    other.world = 3;
    other.chunk_elems = 0;
    other.moments = CST_MOMENTS_FP32;
    other.optimizer = CST_OPTIMIZER_ADAMW;
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(raw_status(&client[r], id[r]), CST_EMISMATCH);
        ck_assert_str_eq(client[r].err.text, client[2].err.text);
        ck_assert_int_eq(client[r].err.reason, client[2].err.reason);
    }
    raw_says(&client[2], cases[_i].words);
    ck_assert_int_eq(client[2].err.reason, cases[_i].reason);
    ck_assert_int_eq(raw_job_open(&client[2], &other), CST_OK);
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert_msg(raw_declare_many(&client[r], 2, 1000) == CST_OK, "%s", client[r].err.text);
        id[r] = raw_commit(&client[r], 2, 2);
    }
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert_msg(raw_status(&client[r], id[r]) == CST_OK, "%s", client[r].err.text);
    }
    raw_close(&client[2]);
    other.world = 4;
    raw_open(&late, proc.socket);
    ck_assert_int_eq(raw_job_open(&late, &other), CST_EMISMATCH);
    raw_close(&late);
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert(raw_is_quiet(&client[r]));
        ck_assert_int_eq(raw_call(&client[r], CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
        raw_close(&client[r]);
    }
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* A tensor has one type in all ranks. */
START_TEST(types_that_disagree_are_named)
{
    const struct cst_job_spec spec = {.name = "j", .world = 2};
    struct cst_job_spec second = spec;
    struct cst_client *clients[2];
    struct cst_job *jobs[2];
    struct cst_err err = {0};
    const int64_t shape = 64;
    const int tensor = 0;
    int rc;

    second.rank = 1;
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(cst_connect(&clients[r], proc.socket, &err), CST_OK);
        ck_assert_int_eq(cst_job_open(&jobs[r], clients[r], r == 0 ? &spec : &second, &err),
                         CST_OK);
        ck_assert_int_eq(
            cst_tensor(jobs[r], "t", r == 0 ? CST_BF16 : CST_FP32, 1, &shape, CST_GROUP_ALL), 0);
        ck_assert_int_eq(cst_operator(jobs[r], "o", &tensor, 1), 0);
    }
    ck_assert_int_eq(cst_try_commit(jobs[0], NULL, &err), CST_EAGAIN);
    while ((rc = cst_try_commit(jobs[1], NULL, &err)) == CST_EAGAIN) {
        struct pollfd fd = {.fd = cst_client_fd(clients[1]), .events = POLLIN};

        (void)poll(&fd, 1, -1);
    }
    ck_assert_int_eq(rc, CST_EMISMATCH);
    /* Either rank may have declared first. */
    ck_assert_msg(strstr(err.text, "tensor 't' is fp32 in rank 1 and bf16 in rank 0") != NULL ||
                      strstr(err.text, "tensor 't' is bf16 in rank 0 and fp32 in rank 1") != NULL,
                  "%s", err.text);
    ck_assert_int_eq(err.reason, CST_REASON_DTYPE);
    cst_disconnect(clients[0]);
    cst_disconnect(clients[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("agree");
    TCase *tc = suite_case(suite, "agree", job_rig_setup, job_rig_teardown);

    tcase_add_loop_test(tc, declarations_that_disagree_are_named, 0, 2);
    tcase_add_loop_test(tc, numbers_that_disagree_are_named, 0, 2);
    tcase_add_loop_test(tc, operators_that_disagree_are_named, 0, 2);
    tcase_add_loop_test(tc, options_that_disagree_are_named, 0, 4);
    tcase_add_test(tc, types_that_disagree_are_named);
    return suite_run(suite);
}
