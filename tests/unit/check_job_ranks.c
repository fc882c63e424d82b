/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the ranks of a job that come in pages: `cistern metrics` adds up all of them, and no
 * daemon makes a program ask for ever. */
#include "client/cli/job_ranks.h"
#include "client/cli/metrics_gather.h"
#include "tests/lib/fake_daemon.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <string.h>

enum { WORLD = 300, PAGE = 96 };

/* What the simulated daemon does other than it should, in its third page. */
enum fault { NONE, EMPTY_PAGES, OTHER_WORLD, REMOVED };

static struct {
    struct fake_daemon fake;
    enum fault fault;
    uint32_t n_pages; /* JobInfos that were sent. */
    Cistern__RankInfo ranks[PAGE], *pointers[PAGE];
} rig;

static void reply_stat(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__StatReply stat = CISTERN__STAT_REPLY__INIT;

    stat.version = stat.host = (char *)(uintptr_t) "x";
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_STAT_REPLY, &stat.base, NULL, 0);
}

static Cistern__JobInfo job_info(void)
{
    Cistern__JobInfo info = CISTERN__JOB_INFO__INIT;

    info.name = (char *)(uintptr_t) "run7";
    info.state = (char *)(uintptr_t) "training";
    info.world = WORLD;
    return info;
}

static void reply_list(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__JobListPart part = CISTERN__JOB_LIST_PART__INIT;
    Cistern__JobInfo info = job_info(), *jobs = &info;

    part.n_jobs = 1;
    part.jobs = &jobs;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_JOB_LIST_PART, &part.base, NULL, 0);
}

/* Answer with the page that is requested. Rank r has r hits. */
static void reply_info(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__JobName *name = cistern__job_name__unpack(NULL, request->body_bytes, request->body);
    Cistern__JobInfoReply reply = CISTERN__JOB_INFO_REPLY__INIT;
    Cistern__JobInfo info = job_info();
    const bool late = rig.n_pages++ == 2;

    ck_assert_ptr_nonnull(name);
    for (uint32_t r = name->first_rank; r < WORLD && info.n_ranks < PAGE; r++) {
        Cistern__RankInfo *rank = &rig.ranks[info.n_ranks];

        cistern__rank_info__init(rank);
        rank->rank = r;
        rank->state = (char *)(uintptr_t) "attached";
        rank->has_hits = 1;
        rank->hits = r;
        rig.pointers[info.n_ranks++] = rank;
    }
    cistern__job_name__free_unpacked(name, NULL);
    info.ranks = rig.pointers;
    info.n_ranks = late && rig.fault == EMPTY_PAGES ? 0 : info.n_ranks;
    info.world += late && rig.fault == OTHER_WORLD ? 1 : 0;
    reply.job = &info;
    if (late && rig.fault == REMOVED) {
        fake_daemon_error(fake, request, CST_ENOTFOUND, "no job 'run7'");
    } else {
        fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &reply.base, NULL,
                          0);
    }
}

static bool answer(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    Cistern__QuotaPart quota = CISTERN__QUOTA_PART__INIT;

    (void)arg;
    switch (request->type) {
    case CISTERN__MSG_TYPE__MSG_STAT:
        reply_stat(fake, request);
        return true;
    case CISTERN__MSG_TYPE__MSG_JOB_LIST:
        reply_list(fake, request);
        return true;
    case CISTERN__MSG_TYPE__MSG_JOB_INFO:
        reply_info(fake, request);
        return true;
    case CISTERN__MSG_TYPE__MSG_QUOTA:
        fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_QUOTA_PART, &quota.base, NULL, 0);
        return true;
    default:
        return false;
    }
}

static void setup(void)
{
    memset(&rig, 0, sizeof rig);
    rig.fake.hook = answer;
    fake_daemon_start(&rig.fake);
}

static void teardown(void)
{
    fake_daemon_stop(&rig.fake);
}

/* Gather with a daemon that has @fault. Returns the number of ranks that the job then has, which
 * are the first ones, in order. */
static size_t gather(enum fault fault)
{
    struct cli_metrics metrics;
    struct cst_err err = {0};
    const Cistern__JobInfo *job;
    size_t n;

    rig.fault = fault;
    ck_assert_msg(cli_metrics_gather(rig.fake.path, CLI_METRICS_ALL_JOBS, NULL, &metrics, &err) ==
                      CST_OK,
                  "%s", err.text);
    ck_assert_uint_eq(metrics.jobs.n, 1);
    job = ((const Cistern__JobInfoReply *)metrics.jobs.v[0])->job;
    n = job->n_ranks;
    for (size_t r = 0; r < n; r++) {
        ck_assert_uint_eq(job->ranks[r]->rank, r);
        ck_assert_uint_eq(job->ranks[r]->hits, r);
    }
    cli_metrics_close(&metrics);
    return n;
}

/* All 300 ranks are there, in four pages. */
START_TEST(test_all)
{
    ck_assert_uint_eq(gather(NONE), WORLD);
    ck_assert_uint_eq(rig.n_pages, 4);
}
END_TEST

/* A page without ranks, one of a job that was made again with other ranks, and the end of the job
 * are the end of the list. */
START_TEST(test_ends)
{
    ck_assert_uint_eq(gather((enum fault)_i), 2 * PAGE);
    ck_assert_uint_eq(rig.n_pages, 3);
}
END_TEST

/* A job whose first page has no ranks, or all of them, has no second page. */
START_TEST(test_one_page)
{
    Cistern__RankInfo rank = CISTERN__RANK_INFO__INIT, *ranks = &rank;
    Cistern__JobInfo job = job_info();
    Cistern__JobName next;

    ck_assert(!cli_job_ranks_next(&job, &next));
    job.n_ranks = job.world = 1;
    job.ranks = &ranks;
    ck_assert(!cli_job_ranks_next(&job, &next));
    job.world = 2;
    ck_assert(cli_job_ranks_next(&job, &next));
    ck_assert_uint_eq(next.first_rank, 1);
    ck_assert_str_eq(next.name, "run7");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job_ranks");
    TCase *tcase = suite_case(suite, "job_ranks", setup, teardown);

    tcase_add_test(tcase, test_all);
    suite_add_loop(tcase, test_ends, EMPTY_PAGES, REMOVED + 1);
    tcase_add_test(tcase, test_one_page);
    return suite_run(suite);
}
