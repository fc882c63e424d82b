/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of device updates on paced accelerators with a real daemon. The results must have the bits
 * of a computation in this process: for every k, every size of reservations, any devices of pools,
 * and whichever process dies and returns. Also tests a daemon that chooses k itself. */
#include "cistern/cistern.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { N_STEPS = 3, ACCELERATOR = 1 /* engine of the accelerator; the node's engine is 0 */ };

#define CONFIG                                                                                     \
    "[host]\nnodes = 0\n[paced]\ndevices = 1\nup = 256M\ndown = 256M\nupdate = 128M\n"             \
    "memory = 16M\n"
#define RESERVATION (4ull << 20) /* more than three buffers */

static struct daemon_proc proc;
static struct raw_client witness;
static struct train_report *reports[TRAIN_MAX_WORLD];
static const struct train_bad none = {.step = TRAIN_NEVER};

static void start_daemon(const char *interleave)
{
    char config[512];

    (void)snprintf(config, sizeof config, "%s[plan]\ninterleave = %s\n", CONFIG, interleave);
    daemon_proc_start_with(&proc, config, (const char *[]){"--engine-threads=2", NULL});
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    raw_open(&witness, proc.socket);
}

static void setup(void)
{
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        reports[r] = train_report_new();
    }
}

static void teardown(void)
{
    settle_remove_jobs(&witness);
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        train_report_free(reports[r]);
    }
}

/* -- jobs ------------------------------------------------------------------------------------- */

static struct train_order order_of(const char *name, uint32_t world, uint32_t rank,
                                   const char *device)
{
    return (struct train_order){.socket = proc.socket,
                                .name = name,
                                .rank = rank,
                                .world = world,
                                .device = device,
                                .n_steps = N_STEPS,
                                .micro_batches = 1,
                                .device_update_bytes = RESERVATION / world,
                                .bad = none,
                                .die_at = UINT32_MAX,
                                .kill_at = UINT32_MAX};
}

static void run(struct train_order *orders, uint32_t world)
{
    pid_t pids[TRAIN_MAX_WORLD];

    for (uint32_t r = 0; r < world; r++) {
        memset(reports[r], 0, sizeof *reports[r]);
        pids[r] = train_worker_start(&orders[r], reports[r]);
    }
    for (uint32_t r = 0; r < world; r++) {
        train_worker_join(pids[r], reports[r]);
    }
    train_check(reports, world, 0, N_STEPS, none);
}

/* -- bits ------------------------------------------------------------------------------------- */

static const char *const ks[] = {"none", "1", "2", "3", "5"};
enum { N_KS = sizeof ks / sizeof *ks };

/* The results have the expected bits for every k, with ranks on the host and on the accelerator,
 * with reservations for three buffers, for one and for none, and with micro-batches. Statistics
 * show where chunks were updated. */
START_TEST(bits)
{
    static const char *const devices[] = {"host", "paced:0"};
    static const uint64_t reservations[] = {RESERVATION, 300 << 10, 4096};
    unsigned k = (unsigned)_i == 0 ? 0 : (unsigned)atoi(ks[_i]);
    char name[32];

    start_daemon(ks[_i]);
    for (unsigned i = 0; i < 12; i++) {
        struct train_order orders[2];
        uint32_t world = i % 2 + 1;
        const Cistern__JobInfo *info;

        (void)snprintf(name, sizeof name, "bits-%u", i);
        for (uint32_t r = 0; r < world; r++) {
            orders[r] = order_of(name, world, r, devices[(i / 2 + r) % 2]);
            orders[r].device_update_bytes = reservations[i % 3] / world;
            orders[r].micro_batches = i / 6 == 0 ? 1 : 2;
        }
        run(orders, world);
        info = raw_job_info(&witness, name);
        ck_assert_uint_gt(info->n_updates, 0);
        if (k == 0 || i % 3 == 2) {
            ck_assert_uint_eq(info->n_device_updates, 0);
        } else if (i % 3 == 0) { /* in each step, one of every k chunks */
            ck_assert_uint_eq(info->n_device_updates, N_STEPS * (info->n_updates / N_STEPS / k));
            ck_assert_uint_eq(info->interleave, k);
        }
        ck_assert_int_eq(raw_job_remove(&witness, name), 0);
    }
}
END_TEST

/* States in device memory, of all chunks, some, or none, with any k, have the expected results.
 * They can be read, and a worker can write them. */
START_TEST(states_on_device)
{
    static const uint64_t bytes[] = {1 << 20, 120 << 10, 4096};
    const Cistern__JobInfo *info;

    start_daemon(_i % 2 == 0 ? "none" : "2");
    for (unsigned i = 0; i < 6; i++) {
        struct train_order orders[2];
        uint32_t world = i / 3 + 1;

        for (uint32_t r = 0; r < world; r++) {
            orders[r] = order_of("states", world, r, r == 0 && _i / 2 == 1 ? "paced:0" : "host");
            orders[r].device_states = bytes[i % 3] / world;
        }
        run(orders, world);
        info = raw_job_info(&witness, "states");
        if (i % 3 == 0) {
            ck_assert_uint_eq(info->n_device_updates, info->n_updates);
        } else if (i % 3 == 1) {
            ck_assert_uint_gt(info->n_device_updates, 0);
            ck_assert_uint_lt(info->n_device_updates, info->n_updates);
        } else if (_i % 2 == 0) {
            ck_assert_uint_eq(info->n_device_updates, 0);
        }
        ck_assert_int_eq(raw_job_remove(&witness, "states"), 0);
    }
}
END_TEST

/* -- returning workers ----------------------------------------------------------------------- */

/* Open job "states" again with @reservation and @bytes of states. Returns the status. */
static int open_again(uint64_t reservation, uint64_t bytes, struct cst_client **client,
                      struct cst_job **job, struct cst_err *err)
{
    const struct cst_job_spec spec = {.name = "states",
                                      .world = 1,
                                      .planning.chunk_elems = TRAIN_CHUNK_ELEMS,
                                      .memory.device_update_bytes = reservation,
                                      .memory.device_states = bytes};

    ck_assert_int_eq(cst_connect(client, proc.socket, err), CST_OK);
    return cst_job_open(job, *client, &spec, err);
}

/* Read a moment of all tensors and write it back, with the job's present reservations. */
static void rewrite(void)
{
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};

    ck_assert_int_eq(
        open_again(CST_DEVICE_UPDATE_AUTO, CST_DEVICE_UPDATE_AUTO, &client, &job, &err), CST_OK);
    ck_assert_int_eq(train_declare(&train_small, job, 1), CST_OK);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_OK);
    for (int t = 0; t < train_small.n_tensors; t++) {
        uint64_t n = train_small.tensors[t].n_elems;
        float *data = malloc(n * sizeof *data);
        int rc = data == NULL ? CST_ENOMEM
                              : cst_tensor_read(job, t, CST_STATE_EXP_AVG, 0, n, data, &err);

        rc = rc == CST_OK ? cst_tensor_write(job, t, CST_STATE_EXP_AVG, 0, n, data, &err) : rc;
        free(data);
        ck_assert_msg(rc == CST_OK, "tensor %d: %s", t, err.text);
    }
    ck_assert_int_eq(cst_job_leave(job, &err), CST_OK);
    cst_disconnect(client);
}

/* A worker that returns need not repeat the sizes of its rank's device reservation: they stay, and
 * states in device memory are read, written and updated there. Other sizes are refused. */
START_TEST(reservations_stay)
{
    struct train_order order;
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};

    start_daemon("2");
    order = order_of("states", 1, 0, "host");
    order.device_states = 1 << 20;
    order.n_steps = N_STEPS - 1;
    train_worker_join(train_worker_start(&order, reports[0]), reports[0]);
    rewrite();
    ck_assert_int_eq(open_again(4096, 0, &client, &job, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, "device_update_bytes 4194304, not 4096") != NULL, "%s",
                  err.text);
    cst_disconnect(client);
    ck_assert_int_eq(open_again(RESERVATION, 4096, &client, &job, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, "device_states 1048576, not 4096") != NULL, "%s", err.text);
    cst_disconnect(client);
    order.n_steps = N_STEPS;
    order.device_update_bytes = order.device_states = 0;
    train_worker_join(train_worker_start(&order, reports[0]), reports[0]);
    train_check_states(reports, 1, N_STEPS, none);
    ck_assert_uint_eq(raw_job_info(&witness, "states")->n_device_updates,
                      raw_job_info(&witness, "states")->n_updates);
}
END_TEST

/* A reservation with fewer bytes than the accelerator's granularity is refused at the commit, with
 * the least size. */
START_TEST(less_than_a_grain)
{
    struct raw_job job = {.name = "grain", .world = 1, .device_update_bytes = 1000};
    struct raw_client client;

    start_daemon("none");
    raw_open(&client, proc.socket);
    ck_assert_msg(raw_job_open(&client, &job) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_declare_many(&client, 2, 1000), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 2, 2)), CST_EINVAL);
    ck_assert_msg(strstr(client.err.text, "device_update_bytes of 1000 bytes is too small") !=
                          NULL &&
                      strstr(client.err.text, "multiples of 4.0 KiB (4096 bytes)") != NULL,
                  "%s", client.err.text);
    raw_close(&client);
}
END_TEST

/* A job can be looked at while the engine of its accelerator is being started, which has not
 * reported the granularity of its memory yet. */
START_TEST(seen_before_the_engine)
{
    struct raw_job job = {.name = "seen", .world = 1, .device_update_bytes = RESERVATION + 1};
    struct raw_client client;

    start_daemon("none");
    raw_open(&client, proc.socket);
    ck_assert_msg(raw_job_open(&client, &job) == CST_OK, "%s", client.err.text);
    ck_assert_uint_ge(raw_job_info(&witness, "seen")->device_update_bytes, RESERVATION);
    raw_close(&client);
}
END_TEST

static int write_master(struct raw_client *client)
{
    Cistern__TensorIo io = CISTERN__TENSOR_IO__INIT;

    io.row = CISTERN__TENSOR_IO__ROW__MASTER;
    io.n_elems = 1000;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_TENSOR_WRITE, &io.base);
}

static void get_staging(struct raw_client *client)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;

    get.bytes = 65536;
    ck_assert_int_eq(raw_call(client, CISTERN__MSG_TYPE__MSG_STAGING, &get.base), CST_OK);
    ck_assert_uint_eq(client->reply.n_fds, 1);
    cst_frame_close_fds(&client->reply);
}

/* Staging memory that was made before the layout had states in device memory is not used for
 * them. */
START_TEST(staging_before_the_layout)
{
    struct raw_job job = {
        .name = "early", .world = 1, .device_update_bytes = RESERVATION, .device_states = 1 << 20};
    struct raw_client client;

    start_daemon("none");
    raw_open(&client, proc.socket);
    get_staging(&client);
    ck_assert_msg(raw_job_open(&client, &job) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_declare_many(&client, 2, 1000), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 2, 2)), CST_OK);
    ck_assert_int_eq(write_master(&client), CST_EINVAL);
    raw_says(&client, "ask for one first");
    get_staging(&client);
    ck_assert_msg(write_master(&client) == CST_OK, "%s", client.err.text);
    raw_close(&client);
}
END_TEST

/* -- deaths ----------------------------------------------------------------------------------- */

/* The engine of the accelerator (_i = 1) and of the node (0) is killed at every point of a worker's
 * run: the steps complete, and the results have the expected bits. */
START_TEST(engine_killed_anywhere)
{
    struct train_order orders[1];
    uint32_t n_points;

    start_daemon("2");
    orders[0] = order_of("dry", 1, 0, "host");
    run(orders, 1);
    ck_assert_int_eq(raw_job_remove(&witness, "dry"), 0);
    n_points = reports[0]->n_points;
    for (uint32_t point = 3 + suite_first(5); point < n_points; point += suite_stride(5)) {
        char name[32];

        (void)snprintf(name, sizeof name, "killed-%u", point);
        orders[0] = order_of(name, 1, 0, "host");
        orders[0].kill_at = point;
        orders[0].victim = raw_stat(&witness)->engines[_i]->pid;
        orders[0].device_update_bytes = point % 2 == 0 ? RESERVATION : 300 << 10;
        orders[0].device_states = point % 3 == 0 ? 120 << 10 : 0;
        ck_assert_int_gt(orders[0].victim, 0);
        run(orders, 1);
        ck_assert_uint_eq(reports[0]->n_syncs, 0);
        ck_assert_uint_gt(raw_job_info(&witness, name)->n_device_updates, 0);
        ck_assert_int_eq(raw_job_remove(&witness, name), 0);
    }
}
END_TEST

/* A worker dies at every point, and another one takes its place, while updates use a reservation.
 */
START_TEST(worker_killed_anywhere)
{
    struct train_order orders[1];
    uint32_t n_points;

    start_daemon("1");
    orders[0] = order_of("dry", 1, 0, "paced:0");
    run(orders, 1);
    n_points = reports[0]->n_points;
    for (uint32_t point = suite_first(5); point < n_points; point += suite_stride(5)) {
        pid_t pid;
        char name[32];

        (void)snprintf(name, sizeof name, "killed-%u", point);
        orders[0] = order_of(name, 1, 0, "paced:0");
        orders[0].die_at = point;
        memset(reports[0], 0, sizeof *reports[0]);
        pid = train_worker_start(&orders[0], reports[0]);
        ck_assert(train_worker_join_dying(pid, reports[0]));
        orders[0].die_at = UINT32_MAX;
        pid = train_worker_start(&orders[0], reports[0]);
        train_worker_join(pid, reports[0]);
        train_check_states(reports, 1, N_STEPS, none);
        ck_assert_int_eq(raw_job_remove(&witness, name), 0);
    }
}
END_TEST

static const Cistern__EngineInfo *accelerator(void)
{
    return raw_stat(&witness)->engines[ACCELERATOR];
}

/* Kill the accelerator's engine repeatedly, until it is given up. */
static void lose_accelerator(void)
{
    pid_t killed = 0;

    while (strcmp(accelerator()->state, "failed") != 0) {
        pid_t next = accelerator()->pid;

        if (next > 0 && next != killed) {
            ck_assert_int_eq(kill(next, SIGKILL), 0);
            killed = next;
        }
        (void)poll(NULL, 0, 1);
    }
}

/* The accelerator's engine is given up before it has made an update: the node makes all updates,
 * and the results have the expected bits. */
START_TEST(accelerator_lost)
{
    struct train_order orders[1];
    const Cistern__JobInfo *info;
    char config[512];
    pid_t pid;

    (void)snprintf(config, sizeof config,
                   "[host]\nnodes = 0\n[paced]\ndevices = 1\nup = 256M\ndown = 256M\n"
                   "update = 1000\nmemory = 16M\n[plan]\ninterleave = 2\n");
    daemon_proc_start_with(&proc, config, (const char *[]){"--engine-threads=1", NULL});
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    raw_open(&witness, proc.socket);
    orders[0] = order_of("lost", 1, 0, "host");
    memset(reports[0], 0, sizeof *reports[0]);
    pid = train_worker_start(&orders[0], reports[0]);
    while (accelerator()->in_flight == 0) {
        (void)poll(NULL, 0, 1);
    }
    lose_accelerator();
    train_worker_join(pid, reports[0]);
    train_check(reports, 1, 0, N_STEPS, none);
    info = raw_job_info(&witness, "lost");
    ck_assert_uint_eq(info->n_device_updates, 0);
    ck_assert_uint_eq(info->reservations_given_up, 1);
}
END_TEST

/* The accelerator's engine is given up between two steps of a rank whose pool is on the host. When
 * a worker attaches, the engine is started again, and the states in device memory, or the
 * reservations (_i), are used as before. */
START_TEST(accelerator_back)
{
    struct train_order order;
    uint64_t before;

    start_daemon("2");
    order = order_of("back", 1, 0, "host");
    order.device_states = _i == 0 ? 1 << 20 : 0;
    order.n_steps = N_STEPS - 1;
    train_worker_join(train_worker_start(&order, reports[0]), reports[0]);
    before = raw_job_info(&witness, "back")->n_device_updates;
    ck_assert_uint_gt(before, 0);
    lose_accelerator();
    order.n_steps = N_STEPS;
    train_worker_join(train_worker_start(&order, reports[0]), reports[0]);
    train_check_states(reports, 1, N_STEPS, none);
    ck_assert_str_eq(accelerator()->state, "ready");
    ck_assert_uint_gt(raw_job_info(&witness, "back")->n_device_updates, before);
}
END_TEST

/* -- choice of k ------------------------------------------------------------------------------ */

/* With an accelerator as fast as the node and a fast link, chunks are updated there; with a link
 * slower than the node, none. Statistics show both. */
START_TEST(chosen)
{
    char config[512];
    struct train_order orders[1];
    const Cistern__JobInfo *info;

    (void)snprintf(config, sizeof config,
                   "[host]\nnodes = 0\n[engine]\nupdate_rate = 1M\n[paced]\ndevices = 1\nup = %s\n"
                   "down = %s\nupdate = 100M\nmemory = 16M\n",
                   _i == 0 ? "64M" : "1M", _i == 0 ? "64M" : "1M");
    daemon_proc_start_with(&proc, config, (const char *[]){"--engine-threads=1", NULL});
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    raw_open(&witness, proc.socket);
    orders[0] = order_of("auto", 1, 0, "host");
    run(orders, 1);
    info = raw_job_info(&witness, "auto");
    if (_i == 0) {
        ck_assert_uint_gt(info->interleave, 0);
        ck_assert_uint_gt(info->n_device_updates, 0);
    } else {
        ck_assert_uint_eq(info->interleave, 0);
        ck_assert_uint_eq(info->n_device_updates, 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reservation");
    TCase *plain = suite_case(suite, "bits", setup, teardown);
    TCase *again = suite_case(suite, "again", setup, teardown);
    TCase *deaths = suite_case(suite, "deaths", setup, teardown);
    TCase *choice = suite_case(suite, "auto", setup, teardown);

    suite_add_loop(plain, bits, 0, N_KS);
    suite_add_loop(plain, states_on_device, 0, 4);
    tcase_add_test(again, reservations_stay);
    tcase_add_test(again, less_than_a_grain);
    tcase_add_test(again, seen_before_the_engine);
    tcase_add_test(again, staging_before_the_layout);
    suite_add_loop(deaths, engine_killed_anywhere, 0, 1 + ACCELERATOR);
    tcase_add_test(deaths, worker_killed_anywhere);
    tcase_add_test(deaths, accelerator_lost);
    suite_add_loop(deaths, accelerator_back, 0, 2);
    suite_add_loop(choice, chosen, 0, 2);
    tcase_set_timeout(plain, 60);
    tcase_set_timeout(deaths, 180);
    return suite_run(suite);
}
