/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/job/updates: when the daemon chooses another k for a job. */
#include "daemon/job/updates.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/job.h"
#include "tests/lib/suite.h"
#include "daemon/settings/settings.h"

#include <check.h>

static struct cstd_settings config;
static struct cstd_daemon daemon_of_all;
static struct cstd_job job;

/* There is no core: a choice that uses it now would crash. */
static void setup(void)
{
    config = (struct cstd_settings){.interleave = CSTD_SETTINGS_INTERLEAVE_AUTO};
    daemon_of_all.config = &config;
    cstd_deferred_init(&daemon_of_all.idle_work);
    job = (struct cstd_job){.daemon = &daemon_of_all,
                            .memory.n_reservations = 1,
                            .memory.reservations[0].engine = 1}; /* An accelerator's. */
}

/* The choice of another k after a step delays no reply: it is made once, at the end of the event
 * loop's turn, or not at all if the job ends before. */
START_TEST(at_the_end_of_the_turn)
{
    cstd_updates_step(&job);
    cstd_updates_step(&job);
    ck_assert(TAILQ_FIRST(&daemon_of_all.idle_work.items) == &job.tuning);
    ck_assert(TAILQ_NEXT(&job.tuning, link) == NULL);
    cstd_updates_close(&job);
    ck_assert(TAILQ_EMPTY(&daemon_of_all.idle_work.items));
    cstd_updates_close(&job);
}
END_TEST

/* Without device reservations, or with a configured k, nothing is chosen. */
START_TEST(nothing_to_choose)
{
    job.memory.n_reservations = 0;
    cstd_updates_step(&job);
    job.memory.n_reservations = 1;
    config.interleave = 3;
    cstd_updates_step(&job);
    ck_assert(TAILQ_EMPTY(&daemon_of_all.idle_work.items));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("updates");
    TCase *steps = suite_case(suite, "steps", setup, NULL);

    tcase_add_test(steps, at_the_end_of_the_turn);
    tcase_add_test(steps, nothing_to_choose);
    return suite_run(suite);
}
