/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs: the worker of a rank, declarations, budgets, and waits for other ranks. After
 * every test the daemon has its initial number of descriptors and bytes in use. */
#include "cistern/cistern.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

/* -- opening -------------------------------------------------------------------------------- */

/* An invalid name, rank or world is refused, and the connection can try again. */
START_TEST(nonsense_is_not_opened)
{
    static const char long_name[] =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct raw_job jobs[] = {
        {.name = "", .world = 1},
        {.name = long_name, .world = 1},
        {.name = "a b", .world = 1},
        {.name = "a/b", .world = 1},
        {.name = ".a", .world = 1},
        {.name = "--help", .world = 1},
        {.name = "a", .world = 0},
        {.name = "a", .world = 513},
        {.name = "a", .rank = 2, .world = 2},
    };
    struct raw_client client;

    raw_open(&client, proc.socket);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        ck_assert_int_eq(raw_job_open(&client, &jobs[i]), CST_EINVAL);
    }
    jobs[0].name = long_name + 1; /* 63 characters */
    ck_assert_int_eq(raw_job_open(&client, &jobs[0]), CST_OK);
    /* A connection can open one job. */
    ck_assert_int_eq(raw_job_open(&client, &jobs[0]), CST_EINVAL);
    raw_close(&client);
}
END_TEST

/* A device that the daemon does not have is refused with a list of its devices. */
START_TEST(an_unknown_device_is_refused)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    struct raw_client client;

    raw_open(&client, proc.socket);
    open.name = (char *)(uintptr_t) "j";
    open.world = 1;
    open.device = (char *)(uintptr_t) "GPU-12345";
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base),
                     CST_EUNSUPPORTED);
    raw_says(&client, "'host'");
    raw_close(&client);
}
END_TEST

/* A configuration that is not UTF-8 is refused by the daemon and by the library: no checkpoint
 * could have it. */
START_TEST(a_configuration_is_text)
{
    static const char config[] = "{\"name\": \"\xff\"}";
    const struct cst_job_spec spec = {.name = "j", .world = 1, .model.adapter_config = config};
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    struct raw_client client;
    struct cst_client *worker;
    struct cst_job *job;
    struct cst_err err;

    raw_open(&client, proc.socket);
    open.name = (char *)(uintptr_t) "j";
    open.world = 1;
    open.model_config = (char *)(uintptr_t)config;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base), CST_EINVAL);
    raw_says(&client, "UTF-8");
    raw_close(&client);
    ck_assert_int_eq(cst_connect(&worker, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&job, worker, &spec, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "adapter_config is not UTF-8, or has more than 16384 bytes");
    cst_disconnect(worker);
}
END_TEST

/* Open a job of two ranks with the configuration @first, and as rank 1 with @second. Returns the
 * error of rank 1; status 0: it was opened. */
static struct cst_err open_configured(const char *first, const char *second)
{
    struct cst_job_spec spec = {.name = "j", .world = 2, .model.model_config = first};
    struct cst_client *clients[2];
    struct cst_job *jobs[2];
    struct cst_err err = {0};

    ck_assert_int_eq(cst_connect(&clients[0], proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_connect(&clients[1], proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&jobs[0], clients[0], &spec, &err), CST_OK);
    spec.rank = 1;
    spec.model.model_config = second;
    ck_assert_int_eq(cst_job_open(&jobs[1], clients[1], &spec, &err), err.status);
    cst_disconnect(clients[1]);
    cst_disconnect(clients[0]);
    return err;
}

/* A rank with another configuration of the model is told the key that differs, with both values.
 * Another order of keys is the same configuration. */
START_TEST(another_configuration_is_named)
{
    static const struct {
        const char *first, *second, *words; /* Words of the error; NULL: there is none. */
    } cases[] = {
        {"{\"a\": 1, \"b\": {\"c\": [2], \"d\": 3}}", "{\"b\":{\"d\":3,\"c\":[2]},\"a\":1}", NULL},
        {"{\"a\": 1, \"n\": 768}", "{\"a\": 1, \"n\": 1024}",
         "its model_config has n 768, not 1024 as rank 1 has"},
        {"{\"b\": {\"c\": [2], \"d\": 3}, \"e\": null}", "{\"b\": {\"c\": [3]}}",
         "has b.c [2], not [3] as rank 1 has (2 other keys differ, too)"},
        {"{}", "{\"a\\nb\": \"\u00e4\"}", "has a?b absent, not \"\\u00E4\" as rank 1 has"},
        {"no JSON", "nor this", "its model_config is another text than that of rank 1"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct cst_err err = open_configured(cases[i].first, cases[i].second);

        ck_assert_int_eq(err.status, cases[i].words != NULL ? CST_EMISMATCH : CST_OK);
        if (cases[i].words != NULL) {
            ck_assert_ptr_nonnull(strstr(err.text, "job 'j' was opened with another model: "));
            ck_assert_msg(strstr(err.text, cases[i].words) != NULL, "%s", err.text);
            ck_assert_int_eq(err.reason, CST_REASON_MODEL);
        }
    }
}
END_TEST

/* If two workers claim one rank, the second gets EBUSY with the pid of the first, which is not
 * affected. */
START_TEST(a_rank_has_one_worker)
{
    struct raw_client first, second;
    struct raw_job job = {.name = "j", .world = 2};
    char pid[16];

    job_rig_open(&first, 0, 2);
    raw_open(&second, proc.socket);
    ck_assert_int_eq(raw_job_open(&second, &job), CST_EBUSY);
    (void)snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    raw_says(&second, pid);
    job.rank = 1; /* the other rank is free */
    ck_assert_int_eq(raw_job_open(&second, &job), CST_OK);
    ck_assert(!job.created);
    ck_assert_int_eq(raw_declare_many(&first, 1, 10), CST_OK);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* With the token of an earlier JobOpened a worker takes the rank over, even from a connection that
 * is open. With another token it does not. */
START_TEST(a_token_takes_the_rank_over)
{
    struct raw_client first, second;
    struct raw_job job = {.name = "j", .world = 1};

    raw_open(&first, proc.socket);
    raw_open(&second, proc.socket);
    ck_assert_int_eq(raw_job_open(&first, &job), CST_OK);
    job.send_token = true;
    job.token[0] ^= 1;
    ck_assert_int_eq(raw_job_open(&second, &job), CST_EBUSY);
    job.token[0] ^= 1;
    ck_assert_int_eq(raw_job_open(&second, &job), CST_OK);
    ck_assert(!raw_receive(&first));
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* A worker that finds the last worker of an uncommitted job gone opens a new job, which does not
 * have the plan that was given to the old job. _i: 0: the worker takes the rank over with its
 * token; 1: the old worker has hung up, and the daemon sees that together with the new JobOpen; 2:
 * as 1, and the new worker gives a plan of its own. */
START_TEST(a_new_job_has_no_plan_of_a_dead_one)
{
    Cistern__JobPlan plan = CISTERN__JOB_PLAN__INIT;
    struct raw_client first, second;
    struct raw_job old = {.name = "j", .world = 1, .plan = &plan}, new = {.name = "j", .world = 1};
    uint64_t elems = 1024, id;
    uint32_t blocks = 4;

    plan.n_tensors = plan.n_operators = plan.n_chunks = plan.world = plan.micro_batches = 1;
    plan.n_params = elems;
    plan.n_chunk_elems = plan.n_n_blocks = 1;
    plan.chunk_elems = &elems;
    plan.n_blocks = &blocks;
    plan.pool_bytes = 8192;
    raw_open(&first, proc.socket);
    raw_open(&second, proc.socket);
    ck_assert_msg(raw_job_open(&first, _i < 2 ? &old : &new) == CST_OK, "%s", first.err.text);
    if (_i == 0) {
        memcpy(new.token, old.token, sizeof new.token);
        new.send_token = true;
        id = raw_job_ask(&second, &new);
    } else {
        ck_assert_int_eq(kill(proc.pid, SIGSTOP), 0);
        raw_close(&first);
        id = raw_job_ask(&second, _i == 1 ? &new : &old);
        ck_assert_int_eq(kill(proc.pid, SIGCONT), 0);
    }
    ck_assert_msg(raw_status(&second, id) == CST_OK, "%s", second.err.text);
    if (_i < 2) { /* With the old job's plan, this would be another model. */
        ck_assert_int_eq(raw_declare_many(&second, 2, 1000), CST_OK);
        ck_assert_msg(raw_status(&second, raw_commit(&second, 2, 2)) == CST_OK, "%s",
                      second.err.text);
    } else {
        ck_assert_int_eq(raw_declare_many(&second, 2, 1000), CST_OK);
        ck_assert_int_eq(raw_status(&second, raw_commit(&second, 2, 2)), CST_EMISMATCH);
    }
    if (_i == 0) {
        raw_close(&first);
    }
    raw_close(&second);
    settle_remove_jobs(&witness);
}
END_TEST

/* A rank with another world or chunk capacity is refused with both numbers. */
START_TEST(ranks_agree_on_the_job)
{
    struct raw_client first, second;
    struct raw_job job = {.name = "j", .rank = 1, .world = 3};

    job_rig_open(&first, 0, 2);
    raw_open(&second, proc.socket);
    ck_assert_int_eq(raw_job_open(&second, &job), CST_EMISMATCH);
    raw_says(&second, "2 ranks, not 3");
    job.world = 2;
    job.chunk_elems = 8192;
    ck_assert_int_eq(raw_job_open(&second, &job), CST_EMISMATCH);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* -- declaring ------------------------------------------------------------------------------ */

/* Tensors that are empty, overflow, or have a name in use are refused. Earlier declarations
 * stay. */
START_TEST(bad_tensors_are_refused)
{
    static const int64_t zero[] = {4, 0, 3}, negative[] = {-5},
                         huge[] = {1 << 30, 1 << 30, 1 << 30}, good[] = {10};
    struct raw_client client;

    job_rig_open(&client, 0, 1);
    ck_assert_int_eq(raw_declare(&client, "t", 1, good), CST_OK);
    ck_assert_int_eq(raw_declare(&client, "zero", 3, zero), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "negative", 1, negative), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "huge", 3, huge), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "none", 0, good), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "", 1, good), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "t", 1, good), CST_EEXIST);
    ck_assert_int_eq(raw_declare(&client, "u", 1, good), CST_OK);
    raw_close(&client);
}
END_TEST

/* A job has at most 65536 tensors: as many can be committed, and each has a place. One more is
 * refused. */
START_TEST(a_job_has_65536_tensors)
{
    static const int64_t shape[] = {1};
    struct raw_client client;
    uint64_t id;

    job_rig_open(&client, 0, 1);
    ck_assert_int_eq(raw_declare_many(&client, 65536, 1), CST_OK);
    ck_assert_int_eq(raw_declare(&client, "one too many", 1, shape), CST_EINVAL);
    raw_says(&client, "65536");
    id = raw_commit(&client, 65536, 65536);
    ck_assert_msg(raw_status(&client, id) == CST_OK, "%s", client.err.text);
    for (uint32_t first = 0; first < 65536;) {
        Cistern__LayoutGet get = CISTERN__LAYOUT_GET__INIT;
        const Cistern__LayoutPart *part;

        get.first = first;
        id = raw_ask(&client, CISTERN__MSG_TYPE__MSG_LAYOUT, &get.base);
        part = raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_LAYOUT_PART,
                          &cistern__layout_part__descriptor);
        ck_assert_uint_eq(part->first, first);
        ck_assert_uint_gt(part->n_chunk, 0);
        ck_assert_uint_eq(part->n_chunk, part->n_offset);
        first += (uint32_t)part->n_chunk;
    }
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* -- committing ----------------------------------------------------------------------------- */

/* A pool that is too small is refused with the operator that needs more, and the missing bytes.
 * Nothing is kept. */
START_TEST(a_pool_too_small_is_refused)
{
    struct raw_client client;
    struct raw_job job = {.name = "j", .world = 1, .pool_bytes = 8192, .chunk_elems = 4096};

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 8, 4096), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 8, 8)), CST_EPOOL);
    raw_says(&client, "operator 'o7' needs 3: 16.0 KiB (16384 bytes) short");
    ck_assert_uint_eq(raw_stat(&witness)->pool_used, 0);
    raw_close(&client);
}
END_TEST

/* A job beyond the budget for host memory, or for pools, is refused with all numbers, and with the
 * reason of the first shortage. Nothing is kept. */
START_TEST(a_job_over_budget_is_refused)
{
    struct raw_client client;
    struct raw_job job = {.name = "k", .world = 1, .pool_bytes = 65 << 20, .chunk_elems = 4096};

    job_rig_open(&client, 0, 1);
    /* 16 bytes each: 320 MiB. */
    ck_assert_int_eq(raw_declare_many(&client, 20, 1 << 20), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 20, 20)), CST_EBUDGET);
    raw_says(&client, "256.0 MiB");
    ck_assert_int_eq(client.err.reason, CST_REASON_HOST_MEMORY);
    ck_assert_uint_lt(raw_stat(&witness)->host_used, 16 << 10); /* The declarations stay. */
    raw_close(&client);

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 8192, 4096),
                     CST_OK); /* 64 MiB of weights, and 64 MiB of gradients */
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 8192, 8192)), CST_EBUDGET);
    raw_says(&client, "pools of the host device");
    ck_assert_int_eq(client.err.reason, CST_REASON_HOST_MEMORY);
    ck_assert_uint_eq(raw_stat(&witness)->pool_used, 0);
    raw_close(&client);
}
END_TEST

/* A rank that waits for others at the commit is told, after its timeout, which rank is missing. It
 * can commit again. */
START_TEST(a_commit_without_the_others_times_out)
{
    struct raw_client client, other;
    struct raw_job job = {.name = "j", .world = 2, .timeout_ms = 50};
    uint64_t id;

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 1, 1000), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 1, 1)), CST_ETIMEDOUT);
    raw_says(&client, "rank 1 (absent)");
    job.rank = 1;
    raw_open(&other, proc.socket);
    ck_assert_int_eq(raw_job_open(&other, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&other, 1, 1000), CST_OK);
    id = raw_commit(&other, 1, 1);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 1, 1)), CST_OK);
    ck_assert_int_eq(raw_status(&other, id), CST_OK);
    raw_close(&client);
    raw_close(&other);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* A name of an operator with 256 bytes differs from one with 255 bytes that another rank has
 * declared. */
START_TEST(long_operator_names_differ)
{
    char name[257];
    struct raw_client one, other;

    memset(name, 'x', sizeof name);
    name[255] = name[256] = '\0';
    job_rig_declare(&one, 0, 2, 1);
    job_rig_declare(&other, 1, 2, 1);
    ck_assert_int_eq(raw_declare_operator(&one, name, 0), CST_OK);
    name[255] = 'x';
    ck_assert_int_eq(raw_declare_operator(&other, name, 0), CST_EMISMATCH);
    raw_close(&one);
    raw_close(&other);
}
END_TEST

/* A commit that is cancelled gets its own reply, and the rank can commit again. */
START_TEST(a_commit_can_be_cancelled)
{
    Cistern__Cancel cancel = CISTERN__CANCEL__INIT;
    struct raw_client client;
    uint64_t id;

    job_rig_declare(&client, 0, 2, 1);
    id = raw_commit(&client, 1, 1);
    cancel.request = id;
    (void)raw_ask(&client, CISTERN__MSG_TYPE__MSG_CANCEL, &cancel.base);
    ck_assert_int_eq(raw_status(&client, id), CST_ECANCELLED);
    ck_assert_int_eq(raw_status(&client, 0), CST_OK);
    raw_close(&client);
}
END_TEST

/* If a worker leaves while its job is being populated, its Commit is answered, and a later Cancel
 * of it finds nothing. The engine is stopped meanwhile, so that populating takes time. */
START_TEST(a_worker_leaves_a_job_that_is_populated)
{
    Cistern__Cancel cancel = CISTERN__CANCEL__INIT;
    struct raw_client client;
    pid_t engine = raw_stat(&witness)->engines[0]->pid;
    uint64_t leave;

    job_rig_declare(&client, 0, 1, 1);
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    cancel.request = raw_commit(&client, 1, 1);
    while (strcmp(raw_job_info(&witness, "j")->state, "populating") != 0) {
    }
    leave = raw_ask(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL);
    (void)raw_ask(&client, CISTERN__MSG_TYPE__MSG_CANCEL, &cancel.base);
    ck_assert_int_eq(raw_status(&client, cancel.request), CST_ECANCELLED);
    ck_assert_int_eq(raw_status(&client, leave), CST_OK);
    ck_assert_int_eq(raw_status(&client, 0), CST_OK);
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* The slabs of a pool are sealed memfds with mode 0600, and together hold its blocks. */
START_TEST(pool_slabs_are_sealed)
{
    Cistern__PoolGet get = CISTERN__POOL_GET__INIT;
    const Cistern__Committed *committed;
    const Cistern__PoolPart *part;
    struct raw_client client;
    struct stat st;
    uint64_t id;

    job_rig_declare(&client, 0, 1, 4);
    id = raw_commit(&client, 4, 4);
    committed =
        raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_COMMITTED, &cistern__committed__descriptor);
    ck_assert_uint_eq(committed->n_slabs, 1);
    ck_assert_uint_eq(committed->n_params, 4000);
    ck_assert_uint_eq(committed->pool_bytes,
                      committed->classes[0]->n_blocks * committed->classes[0]->chunk_elems * 2);
    id = raw_ask(&client, CISTERN__MSG_TYPE__MSG_POOL, &get.base);
    part =
        raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_POOL_PART, &cistern__pool_part__descriptor);
    ck_assert_uint_eq(part->n_bytes, 1);
    ck_assert_uint_eq(client.reply.n_fds, 1);
    ck_assert_uint_eq(part->bytes[0], committed->pool_bytes);
    ck_assert_int_eq(fcntl(client.reply.fds[0], F_GET_SEALS) &
                         (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    ck_assert_int_eq(fstat(client.reply.fds[0], &st), 0);
    ck_assert_uint_eq((uint64_t)st.st_size, part->bytes[0]);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_uint_ge((uint64_t)st.st_blocks * 512,
                      part->bytes[0]); /* the slab is populated, so that no access gets SIGBUS */
    cst_frame_close_fds(&client.reply);
    get.first = 1;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_POOL, &get.base), CST_EINVAL);
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* -- the suite ------------------------------------------------------------------------------ */

int main(void)
{
    Suite *suite = suite_create("jobs");
    TCase *tc;

    tc = suite_case(suite, "open", job_rig_setup, job_rig_teardown);
    tcase_add_test(tc, nonsense_is_not_opened);
    tcase_add_test(tc, an_unknown_device_is_refused);
    tcase_add_test(tc, a_configuration_is_text);
    tcase_add_test(tc, another_configuration_is_named);
    tcase_add_test(tc, a_rank_has_one_worker);
    tcase_add_test(tc, a_token_takes_the_rank_over);
    tcase_add_loop_test(tc, a_new_job_has_no_plan_of_a_dead_one, 0, 3);
    tcase_add_test(tc, ranks_agree_on_the_job);
    tc = suite_case(suite, "declare", job_rig_setup, job_rig_teardown);
    tcase_add_test(tc, bad_tensors_are_refused);
    tcase_add_test(tc, a_job_has_65536_tensors);
    tc = suite_case(suite, "commit", job_rig_setup, job_rig_teardown);
    tcase_add_test(tc, a_pool_too_small_is_refused);
    tcase_add_test(tc, a_job_over_budget_is_refused);
    tcase_add_test(tc, a_commit_without_the_others_times_out);
    tcase_add_test(tc, long_operator_names_differ);
    tcase_add_test(tc, a_commit_can_be_cancelled);
    tcase_add_test(tc, a_worker_leaves_a_job_that_is_populated);
    tcase_add_test(tc, pool_slabs_are_sealed);
    return suite_run(suite);
}
