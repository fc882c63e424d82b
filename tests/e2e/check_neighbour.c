/* SPDX-License-Identifier: Apache-2.0 */
/* While one user attacks the daemon (tests/lib/attack), another user's job is opened, committed and
 * trained with the bits that it has alone. Managers can connect, no engine dies, and all that the
 * attacker held is free afterwards. Times are measured by tests/bench/bench_neighbour. */
#include "tests/lib/attack.h"
#include "tests/lib/child.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"
#include "tests/lib/user.h"

#include <check.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STEPS = 3, JOBS = 3, MAX_FDS = 4096 /* limit of the daemon's descriptors */ };

static struct daemon_proc proc;
static struct raw_client witness; /* a manager */
static unsigned base_fds;
static struct attack_state *state;
static struct train_report *reports[TRAIN_MAX_WORLD];

static void setup(void)
{
    static const char *const options[] = {"--host-memory=64M", "--pool-memory=16M", NULL};

    /* Not as root, because the kernel lets root have more descriptors in flight. */
    daemon_proc_run_as(USER_SERVICE, MAX_FDS);
    daemon_proc_start(&proc, options);
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    user_admit(&proc);
    raw_open(&witness, proc.manager);
    base_fds = daemon_proc_fds(proc.pid);
    state = child_share(sizeof *state);
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        reports[r] = train_report_new();
    }
}

static void remove_jobs_of_all(void)
{
    Cistern__JobListGet get = CISTERN__JOB_LIST_GET__INIT;
    const Cistern__JobListPart *part;

    do {
        uint64_t id = raw_ask(&witness, CISTERN__MSG_TYPE__MSG_JOB_LIST, &get.base);

        part = raw_expect(&witness, id, CISTERN__MSG_TYPE__MSG_JOB_LIST_PART,
                          &cistern__job_list_part__descriptor);
        for (size_t i = 0; i < part->n_jobs; i++) {
            Cistern__JobName message = CISTERN__JOB_NAME__INIT;

            message.name = part->jobs[i]->name;
            message.has_uid = 1;
            message.uid = part->jobs[i]->uid;
            (void)raw_call(&witness, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &message.base);
        }
    } while (part->n_jobs > 0);
}

static void teardown(void)
{
    remove_jobs_of_all();
    settle(&witness, &proc, base_fds);
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        train_report_free(reports[r]);
    }
    child_unshare(state, sizeof *state);
}

/* Train a job of USER_BOB with two ranks to its end. */
static void train(const char *name)
{
    const struct train_bad none = {.step = TRAIN_NEVER};
    pid_t pids[2];

    for (uint32_t r = 0; r < 2; r++) {
        struct train_order order = {.socket = proc.socket,
                                    .name = name,
                                    .rank = r,
                                    .world = 2,
                                    .n_steps = STEPS,
                                    .bad = none,
                                    .die_at = UINT32_MAX,
                                    .kill_at = UINT32_MAX,
                                    .uid = USER_BOB};

        pids[r] = train_worker_start(&order, reports[r]);
    }
    for (uint32_t r = 0; r < 2; r++) {
        train_worker_join(pids[r], reports[r]);
        ck_assert_uint_eq(reports[r]->n_syncs, 0);
    }
    train_check(reports, 2, 0, STEPS, none);
}

START_TEST(a_neighbour_trains_on)
{
    pid_t attacker = attack_start((unsigned)_i, proc.socket, state);
    struct raw_client manager;
    char name[16];

    ck_assert(attack_await(attacker, state, attacks[_i].n_rounds));
    for (unsigned i = 0; i < JOBS; i++) {
        unsigned begun = atomic_load(&state->n_rounds);

        (void)snprintf(name, sizeof name, "j%u", i);
        train(name);
        raw_open(&manager, proc.manager);
        ck_assert_uint_eq(raw_stat(&manager)->engines[0]->restarts, 0);
        raw_close(&manager);
        ck_assert(attack_await(attacker, state, begun + 1));
    }
    (void)printf("%s: %u rounds, %u refusals\n", attacks[_i].name, atomic_load(&state->n_rounds),
                 atomic_load(&state->n_refused));
    attack_stop(attacker, state);
}
END_TEST

int main(int argc, char **argv)
{
    const char *lacks = user_lacks(argv);
    Suite *suite = suite_create("neighbour");
    TCase *tc = suite_case(suite, "neighbour", setup, teardown);

    (void)argc;
    if (lacks != NULL) {
        (void)printf("skipped: %s\n", lacks);
        return 77;
    }
    tcase_set_timeout(tc, 120);
    suite_add_loop(tc, a_neighbour_trains_on, 0, (int)n_attacks);
    return suite_run(suite);
}
