/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a worker's steps through libcistern with a simulated daemon in a thread: what is sent,
 * what the worker sees, what is refused. */
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <string.h>
#include <unistd.h>

static struct fake_job f;

/* -- the order of calls ------------------------------------------------------------------------ */

/* Calls that come too early are refused with a message that names the missing call. */
START_TEST(test_order)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_job_spec spec = {.name = "run8", .world = 1};
    struct cst_err err = {0};
    struct cst_job *second;
    struct cst_io io;

    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    ck_assert_int_eq(cst_job_open(&second, f.client, &spec, &err), CST_EINVAL);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EINVAL);
    ck_assert_int_eq(cst_sync(f.job, NULL, &err), CST_EINVAL);
    fake_job_declare(&f, 2);
    CK_OK(cst_commit(f.job, NULL, &err));
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "call sync"));
    ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), CST_EINVAL);
    CK_OK(cst_sync(f.job, NULL, &err));
    ck_assert_int_eq(cst_op_end(f.job, 0, &err), CST_EINVAL);
    ck_assert_int_eq(cst_op_begin(f.job, 2, CST_FORWARD, &io, 1, &err), CST_EINVAL);
    ck_assert_int_eq(cst_op_begin(f.job, -1, CST_FORWARD, &io, 1, &err), CST_EINVAL);
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_FORWARD, &io, 2, &err), CST_EINVAL);
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    ck_assert_int_eq(cst_op_begin(f.job, 1, CST_FORWARD, &io, 1, &err), CST_EINVAL);
    ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), CST_EINVAL);
    ck_assert_int_eq(cst_op_end(f.job, 1, &err), CST_EINVAL);
    CK_OK(cst_op_end(f.job, 0, &err));
    CK_OK(cst_job_leave(f.job, &err));
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), CST_EINVAL);
    fake_job_stop(&f);
}
END_TEST

/* -- a step ----------------------------------------------------------------------------------- */

/* With two chunks of two tensors, the worker reads the weights, its gradients arrive, and the
 * number of messages is the smallest possible. */
START_TEST(test_step)
{
    struct cst_hyper_params params = {.lr = 0.5f, .loss = 1.5};
    struct cst_step_result result;
    struct cst_err err = {0};
    struct cst_io io;

    fake_job_start(&f, 4);
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4000);
    ck_assert_ptr_null(io.grad);
    ck_assert_uint_eq(io.n_elems, FAKE_TENSOR_ELEMS);
    ck_assert_uint_eq((uintptr_t)io.weight % 128, 0);
    CK_OK(cst_op_end(f.job, 0, &err));
    for (int op = 1; op < 4; op++) {
        fake_job_run(&f, op, CST_FORWARD, 0);
    }
    for (int op = 4; op-- > 0;) {
        fake_job_run(&f, op, CST_BACKWARD, (uint16_t)(0x3f80 + op));
    }
    CK_OK(cst_step(f.job, &params, &result, &err));
    fake_job_expect_log(&f, "W0 W1+ G1 R1 r1 G0 R0 r0 S0");
    for (int t = 0; t < 4; t++) {
        ck_assert_uint_eq(f.fake.grads[t / 2][t % 2 * FAKE_TENSOR_ELEMS], 0x3f80u + (unsigned)t);
        ck_assert_uint_eq(f.fake.grads[t / 2][(t % 2 + 1) * FAKE_TENSOR_ELEMS - 1],
                          0x3f80u + (unsigned)t);
    }
    ck_assert_uint_eq(result.step, 1);
    ck_assert(!result.skipped);
    ck_assert_double_eq(result.loss, 1.5);
    ck_assert_uint_eq(cst_job_steps(f.job), 1);
    ck_assert_double_eq(f.fake.hyper.lr, 0.5);
    ck_assert_double_eq(f.fake.hyper.beta1, 0.9);
    ck_assert_double_eq(f.fake.hyper.beta2, 0.999);
    ck_assert_double_eq(f.fake.hyper.eps, 1e-8);
    ck_assert_double_eq(f.fake.hyper.grad_scale, 1);
    fake_job_stop(&f);
}
END_TEST

/* If only one tensor of a chunk has a gradient, the chunk is handed in with zeros for the other
 * one, although the block had other contents. */
START_TEST(test_partial_step)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    fake_job_start(&f, 4);
    fake_job_run(&f, 3, CST_BACKWARD, 0x3f80);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_ptr_null(f.fake.grads[0]);
    ck_assert_uint_eq(f.fake.grads[1][FAKE_TENSOR_ELEMS], 0x3f80);
    for (int i = 0; i < FAKE_TENSOR_ELEMS; i++) {
        ck_assert_uint_eq(f.fake.grads[1][i], 0);
    }
    fake_job_stop(&f);
}
END_TEST

/* If a tensor that no operator uses shares a chunk with one that is used, zeros are handed in for
 * it. */
START_TEST(test_unused_tensor)
{
    struct cst_err err = {0};
    int64_t n = FAKE_TENSOR_ELEMS;
    int first = 0;

    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    ck_assert_int_eq(cst_tensor(f.job, "used", CST_BF16, 1, &n, CST_GROUP_ALL), 0);
    ck_assert_int_eq(cst_tensor(f.job, "unused", CST_BF16, 1, &n, CST_GROUP_ALL), 1);
    ck_assert_int_eq(cst_operator(f.job, "o", &first, 1), 0);
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_sync(f.job, NULL, &err));
    fake_job_run(&f, 0, CST_BACKWARD, 0x3f80);
    fake_job_expect_log(&f, "W0 G0 R0");
    ck_assert_uint_eq(f.fake.grads[0][0], 0x3f80);
    ck_assert_uint_eq(f.fake.grads[0][FAKE_TENSOR_ELEMS], 0);
    ck_assert_uint_eq(f.fake.grads[0][2 * FAKE_TENSOR_ELEMS - 1], 0);
    fake_job_stop(&f);
}
END_TEST

/* For a tensor that two operators use, the second backward is told to add. */
START_TEST(test_accumulate)
{
    struct cst_err err = {0};
    struct cst_io io;
    int64_t n = 8;
    int wte = 0;

    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    ck_assert_int_eq(cst_tensor(f.job, "wte", CST_BF16, 1, &n, CST_GROUP_ALL), 0);
    ck_assert_int_eq(cst_operator(f.job, "embed", &wte, 1), 0);
    ck_assert_int_eq(cst_operator(f.job, "head", &wte, 1), 1);
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_sync(f.job, NULL, &err));
    CK_OK(cst_op_begin(f.job, 1, CST_BACKWARD, &io, 1, &err));
    ck_assert(!io.accumulate);
    memset(io.grad, 0x11, 2 * io.n_elems);
    CK_OK(cst_op_end(f.job, 1, &err));
    CK_OK(cst_op_begin(f.job, 0, CST_BACKWARD, &io, 1, &err));
    ck_assert(io.accumulate);
    ck_assert_uint_eq(*(const uint16_t *)io.grad, 0x1111);
    CK_OK(cst_op_end(f.job, 0, &err));
    fake_job_expect_log(&f, "W0 G0 R0");
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_BACKWARD, &io, 1, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "wte"));
    fake_job_stop(&f);
}
END_TEST

/* Everything works with one credit and batches of one item, one request after the other. */
START_TEST(test_one_credit)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    f.fake.credits = 1;
    f.fake.max_batch = 1;
    fake_job_start(&f, 6);
    for (int s = 0; s < 3; s++) {
        for (int op = 0; op < 6; op++) {
            fake_job_run(&f, op, CST_FORWARD, 0);
        }
        for (int op = 6; op-- > 0;) {
            fake_job_run(&f, op, CST_BACKWARD, (uint16_t)(op + s));
        }
        CK_OK(cst_step(f.job, &params, NULL, &err));
    }
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_uint_eq(f.fake.grads[2][FAKE_TENSOR_ELEMS], 5 + 2);
    fake_job_stop(&f);
}
END_TEST

/* -- failures of items ------------------------------------------------------------------------- */

struct failing {
    uint32_t at; /* number of the batch, counted from 0 */
    uint32_t n;
    int status;
    enum cst_reason reason; /* of the error */
};

static bool hook_fail(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct failing *failing = arg;
    Cistern__BatchDone msg = CISTERN__BATCH_DONE__INIT;
    Cistern__ItemResult result = CISTERN__ITEM_RESULT__INIT, *results[8];
    Cistern__Batch *asked;

    if (request->type != CISTERN__MSG_TYPE__MSG_BATCH || failing->n++ != failing->at) {
        return false;
    }
    asked = cistern__batch__unpack(NULL, request->body_bytes, request->body);
    ck_assert_ptr_nonnull(asked);
    ck_assert_uint_le(asked->n_items, 8);
    result.status = failing->status;
    result.text = (char *)(uintptr_t) "rank 1 died";
    result.has_reason = failing->reason != CST_REASON_NONE;
    result.reason = failing->reason;
    msg.results = results;
    msg.n_results = asked->n_items;
    for (size_t i = 0; i < asked->n_items; i++) {
        results[i] = &result;
    }
    cistern__batch__free_unpacked(asked, NULL);
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, &msg.base, NULL, 0);
    return true;
}

/* The death of another rank makes the step void: every call reports that until a sync, and then the
 * step can be repeated. */
START_TEST(test_peer_died)
{
    struct failing failing = {
        .at = 0, .status = _i == 0 ? CST_EPEERDIED : CST_ESTALE, .reason = CST_REASON_HANDED_IN};
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};
    struct cst_io io;
    uint64_t step = 99;

    f.fake.hook = hook_fail;
    f.fake.hook_arg = &failing;
    fake_job_start(&f, 2);
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), failing.status);
    ck_assert_ptr_nonnull(strstr(err.text, "rank 1 died"));
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), failing.status);
    ck_assert_ptr_nonnull(strstr(err.text, "call sync"));
    ck_assert_int_eq(err.reason, failing.reason);
    ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), failing.status);
    CK_OK(cst_sync(f.job, &step, &err));
    ck_assert_uint_eq(step, 0);
    fake_job_run(&f, 0, CST_FORWARD, 0);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    fake_job_stop(&f);
}
END_TEST

/* A fetch that fails for another reason is reported once, with the daemon's reason, and can be
 * repeated. */
START_TEST(test_engine_failed)
{
    struct failing failing = {.at = 0, .status = CST_EENGINE, .reason = CST_REASON_HANDED_IN};
    struct cst_err err = {0};
    struct cst_io io;

    f.fake.hook = hook_fail;
    f.fake.hook_arg = &failing;
    fake_job_start(&f, 2);
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), CST_EENGINE);
    ck_assert_int_eq(err.reason, CST_REASON_HANDED_IN);
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    CK_OK(cst_op_end(f.job, 0, &err));
    fake_job_stop(&f);
}
END_TEST

/* If a hand-in fails after the call returned, the loss is reported: the step is void. */
START_TEST(test_hand_in_failed)
{
    struct failing failing = {.at = 1, .status = CST_EENGINE};
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    f.fake.hook = hook_fail;
    f.fake.hook_arg = &failing;
    fake_job_start(&f, 2);
    fake_job_run(&f, 1, CST_BACKWARD, 1); /* batch 0: W0 G0 */
    fake_job_run(&f, 0, CST_BACKWARD, 2); /* batch 1: R0 */
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), CST_EENGINE);
    CK_OK(cst_sync(f.job, NULL, &err));
    fake_job_stop(&f);
}
END_TEST

/* -- states ------------------------------------------------------------------------------------ */

/* More elements than the staging segment holds are read and written in pieces, with both sizes of
 * elements. */
START_TEST(test_states)
{
    struct cst_err err = {0};
    float out[FAKE_TENSOR_ELEMS], in[FAKE_TENSOR_ELEMS] = {0};
    uint16_t weight[FAKE_TENSOR_ELEMS];

    f.fake.staging_bytes = 4096;
    fake_job_start(&f, 2);
    for (int i = 0; i < FAKE_TENSOR_ELEMS; i++) {
        out[i] = (float)i;
    }
    CK_OK(cst_tensor_write(f.job, 1, CST_STATE_MASTER, 0, FAKE_TENSOR_ELEMS, out, &err));
    CK_OK(cst_tensor_read(f.job, 1, CST_STATE_MASTER, 0, FAKE_TENSOR_ELEMS, in, &err));
    ck_assert_mem_eq(in, out, sizeof in);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_TENSOR_READ], 2);
    CK_OK(cst_tensor_read(f.job, 1, CST_STATE_WEIGHT, 2, FAKE_TENSOR_ELEMS - 2, weight, &err));
    ck_assert_mem_eq(weight, out + 1, 2 * (FAKE_TENSOR_ELEMS - 2));
    ck_assert_int_eq(
        cst_tensor_read(f.job, 1, CST_STATE_WEIGHT, 1, FAKE_TENSOR_ELEMS, weight, &err),
        CST_EINVAL);
    ck_assert_int_eq(cst_tensor_read(f.job, 1, CST_STATE_WEIGHT, UINT64_MAX, 2, weight, &err),
                     CST_EINVAL);
    ck_assert_int_eq(cst_tensor_read(f.job, 2, CST_STATE_WEIGHT, 0, 1, weight, &err), CST_EINVAL);
    ck_assert_int_eq(cst_tensor_read(f.job, 0, (enum cst_state)5, 0, 1, weight, &err), CST_EINVAL);
    fake_job_stop(&f);
}
END_TEST

/* A hint is refused if the begun operator uses the weights, if the tensor is not declared, if
 * the kind is unknown, and while another call is pending. Other hints are sent. A lease is given
 * back before EVICT is sent, and PREFETCH is not sent for weights that are leased or already
 * requested. */
START_TEST(test_hints)
{
    const struct cst_hyper_params params = {.lr = 1e-3f};
    struct cst_err err = {0};
    struct cst_io io;

    fake_job_start(&f, 2);
    ck_assert_int_eq(cst_hint(f.job, 99, CST_EVICT, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "operator 99"));
    ck_assert_int_eq(cst_hint_tensor(f.job, -1, CST_PREFETCH, &err), CST_EINVAL);
    ck_assert_int_eq(cst_hint(f.job, 0, (enum cst_hint)7, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "hint 7"));
    CK_OK(cst_hint(f.job, 0, CST_PREFETCH, &err));
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    ck_assert_int_eq(cst_hint(f.job, 0, CST_EVICT, &err), CST_EBUSY);
    ck_assert_ptr_nonnull(strstr(err.text, "'o0', which is begun"));
    CK_OK(cst_hint_tensor(f.job, 0, CST_PREFETCH, &err)); /* the weights are leased */
    CK_OK(cst_op_end(f.job, 0, &err));
    CK_OK(cst_hint(f.job, 0, CST_EVICT, &err));
    CK_OK(cst_hint(f.job, 0, CST_EVICT, &err));
    CK_OK(cst_hint_tensor(f.job, 0, CST_PREFETCH, &err));
    fake_job_expect_log(&f, "p0 W0 r0 e0 e0 p0");
    (void)pthread_mutex_lock(&f.fake.mutex); /* no reply can come */
    ck_assert_int_eq(cst_try_step(f.job, &params, NULL, &err), CST_EAGAIN);
    ck_assert_int_eq(cst_hint(f.job, 0, CST_PREFETCH, &err), CST_EBUSY);
    ck_assert_ptr_nonnull(strstr(err.text, "another call is pending"));
    (void)pthread_mutex_unlock(&f.fake.mutex);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    fake_job_stop(&f);
}
END_TEST

/* With CISTERN_DEBUG=poison a gradient that the worker forgot to write is reported with its
 * operator, and may still be written. Without it the block is handed in as it is. Other values of
 * the variable are refused. */
START_TEST(test_poison)
{
    struct cst_err err = {0};
    struct cst_io io;

    ck_assert_int_eq(setenv("CISTERN_DEBUG", _i == 0 ? "poison" : "", 1), 0);
    fake_job_start(&f, 2);
    CK_OK(cst_op_begin(f.job, 1, CST_BACKWARD, &io, 1, &err));
    memset(io.grad, 0, 2 * io.n_elems - 2);
    if (_i == 0) {
        ck_assert_int_eq(cst_op_end(f.job, 1, &err), CST_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.text, "operator 'o1'"));
        ck_assert_ptr_nonnull(strstr(err.text, "tensor 't1' was not written"));
        ((uint16_t *)io.grad)[io.n_elems - 1] = 0;
    }
    CK_OK(cst_op_end(f.job, 1, &err));
    fake_job_stop(&f);
    ck_assert_int_eq(setenv("CISTERN_DEBUG", "poisson", 1), 0);
    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    ck_assert_int_eq(
        cst_job_open(&f.job, f.client, &(struct cst_job_spec){.name = "run7", .world = 1}, &err),
        CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "CISTERN_DEBUG='poisson'"));
    ck_assert_int_eq(unsetenv("CISTERN_DEBUG"), 0);
    fake_job_stop(&f);
}
END_TEST

/* True if this process can read the byte at @at, or write it. */
static bool can_read(const void *at)
{
    int ends[2];
    bool can;

    ck_assert_int_eq(pipe(ends), 0);
    can = write(ends[1], at, 1) == 1;
    (void)close(ends[0]);
    (void)close(ends[1]);
    return can;
}

static bool can_write(void *at)
{
    int ends[2];
    bool can;

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], "", 1), 1);
    can = read(ends[0], at, 1) == 1;
    (void)close(ends[0]);
    (void)close(ends[1]);
    return can;
}

/* With CISTERN_DEBUG=guard the pool can be accessed in operators only: weights can be read, and
 * gradients written. */
START_TEST(test_guard)
{
    struct cst_err err = {0};
    struct cst_io io, old;

    ck_assert_int_eq(setenv("CISTERN_DEBUG", "guard,poison", 1), 0);
    fake_job_start(&f, 2);
    CK_OK(cst_op_begin(f.job, 1, CST_FORWARD, &old, 1, &err));
    ck_assert(can_read(old.weight) && !can_write(old.weight));
    CK_OK(cst_op_end(f.job, 1, &err));
    ck_assert(!can_read(old.weight));
    CK_OK(cst_op_begin(f.job, 0, CST_BACKWARD, &io, 1, &err));
    ck_assert(can_read(io.weight) && !can_write(io.weight));
    ck_assert(can_read(io.grad) && can_write(io.grad));
    memset(io.grad, 0, 2 * io.n_elems);
    CK_OK(cst_op_end(f.job, 0, &err));
    ck_assert(!can_read(io.grad) && !can_read(io.weight));
    CK_OK(cst_op_begin(f.job, 1, CST_FORWARD, &io, 1, &err));
    CK_OK(cst_sync(f.job, NULL, &err));
    ck_assert(!can_read(io.weight));
    fake_job_stop(&f);
    ck_assert_int_eq(unsetenv("CISTERN_DEBUG"), 0);
}
END_TEST

/* cst_stat returns this rank's entry of the daemon's reply about the job. */
START_TEST(test_stat)
{
    struct cst_rank_stat stat;
    struct cst_err err = {0};

    fake_job_start(&f, 2);
    CK_OK(cst_stat(f.job, &stat, &err));
    ck_assert_uint_eq(stat.hits, 5);
    ck_assert_uint_eq(stat.late, 3);
    ck_assert_double_eq(stat.weight_wait_seconds, 0.5);
    ck_assert_double_eq(stat.exposed_seconds, 0.25);
    fake_job_stop(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker");
    TCase *steps = suite_case(suite, "steps", NULL, NULL);
    TCase *faults = suite_case(suite, "faults", NULL, NULL);

    tcase_add_test(steps, test_order);
    tcase_add_test(steps, test_step);
    tcase_add_test(steps, test_partial_step);
    tcase_add_test(steps, test_unused_tensor);
    tcase_add_test(steps, test_accumulate);
    tcase_add_test(steps, test_one_credit);
    tcase_add_test(steps, test_states);
    tcase_add_test(steps, test_stat);
    tcase_add_test(steps, test_hints);
    tcase_add_loop_test(steps, test_poison, 0, 2);
    tcase_add_test(steps, test_guard);
    tcase_add_loop_test(faults, test_peer_died, 0, 2);
    tcase_add_test(faults, test_engine_failed);
    tcase_add_test(faults, test_hand_in_failed);
    return suite_run(suite);
}
