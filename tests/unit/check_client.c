/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of libcistern's connection, with a simulated daemon in a thread: how it ends, replies that
 * are invalid, and fork. libcistern believes the daemon only as far as it can check. */
#include "tests/lib/descriptors.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fake_job f;

/* -- closed connections ----------------------------------------------------------------------- */

static void send_raw(struct fake_daemon *fake, const struct cst_frame *request, uint16_t type,
                     uint16_t flags, uint64_t id, const uint8_t *body, uint32_t body_bytes)
{
    struct cst_frame frame = {
        .type = type, .flags = flags, .request = id, .body = body, .body_bytes = body_bytes};

    (void)request;
    (void)cst_frame_send(fake->sock, 0, &frame, NULL);
}

/* The daemon announces, without a request, why it will close the connection. */
static void say_farewell(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__Error msg = CISTERN__ERROR__INIT;
    uint8_t body[64];

    msg.status = CST_EDRAINING;
    msg.text = (char *)(uintptr_t) "going down for tea";
    send_raw(fake, request, CISTERN__MSG_TYPE__MSG_ERROR, CST_FRAME_EVENT, 0, body,
             (uint32_t)protobuf_c_message_pack(&msg.base, body));
}

struct gone {            /* atomic, because the order comes through a socket */
    _Atomic uint32_t at; /* number of the request at which the daemon closes the connection */
    _Atomic uint32_t n;  /* number of requests so far */
    bool says_why;       /* the daemon announces the reason first */
};

static bool hook_gone(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct gone *gone = arg;

    if (gone->n++ != gone->at) {
        return false;
    }
    if (gone->says_why) {
        say_farewell(fake, request);
    }
    fake_daemon_hang_up(fake);
    return true;
}

/* Answers a Ping with an error of a reason. */
static bool hook_reason(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    const uint32_t *reason = arg;
    Cistern__Error msg = CISTERN__ERROR__INIT;

    if (request->type != CISTERN__MSG_TYPE__MSG_PING) {
        return false;
    }
    msg.status = CST_EBUDGET;
    msg.text = (char *)(uintptr_t) "no more of it";
    msg.has_reason = *reason != 0;
    msg.reason = *reason;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_ERROR, &msg.base, NULL, 0);
    return true;
}

/* Each reason of the list reaches the caller. A newer daemon's reason counts as none, and so does
 * the absence of one. */
START_TEST(test_reasons)
{
    static const uint32_t numbers[] = {
#define NUMBER(name, number, words) number,
        CST_REASON_MAP(NUMBER) UINT32_MAX,
    };
    uint32_t reason = 0;
    struct cst_err err = {0};

    f.fake.hook = hook_reason;
    f.fake.hook_arg = &reason;
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        reason = numbers[i];
        ck_assert_int_eq(cst_ping(f.client, NULL, &err), CST_EBUDGET);
        ck_assert_str_eq(err.text, "no more of it");
        ck_assert_uint_eq(err.reason, reason == UINT32_MAX ? 0 : reason);
    }
    fake_job_stop(&f);
}
END_TEST

/* The daemon closes the connection at the n-th request of a worker's run, for every n. The call and
 * all later ones fail with ECONN, or (_i = 1) with the reason that the daemon announced. There is
 * no signal, and no descriptor stays open. */
START_TEST(test_gone)
{
    struct gone gone = {.at = UINT32_MAX, .says_why = _i == 1};
    const int status = _i == 1 ? CST_EDRAINING : CST_ECONN;
    unsigned before;
    uint32_t n_requests;
    struct cst_err err = {0};

    f.fake.hook = hook_gone;
    f.fake.hook_arg = &gone;
    fake_daemon_start(&f.fake);
    before = descriptors_count();
    ck_assert_msg(fake_job_live(&f, &err) == CST_OK, "%s", err.text);
    cst_disconnect(f.client);
    n_requests = gone.n;
    ck_assert_uint_gt(n_requests, 10);
    for (uint32_t at = 0; at < n_requests; at++) {
        gone.at = at;
        gone.n = 0;
        f.fake.n_tensors = 0;
        f.client = NULL;
        ck_assert_int_eq(fake_job_live(&f, &err), status);
        ck_assert_ptr_nonnull(strstr(err.text, f.fake.path));
        ck_assert_int_eq(strstr(err.text, "tea") != NULL, _i == 1);
        if (at > 0) {
            ck_assert_int_eq(cst_ping(f.client, NULL, &err), status);
            ck_assert_int_eq(cst_client_fd(f.client), status);
        }
        cst_disconnect(f.client);
    }
    fake_daemon_stop(&f.fake);
    ck_assert_uint_lt(descriptors_count(), before);
}
END_TEST

static bool hook_answer_and_go(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    (void)arg;
    if (request->type != CISTERN__MSG_TYPE__MSG_PING) {
        return false;
    }
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_PONG, NULL, NULL, 0);
    say_farewell(fake, request);
    fake_daemon_hang_up(fake);
    return true;
}

/* A client that is idle when the daemon announces its reason gets the reason from its next call,
 * which cannot even be sent. */
START_TEST(test_farewell_while_idle)
{
    struct cst_err err = {0};

    f.fake.hook = hook_answer_and_go;
    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    /* The daemon holds its lock from before its answer until after its end of the connection is
     * closed. */
    (void)pthread_mutex_lock(&f.fake.mutex);
    (void)pthread_mutex_unlock(&f.fake.mutex);
    ck_assert_int_eq(cst_ping(f.client, NULL, &err), CST_EDRAINING);
    ck_assert_ptr_nonnull(strstr(err.text, "going down for tea"));
    cst_disconnect(f.client);
    fake_daemon_stop(&f.fake);
}
END_TEST

/* -- invalid replies -------------------------------------------------------------------------- */

enum lie {
    LIE_TYPE,         /* a reply of another type */
    LIE_REQUEST,      /* a reply to a request that is not pending */
    LIE_NO_REPLY,     /* a request instead of a reply */
    LIE_BODY,         /* a body that cannot be parsed */
    LIE_OK_ERROR,     /* an error with the status 0 */
    LIE_FDS,          /* descriptors that were not asked for */
    LIE_SHORT,        /* fewer results than items */
    LIE_SLAB,         /* a lease in a slab that does not exist */
    LIE_OFFSET,       /* a lease that ends behind its slab */
    LIE_ALIGN,        /* a lease that is not aligned */
    LIE_EAGAIN,       /* an item that is refused with EAGAIN */
    LIE_ERROR_EAGAIN, /* a batch that is refused with EAGAIN */
    LIE_PLACE,        /* a lease without a place */
    LIE_COUNT
};

static void lie_about_lease(struct fake_daemon *fake, const struct cst_frame *request, int lie)
{
    Cistern__BatchDone msg = CISTERN__BATCH_DONE__INIT;
    Cistern__ItemResult result = CISTERN__ITEM_RESULT__INIT, *results = &result;

    msg.results = &results;
    msg.n_results = lie == LIE_SHORT ? 0 : 1;
    result.has_slab = result.has_offset = result.has_generation = true;
    result.slab = lie == LIE_SLAB ? 3 : 0;
    result.offset = lie == LIE_OFFSET ? FAKE_BLOCK_BYTES + 128 : lie == LIE_ALIGN ? 64 : 0;
    result.has_offset = lie != LIE_PLACE;
    result.status = lie == LIE_EAGAIN ? CST_EAGAIN : CST_OK;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, &msg.base, NULL, 0);
}

static bool hook_lie(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    int lie = *(const int *)arg;
    const uint8_t rubbish[] = {0xff, 0xff, 0xff, 0xff};

    if (request->type != CISTERN__MSG_TYPE__MSG_BATCH) {
        return false;
    }
    if (lie == LIE_TYPE) {
        fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
    } else if (lie == LIE_REQUEST) {
        send_raw(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, CST_FRAME_REPLY,
                 request->request + 77, NULL, 0);
    } else if (lie == LIE_NO_REPLY) {
        send_raw(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, 0, request->request, NULL, 0);
    } else if (lie == LIE_BODY) {
        send_raw(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, CST_FRAME_REPLY,
                 request->request, rubbish, sizeof rubbish);
    } else if (lie == LIE_OK_ERROR) {
        fake_daemon_error(fake, request, CST_OK, "no error");
    } else if (lie == LIE_ERROR_EAGAIN) {
        fake_daemon_error(fake, request, CST_EAGAIN, "not yet");
    } else if (lie == LIE_FDS) {
        fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, NULL, fake->slab_fds,
                          1);
    } else {
        lie_about_lease(fake, request, lie);
    }
    return true;
}

/* An invalid reply ends the connection: this and all later calls fail with EPROTO and a message. No
 * descriptor stays open. */
START_TEST(test_lie)
{
    struct cst_err err = {0};
    struct cst_io io = {0};
    unsigned before;
    int lie = _i;

    f.fake.hook = hook_lie;
    f.fake.hook_arg = &lie;
    fake_job_start(&f, 2);
    before = descriptors_count();
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), CST_EPROTO);
    ck_assert_ptr_nonnull(strstr(err.text, f.fake.path));
    ck_assert_ptr_null(io.weight);
    ck_assert_int_eq(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err), CST_EPROTO);
    ck_assert_int_eq(cst_ping(f.client, NULL, &err), CST_EPROTO);
    ck_assert_uint_lt(descriptors_count(), before);
    fake_job_stop(&f);
}
END_TEST

enum bad_fd { FD_UNSEALED, FD_SMALL, FD_PIPE, FD_MISSING, FD_EXTRA, FD_EMPTY, FD_COUNT };

static bool hook_bad_fd(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    int bad = *(const int *)arg, fds[2] = {-1, -1}, ends[2];
    bool pool = request->type == CISTERN__MSG_TYPE__MSG_POOL;
    uint64_t bytes = pool ? FAKE_BLOCKS_PER_SLAB * FAKE_BLOCK_BYTES : 4096;
    Cistern__PoolPart part = CISTERN__POOL_PART__INIT;
    Cistern__StagingPart staging = CISTERN__STAGING_PART__INIT;
    unsigned n_fds = bad == FD_MISSING ? 0 : bad == FD_EXTRA ? 2 : 1;

    if (!pool && request->type != CISTERN__MSG_TYPE__MSG_STAGING) {
        return false;
    }
    if (bad == FD_PIPE) {
        ck_assert_int_eq(pipe(ends), 0);
        fds[0] = ends[0];
        (void)close(ends[1]);
    } else {
        fds[0] = fake_memfd(bad == FD_SMALL ? bytes - 4096 : bytes, bad != FD_UNSEALED);
    }
    fds[1] = fake_memfd(bytes, true);
    bytes = bad == FD_EMPTY ? 0 : bytes;
    part.n_bytes = 1;
    part.bytes = &bytes;
    staging.bytes = bytes;
    fake_daemon_reply(fake, request,
                      pool ? CISTERN__MSG_TYPE__MSG_POOL_PART : CISTERN__MSG_TYPE__MSG_STAGING_PART,
                      pool ? &part.base : &staging.base, fds, n_fds);
    (void)close(fds[0]);
    (void)close(fds[1]);
    return true;
}

/* A slab that is unsealed, too small, not memory, missing, superfluous or empty is refused at the
 * commit. */
START_TEST(test_bad_slab)
{
    struct cst_err err = {0};
    unsigned before;
    int bad = _i;

    f.fake.hook = hook_bad_fd;
    f.fake.hook_arg = &bad;
    fake_daemon_start(&f.fake);
    before = descriptors_count();
    fake_job_open(&f);
    fake_job_declare(&f, 2);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EPROTO);
    ck_assert_uint_gt(strlen(err.text), 0);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EPROTO);
    cst_disconnect(f.client);
    fake_daemon_stop(&f.fake);
    ck_assert_uint_lt(descriptors_count(), before);
}
END_TEST

static bool hook_bad_staging(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    return request->type == CISTERN__MSG_TYPE__MSG_STAGING && hook_bad_fd(fake, request, arg);
}

/* A bad staging segment is refused at the first read. */
START_TEST(test_bad_staging)
{
    struct cst_err err = {0};
    uint16_t data[4];
    int bad = _i;

    f.fake.hook = hook_bad_staging;
    f.fake.hook_arg = &bad;
    fake_job_start(&f, 2);
    ck_assert_int_eq(cst_tensor_read(f.job, 0, CST_STATE_WEIGHT, 0, 4, data, &err), CST_EPROTO);
    ck_assert_int_eq(cst_ping(f.client, NULL, &err), CST_EPROTO);
    fake_job_stop(&f);
}
END_TEST

static bool hook_bad_layout(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    int bad = *(const int *)arg;
    Cistern__LayoutPart msg = CISTERN__LAYOUT_PART__INIT;
    uint32_t chunk[3] = {0, bad == 0 ? 1 : 0, 0}, size_class[3] = {0};
    uint64_t offset[3] = {0, bad == 1 ? FAKE_TENSOR_ELEMS + 64 : FAKE_TENSOR_ELEMS, 0};

    if (request->type != CISTERN__MSG_TYPE__MSG_LAYOUT) {
        return false;
    }
    offset[0] = bad == 2 ? 1 : 0;
    msg.first = bad == 3 ? 1 : 0;
    msg.chunk = chunk;
    msg.offset = offset;
    msg.n_chunk = bad == 4 ? 3 : bad == 5 ? 0 : 2;
    msg.n_offset = bad == 6 ? 1 : msg.n_chunk;
    msg.size_class = size_class;
    msg.n_size_class = msg.n_chunk;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_LAYOUT_PART, &msg.base, NULL, 0);
    return true;
}

/* A layout is refused if its tensors lie outside of chunks, are not aligned, or are not in the
 * requested page. */
START_TEST(test_bad_layout)
{
    struct cst_err err = {0};
    int bad = _i;

    f.fake.hook = hook_bad_layout;
    f.fake.hook_arg = &bad;
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    fake_job_declare(&f, 2);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EPROTO);
    fake_job_stop(&f);
}
END_TEST

/* A worker's run ends with a status, and without leaks, whatever a corrupted daemon replies. The
 * simulated daemon would abort the test if it were confused by the following requests, so it closes
 * the connection instead. */
START_TEST(test_corrupt)
{
    const uint64_t seed = suite_seed();
    unsigned before, n_ended[26] = {0};
    struct cst_err err = {0};

    fake_daemon_start(&f.fake);
    before = descriptors_count();
    f.fake.corrupt = seed | 1;
    for (int i = 0; i < 400; i++) {
        int rc;

        /* The daemon may still be closing the last client's connection. */
        (void)pthread_mutex_lock(&f.fake.mutex);
        f.fake.n_tensors = 0;
        f.fake.attempt = 0;
        (void)pthread_mutex_unlock(&f.fake.mutex);
        f.client = NULL;
        rc = fake_job_live(&f, &err);
        ck_assert_int_le(rc, 0);
        n_ended[rc > -26 ? -rc : 0]++;
        cst_disconnect(f.client);
    }
    ck_assert_uint_gt(n_ended[-CST_EPROTO], 10);
    ck_assert_uint_gt(n_ended[0], 10);
    fake_daemon_stop(&f.fake);
    ck_assert_uint_lt(descriptors_count(), before);
}
END_TEST

/* -- fork ------------------------------------------------------------------------------------- */

/* In a forked child every call fails with EFORKED. Disconnecting changes neither the socket nor the
 * memory of the parent. */
static int check_child(void)
{
    struct cst_job_spec spec = {.name = "x", .world = 1};
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};
    struct cst_io io;
    struct cst_job *other;
    uint16_t data[4];
    bool good = cst_ping(f.client, NULL, &err) == CST_EFORKED && strstr(err.text, "fork") != NULL;

    good = good && cst_client_fd(f.client) == CST_EFORKED;
    good = good && cst_job_open(&other, f.client, &spec, &err) == CST_EFORKED;
    good = good && cst_commit(f.job, NULL, &err) == CST_EFORKED;
    good = good && cst_sync(f.job, NULL, &err) == CST_EFORKED;
    good = good && cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err) == CST_EFORKED;
    good = good && cst_op_end(f.job, 0, &err) == CST_EFORKED;
    good = good && cst_step(f.job, &params, NULL, &err) == CST_EFORKED;
    good = good && cst_tensor_read(f.job, 0, CST_STATE_WEIGHT, 0, 4, data, &err) == CST_EFORKED;
    good = good && cst_job_leave(f.job, &err) == CST_EFORKED;
    good = good && cst_tensor(f.job, "y", CST_BF16, 0, NULL, CST_GROUP_ALL) == CST_EFORKED;
    cst_disconnect(f.client);
    return good ? 0 : 1;
}

START_TEST(test_fork)
{
    struct cst_err err = {0};
    struct cst_io io;
    int status;
    pid_t pid;

    fake_job_start(&f, 2);
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        _exit(check_child());
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The parent goes on, and its memory and its connection are intact. */
    ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4000);
    CK_OK(cst_op_end(f.job, 0, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    fake_job_stop(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client");
    TCase *tcase = suite_case(suite, "client", NULL, NULL);

    tcase_add_loop_test(tcase, test_gone, 0, 2);
    tcase_add_test(tcase, test_farewell_while_idle);
    tcase_add_test(tcase, test_reasons);
    tcase_add_loop_test(tcase, test_lie, 0, LIE_COUNT);
    tcase_add_loop_test(tcase, test_bad_slab, 0, FD_COUNT);
    tcase_add_loop_test(tcase, test_bad_staging, 0, FD_COUNT);
    tcase_add_loop_test(tcase, test_bad_layout, 0, 7);
    tcase_add_test(tcase, test_corrupt);
    tcase_add_test(tcase, test_fork);
    return suite_run(suite);
}
