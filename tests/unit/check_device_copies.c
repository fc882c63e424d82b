/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a worker that copies weights into its pool itself, with a simulated daemon in a thread:
 * what is copied, what waits for the copies, and when no copy may begin any more. A copy is made
 * when the stream, which the test advances, reaches the wait for it. A missing wait therefore shows
 * as a missing copy. */
#include "tests/lib/descriptors.h"
#include "tests/lib/fake_device.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_COPIES = 64, MAX_MARKS = 64 };

static struct fake_job f;

static struct {
    struct fake_device base; /* must be first: its calls have the device as their argument */
    struct {
        void *dst;
        const void *src;
        uint64_t bytes;
    } copies[MAX_COPIES]; /* copy number n is copies[n - 1] */
    uint64_t n_copies;
    uint64_t n_done;           /* number of copies that were made */
    uint64_t awaited;          /* number of the last copy for which the stream waits */
    uint64_t marks[MAX_MARKS]; /* per mark: the copy for which the stream waits before the mark */
    int map_fails;             /* number of the map_host call that fails, counted from 1; 0: none */
    int copy_fails, await_fails;   /* status that copy or await returns */
    unsigned n_hosts, n_calls_map; /* mapped arenas, and calls of map_host */
} device;

static void copy_up_to(uint64_t number)
{
    for (; device.n_done < number; device.n_done++) {
        memcpy(device.copies[device.n_done].dst, device.copies[device.n_done].src,
               device.copies[device.n_done].bytes);
    }
}

/* Let the stream reach @mark, and make the copies that it waits for on the way. */
static void move(uint64_t mark)
{
    uint64_t passed = device.base.passed;

    while (passed < mark && passed < device.base.mark) {
        copy_up_to(device.marks[++passed]);
    }
    fake_device_move(&device.base, passed);
}

static bool flows; /* the stream is never behind */

static int device_fence(void *arg, uint64_t *fence, struct cst_err *err)
{
    (void)arg;
    (void)err;
    ck_assert_uint_lt(device.base.mark + 1, MAX_MARKS);
    *fence = ++device.base.mark;
    device.marks[*fence] = device.awaited;
    if (flows) {
        move(*fence);
    }
    return CST_OK;
}

static int device_map_host(void *arg, void *base, uint64_t bytes, struct cst_err *err)
{
    (void)arg;
    ck_assert_ptr_nonnull(base);
    ck_assert_uint_eq(bytes, (uint64_t)FAKE_ARENA_ROWS * FAKE_BLOCK_BYTES);
    if ((int)++device.n_calls_map == device.map_fails) {
        return cst_err_set(err, CST_ENOMEM, "the device takes no more");
    }
    device.n_hosts++;
    return CST_OK;
}

/* Check that the memory is still mapped and no pending copy reads from it. */
static void device_unmap_host(void *arg, void *base, uint64_t bytes)
{
    (void)arg;
    ck_assert_int_eq(msync(base, bytes, MS_ASYNC), 0);
    ck_assert(device.await_fails != 0 || device.n_done == device.n_copies);
    device.n_hosts--;
}

static int device_copy(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                       struct cst_err *err)
{
    (void)arg;
    if (device.copy_fails != 0) {
        return cst_err_set(err, device.copy_fails, "the copy failed");
    }
    ck_assert_uint_lt(device.n_copies, MAX_COPIES);
    device.copies[device.n_copies].dst = dst;
    device.copies[device.n_copies].src = src;
    device.copies[device.n_copies++].bytes = bytes;
    *number = device.n_copies;
    return CST_OK;
}

static int device_await(void *arg, uint64_t number, struct cst_err *err)
{
    (void)arg;
    if (device.await_fails != 0) {
        return cst_err_set(err, device.await_fails, "the stream failed");
    }
    ck_assert_uint_gt(number, device.awaited);
    ck_assert_uint_le(number, device.n_copies);
    device.awaited = number;
    if (flows) {
        copy_up_to(number);
    }
    return CST_OK;
}

static void open_device(uint32_t n_arenas)
{
    f.fake.device = "GPU-1";
    f.fake.n_arenas = n_arenas;
    fake_device_open(&device.base);
    device.base.calls.fence = device_fence;
    device.base.calls.map_host = device_map_host;
    device.base.calls.unmap_host = device_unmap_host;
    device.base.calls.copy = device_copy;
    device.base.calls.await = device_await;
}

/* Declare a job of @n tensors on the device. */
static void declare(int n, uint32_t n_arenas)
{
    struct cst_err err = {0};

    open_device(n_arenas);
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    CK_OK(cst_job_use_device(f.job, &device.base.calls, &device, &err));
    fake_job_declare(&f, n);
}

/* Commit and sync the job. */
static void start(int n)
{
    struct cst_err err = {0};

    declare(n, 2);
    CK_OK(cst_commit(f.job, NULL, &err));
    flows = true;
    CK_OK(cst_sync(f.job, NULL, &err));
    flows = false;
}

static void stop(void)
{
    flows = true;
    move(device.base.mark);
    fake_job_stop(&f);
    ck_assert_uint_eq(device.n_hosts, 0);
}

static int run(int op, enum cst_direction direction, struct cst_err *err)
{
    struct cst_io io;
    int rc = cst_op_begin(f.job, op, direction, &io, 1, err);

    for (uint64_t i = 0; rc == CST_OK && io.grad != NULL && i < io.n_elems; i++) {
        ((uint16_t *)io.grad)[i] = 1;
    }
    return rc == CST_OK ? cst_op_end(f.job, op, err) : rc;
}

/* -- arenas ----------------------------------------------------------------------------------- */

/* The commit says that the worker copies, and maps all arenas. They are unmapped with the job, and
 * no descriptors stay open. */
START_TEST(test_arenas)
{
    unsigned before = descriptors_count();
    struct cst_err err = {0};

    declare(4, 3);
    CK_OK(cst_commit(f.job, NULL, &err));
    ck_assert_uint_eq(device.n_hosts, 3);
    ck_assert_uint_eq(device.n_copies, 0);
    stop();
    ck_assert_int_eq(close(device.base.calls.fd), 0);
    ck_assert_uint_eq(descriptors_count(), before);
}
END_TEST

/* An arena that the device does not accept fails the commit with the device's error, and the next
 * commit continues with that arena. _i: number of the arena. */
START_TEST(test_arena_fails)
{
    struct cst_err err = {0};

    declare(4, 3);
    device.map_fails = _i + 1;
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_ENOMEM);
    ck_assert_msg(strstr(err.text, "the device takes no more") != NULL, "%s", err.text);
    ck_assert_uint_eq(device.n_hosts, (unsigned)_i);
    CK_OK(cst_commit(f.job, NULL, &err));
    ck_assert_uint_eq(device.n_hosts, 3);
    stop();
}
END_TEST

static bool hook_unsealed(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    Cistern__ArenaPart msg = CISTERN__ARENA_PART__INIT;
    uint64_t bytes = 4096;
    uint32_t segment = 1;
    int fd;

    (void)arg;
    if (request->type != CISTERN__MSG_TYPE__MSG_ARENA) {
        return false;
    }
    fd = fake_memfd(bytes, false);
    msg.n_segment = msg.n_bytes = 1;
    msg.segment = &segment;
    msg.bytes = &bytes;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_ARENA_PART, &msg.base, &fd, 1);
    (void)close(fd);
    return true;
}

/* A descriptor without seals is refused as an arena. */
START_TEST(test_unsealed)
{
    struct cst_err err = {0};

    f.fake.hook = hook_unsealed;
    declare(4, 1);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EPROTO);
    ck_assert_msg(strstr(err.text, "not sealed") != NULL, "%s", err.text);
    stop();
}
END_TEST

static bool hook_committed(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    Cistern__Committed msg = CISTERN__COMMITTED__INIT;
    Cistern__PoolClass class = CISTERN__POOL_CLASS__INIT, *classes = &class;
    Cistern__Commit *asked;

    if (request->type != CISTERN__MSG_TYPE__MSG_COMMIT) {
        return false;
    }
    asked = cistern__commit__unpack(NULL, request->body_bytes, request->body);
    ck_assert_ptr_nonnull(asked);
    ck_assert(!asked->copies);
    cistern__commit__free_unpacked(asked, NULL);
    class.chunk_elems = FAKE_CHUNK_ELEMS;
    class.n_blocks = fake->n_blocks;
    class.min_blocks = 3;
    class.blocks_per_slab = FAKE_BLOCKS_PER_SLAB;
    msg.n_classes = 1;
    msg.classes = &classes;
    msg.n_chunks = 2;
    msg.n_slabs = fake->n_slabs;
    msg.has_n_arenas = true;
    msg.n_arenas = *(const uint32_t *)arg;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_COMMITTED, &msg.base, NULL, 0);
    return true;
}

/* A device without the functions for copies says so to the daemon and works if engines copy. A
 * daemon that leaves the copies to the worker anyway is refused. _i: 1: such a daemon. */
START_TEST(test_device_that_cannot)
{
    uint32_t n_arenas = (uint32_t)_i;
    struct cst_err err = {0};
    struct cst_io io;

    f.fake.hook = hook_committed;
    f.fake.hook_arg = &n_arenas;
    open_device(0);
    device.base.calls.copy = NULL;
    flows = true;
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    CK_OK(cst_job_use_device(f.job, &device.base.calls, &device, &err));
    fake_job_declare(&f, 4);
    if (_i == 0) {
        CK_OK(cst_commit(f.job, NULL, &err));
        CK_OK(cst_sync(f.job, NULL, &err));
        CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
        ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4000);
    } else {
        ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EPROTO);
        ck_assert_msg(strstr(err.text, "left to a worker") != NULL, "%s", err.text);
    }
    fake_job_stop(&f);
}
END_TEST

/* -- copies ----------------------------------------------------------------------------------- */

/* Granted weights are copied from their row to their block. The stream waits for the copy before
 * the operator that uses the weights, but not for prefetched weights. */
START_TEST(test_weights)
{
    struct cst_err err = {0};
    struct cst_io io;

    start(8);
    for (int op = 0; op < 8; op += 2) {
        uint32_t chunk = (uint32_t)op / 2;

        CK_OK(cst_op_begin(f.job, op, CST_FORWARD, &io, 1, &err));
        CK_OK(cst_ping(f.client, NULL, &err)); /* the prefetch is granted now */
        ck_assert_uint_ge(device.n_copies, chunk + 1);
        ck_assert_ptr_eq(device.copies[chunk].dst, io.weight);
        ck_assert_uint_eq(device.copies[chunk].bytes, FAKE_BLOCK_BYTES);
        ck_assert_uint_eq(device.awaited, chunk + 1);
        copy_up_to(device.awaited);
        ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4000 + chunk);
        CK_OK(cst_op_end(f.job, op, &err));
    }
    stop();
}
END_TEST

/* Two operators that use one chunk need one copy and one wait. */
START_TEST(test_once)
{
    struct cst_err err = {0};

    start(2);
    CK_OK(run(0, CST_FORWARD, &err));
    CK_OK(run(1, CST_FORWARD, &err));
    CK_OK(run(1, CST_BACKWARD, &err));
    ck_assert_uint_eq(device.n_copies, 1);
    ck_assert_uint_eq(device.awaited, 1);
    stop();
}
END_TEST

/* A lease whose release still waits for its fence is taken back together with its weights, without
 * another copy. */
START_TEST(test_taken_back)
{
    struct cst_err err = {0};
    struct cst_io io;

    start(8);
    CK_OK(run(0, CST_FORWARD, &err));
    CK_OK(run(2, CST_FORWARD, &err));
    CK_OK(run(4, CST_FORWARD, &err));
    fake_job_expect_log(&f, "W0 W1+ W2+ W3+");
    ck_assert_uint_eq(device.n_copies, 4);
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    ck_assert_uint_eq(device.n_copies, 4);
    CK_OK(cst_op_end(f.job, 0, &err));
    stop();
}
END_TEST

/* Weights that were prefetched and never used are released after their copy; the daemon checks
 * that. */
START_TEST(test_wrong_guess)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    start(8);
    CK_OK(run(0, CST_FORWARD, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_uint_eq(device.awaited, 1);
    CK_OK(run(6, CST_FORWARD, &err)); /* tensor 2 is not used */
    move(device.base.mark);
    CK_OK(run(6, CST_BACKWARD, &err));
    flows = true;
    move(device.base.mark);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_uint_eq(device.n_done, device.n_copies);
    stop();
}
END_TEST

/* A row outside of all arenas, or larger than a block, ends the connection. _i: which error. */
static bool hook_lie(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    Cistern__BatchDone msg = CISTERN__BATCH_DONE__INIT;
    Cistern__ItemResult result = CISTERN__ITEM_RESULT__INIT, *results = &result;
    int how = *(const int *)arg;

    if (request->type != CISTERN__MSG_TYPE__MSG_BATCH) {
        return false;
    }
    msg.n_results = 1;
    msg.results = &results;
    result.has_slab = result.has_offset = result.has_generation = true;
    result.generation = 1;
    result.has_home_segment = result.has_home_offset = result.has_home_bytes = true;
    result.home_segment = how == 0 ? 3 : FAKE_ARENA_SEGMENT;
    result.home_offset = how == 1 ? (FAKE_ARENA_ROWS - 1) * FAKE_BLOCK_BYTES + 2 : 0;
    result.home_offset = how == 2 ? UINT64_MAX - 2 : result.home_offset;
    result.home_bytes = how == 3 ? 2 * FAKE_BLOCK_BYTES : FAKE_BLOCK_BYTES;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, &msg.base, NULL, 0);
    return true;
}

START_TEST(test_lies)
{
    struct cst_err err = {0};
    int how = _i;

    f.fake.hook = hook_lie;
    f.fake.hook_arg = &how;
    start(2);
    ck_assert_int_eq(run(0, CST_FORWARD, &err), CST_EPROTO);
    ck_assert_msg(strstr(err.text, "no arena has") != NULL, "%s", err.text);
    ck_assert_uint_eq(device.n_copies, 0);
    stop();
}
END_TEST

/* -- sync, leave, disconnect ------------------------------------------------------------------ */

/* A copy or a wait that fails makes the step void, with the device's error. _i: which call; 2: a
 * copy of a prefetch. */
START_TEST(test_device_fails)
{
    struct cst_err err = {0};

    start(8);
    if (_i == 2) {
        CK_OK(run(0, CST_FORWARD, &err));
        CK_OK(cst_ping(f.client, NULL, &err));
        device.copy_fails = CST_EGPU;
        CK_OK(run(2, CST_FORWARD, &err));
        CK_OK(cst_ping(f.client, NULL, &err));
    } else if (_i == 1) {
        device.await_fails = CST_EGPU;
    } else {
        device.copy_fails = CST_EGPU;
    }
    ck_assert_int_eq(run(4, CST_FORWARD, &err), CST_EGPU);
    ck_assert_msg(strstr(err.text, "failed") != NULL && strstr(err.text, "GPU-1") != NULL, "%s",
                  err.text);
    stop();
}
END_TEST

/* Hook: the daemon keeps the reply to a prefetch. */
struct kept {
    struct cst_frame asked; /* the request, without its body */
    uint8_t body[256];      /* body of the request */
    atomic_bool keeps;      /* `asked` is valid */
};

static bool hook_keep(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct kept *kept = arg;

    if (request->type == CISTERN__MSG_TYPE__MSG_PING && kept->keeps) {
        kept->keeps = false;
        kept->asked.body = kept->body;
        fake_daemon_serve(fake, &kept->asked);
        return false;
    }
    if (request->type == CISTERN__MSG_TYPE__MSG_BATCH && fake->blocks[0].used && !kept->keeps) {
        kept->asked = *request;
        ck_assert_uint_le(request->body_bytes, sizeof kept->body);
        memcpy(kept->body, request->body, request->body_bytes);
        kept->keeps = true;
        return true;
    }
    return false;
}

/* A sync, leave or disconnect waits for the copies under way and begins no new ones: weights that
 * are granted meanwhile are not copied. _i: 0: sync; 1: disconnect; 2: leave. */
START_TEST(test_ends)
{
    struct kept kept = {0};
    struct cst_err err = {0};
    struct cst_io io;

    f.fake.hook = hook_keep;
    f.fake.hook_arg = &kept;
    start(8);
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err));
    while (!kept.keeps) {
        (void)poll(NULL, 0, 1);
    }
    ck_assert_uint_eq(device.n_copies, 1);
    if (_i == 0) {
        struct pollfd pfd = {.fd = cst_client_fd(f.client), .events = POLLIN};

        ck_assert_int_eq(cst_try_sync(f.job, NULL, &err), CST_EAGAIN);
        (void)pthread_mutex_lock(&f.fake.mutex);
        kept.keeps = false;
        kept.asked.body = kept.body;
        fake_daemon_serve(&f.fake, &kept.asked);
        (void)pthread_mutex_unlock(&f.fake.mutex);
        ck_assert_int_eq(poll(&pfd, 1, -1), 1);
        ck_assert_int_eq(cst_try_sync(f.job, NULL, &err), CST_EAGAIN);
        ck_assert_uint_eq(device.n_copies, 1);
        move(device.base.mark);
        ck_assert_uint_eq(device.n_done, 1);
        f.fake.hook = NULL;
        CK_OK(cst_sync(f.job, NULL, &err));
        CK_OK(cst_op_begin(f.job, 2, CST_FORWARD, &io, 1, &err));
        copy_up_to(device.awaited);
        ck_assert_uint_eq(*(const uint16_t *)io.weight, 0x4001);
        CK_OK(cst_op_end(f.job, 2, &err));
    } else if (_i == 2) {
        flows = true;
        CK_OK(cst_job_leave(f.job, &err));
        ck_assert_uint_eq(device.n_done, device.n_copies);
    }
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_copies");
    TCase *tcase = suite_case(suite, "device_copies", NULL, NULL);

    tcase_add_test(tcase, test_arenas);
    tcase_add_loop_test(tcase, test_arena_fails, 0, 3);
    tcase_add_test(tcase, test_unsealed);
    tcase_add_loop_test(tcase, test_device_that_cannot, 0, 2);
    tcase_add_test(tcase, test_weights);
    tcase_add_test(tcase, test_once);
    tcase_add_test(tcase, test_taken_back);
    tcase_add_test(tcase, test_wrong_guess);
    tcase_add_loop_test(tcase, test_lies, 0, 4);
    tcase_add_loop_test(tcase, test_device_fails, 0, 3);
    tcase_add_loop_test(tcase, test_ends, 0, 3);
    return suite_run(suite);
}
