/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of how much a connection may request and leave waiting: replies that are not read,
 * descriptors, pending requests, places and batches. After every test the daemon has its initial
 * number of descriptors and bytes in use. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

static pid_t engine;

static void setup(void)
{
    job_rig_setup();
    engine = raw_stat(&witness)->engines[0]->pid;
}

/* -- replies and requests that wait ----------------------------------------------------------- */

/* Send the request @bytes until the daemon accepts no more. Returns the number of requests sent. */
static unsigned stuff_with(struct raw_client *client, const uint8_t *bytes, size_t n_bytes)
{
    unsigned n = 0;

    for (unsigned misses = 0; misses < 100;) {
        if (raw_send(client, bytes, n_bytes, NULL, 0, MSG_DONTWAIT)) {
            n++;
            misses = 0;
        } else {
            /* Other clients are served meanwhile, and the daemon had a turn to read more. */
            raw_stat(&witness);
            misses++;
        }
        ck_assert_uint_lt(n, 1000000);
    }
    return n;
}

/* Send Stat until the daemon accepts no more. Returns the number of requests sent. */
static unsigned stuff(struct raw_client *client)
{
    struct cst_frame frame = {.type = CISTERN__MSG_TYPE__MSG_STAT, .request = 77};
    uint8_t bytes[CST_FRAME_HEADER_BYTES];

    cst_frame_header(&frame, bytes);
    return stuff_with(client, bytes, sizeof bytes);
}

/* The daemon stops reading from a client when a megabyte of replies waits for it, while others are
 * served. When the client reads, it gets every reply. */
START_TEST(a_slow_reader_gets_all_its_replies)
{
    struct raw_client client;
    unsigned n;

    raw_open(&client, proc.socket);
    n = stuff(&client);
    for (unsigned i = 0; i < n; i++) {
        ck_assert(raw_receive(&client));
        ck_assert_uint_eq(client.reply.type, CISTERN__MSG_TYPE__MSG_STAT_REPLY);
        ck_assert_uint_eq(client.reply.request, 77);
    }
    ck_assert(raw_is_quiet(&client));
    raw_close(&client);
}
END_TEST

static void get_staging(struct raw_client *client)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;

    get.bytes = 100000;
    ck_assert_int_eq(raw_call(client, CISTERN__MSG_TYPE__MSG_STAGING, &get.base), CST_OK);
    ck_assert_uint_eq(client->reply.n_fds, 1);
    cst_frame_close_fds(&client->reply);
}

/* Fetch the weights of chunk 0. */
static void fetch(struct raw_client *client, uint64_t attempt)
{
    Cistern__BatchItem item = CISTERN__BATCH_ITEM__INIT, *items = &item;
    Cistern__Batch batch = CISTERN__BATCH__INIT;
    const Cistern__BatchDone *done;
    uint64_t id;

    item.kind = CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT;
    batch.attempt = attempt;
    batch.n_items = 1;
    batch.items = &items;
    id = raw_ask(client, CISTERN__MSG_TYPE__MSG_BATCH, &batch.base);
    done =
        raw_expect(client, id, CISTERN__MSG_TYPE__MSG_BATCH_DONE, &cistern__batch_done__descriptor);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
}

/* A worker that never reads its replies, in the middle of a step and with a lease, is disconnected
 * after ten seconds. No other client notices, the lease ends, and another worker takes the rank and
 * finds the weights unchanged. */
START_TEST(a_client_that_never_reads_is_disconnected)
{
    struct raw_client client, successor;
    struct raw_job job = {.name = "j", .world = 1};

    job_rig_commit(&client, 1);
    fetch(&client, raw_sync(&client));
    ck_assert_uint_gt(raw_stat(&witness)->pool->leased, 0);
    (void)stuff(&client);
    while (raw_stat(&witness)->n_sessions > 1) {
        (void)usleep(100000); /* the ten seconds are what is tested */
    }
    ck_assert(daemon_proc_logged(&proc, "does not read its replies"));
    raw_expect_closed(&client);
    raw_open(&successor, proc.socket);
    ck_assert_int_eq(raw_job_open(&successor, &job), CST_OK);
    ck_assert(job.committed && job.initialised);
    ck_assert_int_eq(raw_declare_many(&successor, 1, 1000), CST_OK);
    ck_assert_int_eq(raw_status(&successor, raw_commit(&successor, 1, 1)), CST_OK);
    fetch(&successor, raw_sync(&successor));
    raw_close(&client);
    raw_close(&successor);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

static void ask_read(struct raw_client *client)
{
    Cistern__TensorIo io = CISTERN__TENSOR_IO__INIT;

    io.row = CISTERN__TENSOR_IO__ROW__MASTER;
    io.n_elems = 1000;
    (void)raw_ask(client, CISTERN__MSG_TYPE__MSG_TENSOR_READ, &io.base);
}

/* Replies that wait keep copies of their descriptors open. No client can make the daemon hold
 * thousands of them by not reading. */
START_TEST(descriptors_that_wait_are_bounded)
{
    struct cst_frame frame = {.type = CISTERN__MSG_TYPE__MSG_POOL, .request = 77, .body_bytes = 2};
    uint8_t bytes[CST_FRAME_HEADER_BYTES + 2];
    struct raw_client client;
    unsigned n;

    job_rig_commit(&client, 1);
    cst_frame_header(&frame, bytes);
    bytes[CST_FRAME_HEADER_BYTES] = 1 << 3; /* PoolGet.first = 0 */
    bytes[CST_FRAME_HEADER_BYTES + 1] = 0;
    n = stuff_with(&client, bytes, sizeof bytes);
    ck_assert_uint_lt(daemon_proc_fds(proc.pid), base_fds + 400);
    for (unsigned i = 0; i < n; i++) {
        ck_assert(raw_receive(&client));
        ck_assert_uint_eq(client.reply.n_fds, 1);
        cst_frame_close_fds(&client.reply);
    }
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* The request after the last credit is refused with ENOCREDIT, and every earlier one gets its
 * reply. The engine is stopped meanwhile, so that requests wait. */
START_TEST(credits_bound_what_is_in_flight)
{
    struct raw_client client;

    job_rig_commit(&client, 1);
    get_staging(&client);
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    for (unsigned i = 0; i < 65; i++) {
        ask_read(&client);
    }
    ck_assert_int_eq(raw_status(&client, 0), CST_ENOCREDIT);
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    for (unsigned i = 0; i < 64; i++) {
        ck_assert(raw_receive(&client));
        ck_assert_uint_eq(client.reply.type, CISTERN__MSG_TYPE__MSG_OK);
    }
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* -- invalid requests -------------------------------------------------------------------------- */

/* A place in staging memory beyond the segment, or at an odd offset, is refused, and so is one
 * without a segment. */
START_TEST(staging_places_are_checked)
{
    static const struct {
        uint64_t n_elems, offset;
    } bad[] = {{1000, 1},
               {UINT64_MAX, 0},
               {UINT64_MAX / 4 + 2, 0},
               {1000, UINT64_MAX - 63},
               {64, 1 << 20}};
    Cistern__TensorIo io = CISTERN__TENSOR_IO__INIT;
    struct raw_client client;

    job_rig_commit(&client, 1);
    ask_read(&client);
    ck_assert_int_eq(raw_status(&client, 0), CST_EINVAL);
    get_staging(&client);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        io.n_elems = bad[i].n_elems;
        io.staging_offset = bad[i].offset;
        ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_TENSOR_WRITE, &io.base),
                         CST_EINVAL);
    }
    io.tensor = 1; /* there is only tensor 0 */
    io.n_elems = 10;
    io.staging_offset = 0;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_TENSOR_READ, &io.base), CST_EINVAL);
    io.tensor = 0;
    io.first = 991; /* ten elements from there end at 1001 */
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_TENSOR_READ, &io.base), CST_EINVAL);
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* A batch with no items, too many, or an unknown kind is refused as a whole. */
START_TEST(batches_are_checked)
{
    static Cistern__BatchItem items[129];
    static Cistern__BatchItem *pointers[129];
    Cistern__Batch batch = CISTERN__BATCH__INIT;
    struct raw_client client;

    for (unsigned i = 0; i < 129; i++) {
        cistern__batch_item__init(&items[i]);
        items[i].kind = CISTERN__BATCH_ITEM__KIND__PREFETCH;
        pointers[i] = &items[i];
    }
    job_rig_commit(&client, 1);
    batch.attempt = 1;
    batch.items = pointers;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_BATCH, &batch.base), CST_EINVAL);
    batch.n_items = 129;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_BATCH, &batch.base), CST_EINVAL);
    batch.n_items = 2;
    items[1].kind = (Cistern__BatchItem__Kind)99;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_BATCH, &batch.base),
                     CST_EUNSUPPORTED);
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* -- the suite ------------------------------------------------------------------------------ */

int main(void)
{
    Suite *suite = suite_create("limits");
    TCase *tc = suite_case(suite, "limits", setup, job_rig_teardown);

    tcase_add_test(tc, a_slow_reader_gets_all_its_replies);
    tcase_add_test(tc, a_client_that_never_reads_is_disconnected);
    tcase_add_test(tc, descriptors_that_wait_are_bounded);
    tcase_add_test(tc, credits_bound_what_is_in_flight);
    tcase_add_test(tc, staging_places_are_checked);
    tcase_add_test(tc, batches_are_checked);
    return suite_run(suite);
}
