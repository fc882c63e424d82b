/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a job on a device that the processor cannot access, with a simulated daemon in a
 * thread: what waits for the device's stream, when requests are sent, and the effects of a
 * failed stream. */
#include "tests/lib/descriptors.h"
#include "tests/lib/fake_device.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fake_job f;

static struct fake_device device;

static void open_device(void)
{
    f.fake.device = "GPU-1";
    fake_device_open(&device);
}

/* Open a job of @n tensors and sync. */
static void start(int n)
{
    struct cst_err err = {0};

    open_device();
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    CK_OK(cst_job_use_device(f.job, &device.calls, &device, &err));
    fake_job_declare(&f, n);
    CK_OK(cst_commit(f.job, NULL, &err));
    device.passed = 1; /* the fence for which the sync waits */
    CK_OK(cst_sync(f.job, NULL, &err));
    ck_assert_uint_eq(device.n_fences, 1);
}

static void stop(void)
{
    device.passed = FAKE_DEVICE_FLOWS;
    fake_job_stop(&f);
    ck_assert_uint_eq(device.n_unmaps, f.fake.n_slabs);
}

static int run(int op, enum cst_direction direction, uint16_t grad, struct cst_err *err)
{
    struct cst_io io;
    int rc = cst_op_begin(f.job, op, direction, &io, 1, err);

    device.works = true;
    for (uint64_t i = 0; rc == CST_OK && io.grad != NULL && i < io.n_elems; i++) {
        ((uint16_t *)io.grad)[i] = grad;
    }
    return rc == CST_OK ? cst_op_end(f.job, op, err) : rc;
}

/* -- the device of a job ---------------------------------------------------------------------- */

/* A job on a device cannot be committed without the device's calls, and the error says how to
 * provide them. The calls can be set once, before the commit, and not for a job on the host. */
START_TEST(test_use_device)
{
    struct cst_err err = {0};

    open_device();
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    ck_assert_str_eq(cst_job_device(f.job), "GPU-1");
    fake_job_declare(&f, 2);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EUNSUPPORTED);
    ck_assert_msg(strstr(err.text, "GPU-1") != NULL && strstr(err.text, "libcistern-cuda") != NULL,
                  "%s", err.text);
    CK_OK(cst_job_use_device(f.job, &device.calls, &device, &err));
    ck_assert_int_eq(cst_job_use_device(f.job, &device.calls, &device, &err), CST_EINVAL);
    CK_OK(cst_commit(f.job, NULL, &err));
    ck_assert_uint_eq(device.n_maps, f.fake.n_slabs);
    device.passed = FAKE_DEVICE_FLOWS;
    CK_OK(cst_job_leave(f.job, &err));
    ck_assert_int_eq(cst_job_use_device(f.job, &device.calls, &device, &err), CST_EINVAL);
    stop();
}
END_TEST

START_TEST(test_host)
{
    struct cst_err err = {0};

    open_device();
    f.fake.device = NULL;
    fake_job_start(&f, 2);
    ck_assert_str_eq(cst_job_device(f.job), "host");
    ck_assert_int_eq(cst_job_use_device(f.job, &device.calls, &device, &err), CST_EINVAL);
    fake_job_stop(&f);
    ck_assert_uint_eq(device.n_maps, 0);
}
END_TEST

/* A slab that the device cannot map fails the commit with the device's error. Slabs that were
 * mapped stay mapped, and the next commit continues with the failed one. _i: number of the slab. */
START_TEST(test_map_fails)
{
    struct cst_err err = {0};

    open_device();
    device.map_fails = _i + 1;
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    CK_OK(cst_job_use_device(f.job, &device.calls, &device, &err));
    fake_job_declare(&f, 2);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_ENOMEM);
    ck_assert_msg(strstr(err.text, "the device is full") != NULL, "%s", err.text);
    if (_i % 2 == 0) {
        CK_OK(cst_commit(f.job, NULL, &err));
        ck_assert_uint_eq(device.n_maps, f.fake.n_slabs + 1);
    }
    device.passed = FAKE_DEVICE_FLOWS;
    fake_job_stop(&f);
    ck_assert_uint_eq(device.n_unmaps, _i % 2 == 0 ? f.fake.n_slabs : (unsigned)_i);
}
END_TEST

/* -- requests that wait ----------------------------------------------------------------------- */

/* Hand-ins and releases are sent, in any call, when the stream has passed their operator. The step
 * waits for all of them. */
START_TEST(test_step)
{
    struct cst_hyper_params params = {.lr = 0.5f};
    struct cst_err err = {0};

    start(4); /* two chunks */
    CK_OK(run(0, CST_FORWARD, 0, &err));
    CK_OK(run(1, CST_FORWARD, 0, &err));
    CK_OK(run(2, CST_FORWARD, 0, &err));
    CK_OK(run(3, CST_FORWARD, 0, &err));
    CK_OK(run(3, CST_BACKWARD, 0x3f83, &err));
    CK_OK(run(2, CST_BACKWARD, 0x3f82, &err));
    fake_job_expect_log(&f, "W0 W1+ G1"); /* R1 waits for the stream */
    CK_OK(run(1, CST_BACKWARD, 0x3f81, &err));
    fake_job_expect_log(&f, "W0 W1+ G1 G0"); /* r1 waits, too */
    ck_assert_ptr_null(f.fake.grads[1]);
    fake_device_move(&device, 2); /* fence 1 belongs to the sync, and fence 2 comes after R1 */
    CK_OK(run(0, CST_BACKWARD, 0x3f80, &err));
    fake_job_expect_log(&f, "W0 W1+ G1 G0 R1 r1");
    ck_assert_uint_eq(f.fake.grads[1][0], 0x3f82);
    ck_assert_int_eq(cst_try_step(f.job, &params, NULL, &err), CST_EAGAIN);
    ck_assert_int_eq(cst_try_step(f.job, &params, NULL, &err), CST_EAGAIN);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_STEP], 0);
    device.slow = 2000;
    CK_OK(cst_step(f.job, &params, NULL, &err));
    fake_job_expect_log(&f, "W0 W1+ G1 G0 R1 r1 R0 r0 S0");
    ck_assert_uint_eq(f.fake.grads[0][0], 0x3f80);
    ck_assert_uint_eq(device.n_fences, 3); /* one fence per operator that needs one */
    stop();
}
END_TEST

/* If the stream is always ahead, requests after a mark that was passed long ago are sent without
 * further notice. */
START_TEST(test_fast)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    start(4);
    device.passed = FAKE_DEVICE_FLOWS;
    for (int step = 0; step < 3; step++) {
        for (int op = 0; op < 4; op++) {
            CK_OK(run(op, CST_FORWARD, 0, &err));
            CK_OK(cst_ping(f.client, NULL, &err));
        }
        for (int op = 4; op-- > 0;) {
            CK_OK(run(op, CST_BACKWARD, 1, &err));
            CK_OK(cst_ping(f.client, NULL, &err));
        }
        CK_OK(cst_step(f.job, &params, NULL, &err));
    }
    stop();
}
END_TEST

/* The device zeroes a gradient that the operator did not write, before the fence. */
START_TEST(test_zero)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    start(4);
    device.passed = FAKE_DEVICE_FLOWS;
    CK_OK(run(3, CST_BACKWARD, 0x3f80, &err));
    CK_OK(cst_step(f.job, &params, NULL, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_uint_eq(device.n_zeros, 1);
    ck_assert_uint_eq(f.fake.grads[1][0], 0);
    ck_assert_uint_eq(f.fake.grads[1][FAKE_TENSOR_ELEMS], 0x3f80);
    stop();
}
END_TEST

/* A chunk that is used again before its release was sent costs no message. */
START_TEST(test_taken_back)
{
    struct cst_err err = {0};
    struct cst_io io;
    void *weight;

    start(8);
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    weight = io.weight;
    CK_OK(cst_op_end(f.job, 0, &err));
    CK_OK(run(2, CST_FORWARD, 0, &err));
    CK_OK(run(4, CST_FORWARD, 0, &err));
    fake_job_expect_log(&f, "W0 W1+ W2+ W3+");
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    ck_assert_ptr_eq(io.weight, weight);
    ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4000);
    CK_OK(cst_op_end(f.job, 0, &err));
    fake_job_expect_log(&f, "W0 W1+ W2+ W3+");
    fake_device_move(&device, FAKE_DEVICE_FLOWS);
    CK_OK(run(0, CST_FORWARD, 0, &err));
    fake_job_expect_log(&f, "W0 W1+ W2+ W3+ r2 r3");
    stop();
}
END_TEST

/* Hook: the daemon holds fetches back as long as it has no free block. */
struct scarce {
    uint32_t n_blocks;      /* blocks in the pool; one fetch is held back at a time */
    struct cst_frame asked; /* the fetch that is held back, without its body */
    uint32_t chunk;         /* chunk of that fetch */
    bool waits;             /* `asked` is valid */
    atomic_bool waited;     /* a fetch was ever held back */
};

static uint32_t n_used(const struct fake_daemon *fake)
{
    uint32_t n = 0;

    for (uint32_t b = 0; b < FAKE_MAX_BLOCKS; b++) {
        n += fake->blocks[b].used ? 1 : 0;
    }
    return n;
}

static void serve_late(struct fake_daemon *fake, struct scarce *scarce)
{
    Cistern__BatchItem item = CISTERN__BATCH_ITEM__INIT, *items = &item;
    Cistern__Batch msg = CISTERN__BATCH__INIT;
    uint8_t bytes[64];

    item.kind = CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT;
    item.chunk = scarce->chunk;
    msg.attempt = fake->attempt;
    msg.items = &items;
    msg.n_items = 1;
    scarce->asked.body = bytes;
    scarce->asked.body_bytes = (uint32_t)cistern__batch__pack(&msg, bytes);
    scarce->waits = false;
    fake_daemon_serve(fake, &scarce->asked);
}

static bool hook_scarce(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct scarce *scarce = arg;
    Cistern__Batch *asked;
    bool wait;

    if (request->type != CISTERN__MSG_TYPE__MSG_BATCH) {
        return false;
    }
    asked = cistern__batch__unpack(NULL, request->body_bytes, request->body);
    ck_assert_ptr_nonnull(asked);
    wait = asked->items[0]->kind == CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT &&
           n_used(fake) == scarce->n_blocks;
    if (wait) {
        ck_assert(!scarce->waits && asked->n_items == 1);
        scarce->asked = *request;
        scarce->chunk = asked->items[0]->chunk;
        scarce->waited = true;
        scarce->waits = true;
    } else {
        fake_daemon_serve(fake, request);
        if (scarce->waits && n_used(fake) < scarce->n_blocks) {
            serve_late(fake, scarce);
        }
    }
    cistern__batch__free_unpacked(asked, NULL);
    return true;
}

static void *move_when_it_waits(void *arg)
{
    struct scarce *scarce = arg;

    while (!scarce->waited) {
        (void)poll(NULL, 0, 1);
    }
    fake_device_move(&device, FAKE_DEVICE_FLOWS);
    return NULL;
}

/* A begin that waits for a block gets the block that the stream frees meanwhile. _i: 1: the form
 * that does not wait, whose descriptor also signals the stream. */
START_TEST(test_scarce)
{
    struct scarce scarce = {.n_blocks = 3};
    struct cst_err err = {0};
    struct cst_io io;
    pthread_t thread;
    int rc;

    f.fake.n_blocks = 3;
    f.fake.hook = hook_scarce;
    f.fake.hook_arg = &scarce;
    start(10);
    CK_OK(run(0, CST_FORWARD, 0, &err));
    CK_OK(run(2, CST_FORWARD, 0, &err)); /* r0 waits; W2+ is granted */
    CK_OK(run(4, CST_FORWARD, 0, &err)); /* r1 waits; W3+ is held back */
    ck_assert_int_eq(pthread_create(&thread, NULL, move_when_it_waits, &scarce), 0);
    if (_i == 0) {
        CK_OK(cst_op_begin(f.job, 6, CST_FORWARD, &io, 1, &err));
    } else {
        struct pollfd pfd = {.fd = cst_client_fd(f.client), .events = POLLIN};

        while ((rc = cst_try_op_begin(f.job, 6, CST_FORWARD, &io, 1, &err)) == CST_EAGAIN) {
            ck_assert_int_eq(poll(&pfd, 1, -1), 1);
        }
        CK_OK(rc);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(scarce.waited);
    ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4003);
    CK_OK(cst_op_end(f.job, 6, &err));
    stop();
}
END_TEST

/* -- sync, leave, disconnect ------------------------------------------------------------------ */

/* In the daemon's thread: check that the stream had passed when a request said that this rank has
 * finished with its blocks. */
static bool hook_passed(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    (void)fake;
    (void)arg;
    if (request->type == CISTERN__MSG_TYPE__MSG_SYNC ||
        request->type == CISTERN__MSG_TYPE__MSG_LEAVE) {
        ck_assert_uint_ge(device.passed, device.mark);
        ck_assert(!device.works);
    }
    return false;
}

/* Sync, leave and disconnect send nothing before the stream has passed, because an abandoned step
 * may still be running there. They give back the waiting leases. _i: which call. */
START_TEST(test_ends)
{
    struct cst_err err = {0};

    f.fake.hook = hook_passed;
    start(4);
    CK_OK(run(0, CST_FORWARD, 0, &err));
    CK_OK(run(2, CST_FORWARD, 0, &err));
    if (_i == 0) {
        ck_assert_int_eq(cst_try_sync(f.job, NULL, &err), CST_EAGAIN);
        ck_assert_int_eq(cst_try_sync(f.job, NULL, &err), CST_EAGAIN);
    }
    device.slow = 2000;
    if (_i == 0) {
        CK_OK(cst_sync(f.job, NULL, &err));
        CK_OK(run(0, CST_FORWARD, 0, &err));
        fake_job_expect_log(&f, "W0 W1+ W0 W1+");
    } else if (_i == 1) {
        CK_OK(cst_job_leave(f.job, &err));
        fake_job_expect_log(&f, "W0 W1+");
    }
    fake_job_stop(&f); /* device_unmap checks that the stream has passed */
    ck_assert_uint_eq(device.n_unmaps, f.fake.n_slabs);
}
END_TEST

/* A daemon that dies while the stream runs is noticed. The memory stays mapped until the stream has
 * passed. */
START_TEST(test_daemon_dies)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    start(4);
    CK_OK(run(3, CST_BACKWARD, 1, &err));
    fake_daemon_hang_up(&f.fake);
    ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), CST_ECONN);
    ck_assert_int_eq(cst_sync(f.job, NULL, &err), CST_ECONN);
    ck_assert_int_eq(cst_client_fd(f.client), CST_ECONN);
    device.slow = 2000;
    fake_job_stop(&f);
    ck_assert_uint_eq(device.n_unmaps, f.fake.n_slabs);
}
END_TEST

/* A failed stream makes the step void, whichever call notices it, and a sync does not help.
 * Disconnecting still works. _i: which call. */
START_TEST(test_stream_fails)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};
    struct cst_io io;

    start(4);
    if (_i == 0) {
        CK_OK(run(0, CST_FORWARD, 0, &err));
        fake_device_break(&device);
        ck_assert_int_eq(run(2, CST_FORWARD, 0, &err), CST_EGPU);
    } else if (_i == 1) { /* the fence fails */
        CK_OK(run(3, CST_BACKWARD, 1, &err));
        CK_OK(cst_op_begin(f.job, 2, CST_BACKWARD, &io, 1, &err));
        fake_device_break(&device);
        ck_assert_int_eq(cst_op_end(f.job, 2, &err), CST_EGPU);
    } else if (_i == 2) { /* zeroing fails, when the step collects the remaining gradients */
        CK_OK(run(3, CST_BACKWARD, 1, &err));
        fake_device_break(&device);
        ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), CST_EGPU);
    } else { /* the stream fails while the step waits */
        CK_OK(run(3, CST_BACKWARD, 1, &err));
        ck_assert_int_eq(cst_try_step(f.job, &params, NULL, &err), CST_EAGAIN);
        fake_device_break(&device);
        ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), CST_EGPU);
    }
    ck_assert_msg(strstr(err.text, "the device failed") != NULL &&
                      strstr(err.text, "GPU-1") != NULL,
                  "%s", err.text);
    ck_assert_int_eq(cst_sync(f.job, NULL, &err), CST_EGPU);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_STEP], 0);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_SYNC], 1);
    stop();
}
END_TEST

/* A forked child can use neither the connection nor the device. */
START_TEST(test_fork)
{
    struct cst_err err = {0};
    int status;
    pid_t pid;

    start(4);
    CK_OK(run(0, CST_FORWARD, 0, &err));
    pid = fork();
    if (pid == 0) {
        bool dead =
            cst_client_fd(f.client) == CST_EFORKED && cst_sync(f.job, NULL, &err) == CST_EFORKED;
        unsigned n_unmaps = device.n_unmaps, n_fences = device.n_fences;

        cst_disconnect(f.client);
        _exit(dead && n_unmaps == device.n_unmaps && n_fences == device.n_fences ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    device.passed = FAKE_DEVICE_FLOWS;
    CK_OK(cst_sync(f.job, NULL, &err));
    stop();
}
END_TEST

/* No descriptor stays open. */
START_TEST(test_descriptors)
{
    unsigned before = descriptors_count();
    struct cst_err err = {0};

    start(4);
    CK_OK(run(0, CST_FORWARD, 0, &err));
    stop();
    ck_assert_int_eq(close(device.calls.fd), 0);
    ck_assert_uint_eq(descriptors_count(), before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_calls");
    TCase *tcase = suite_case(suite, "device_calls", NULL, NULL);

    tcase_add_test(tcase, test_use_device);
    tcase_add_test(tcase, test_host);
    tcase_add_loop_test(tcase, test_map_fails, 0, 3);
    tcase_add_test(tcase, test_step);
    tcase_add_test(tcase, test_fast);
    tcase_add_test(tcase, test_zero);
    tcase_add_test(tcase, test_taken_back);
    tcase_add_loop_test(tcase, test_scarce, 0, 2);
    tcase_add_loop_test(tcase, test_ends, 0, 3);
    tcase_add_test(tcase, test_daemon_dies);
    tcase_add_loop_test(tcase, test_stream_fails, 0, 4);
    tcase_add_test(tcase, test_fork);
    tcase_add_test(tcase, test_descriptors);
    return suite_run(suite);
}
