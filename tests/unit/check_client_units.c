/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of libcistern's units of a model that is cut into stages, with a simulated daemon in a
 * thread. */
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <semaphore.h>
#include <string.h>

static struct fake_job f;

/* What is refused after the first unit: the hand-in at once when the next unit is asked for, and
 * the Next when the test says so. */
struct refused {
    uint32_t n_units;
    struct cst_frame batch; /* the hand-in; only its request number is used */
    sem_t next;
};

static bool hook_refused(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    struct refused *refused = arg;
    Cistern__Unit msg = CISTERN__UNIT__INIT;

    if (request->type == CISTERN__MSG_TYPE__MSG_BATCH && refused->n_units > 0 &&
        refused->batch.request == 0 && strchr(fake->log, 'G') != NULL) {
        refused->batch.request = request->request;
        return true;
    }
    if (request->type != CISTERN__MSG_TYPE__MSG_NEXT) {
        return false;
    }
    if (refused->n_units++ > 0) {
        fake_daemon_error(fake, &refused->batch, CST_EPEERDIED, "rank 3 died");
        ck_assert_int_eq(sem_wait(&refused->next), 0);
        fake_daemon_error(fake, request, CST_EPEERDIED, "rank 3 died");
        return true;
    }
    msg.kind = CISTERN__UNIT__KIND__BACKWARD;
    msg.has_stage = msg.has_micro_batch = msg.has_number = true;
    msg.number = 1;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_UNIT, &msg.base, NULL, 0);
    return true;
}

/* Call cst_try_next when something has come, until it ends. */
static int await_next(struct cst_unit *unit, struct cst_err *err)
{
    struct pollfd fd = {.fd = cst_client_fd(f.client), .events = POLLIN};
    int rc;

    while ((rc = cst_try_next(f.job, 0, unit, err)) == CST_EAGAIN) {
        ck_assert_int_eq(poll(&fd, 1, -1), 1);
    }
    return rc;
}

/* The step becomes void while the worker waits for the next unit: the call ends with its own
 * answer, and a sync is possible then. */
START_TEST(test_void_while_next_waits)
{
    struct cst_job_spec spec = {.name = "run7", .world = 1, .updates.micro_batches = 2};
    struct pollfd fd = {.events = POLLIN};
    struct refused refused = {0};
    struct cst_unit unit;
    struct cst_err err = {0};

    ck_assert_int_eq(sem_init(&refused.next, 0, 0), 0);
    f.fake.hook = hook_refused;
    f.fake.hook_arg = &refused;
    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    CK_OK(cst_job_open(&f.job, f.client, &spec, &err));
    ck_assert_int_eq(cst_stage(f.job), 0);
    fake_job_declare(&f, 1);
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_sync(f.job, NULL, &err));
    CK_OK(cst_next(f.job, 0, &unit, &err));
    fake_job_run(&f, 0, CST_BACKWARD, 0);
    ck_assert_int_eq(cst_try_next(f.job, 0, &unit, &err), CST_EAGAIN);
    fd.fd = cst_client_fd(f.client);
    ck_assert_int_eq(poll(&fd, 1, -1), 1);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(cst_try_next(f.job, 0, &unit, &err), CST_EAGAIN);
    }
    ck_assert_int_eq(sem_post(&refused.next), 0);
    ck_assert_int_eq(await_next(&unit, &err), CST_EPEERDIED);
    CK_OK(cst_sync(f.job, NULL, &err));
    fake_job_stop(&f);
    (void)sem_destroy(&refused.next);
}
END_TEST

/* Answers Next with units of the given numbers, one after the other. */
static bool hook_units(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    uint64_t **number = arg;
    Cistern__Unit msg = CISTERN__UNIT__INIT;
    Cistern__Next *asked;

    if (request->type != CISTERN__MSG_TYPE__MSG_NEXT) {
        return false;
    }
    asked = cistern__next__unpack(NULL, request->body_bytes, request->body);
    ck_assert_ptr_nonnull(asked);
    ck_assert(asked->has_unit);
    ck_assert_uint_eq(asked->unit, (*number)[0]);
    cistern__next__free_unpacked(asked, NULL);
    msg.kind = CISTERN__UNIT__KIND__BACKWARD;
    msg.has_stage = msg.has_micro_batch = msg.has_number = true;
    msg.number = *++*number;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_UNIT, &msg.base, NULL, 0);
    return true;
}

/* A worker names the unit that it has done. A unit that it has done already is refused. */
START_TEST(test_repeated_unit)
{
    static const uint64_t units[2][5] = {{0, 2, 9, 9}, {0, 2, 9, 5}};
    static const char *const words[2] = {"unit 9 after unit 9", "unit 5 after unit 9"};
    const uint64_t *number = units[_i];
    struct cst_job_spec spec = {.name = "run7", .world = 1, .updates.micro_batches = 2};
    struct cst_unit unit;
    struct cst_err err = {0};

    f.fake.hook = hook_units;
    f.fake.hook_arg = &number;
    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    CK_OK(cst_job_open(&f.job, f.client, &spec, &err));
    ck_assert_int_eq(cst_stage(f.job), 0);
    fake_job_declare(&f, 1);
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_sync(f.job, NULL, &err));
    for (int i = 0; i < 2; i++) {
        CK_OK(cst_next(f.job, 0, &unit, &err));
        ck_assert_int_eq(unit.kind, CST_UNIT_BACKWARD);
    }
    ck_assert_int_eq(cst_next(f.job, 0, &unit, &err), CST_EPROTO);
    ck_assert_ptr_nonnull(strstr(err.text, words[_i]));
    fake_job_stop(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_units");
    TCase *tcase = suite_case(suite, "client_units", NULL, NULL);

    tcase_add_loop_test(tcase, test_repeated_unit, 0, 2);
    tcase_add_test(tcase, test_void_while_next_waits);
    return suite_run(suite);
}
