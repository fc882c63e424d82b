/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engines of GPUs: the memory that they allocate and share, their start and their
 * end. */
#include "tests/lib/gpu_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool are_off(const Cistern__StatReply *stat)
{
    bool off = stat->n_engines > 1;

    for (size_t i = 1; i < stat->n_engines; i++) {
        off = off && strcmp(stat->engines[i]->state, "off") == 0;
    }
    return off;
}

static bool is_restarted(const Cistern__StatReply *stat)
{
    return stat->n_engines > 1 && stat->engines[1]->restarts > 0 &&
           strcmp(stat->engines[1]->state, "ready") == 0;
}

/* -- memory ----------------------------------------------------------------------------------- */

/* A job's memory is counted for its GPU in multiples of the granularity, until the job ends. */
START_TEST(books)
{
    struct raw_client client;
    const Cistern__StatReply *stat;

    gpu_rig_start(NULL, NULL);
    gpu_rig_declare(&client, "b", 0, 1, "cuda:0", 5 * MIB); /* five blocks of 1 MiB */
    ck_assert_msg(gpu_rig_commit(&client) == CST_OK, "%s", client.err.text);
    stat = raw_stat(&witness);
    ck_assert_uint_eq(stat->gpus[0]->pool_used, 6 * MIB);
    ck_assert_uint_eq(stat->gpus[1]->pool_used, 0);
    ck_assert_uint_eq(stat->pool_used, 0);
    ck_assert_uint_eq(raw_job_info(&witness, "b")->ranks[0]->pool->capacity, 5 * MIB);
    raw_close(&client);
    settle_remove_jobs(&witness);
    ck_assert_uint_eq(raw_stat(&witness)->gpus[0]->pool_used, 0);
}
END_TEST

/* More than the GPU's budget is refused with the numbers. Another GPU has its own budget. */
START_TEST(over_budget)
{
    struct raw_client first, second;

    gpu_rig_start("--gpu-memory=12M", NULL);
    gpu_rig_declare(&first, "a", 0, 1, "cuda:0", 8 * MIB);
    ck_assert_msg(gpu_rig_commit(&first) == CST_OK, "%s", first.err.text);
    gpu_rig_declare(&second, "b", 0, 1, "cuda:0", 8 * MIB);
    ck_assert_int_eq(gpu_rig_commit(&second), CST_EBUDGET);
    raw_says(&second, "pools of cuda:0 (" GPU0
                      ", Stub): b wants 8.0 MiB (8388608 bytes), 8.0 MiB of 12.0 MiB");
    raw_close(&second);
    gpu_rig_declare(&second, "c", 0, 1, "cuda:1", 8 * MIB);
    ck_assert_msg(gpu_rig_commit(&second) == CST_OK, "%s", second.err.text);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* Ranks that ask for no size share the remaining memory of their GPU. */
START_TEST(shared)
{
    static const char *const devices[] = {"cuda:0", "cuda:0", "cuda:1"};
    struct raw_client clients[3];
    uint64_t ids[3];

    gpu_rig_start("--gpu-memory=20M", NULL);
    for (uint32_t r = 0; r < 3; r++) {
        gpu_rig_declare(&clients[r], "s", r, 3, devices[r], 0);
    }
    for (uint32_t r = 0; r < 3; r++) {
        ids[r] = raw_commit(&clients[r], 8, 8);
    }
    for (uint32_t r = 0; r < 3; r++) {
        const Cistern__Committed *committed = raw_expect(
            &clients[r], ids[r], CISTERN__MSG_TYPE__MSG_COMMITTED, &cistern__committed__descriptor);

        ck_assert_uint_eq(committed->classes[0]->n_blocks, r < 2 ? 10 : 16);
    }
    ck_assert_uint_eq(raw_stat(&witness)->gpus[0]->pool_used, 20 * MIB);
    for (uint32_t r = 0; r < 3; r++) {
        raw_close(&clients[r]);
    }
}
END_TEST

/* With `pool = auto`, pools get what contexts, workspaces and declared activations leave. The
 * engine and each rank have a context of an eighth of the card of 64 MiB. */
START_TEST(automatic)
{
    struct raw_client client, other;
    const Cistern__StatReply *stat;

    gpu_rig_start(NULL, NULL);
    stat = gpu_rig_await(are_off);
    ck_assert_uint_eq(stat->gpus[0]->pool_budget, 56 * MIB);
    gpu_rig_declare(&client, "a", 0, 1, "cuda:0", 0);
    ck_assert_int_eq(raw_declare_activations(&client, "head", 0, 37 * MIB), CST_OK);
    ck_assert_msg(raw_status(&client, raw_commit(&client, 8, 9)) == CST_OK, "%s", client.err.text);
    stat = raw_stat(&witness);
    ck_assert_uint_eq(stat->gpus[0]->n_contexts, 2);
    ck_assert_uint_eq(stat->gpus[0]->context_bytes, 16 * MIB);
    ck_assert_uint_eq(stat->gpus[0]->workspace_bytes, 1 * MIB);
    ck_assert_uint_eq(stat->gpus[0]->activation_bytes, 37 * MIB);
    ck_assert_uint_eq(stat->gpus[0]->n_undeclared, 0);
    ck_assert_uint_eq(stat->gpus[0]->pool_budget, 10 * MIB);
    ck_assert_uint_eq(stat->gpus[0]->pool_used, 10 * MIB); /* all of it */
    ck_assert_uint_eq(stat->gpus[1]->pool_budget, 56 * MIB);
    /* Another job has no memory there, not even for its context, and the error has the sum. */
    gpu_rig_declare(&other, "b", 0, 1, "cuda:0", 0);
    ck_assert_int_eq(gpu_rig_commit(&other), CST_EBUDGET);
    raw_says(&other, "24.0 MiB for 3 CUDA contexts, 2.0 MiB for workspaces of libraries, 37.0 MiB "
                     "for activations, 6.4 MiB for activations of 1 rank without a declaration");
    raw_close(&other);
    raw_close(&client);
    settle_remove_jobs(&witness);
    ck_assert_uint_eq(raw_stat(&witness)->gpus[0]->pool_budget, 56 * MIB);
}
END_TEST

/* If a GPU has no space for the smallest pool, the error names the GPU. */
START_TEST(no_room)
{
    struct raw_client client;

    gpu_rig_start("--gpu-memory=2M", NULL);
    gpu_rig_declare(&client, "n", 0, 1, "cuda:1", 0);
    ck_assert_int_eq(gpu_rig_commit(&client), CST_EBUDGET);
    raw_says(&client, "pools of cuda:1");
    raw_says(&client, "the share that is left for rank 0 is too small: pool of 2.0 MiB");
    raw_says(&client, "% of the job's weights, is enough"); /* Nothing is cut. */
    ck_assert_int_eq(client.err.reason, CST_REASON_POOL_MEMORY);
    raw_close(&client);
}
END_TEST

/* A job cannot use GPUs that cannot access each other's memory. Each of them can have a job of its
 * own. */
START_TEST(unreachable)
{
    struct raw_client clients[2];
    uint64_t ids[2];

    (void)setenv("STUB_UNREACHABLE", "1", 1);
    gpu_rig_start(NULL, NULL);
    for (uint32_t r = 0; r < 2; r++) {
        gpu_rig_declare(&clients[r], "u", r, 2, "cuda", 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ids[r] = raw_commit(&clients[r], 8, 8);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(raw_status(&clients[r], ids[r]), CST_EUNSUPPORTED);
        raw_says(&clients[r], "cannot reach the memory");
        raw_says(&clients[r], GPU0);
        raw_says(&clients[r], GPU1);
        raw_says(&clients[r], "no way from one GPU to the other");
        raw_close(&clients[r]);
    }
    gpu_rig_declare(&clients[0], "alone", 0, 1, "cuda:0", 0);
    ck_assert_msg(gpu_rig_commit(&clients[0]) == CST_OK, "%s", clients[0].err.text);
    raw_close(&clients[0]);
}
END_TEST

/* Commit job @name of two ranks on @devices. Both must get @status and a message with @words. */
static void expect_pair(const char *name, const char *const devices[2], int status,
                        const char *words)
{
    struct raw_client clients[2];
    uint64_t ids[2];

    for (uint32_t r = 0; r < 2; r++) {
        gpu_rig_declare(&clients[r], name, r, 2, devices[r], 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ids[r] = raw_commit(&clients[r], 8, 8);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_msg(raw_status(&clients[r], ids[r]) == status, "%s", clients[r].err.text);
        if (status != CST_OK) {
            raw_says(&clients[r], words);
        }
    }
    raw_close(&clients[0]);
    raw_close(&clients[1]);
    settle_remove_jobs(&witness);
}

/* If other programs have filled a GPU, the commit fails with the GPU's name, and everything is
 * freed, including what other GPUs have allocated. A job without that GPU goes on. */
START_TEST(full)
{
    (void)setenv("STUB_FULL", GPU1, 1);
    gpu_rig_start(NULL, NULL);
    expect_pair("full", (const char *[]){"cuda:0", "cuda:1"}, CST_ENOMEM,
                "memory of 16.0 MiB on " GPU1 ": the GPU is out of memory");
    expect_pair("rest", (const char *[]){"cuda:0", "host"}, CST_OK, "");
}
END_TEST

/* An engine dies whenever it allocates memory: the commit fails, and requests that wait for that
 * memory fail, too. When the engine can allocate again, it does. */
START_TEST(fatal)
{
    (void)setenv("STUB_FATAL", gpu_rig_path("fatal"), 1);
    (void)close(open(gpu_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    gpu_rig_start(NULL, NULL);
    expect_pair("fatal", (const char *[]){"cuda:0", "cuda:1"}, CST_EENGINE,
                "engine 2 (" GPU1 "): it died 6 times");
    ck_assert_int_eq(unlink(gpu_path), 0);
    expect_pair("again", (const char *[]){"cuda:0", "cuda:1"}, CST_OK, "");
}
END_TEST

/* -- copies ----------------------------------------------------------------------------------- */

static void write_config(const char *text)
{
    FILE *file = fopen(gpu_rig_path("conf"), "we");

    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    (void)fclose(file);
}

static uint64_t commit_saying(struct raw_client *client, bool copies)
{
    Cistern__Commit message = CISTERN__COMMIT__INIT;

    message.n_tensors = message.n_operators = 8;
    message.has_copies = true;
    message.copies = copies;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_COMMIT, &message.base);
}

static uint64_t ask_arenas(struct raw_client *client, uint32_t first)
{
    Cistern__ArenaGet message = CISTERN__ARENA_GET__INIT;

    message.first = first;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_ARENA, &message.base);
}

/* If workers copy weights, a worker that cannot is refused, and one that can gets the sealed
 * arenas. A rank on the host is not affected. */
START_TEST(workers_copy)
{
    const Cistern__Committed *committed;
    const Cistern__ArenaPart *part;
    struct raw_client client;
    char option[80];
    uint64_t id;

    write_config("[gpu]\ncopies = worker\n");
    (void)snprintf(option, sizeof option, "--config=%s", gpu_path);
    gpu_rig_start(option, NULL);
    gpu_rig_declare(&client, "w", 0, 1, "cuda:1", 0);
    ck_assert_int_eq(gpu_rig_commit(&client), CST_EUNSUPPORTED);
    raw_says(&client, "copies = worker");
    ck_assert_int_eq(raw_status(&client, commit_saying(&client, false)), CST_EUNSUPPORTED);
    ck_assert_int_eq(raw_status(&client, ask_arenas(&client, 0)), CST_EINVAL);
    id = commit_saying(&client, true);
    committed =
        raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_COMMITTED, &cistern__committed__descriptor);
    ck_assert_uint_gt(committed->n_arenas, 0);
    part = raw_expect(&client, ask_arenas(&client, 0), CISTERN__MSG_TYPE__MSG_ARENA_PART,
                      &cistern__arena_part__descriptor);
    ck_assert_uint_eq(part->n_segment, committed->n_arenas);
    ck_assert_uint_eq(client.reply.n_fds, part->n_segment);
    for (size_t i = 0; i < part->n_segment; i++) {
        int seals = fcntl(client.reply.fds[i], F_GET_SEALS);

        ck_assert_int_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    }
    cst_frame_close_fds(&client.reply);
    ck_assert_int_eq(raw_status(&client, ask_arenas(&client, committed->n_arenas)), CST_EINVAL);
    ck_assert_str_eq(raw_job_info(&witness, "w")->copies, "worker");
    raw_close(&client);
    gpu_rig_declare(&client, "h", 0, 1, "host", 0);
    ck_assert_msg(gpu_rig_commit(&client) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_status(&client, ask_arenas(&client, 0)), CST_EDENIED);
    ck_assert_ptr_null(raw_job_info(&witness, "h")->copies);
    raw_close(&client);
}
END_TEST

/* If engines copy weights, no worker gets arenas. */
START_TEST(engines_copy)
{
    const Cistern__Committed *committed;
    struct raw_client client;

    gpu_rig_start(NULL, NULL);
    gpu_rig_declare(&client, "e", 0, 1, "cuda:1", 0);
    committed = raw_expect(&client, commit_saying(&client, true), CISTERN__MSG_TYPE__MSG_COMMITTED,
                           &cistern__committed__descriptor);
    ck_assert(!committed->has_n_arenas);
    ck_assert_int_eq(raw_status(&client, ask_arenas(&client, 0)), CST_EDENIED);
    ck_assert_str_eq(raw_job_info(&witness, "e")->copies, "engine");
    raw_close(&client);
}
END_TEST

/* -- engines ---------------------------------------------------------------------------------- */

/* An engine starts with the first job that uses its GPU, ends when none has used it for the
 * configured time, and starts again. */
START_TEST(started_and_ended)
{
    struct raw_client client;
    char option[80];

    write_config("[gpu]\nidle = 1\n");
    (void)snprintf(option, sizeof option, "--config=%s", gpu_path);
    gpu_rig_start(option, NULL);
    (void)gpu_rig_await(are_off);
    for (int i = 0; i < 2; i++) {
        gpu_rig_declare(&client, "e", 0, 1, "cuda:1", 0);
        ck_assert_msg(gpu_rig_commit(&client) == CST_OK, "%s", client.err.text);
        ck_assert_str_eq(raw_stat(&witness)->engines[2]->state, "ready");
        ck_assert_str_eq(raw_stat(&witness)->engines[1]->state, "off");
        ck_assert_uint_eq(raw_stat(&witness)->engines[2]->restarts, 0);
        raw_close(&client);
        settle_remove_jobs(&witness);
        (void)gpu_rig_await(are_off);
    }
}
END_TEST

/* An engine that cannot start fails the commit with a message. The next commit tries again. */
START_TEST(broken)
{
    struct raw_client client;

    (void)setenv("STUB_BROKEN", gpu_rig_path("broken"), 1);
    (void)close(open(gpu_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    gpu_rig_start(NULL, NULL);
    gpu_rig_declare(&client, "f", 0, 1, "cuda:0", 0);
    ck_assert_int_eq(gpu_rig_commit(&client), CST_EENGINE);
    raw_says(&client, "engine 1 (" GPU0 "): it died 6 times");
    ck_assert_str_eq(raw_stat(&witness)->engines[1]->state, "failed");
    ck_assert_int_eq(unlink(gpu_path), 0);
    ck_assert_msg(gpu_rig_commit(&client) == CST_OK, "%s", client.err.text);
    raw_close(&client);
}
END_TEST

/* An engine that dies while nothing is under way is restarted with the pool's memory. */
START_TEST(restarted)
{
    struct raw_client client;

    gpu_rig_start(NULL, NULL);
    gpu_rig_declare(&client, "r", 0, 1, "cuda:0", 0);
    ck_assert_msg(gpu_rig_commit(&client) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(kill(raw_stat(&witness)->engines[1]->pid, SIGKILL), 0);
    (void)gpu_rig_await(is_restarted);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(&client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_engine");
    TCase *tcase = suite_case(suite, "gpu_engine", gpu_rig_setup, gpu_rig_teardown);

    tcase_add_test(tcase, books);
    tcase_add_test(tcase, over_budget);
    tcase_add_test(tcase, shared);
    tcase_add_test(tcase, automatic);
    tcase_add_test(tcase, no_room);
    tcase_add_test(tcase, unreachable);
    tcase_add_test(tcase, full);
    tcase_add_test(tcase, fatal);
    tcase_add_test(tcase, workers_copy);
    tcase_add_test(tcase, engines_copy);
    tcase_add_test(tcase, started_and_ended);
    tcase_add_test(tcase, broken);
    tcase_add_test(tcase, restarted);
    return suite_run(suite);
}
