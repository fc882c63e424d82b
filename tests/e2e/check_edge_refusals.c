/* SPDX-License-Identifier: Apache-2.0 */
/* Raw requests of workers that cannot map slots in the memory of stand-in GPUs (EdgeRefuse): about
 * edges that have no such slots, and more than one at a time. */
#include "tests/lib/cuda_rig.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/patience.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Edges of the job. */
enum { ACROSS, ON_HOST, OWN, N_EDGES };

static struct raw_client ranks[2];
static struct raw_job jobs[2];

static void declare_edges(struct raw_client *client)
{
    Cistern__EdgeDecl edges[N_EDGES], *list[N_EDGES];
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    static const char *const names[N_EDGES] = {"across", "on_host", "own"};

    for (int i = 0; i < N_EDGES; i++) {
        list[i] = &edges[i];
        cistern__edge_decl__init(list[i]);
        edges[i].name = (char *)(uintptr_t)names[i];
        edges[i].to = i == OWN ? 0 : 1;
        edges[i].slot_bytes = i == OWN ? 2000000 : 3000;
        edges[i].n_slots = 3;
        edges[i].has_on_device = true;
        edges[i].on_device = i != ON_HOST;
    }
    declare.n_edges = N_EDGES;
    declare.edges = list;
    ck_assert_int_eq(raw_call(client, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base), CST_OK);
}

/* A worker of job "j" attaches as @job has it, or again on another device, and sends its Commit.
 * Returns the request id. */
static uint64_t attach(struct raw_client *client, struct raw_job *job)
{
    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, job) == CST_OK, "%s", client->err.text);
    job->send_token = true;
    declare_edges(client);
    ck_assert_int_eq(raw_declare_many(client, 1, 1000), CST_OK);
    return raw_commit(client, 1, 1);
}

/* Two ranks commit job "j", each on a GPU. */
static void open_job(void)
{
    uint64_t commits[2];

    cuda_rig_open("");
    for (uint32_t rank = 0; rank < 2; rank++) {
        jobs[rank] = (struct raw_job){
            .name = "j", .rank = rank, .world = 2, .device = rank == 0 ? "cuda:0" : "cuda:1"};
        commits[rank] = attach(&ranks[rank], &jobs[rank]);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)raw_expect(&ranks[rank], commits[rank], CISTERN__MSG_TYPE__MSG_COMMITTED, NULL);
    }
}

/* As open_job, with an engine of the node that is killed when it populates slots of `own`. */
static void open_job_mortal(void)
{
    (void)setenv("CISTERN_ENGINE_HOST", "./tests/lib/engine_stub", 1);
    (void)setenv("STUB_KILLED_AT", "5000000", 1);
    open_job();
}

static void close_job(void)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        raw_close(&ranks[rank]);
    }
    settle_remove_jobs(&witness);
    cuda_rig_close();
}

/* Send EdgeRefuse. Returns the request id. */
static uint64_t refuse(uint32_t rank, uint32_t edge)
{
    Cistern__EdgeRefuse msg = CISTERN__EDGE_REFUSE__INIT;

    msg.edge = edge;
    msg.reason = (char *)(uintptr_t) "no\n\xff\x1b[31mmap";
    return raw_ask(&ranks[rank], CISTERN__MSG_TYPE__MSG_EDGE_REFUSE, &msg.base);
}

/* Let all engines that populate host memory go on, or stop them. */
static void signal_host_engines(int sig)
{
    const Cistern__StatReply *stat = raw_stat(&witness);
    unsigned n = 0;

    for (size_t i = 0; i < stat->n_engines; i++) {
        if (strcmp(stat->engines[i]->kind, "host") == 0 && stat->engines[i]->pid > 0) {
            ck_assert_int_eq(kill(stat->engines[i]->pid, sig), 0);
            n++;
        }
    }
    ck_assert_uint_gt(n, 0);
}

/* An edge that does not exist, one without slots of its own, and one of another rank are refused
 * with the numbers. The slots that there are stay where they are. */
START_TEST(edges_without_such_slots_are_named)
{
    static const struct {
        uint32_t rank, edge;
        const char *words;
    } wrong[] = {
        {0, N_EDGES, "edge 3 of 3 has no slots of its own that rank 0 could refuse"},
        {1, UINT32_MAX, "edge 4294967295 of 3 has no slots of its own that rank 1 could refuse"},
        {0, ON_HOST, "edge 1 of 3 has no slots of its own that rank 0 could refuse"},
        {1, OWN, "edge 2 of 3 has no slots of its own that rank 1 could refuse"},
    };
    const uint64_t bytes = raw_job_info(&witness, "j")->edge_device_bytes;

    ck_assert_uint_gt(bytes, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_int_eq(raw_status(&ranks[wrong[i].rank], refuse(wrong[i].rank, wrong[i].edge)),
                         CST_EINVAL);
        raw_says(&ranks[wrong[i].rank], wrong[i].words);
    }
    ck_assert_uint_eq(raw_job_info(&witness, "j")->edge_device_bytes, bytes);
}
END_TEST

/* While a rank waits for slots in host memory, it cannot ask for them again. The other rank can,
 * and both are answered when the slots are there. After that they are told so at once. The reason
 * is shown without control characters. */
START_TEST(a_rank_asks_once)
{
    uint64_t waiting[2];

    signal_host_engines(SIGSTOP);
    waiting[0] = refuse(0, ACROSS);
    ck_assert_int_eq(raw_status(&ranks[0], refuse(0, ACROSS)), CST_EBUSY);
    raw_says(&ranks[0], "edge 'across': rank 0 waits for its slots already");
    waiting[1] = refuse(1, ACROSS);
    ck_assert_int_eq(raw_status(&ranks[1], refuse(1, ACROSS)), CST_EBUSY);
    raw_says(&ranks[1], "edge 'across': rank 1 waits for its slots already");
    signal_host_engines(SIGCONT);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(raw_status(&ranks[rank], waiting[rank]), CST_OK);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(raw_status(&ranks[rank], refuse(rank, ACROSS)), CST_OK);
    }
    ck_assert(raw_explains(&witness, "j", "t0", "because rank 0 cannot map them on cuda:1:"));
    ck_assert(raw_explains(&witness, "j", "t0", "no\\x0a\\xff\\x1b[31mmap"));
}
END_TEST

/* Kill the engine of GPU 1 until it is given up. */
static void lose_gpu(void)
{
    const uint64_t until = patience_until(30000);
    pid_t killed = 0;

    for (;;) {
        const Cistern__EngineInfo *engine = raw_stat(&witness)->engines[2];

        if (strcmp(engine->state, "failed") == 0) {
            return;
        }
        ck_assert_msg(!patience_over(until), "the engine is %s", engine->state);
        if (engine->pid > 0 && engine->pid != killed) {
            ck_assert_int_eq(kill(engine->pid, SIGKILL), 0);
            killed = engine->pid;
        }
        (void)poll(NULL, 0, 1);
    }
}

/* Slots cannot be made in host memory, while the other rank, whose GPU is lost, gets a pool on
 * another one. Only the request about the slots fails. */
START_TEST(a_failure_beside_a_pool_that_moves)
{
    uint64_t waiting, commit;

    lose_gpu();
    raw_close(&ranks[1]);
    signal_host_engines(SIGSTOP);
    waiting = refuse(0, OWN);
    ck_assert_int_eq(raw_call(&ranks[0], CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    jobs[1].device = "cuda:0";
    commit = attach(&ranks[1], &jobs[1]);
    ck_assert_int_eq(raw_call(&ranks[1], CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    signal_host_engines(SIGCONT);
    ck_assert_int_eq(raw_status(&ranks[0], waiting), CST_ENOMEM);
    raw_says(&ranks[0], "2 engines died while they populated its memory");
    ck_assert_msg(raw_status(&ranks[1], commit) == CST_OK, "%s", ranks[1].err.text);
    ck_assert_str_eq(raw_job_info(&witness, "j")->ranks[1]->device, fake_gpu_uuid(0));
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *requests, *failures;

    (void)argc;
    fake_gpu_use(argv);
    suite = suite_create("edge_refusals");
    requests = suite_case(suite, "requests", open_job, close_job);
    tcase_add_test(requests, edges_without_such_slots_are_named);
    tcase_add_test(requests, a_rank_asks_once);
    failures = suite_case(suite, "failures", open_job_mortal, close_job);
    tcase_add_test(failures, a_failure_beside_a_pool_that_moves);
    return suite_run(suite);
}
