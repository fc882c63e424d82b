/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a worker that waits, through libcistern with a simulated daemon in a thread: late
 * replies, replies out of order, calls that do not wait, and what the daemon is told. */
#include "client/lib/shared_wait.h"
#include "proto/shared.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <math.h>
#include <poll.h>

static struct fake_job f;

/* -- replies late and out of order ------------------------------------------------------------- */

struct held {
    uint32_t which; /* number of the batch whose reply is kept back, counted from 0 */
    uint32_t until; /* number of the batch after whose reply it is sent */
    uint32_t n;     /* number of batches so far */
    struct cst_frame frame;
    uint8_t body[4096];
};

static bool hook_hold(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct held *held = arg;

    if (request->type != CISTERN__MSG_TYPE__MSG_BATCH) {
        return false;
    }
    if (held->n++ == held->which) {
        held->frame = *request;
        ck_assert_uint_le(request->body_bytes, sizeof held->body);
        memcpy(held->body, request->body, request->body_bytes);
        held->frame.body = held->body;
        return true;
    }
    fake_daemon_serve(fake, request);
    if (held->n - 1 == held->until) {
        fake_daemon_serve(fake, &held->frame);
    }
    return true;
}

/* The hand-in of a chunk is answered after the next fetch. Both replies are understood. */
START_TEST(test_out_of_order)
{
    struct held held = {.which = 1, .until = 2};
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    f.fake.hook = hook_hold;
    f.fake.hook_arg = &held;
    fake_job_start(&f, 2);
    fake_job_run(&f, 1, CST_BACKWARD, 1);        /* batch 0: W0 G0 */
    fake_job_run(&f, 0, CST_BACKWARD, 2);        /* batch 1: R0, kept back */
    CK_OK(cst_step(f.job, &params, NULL, &err)); /* batch 2: r0 */
    fake_job_expect_log(&f, "W0 G0 r0 R0 S0");
    ck_assert_uint_eq(f.fake.grads[0][0], 2);
    fake_job_stop(&f);
}
END_TEST

/* The reply to a prefetch comes after the sync that made it void: it is dropped, and the chunk is
 * fetched again. */
START_TEST(test_late_ahead)
{
    struct held held = {.which = 1, .until = 2};
    struct cst_err err = {0};
    struct cst_io io;

    f.fake.hook = hook_hold;
    f.fake.hook_arg = &held;
    fake_job_start(&f, 4);
    fake_job_run(&f, 0, CST_FORWARD, 0); /* batch 0: W0; batch 1: W1+, kept back */
    CK_OK(cst_sync(f.job, NULL, &err));
    CK_OK(cst_op_begin(f.job, 2, CST_FORWARD, &io, 1,
                       &err)); /* batch 2: W1; then the late EPEERDIED */
    ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4001);
    CK_OK(cst_op_end(f.job, 2, &err));
    fake_job_run(&f, 3, CST_FORWARD, 0);
    fake_job_expect_log(&f, "W0 W1 W0+");
    fake_job_stop(&f);
}
END_TEST

/* -- forms that do not wait -------------------------------------------------------------------- */

static int finish_begin(int op, struct cst_io *io, struct cst_err *err)
{
    struct pollfd pfd = {.fd = cst_client_fd(f.client), .events = POLLIN};
    int rc;

    while ((rc = cst_try_op_begin(f.job, op, CST_FORWARD, io, 1, err)) == CST_EAGAIN) {
        ck_assert_int_eq(poll(&pfd, 1, -1), 1);
    }
    return rc;
}

/* The forms that do not wait can run a whole worker with poll. Another call in between is refused
 * and has no effect. */
START_TEST(test_try)
{
    struct cst_hyper_params params = {.lr = 1.0f, .loss = NAN}, other = {.lr = 2.0f};
    struct cst_step_result result;
    struct cst_err err = {0};
    struct pollfd pfd;
    struct cst_io io = {0};
    struct cst_plan plan;
    uint64_t step;
    int rc;

    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    fake_job_declare(&f, 4);
    pfd = (struct pollfd){.fd = cst_client_fd(f.client), .events = POLLIN};
    while ((rc = cst_try_commit(f.job, &plan, &err)) == CST_EAGAIN) {
        ck_assert_int_eq(cst_sync(f.job, NULL, &err), CST_EINVAL);
        ck_assert_int_eq(poll(&pfd, 1, -1), 1);
    }
    CK_OK(rc);
    while ((rc = cst_try_sync(f.job, &step, &err)) == CST_EAGAIN) {
        ck_assert_int_eq(poll(&pfd, 1, -1), 1);
    }
    CK_OK(rc);
    /* The first call sends the request and cannot get the reply, because the test holds the
     * daemon's lock. */
    (void)pthread_mutex_lock(&f.fake.mutex);
    ck_assert_int_eq(cst_try_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), CST_EAGAIN);
    ck_assert_int_eq(cst_try_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), CST_EAGAIN);
    ck_assert_int_eq(cst_try_op_begin(f.job, 1, CST_FORWARD, &io, 1, &err), CST_EBUSY);
    ck_assert_int_eq(cst_try_op_begin(f.job, 0, CST_BACKWARD, &io, 1, &err), CST_EBUSY);
    ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), CST_EBUSY);
    ck_assert_int_eq(cst_sync(f.job, NULL, &err), CST_EBUSY);
    ck_assert_int_eq(cst_job_leave(f.job, &err), CST_EBUSY);
    ck_assert_ptr_null(io.weight);
    (void)pthread_mutex_unlock(&f.fake.mutex);
    CK_OK(finish_begin(0, &io, &err));
    ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4000);
    CK_OK(cst_op_end(f.job, 0, &err));
    (void)pthread_mutex_lock(&f.fake.mutex);
    ck_assert_int_eq(cst_try_step(f.job, &params, &result, &err), CST_EAGAIN);
    ck_assert_int_eq(cst_try_step(f.job, &other, &result, &err), CST_EBUSY);
    (void)pthread_mutex_unlock(&f.fake.mutex);
    while ((rc = cst_try_step(f.job, &params, &result, &err)) == CST_EAGAIN) {
        ck_assert_int_eq(poll(&pfd, 1, -1), 1);
    }
    CK_OK(rc);
    ck_assert_uint_eq(result.step, 1);
    fake_job_stop(&f);
}
END_TEST

/* A call that would read the reply of a pending call is refused meanwhile. Otherwise the descriptor
 * would not signal the reply to the caller's poll. */
START_TEST(test_try_alone)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_rank_stat stat;
    struct cst_err err = {0};
    struct pollfd pfd;
    uint16_t data[4];

    fake_job_start(&f, 2);
    pfd = (struct pollfd){.fd = cst_client_fd(f.client), .events = POLLIN};
    (void)pthread_mutex_lock(&f.fake.mutex);
    ck_assert_int_eq(cst_try_step(f.job, &params, NULL, &err), CST_EAGAIN);
    (void)pthread_mutex_unlock(&f.fake.mutex);
    ck_assert_int_eq(cst_ping(f.client, NULL, &err), CST_EBUSY);
    ck_assert_ptr_nonnull(strstr(err.text, "pending"));
    ck_assert_int_eq(cst_stat(f.job, &stat, &err), CST_EBUSY);
    ck_assert_int_eq(cst_tensor_read(f.job, 0, CST_STATE_WEIGHT, 0, 4, data, &err), CST_EBUSY);
    ck_assert_int_eq(poll(&pfd, 1, -1), 1);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    fake_job_stop(&f);
}
END_TEST

/* -- WANT -------------------------------------------------------------------------------------- */

struct patience {
    struct cst_frame held; /* a prefetch that is not answered */
    uint8_t body[64];
    unsigned n_wants;
};

/* A prefetch is answered when the worker says that it waits. */
static bool hook_patience(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct patience *p = arg;
    Cistern__Batch *asked;
    bool ahead, want;

    if (request->type != CISTERN__MSG_TYPE__MSG_BATCH) {
        return false;
    }
    asked = cistern__batch__unpack(NULL, request->body_bytes, request->body);
    ck_assert_ptr_nonnull(asked);
    ahead = asked->items[0]->has_ahead && asked->items[0]->ahead;
    want = asked->items[0]->kind == CISTERN__BATCH_ITEM__KIND__WANT;
    if (ahead) {
        ck_assert_uint_le(request->body_bytes, sizeof p->body);
        memcpy(p->body, request->body, request->body_bytes);
        p->held = *request;
        p->held.body = p->body;
    } else {
        fake_daemon_serve(fake, request);
    }
    if (want) {
        ck_assert_uint_eq(asked->items[0]->chunk, 1);
        p->n_wants++;
        fake_daemon_serve(fake, &p->held);
    }
    cistern__batch__free_unpacked(asked, NULL);
    return true;
}

/* If an operator's prefetched chunk has not come, the daemon is told once that the worker waits for
 * it now. */
START_TEST(test_wants)
{
    struct patience patience = {.n_wants = 0};
    struct cst_err err = {0};
    struct cst_io io;

    f.fake.hook = hook_patience;
    f.fake.hook_arg = &patience;
    fake_job_start(&f, 4);
    fake_job_run(&f, 0, CST_FORWARD, 0);
    fake_job_run(&f, 1, CST_FORWARD, 0); /* an operator that uses the same chunk */
    ck_assert_uint_eq(patience.n_wants, 0);
    CK_OK(cst_op_begin(f.job, 2, CST_FORWARD, &io, 1, &err));
    ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4001);
    ck_assert_uint_eq(patience.n_wants, 1);
    fake_job_stop(&f);
}
END_TEST

/* -- waits in shared memory ---------------------------------------------------------------------
 */

enum { N_PAUSED = 2 };

/* Answer questions in a wait: the job is paused for the first ones. */
static bool hook_pause(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    Cistern__ItemResult result = CISTERN__ITEM_RESULT__INIT, *results = &result;
    Cistern__BatchDone done = CISTERN__BATCH_DONE__INIT;
    uint32_t *n = arg;

    if (request->type != CISTERN__MSG_TYPE__MSG_BATCH) {
        return false;
    }
    done.n_results = 1;
    done.results = &results;
    done.has_paused = done.paused = ++*n <= N_PAUSED;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, &done.base, NULL, 0);
    return true;
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

/* A wait for other ranks in shared memory does not end while the daemon says that the job is
 * paused. Its time begins again then. */
START_TEST(test_pause)
{
    static struct cst_shared_head head;
    struct cst_err err = {0};
    uint32_t n = 0;

    f.fake.hook = hook_pause;
    f.fake.hook_arg = &n;
    fake_job_start(&f, 2);
    ck_assert_int_eq(cstc_shared_wait(f.job, &head, 1, never, NULL, 10, &err), CST_ETIMEDOUT);
    ck_assert_uint_eq(n, N_PAUSED + 1);
    fake_job_stop(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker_waits");
    TCase *replies = suite_case(suite, "replies", NULL, NULL);
    TCase *tries = suite_case(suite, "tries", NULL, NULL);
    TCase *wants = suite_case(suite, "wants", NULL, NULL);
    TCase *shared = suite_case(suite, "shared", NULL, NULL);

    tcase_add_test(replies, test_out_of_order);
    tcase_add_test(replies, test_late_ahead);
    tcase_add_test(tries, test_try);
    tcase_add_test(tries, test_try_alone);
    tcase_add_test(wants, test_wants);
    tcase_add_test(shared, test_pause);
    return suite_run(suite);
}
