/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a worker that keeps its pool, or its staging memory, after its job was removed. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_ROUNDS = 14, N_TENSORS = 8, ELEMS = 1 << 18 };

/* The memory that a worker keeps in one round. */
struct kept {
    int fd;
    char *bytes;
    size_t n_bytes;
};

static void setup(void)
{
    const char *const args[] = {"--pool-memory=16M", NULL};

    daemon_proc_start(&proc, args);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

static uint64_t memory_of(const struct kept *kept)
{
    struct stat st;

    ck_assert_int_eq(fstat(kept->fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static struct kept keep(struct raw_client *client)
{
    struct kept kept = {.fd = client->reply.fds[0]};
    struct stat st;

    ck_assert_uint_eq(client->reply.n_fds, 1);
    ck_assert_int_eq(fstat(kept.fd, &st), 0);
    kept.n_bytes = (size_t)st.st_size;
    kept.bytes = mmap(NULL, kept.n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kept.fd, 0);
    ck_assert(kept.bytes != MAP_FAILED);
    memset(kept.bytes, 1, kept.n_bytes);
    ck_assert_uint_ge(memory_of(&kept), kept.n_bytes);
    return kept;
}

static void let_go(struct kept *kept)
{
    (void)munmap(kept->bytes, kept->n_bytes);
    (void)close(kept->fd);
}

static int commit(struct raw_client *client)
{
    struct raw_job job = {.name = "j", .world = 1};

    raw_open(client, proc.socket);
    ck_assert_int_eq(raw_job_open(client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(client, N_TENSORS, ELEMS), CST_OK);
    return raw_status(client, raw_commit(client, N_TENSORS, N_TENSORS));
}

/* Make a job whose worker maps its pool, remove the job, and keep the pool mapped. */
static struct kept play_round(void)
{
    Cistern__PoolGet get = CISTERN__POOL_GET__INIT;
    struct raw_client client;
    struct kept kept;

    ck_assert_msg(commit(&client) == CST_OK, "%s", client.err.text);
    (void)raw_expect(&client, raw_ask(&client, CISTERN__MSG_TYPE__MSG_POOL, &get.base),
                     CISTERN__MSG_TYPE__MSG_POOL_PART, &cistern__pool_part__descriptor);
    kept = keep(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    raw_close(&client);
    return kept;
}

/* Pools that are kept in many rounds use no memory, and the next round has the whole budget.
 * Memory that the worker writes later is charged, and the next job is refused until the worker
 * unmaps it. */
START_TEST(kept_pools)
{
    struct kept kept[N_ROUNDS];
    struct raw_client client;
    int rc;

    for (unsigned i = 0; i < N_ROUNDS; i++) {
        kept[i] = play_round();
        for (unsigned k = 0; k <= i; k++) {
            ck_assert_uint_eq(memory_of(&kept[k]), 0);
        }
        ck_assert_uint_eq(raw_stat(&witness)->pool_used, 0);
    }
    for (;;) { /* memory that is written is taken away twice a second */
        for (unsigned i = 0; i < N_ROUNDS; i++) {
            memset(kept[i].bytes, 1, kept[i].n_bytes);
        }
        rc = commit(&client);
        if (rc != CST_OK) {
            break;
        }
        ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
        raw_close(&client);
    }
    ck_assert_int_eq(rc, CST_EBUDGET);
    raw_says(&client, "keep memory of removed jobs");
    raw_close(&client);
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        let_go(&kept[i]);
    }
}
END_TEST

/* Staging memory that is kept after its connection was closed is treated in this way, too. */
START_TEST(kept_staging)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;
    struct raw_client client;
    struct kept kept;

    raw_open(&client, proc.socket);
    get.bytes = 1 << 20;
    (void)raw_expect(&client, raw_ask(&client, CISTERN__MSG_TYPE__MSG_STAGING, &get.base),
                     CISTERN__MSG_TYPE__MSG_STAGING_PART, &cistern__staging_part__descriptor);
    kept = keep(&client);
    raw_close(&client);
    while (raw_stat(&witness)->host_used > 0) {
    }
    ck_assert_uint_eq(memory_of(&kept), 0);
    let_go(&kept);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("remains");
    TCase *tc = suite_case(suite, "remains", setup, job_rig_teardown);

    tcase_add_test(tc, kept_pools);
    tcase_add_test(tc, kept_staging);
    return suite_run(suite);
}
