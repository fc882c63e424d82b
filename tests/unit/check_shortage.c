/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of libcistern and of an engine while a message cannot be sent, because the kernel has no
 * memory for it or because the socket is full: the message is sent later, and nobody spins
 * meanwhile. */
#include "kernels/engine/engine.h"
#include "kernels/host/host.h"
#include "kernels/math/undo.h"
#include "proto/engine.pb-c.h"
#include "proto/frame.h"
#include "tests/lib/engine_proc.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SHORTAGE_MS = 200, MOST_TRIES = 2 * SHORTAGE_MS / 10 };

/* With --wrap the linker redirects all calls of cst_frame_send to __wrap_cst_frame_send. */
int __real_cst_frame_send(int sock, int send_flags, const struct cst_frame *frame,
                          struct cst_err *err);
int __wrap_cst_frame_send(int sock, int send_flags, const struct cst_frame *frame,
                          struct cst_err *err);

static _Atomic uint64_t over_ns; /* end of the shortage; 0: there is none */
static atomic_uint n_refused;    /* messages refused during the shortage */
static atomic_int n_to_refuse;   /* messages still to be refused, whatever the time is */
static atomic_int refusal;       /* the status of these: CST_ENOMEM or CST_EAGAIN */

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The library and the engine send without blocking; the daemon of the tests does not. */
int __wrap_cst_frame_send(int sock, int send_flags, const struct cst_frame *frame,
                          struct cst_err *err)
{
    if ((send_flags & MSG_DONTWAIT) != 0 && now_ns() < atomic_load(&over_ns)) {
        (void)atomic_fetch_add(&n_refused, 1);
        return cst_err_set(err, CST_ENOMEM, "no memory for a message");
    }
    if ((send_flags & MSG_DONTWAIT) != 0 && atomic_load(&n_to_refuse) > 0) {
        (void)atomic_fetch_sub(&n_to_refuse, 1);
        return atomic_load(&refusal);
    }
    return __real_cst_frame_send(sock, send_flags, frame, err);
}

static void begin_shortage(void)
{
    atomic_store(&n_refused, 0);
    atomic_store(&over_ns, now_ns() + SHORTAGE_MS * 1000000ull);
}

static void check_tries(void)
{
    ck_assert_uint_ge(now_ns(), atomic_load(&over_ns));
    ck_assert_uint_ge(atomic_load(&n_refused), 2);
    ck_assert_uint_le(atomic_load(&n_refused), MOST_TRIES);
}

static struct fake_job f;

/* A request waits until there is memory, and its caller sleeps. */
START_TEST(a_worker_waits)
{
    struct cst_err err = {0};

    fake_job_start(&f, 2);
    begin_shortage();
    CK_OK(cst_ping(f.client, NULL, &err));
    check_tries();
    fake_job_stop(&f);
}
END_TEST

static void refuse(int status, int n)
{
    atomic_store(&refusal, status);
    atomic_store(&n_to_refuse, n);
}

/* The only request of a worker that polls cannot be sent at first. The client's descriptor wakes
 * the worker each time that the request should be tried again, and after that only when the daemon
 * has sent something. The test holds the daemon's lock, so that the daemon cannot answer earlier.
 * _i: 0 the kernel has no memory, 1 the socket is full. */
START_TEST(a_polling_worker_is_woken)
{
    const int n_refusals = 3;
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};
    struct pollfd pfd;
    int rc;

    fake_job_start(&f, 2);
    pfd = (struct pollfd){.fd = cst_client_fd(f.client), .events = POLLIN};
    (void)pthread_mutex_lock(&f.fake.mutex);
    refuse(_i == 0 ? CST_ENOMEM : CST_EAGAIN, n_refusals);
    ck_assert_int_eq(cst_try_step(f.job, &params, NULL, &err), CST_EAGAIN);
    for (int i = n_refusals - 1; i >= 0; i--) {
        ck_assert_int_eq(atomic_load(&n_to_refuse), i);
        ck_assert_int_eq(poll(&pfd, 1, -1), 1);
        ck_assert_int_eq(cst_try_step(f.job, &params, NULL, &err), CST_EAGAIN);
    }
    ck_assert_int_eq(poll(&pfd, 1, 0), 0);
    (void)pthread_mutex_unlock(&f.fake.mutex);
    while ((rc = cst_try_step(f.job, &params, NULL, &err)) == CST_EAGAIN) {
        ck_assert_int_eq(poll(&pfd, 1, -1), 1);
    }
    CK_OK(rc);
    (void)pthread_mutex_lock(&f.fake.mutex);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_STEP], 1);
    (void)pthread_mutex_unlock(&f.fake.mutex);
    fake_job_stop(&f);
}
END_TEST

/* A worker that waits in a call sends its request as soon as the socket has space. */
START_TEST(a_worker_waits_for_space)
{
    struct cst_err err = {0};

    fake_job_start(&f, 2);
    refuse(CST_EAGAIN, 3);
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_int_eq(atomic_load(&n_to_refuse), 0);
    fake_job_stop(&f);
}
END_TEST

static void warn(const struct cst_err *what)
{
    (void)what;
}

static void *serve(void *arg)
{
    struct cste_engine_config config = {.sock = *(int *)arg, .ops = &cste_host_ops, .warn = warn};
    struct cst_err err = {0};

    CK_OK(cste_engine_run(&config, &err));
    return NULL;
}

static void request(int sock, uint16_t type, const ProtobufCMessage *body, int fd)
{
    uint8_t bytes[256];
    struct cst_frame frame = {.type = type, .request = type, .body = bytes};
    struct cst_err err;

    if (body != NULL) {
        frame.body_bytes = (uint32_t)protobuf_c_message_pack(body, bytes);
    }
    if (fd >= 0) {
        frame.fds[frame.n_fds++] = fd;
    }
    CK_OK(cst_frame_send(sock, 0, &frame, &err));
}

static void expect(int sock, uint16_t type)
{
    static struct cst_frame_buf buf;
    struct cst_frame reply;
    struct cst_err err;

    CK_OK(cst_frame_recv(sock, 0, &buf, &reply, &err));
    ck_assert_uint_eq(reply.type, type);
}

/* A reply of an engine waits until there is memory, and the engine's loop sleeps. */
START_TEST(an_engine_waits)
{
    Engine__Setup setup = ENGINE__SETUP__INIT;
    pthread_t thread;
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, serve, &ends[1]), 0);
    setup.threads = setup.copy_threads = 2;
    setup.undo_segment = 9;
    setup.undo_bytes = 2 * sizeof(struct cst_undo_slot);
    request(ends[0], ENGINE__MSG_TYPE__ENGINE_SETUP, &setup.base,
            engine_proc_memfd(setup.undo_bytes, NULL));
    expect(ends[0], ENGINE__MSG_TYPE__ENGINE_READY);
    begin_shortage();
    request(ends[0], ENGINE__MSG_TYPE__ENGINE_PING, NULL, -1);
    expect(ends[0], ENGINE__MSG_TYPE__ENGINE_PONG);
    check_tries();
    ck_assert_int_eq(close(ends[0]), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shortage");
    TCase *tcase = suite_case(suite, "shortage", NULL, NULL);

    tcase_add_test(tcase, a_worker_waits);
    tcase_add_loop_test(tcase, a_polling_worker_is_woken, 0, 2);
    tcase_add_test(tcase, a_worker_waits_for_space);
    tcase_add_test(tcase, an_engine_waits);
    return suite_run(suite);
}
