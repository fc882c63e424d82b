/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of libcistern with a simulated daemon in a thread: micro-batches, on the host and with a
 * device's stream, and the size classes that a daemon may report. */
#include "tests/lib/fake_device.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <unistd.h>

static struct fake_job f;

static void open_job(uint32_t micro_batches)
{
    const struct cst_job_spec spec = {
        .name = "run7", .world = 1, .updates.micro_batches = micro_batches};
    struct cst_err err = {0};

    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    CK_OK(cst_job_open(&f.job, f.client, &spec, &err));
}

static void commit(int n_tensors)
{
    struct cst_err err = {0};

    fake_job_declare(&f, n_tensors);
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_sync(f.job, NULL, &err));
}

static void backward(int op, uint16_t grad)
{
    struct cst_err err = {0};
    struct cst_io io;

    CK_OK(cst_op_begin(f.job, op, CST_BACKWARD, &io, 1, &err));
    ck_assert(!io.accumulate);
    ((uint16_t *)io.grad)[0] = grad;
    CK_OK(cst_op_end(f.job, op, &err));
}

/* -- micro-batches ---------------------------------------------------------------------------- */

/* The end of a micro-batch hands in the remaining gradients, zeroes those that were not written,
 * and then sends Accumulate. Weights stay leased, and the next micro-batch gets new gradients. */
START_TEST(test_order)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    open_job(3);
    commit(2); /* one chunk for both tensors */
    backward(1, 0x3f81);
    CK_OK(cst_accumulate(f.job, &err));
    fake_job_expect_log(&f, "W0 G0 R0 A");
    ck_assert_uint_eq(f.fake.grads[0][0], 0);
    ck_assert_uint_eq(f.fake.grads[0][FAKE_TENSOR_ELEMS], 0x3f81);
    backward(1, 0x3f82);
    backward(0, 0x3f83);
    fake_job_expect_log(&f, "W0 G0 R0 A G0 R0");
    CK_OK(cst_accumulate(f.job, &err));
    ck_assert_int_eq(cst_accumulate(f.job, &err), CST_EINVAL);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    fake_job_expect_log(&f, "W0 G0 R0 A G0 R0 A r0 S0");
    CK_OK(cst_accumulate(f.job, &err)); /* each step counts its micro-batches from zero */
    fake_job_stop(&f);
}
END_TEST

/* A sync begins the step again and resets the count of micro-batches. */
START_TEST(test_sync_counts_anew)
{
    struct cst_err err = {0};

    open_job(2);
    commit(2);
    CK_OK(cst_accumulate(f.job, &err));
    ck_assert_int_eq(cst_accumulate(f.job, &err), CST_EINVAL);
    CK_OK(cst_sync(f.job, NULL, &err));
    CK_OK(cst_accumulate(f.job, &err));
    fake_job_stop(&f);
}
END_TEST

/* With one micro-batch per step, cst_accumulate is refused. */
START_TEST(test_one)
{
    struct cst_err err = {0};

    open_job((uint32_t)_i);
    commit(2);
    ck_assert_int_eq(cst_accumulate(f.job, &err), CST_EINVAL);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_ACCUMULATE], 0);
    fake_job_stop(&f);
}
END_TEST

static bool refuse(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    const int *status = arg;

    if (request->type != CISTERN__MSG_TYPE__MSG_ACCUMULATE) {
        return false;
    }
    fake_daemon_error(fake, request, *status, "rank 3 died");
    return true;
}

/* If Accumulate fails, no call waits for its reply: the next call reports that the step is void,
 * with the daemon's message. */
START_TEST(test_refused)
{
    static int statuses[] = {CST_EPEERDIED, CST_ENOMEM};
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    f.fake.hook = refuse;
    f.fake.hook_arg = &statuses[_i];
    open_job(2);
    commit(2);
    CK_OK(cst_accumulate(f.job, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), statuses[_i]);
    ck_assert_ptr_nonnull(strstr(err.text, "rank 3 died"));
    CK_OK(cst_sync(f.job, NULL, &err));
    fake_job_stop(&f);
}
END_TEST

/* -- micro-batches on a stream ---------------------------------------------------------------- */

static struct fake_device device;

static void start_on_device(uint32_t micro_batches, int n_tensors)
{
    struct cst_err err = {0};

    f.fake.device = "GPU-1";
    fake_device_open(&device);
    open_job(micro_batches);
    CK_OK(cst_job_use_device(f.job, &device.calls, &device, &err));
    device.passed = 1; /* the stream has passed the fence of the sync */
    commit(n_tensors);
}

static void stop_device(void)
{
    fake_device_move(&device, FAKE_DEVICE_FLOWS);
    fake_job_stop(&f);
    (void)close(device.calls.fd);
}

/* Accumulate waits, after its gradients, for the stream, while cst_accumulate returns at once. No
 * gradient of the next micro-batch is fetched before, because the daemon would count it for the
 * current one. */
START_TEST(test_stream)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};
    struct cst_io io;

    start_on_device(2, 4); /* two chunks */
    backward(3, 1);
    backward(2, 1);
    backward(1, 1);
    CK_OK(cst_accumulate(f.job, &err));
    fake_job_expect_log(&f, "W1 G1 W0+ G0");                  /* R1, R0 and A wait for the stream */
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err)); /* fetches of weights need not wait */
    CK_OK(cst_op_end(f.job, 0, &err));
    ck_assert_int_eq(cst_try_op_begin(f.job, 1, CST_BACKWARD, &io, 1, &err), CST_EAGAIN);
    ck_assert_int_eq(cst_try_op_begin(f.job, 1, CST_BACKWARD, &io, 1, &err), CST_EAGAIN);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_ACCUMULATE], 0);
    fake_device_move(&device, device.mark);
    CK_OK(cst_op_begin(f.job, 1, CST_BACKWARD, &io, 1, &err));
    CK_OK(cst_op_end(f.job, 1, &err));
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_ACCUMULATE], 1);
    fake_device_move(&device, FAKE_DEVICE_FLOWS);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    fake_job_expect_log(&f, "W1 G1 W0+ G0 R1 R0 A G0 r1 R0 r0 S0");
    stop_device();
}
END_TEST

/* Several micro-batches without gradients may wait for the stream at a time. */
START_TEST(test_many_wait)
{
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_err err = {0};

    start_on_device(100, 2);
    backward(1, 1);
    for (int m = 0; m < 99; m++) {
        CK_OK(cst_accumulate(f.job, &err));
    }
    ck_assert_int_eq(cst_accumulate(f.job, &err), CST_EINVAL);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_ACCUMULATE], 0);
    fake_device_move(&device, FAKE_DEVICE_FLOWS);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_ACCUMULATE], 99);
    stop_device();
}
END_TEST

/* -- size classes ----------------------------------------------------------------------------- */

struct lie {
    const char *words; /* words of the expected error */
    uint64_t elems[2]; /* capacities of the two classes */
    /* Numbers of the second class; n_slabs is the number of all slabs. */
    uint32_t n_blocks, min_blocks, per_slab, first_slab, n_slabs;
    size_t n_classes;
    uint32_t size_class; /* size class of tensor 1 */
};

static const struct lie good = {.elems = {FAKE_CHUNK_ELEMS, 2 * FAKE_CHUNK_ELEMS},
                                .n_blocks = 2,
                                .min_blocks = 1,
                                .per_slab = 1,
                                .first_slab = 1,
                                .n_slabs = 3,
                                .n_classes = 2,
                                .size_class = 1};

/* Reply with a plan of two blocks of the first class in slab 0, and two of the second in slabs 1
 * and 2, which have the same size. */
static void reply_plan(struct fake_daemon *fake, const struct cst_frame *request,
                       const struct lie *lie)
{
    Cistern__Committed msg = CISTERN__COMMITTED__INIT;
    Cistern__PoolClass classes[5], *pointers[5];

    for (size_t i = 0; i < 5; i++) {
        cistern__pool_class__init(&classes[i]);
        classes[i].chunk_elems = i < 2 ? lie->elems[i] : lie->elems[1] << i;
        classes[i].n_blocks = i == 0 ? 2 : lie->n_blocks;
        classes[i].min_blocks = i == 0 ? 1 : lie->min_blocks;
        classes[i].blocks_per_slab = i == 0 ? 2 : lie->per_slab;
        classes[i].first_slab = i == 0 ? 0 : lie->first_slab;
        pointers[i] = &classes[i];
    }
    msg.n_chunks = 2;
    msg.n_slabs = lie->n_slabs;
    msg.n_params = 1;
    msg.classes = pointers;
    msg.n_classes = lie->n_classes;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_COMMITTED, &msg.base, NULL, 0);
}

static void reply_layout(struct fake_daemon *fake, const struct cst_frame *request,
                         const struct lie *lie)
{
    Cistern__LayoutPart msg = CISTERN__LAYOUT_PART__INIT;
    uint32_t chunk[2] = {0, 1}, size_class[2] = {0, lie->size_class};
    uint64_t offset[2] = {0, lie->size_class == 1 ? FAKE_CHUNK_ELEMS : 0};

    msg.chunk = chunk;
    msg.offset = offset;
    msg.size_class = size_class;
    msg.n_chunk = msg.n_offset = 2;
    msg.n_size_class = lie->size_class == 7 ? 1 : 2;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_LAYOUT_PART, &msg.base, NULL, 0);
}

static bool lie_of_classes(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    if (request->type == CISTERN__MSG_TYPE__MSG_COMMIT) {
        reply_plan(fake, request, arg);
    } else if (request->type == CISTERN__MSG_TYPE__MSG_LAYOUT) {
        reply_layout(fake, request, arg);
    } else {
        return false;
    }
    return true;
}

/* Two classes are accepted as the daemon reports them. Each has its blocks in its own slabs, so a
 * lease of the second class in a slab of the first ends the connection. */
START_TEST(test_classes)
{
    struct cst_err err = {0};
    struct cst_plan plan;
    struct cst_io io;
    struct lie lie = good;

    f.fake.hook = lie_of_classes;
    f.fake.hook_arg = &lie;
    f.fake.n_blocks = 6; /* three slabs of two blocks */
    open_job(1);
    fake_job_declare(&f, 2);
    CK_OK(cst_commit(f.job, &plan, &err));
    ck_assert_uint_eq(plan.n_classes, 2);
    ck_assert_uint_eq(plan.classes[1].chunk_elems, 2 * FAKE_CHUNK_ELEMS);
    ck_assert_uint_eq(plan.classes[1].n_blocks, 2);
    ck_assert_uint_eq(plan.n_blocks, 2);
    CK_OK(cst_sync(f.job, NULL, &err));
    CK_OK(cst_op_begin(f.job, 0, CST_FORWARD, &io, 1, &err)); /* the lease is block 0 of slab 0 */
    CK_OK(cst_op_end(f.job, 0, &err));
    ck_assert_int_eq(cst_op_begin(f.job, 1, CST_FORWARD, &io, 1, &err), CST_EPROTO);
    ck_assert_ptr_nonnull(strstr(err.text, "outside of the pool"));
    fake_job_stop(&f);
}
END_TEST

/* Impossible classes, and impossible classes of tensors, are refused. */
START_TEST(test_bad_classes)
{
    struct lie lies[] = {good, good, good, good, good, good, good, good, good, good};
    struct cst_err err = {0};

    lies[0].n_classes = 5;
    lies[0].words = "5 size classes";
    lies[1].elems[1] = FAKE_CHUNK_ELEMS;
    lies[1].words = "size class 1";
    lies[2].elems[0] = 0;
    lies[2].words = "size class 0";
    lies[3].n_blocks = 0;
    lies[3].words = "size class 1";
    lies[4].per_slab = 0;
    lies[4].words = "size class 1";
    lies[5].first_slab = 2;
    lies[5].words = "size class 1";
    lies[6].n_slabs = 2;
    lies[6].words = "a plan of 2 slabs for blocks in 3";
    lies[7].size_class = 0;
    lies[7].elems[0] = FAKE_TENSOR_ELEMS / 2;
    lies[7].words = "tensor 't0'";
    lies[8].size_class = 2;
    lies[8].words = "tensor 't1'";
    lies[9].size_class = 7;
    lies[9].words = "a layout page";
    f.fake.hook = lie_of_classes;
    f.fake.hook_arg = &lies[_i];
    open_job(1);
    fake_job_declare(&f, 2);
    ck_assert_int_eq(cst_commit(f.job, NULL, &err), CST_EPROTO);
    ck_assert_msg(strstr(err.text, lies[_i].words) != NULL, "%s", err.text);
    fake_job_stop(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_kinds");
    TCase *tcase = suite_case(suite, "client_kinds", NULL, NULL);

    tcase_add_test(tcase, test_order);
    tcase_add_test(tcase, test_sync_counts_anew);
    tcase_add_loop_test(tcase, test_one, 0, 2);
    tcase_add_loop_test(tcase, test_refused, 0, 2);
    tcase_add_test(tcase, test_stream);
    tcase_add_test(tcase, test_many_wait);
    tcase_add_test(tcase, test_classes);
    tcase_add_loop_test(tcase, test_bad_classes, 0, 10);
    return suite_run(suite);
}
