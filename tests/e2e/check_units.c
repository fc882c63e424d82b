/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of calls of a worker that runs whatever unit of a model in stages is next: who gets the
 * unit of a dead rank, how long a wait lasts, and calls and declarations that are refused.
 * check_dispatch trains whole models. */
#include "cistern/comm.h"
#include "tests/lib/child.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/stage_job.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A rank that dies with a unit is named in the daemon's log, with the unit, and another one gets
 * the unit at once. */
START_TEST(the_unit_of_a_dead_rank_is_given_to_another)
{
    struct worker w = {0};
    struct cst_unit unit;
    pid_t pid = child_start();

    stage_job_open(&w, pid == 0 ? 1 : 0, 2);
    if (pid == 0) {
        worker_must(&w, cst_sync(w.job, NULL, &w.err));
        worker_must(&w, cst_next(w.job, 0, &unit, &w.err));
        ck_assert_int_eq(unit.kind, CST_UNIT_FORWARD);
        ck_assert_uint_eq(unit.stage, 0);
        ck_assert_uint_eq(unit.micro_batch, 0);
        *reached = 1;
        (void)pause();
    }
    stage_job_write_initial(&w);
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    worker_await(reached, 1);
    ck_assert_int_eq(cst_try_next(w.job, 0, &unit, &w.err), CST_EAGAIN);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(child_join(pid, "the other rank should have been killed"));
    while (cst_try_next(w.job, 0, &unit, &w.err) == CST_EAGAIN) {
        struct pollfd reply = {.fd = cst_client_fd(w.client), .events = POLLIN};

        ck_assert_int_eq(poll(&reply, 1, (int)patience_ms(20000)), 1);
    }
    ck_assert_int_eq(unit.kind, CST_UNIT_FORWARD);
    ck_assert_uint_eq(unit.stage, 0);
    ck_assert_uint_eq(unit.micro_batch, 0);
    ck_assert(daemon_proc_logged(&proc, "rank 1 died in step 0: the forward pass of stage 0 over "
                                        "micro-batch 0 can be given to another rank"));
    /* A rank that gives up gets the same unit again. */
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    worker_must(&w, cst_next(w.job, 0, &unit, &w.err));
    ck_assert_uint_eq(unit.micro_batch, 0);
    worker_leave(&w);
}
END_TEST

/* -- ranks that hang up and live --------------------------------------------------------------- */

/* End the connection that this process has made last, and keep all memory. */
static void hang_up(void)
{
    for (int fd = 1023; fd > STDERR_FILENO; fd--) {
        struct sockaddr addr;
        socklen_t n = sizeof addr;

        if (getsockname(fd, &addr, &n) == 0 && addr.sa_family == AF_UNIX) {
            suite_must(shutdown(fd, SHUT_RDWR) == 0, "shutdown of %d", fd);
            return;
        }
    }
    suite_must(false, "there is no connection");
}

/* Get the first unit, hang up, and write to the slot of its result for ever. Counts in *reached. */
static void write_without_a_connection(void)
{
    struct worker w = {0};
    struct cst_unit unit;
    volatile float *slot;
    void *address;

    stage_job_open(&w, 1, 2);
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    worker_must(&w, cst_next(w.job, 0, &unit, &w.err));
    ck_assert_uint_eq(unit.micro_batch, 0);
    worker_must(&w, cst_put_begin(w.job, 0, 0, &address, &w.err));
    hang_up();
    slot = address;
    for (;; ++*reached) {
        for (int i = 0; i < WIDTH; i++) {
            slot[i] = -1;
        }
    }
}

static struct cst_unit get_unit(struct worker *w)
{
    struct cst_unit unit;

    worker_must(w, cst_next(w->job, 0, &unit, &w->err));
    return unit;
}

/* A rank loses its connection while it has a unit. Its process goes on and writes the result. The
 * other rank does the step again, and finds in the edges what it has put there. */
START_TEST(the_unit_of_a_rank_that_hung_up_is_done_by_another)
{
    float data[WIDTH], taken[WIDTH] = {0};
    struct worker w = {0};
    struct cst_unit unit;
    pid_t pid = child_start();

    if (pid == 0) {
        write_without_a_connection();
    }
    stage_job_open(&w, 0, 2);
    stage_job_write_initial(&w);
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    worker_await(reached, 1);
    ck_assert_int_eq(cst_next(w.job, 0, &unit, &w.err), CST_EPEERDIED);
    ck_assert_ptr_nonnull(strstr(w.err.text, "rank 1 disconnected in step 0 and its process goes "
                                             "on: the step is done again without it"));
    ck_assert(daemon_proc_logged(&proc, "has disconnected but still runs: the other ranks go on"));
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    for (int i = 0; i < WIDTH; i++) {
        data[i] = (float)i;
    }
    for (uint32_t m = 0; m < MICRO; m++) {
        unit = get_unit(&w);
        ck_assert_uint_eq(unit.stage, 0);
        ck_assert_uint_eq(unit.micro_batch, m);
        worker_must(&w, cst_put(w.job, 0, m, data, sizeof data, &w.err));
    }
    ck_assert_uint_eq(get_unit(&w).stage, 1);
    worker_await(reached, *reached + 2); /* The other process has written once more. */
    worker_must(&w, cst_take(w.job, 0, 0, taken, sizeof taken, &w.err));
    ck_assert_mem_eq(data, taken, sizeof data);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(child_join(pid, "the other rank should have been killed"));
    worker_leave(&w);
}
END_TEST

/* A rank that waits for the unit of another one, which does nothing, is told so after timeout_ms.
 */
START_TEST(a_wait_for_a_unit_has_a_limit)
{
    struct worker w = {0};
    struct cst_unit unit;
    pid_t pid = child_start();

    stage_job_declare(&w, pid == 0 ? 1 : 0, 2, 200);
    worker_must(&w, cst_commit(w.job, NULL, &w.err));
    if (pid == 0) {
        worker_must(&w, cst_sync(w.job, NULL, &w.err));
        worker_must(&w, cst_next(w.job, 0, &unit, &w.err));
        *reached = 1;
        (void)pause();
    }
    stage_job_write_initial(&w);
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    worker_await(reached, 1);
    ck_assert_int_eq(cst_next(w.job, 0, &unit, &w.err), CST_ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(w.err.text, "no unit for rank 0 in 200 ms"));
    ck_assert_ptr_nonnull(strstr(w.err.text, "which rank 1 has"));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(child_join(pid, "the other rank should have been killed"));
    cst_disconnect(w.client);
}
END_TEST

/* Calls that cannot be right are refused, and say why. */
START_TEST(wrong_calls_are_refused)
{
    const struct cst_hyper_params params = {.lr = 0.1};
    struct worker w = {0};
    struct cst_unit unit;
    struct cst_io io[2];
    float data[WIDTH] = {0};
    const void *taken;
    struct cst_comm *comm;
    void *slot;

    stage_job_open(&w, 0, 1);
    stage_job_write_initial(&w);
    ck_assert_int_eq(cst_stage(w.job), CST_EINVAL);
    ck_assert_int_eq(cst_next(w.job, 0, &unit, &w.err), CST_EINVAL); /* no sync */
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    ck_assert_int_eq(cst_next(w.job, 0, NULL, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_accumulate(w.job, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_step(w.job, &params, NULL, &w.err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(w.err.text, "before all its units are done"));
    worker_must(&w, cst_next(w.job, 0, &unit, &w.err));
    ck_assert_int_eq(cst_take(w.job, 0, 1, data, sizeof data, &w.err), CST_ENOTFOUND);
    ck_assert_int_eq(cst_put(w.job, 0, MICRO, data, sizeof data, &w.err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(w.err.text, "the numbers are 0 to 4"));
    /* A slot that this rank takes from, or puts into, is not free. */
    worker_must(&w, cst_put(w.job, 0, 2, data, sizeof data, &w.err));
    worker_must(&w, cst_take_begin(w.job, 0, 2, &taken, &w.err));
    ck_assert_int_eq(cst_put_begin(w.job, 0, 2, &slot, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "edge 'e0': array 2 is being taken");
    worker_must(&w, cst_take_end(w.job, 0, 2, &w.err));
    worker_must(&w, cst_put_begin(w.job, 0, 2, &slot, &w.err));
    ck_assert_int_eq(cst_take_begin(w.job, 0, 2, &taken, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "edge 'e0': array 2 is being put");
    worker_must(&w, cst_put_end(w.job, 0, 2, &w.err));
    /* The death of another rank would not end the calls of a communicator. */
    ck_assert_int_eq(cst_comm_open(&comm, w.job, CST_GROUP_ALL, &w.err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(w.err.text, "is cut into stages"));
    /* No gradient is a part of a forward unit. */
    ck_assert_int_eq(cst_op_begin(w.job, 0, CST_BACKWARD, io, 2, &w.err), CST_EINVAL);
    worker_leave(&w);
}
END_TEST

/* Models and jobs that cannot be cut into stages. */
START_TEST(wrong_declarations_are_refused)
{
    struct cst_job_spec spec = {.name = "stages", .world = 1};
    struct worker w = {0};
    int tensor;

    worker_open(&w, &spec);
    tensor = cst_tensor(w.job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
    ck_assert_int_eq(cst_stage(w.job), 0);
    ck_assert_int_eq(cst_stage(w.job), CST_EINVAL); /* stage 0 is empty */
    ck_assert_int_eq(cst_operator(w.job, "o", &tensor, 1), 0);
    ck_assert_int_eq(cst_commit(w.job, NULL, &w.err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(w.err.text, "2 or more micro-batches"));
    cst_disconnect(w.client);

    spec.updates.micro_batches = 2;
    worker_open(&w, &spec);
    tensor = cst_tensor(w.job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
    ck_assert_int_eq(cst_operator(w.job, "o", &tensor, 1), 0);
    ck_assert_int_eq(cst_stage(w.job), CST_EINVAL);
    cst_disconnect(w.client);

    worker_open(&w, &spec);
    tensor = cst_tensor(w.job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
    ck_assert_int_eq(cst_stage(w.job), 0);
    ck_assert_int_eq(cst_operator(w.job, "o", &tensor, 1), 0);
    ck_assert_int_eq(cst_stage(w.job), 1);
    ck_assert_int_eq(cst_commit(w.job, NULL, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "stage 1 has no operator");
    cst_disconnect(w.client);
}
END_TEST

/* Ranks that cut the model differently get an error with both stages. */
START_TEST(ranks_that_disagree_are_named)
{
    const struct cst_job_spec spec = {.name = "stages", .world = 2, .updates.micro_batches = 2};
    struct worker w[2] = {0};

    for (uint32_t r = 0; r < 2; r++) {
        struct cst_job_spec mine = spec;
        int tensor, rc;

        mine.rank = r;
        worker_open(&w[r], &mine);
        tensor = cst_tensor(w[r].job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
        ck_assert_int_eq(cst_stage(w[r].job), 0);
        ck_assert_int_eq(cst_operator(w[r].job, "a", &tensor, 1), 0);
        ck_assert_int_ge(r == 0 ? cst_stage(w[r].job) : 0, 0);
        ck_assert_int_eq(cst_operator(w[r].job, "b", &tensor, 1), 1);
        rc = cst_try_commit(w[r].job, NULL, &w[r].err);
        for (; rc == CST_EAGAIN && r == 1; rc = cst_try_commit(w[r].job, NULL, &w[r].err)) {
            struct pollfd reply = {.fd = cst_client_fd(w[r].client), .events = POLLIN};

            (void)cst_try_commit(w[0].job, NULL, &w[0].err);
            (void)poll(&reply, 1, 10);
        }
        ck_assert_int_eq(rc, r == 0 ? CST_EAGAIN : CST_EMISMATCH);
    }
    ck_assert_ptr_nonnull(strstr(w[1].err.text, "operator 'b' is in stage"));
    cst_disconnect(w[0].client);
    cst_disconnect(w[1].client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("units");
    TCase *tc = suite_case(suite, "calls", worker_setup, worker_teardown);

    tcase_add_test(tc, the_unit_of_a_dead_rank_is_given_to_another);
    tcase_add_test(tc, the_unit_of_a_rank_that_hung_up_is_done_by_another);
    tcase_add_test(tc, a_wait_for_a_unit_has_a_limit);
    tcase_add_test(tc, wrong_calls_are_refused);
    tcase_add_test(tc, wrong_declarations_are_refused);
    tcase_add_test(tc, ranks_that_disagree_are_named);
    return suite_run(suite);
}
