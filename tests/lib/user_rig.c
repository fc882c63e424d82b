/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/user_rig.h"

#include "tests/lib/user.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static char config[64]; /* path of the daemon's configuration file */

void user_rig_write_config(const char *text)
{
    FILE *file = fopen(config, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

void user_rig_start_sized(const char *text, const char *host, const char *pool)
{
    char option[80];
    const char *const options[] = {option, host, pool, NULL};
    int fd;

    (void)snprintf(config, sizeof config, "/tmp/cistern-conf-XXXXXX");
    fd = mkstemp(config);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(close(fd), 0);
    user_rig_write_config(text);
    (void)snprintf(option, sizeof option, "--config=%s", config);
    daemon_proc_start(&proc, options);
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    user_admit(&proc);
    raw_open(&witness, proc.manager);
    base_fds = daemon_proc_fds(proc.pid);
}

void user_rig_start(const char *text)
{
    user_rig_start_sized(text, "--host-memory=256M", "--pool-memory=64M");
}

Cistern__JobListPart *user_rig_list(struct raw_client *client)
{
    Cistern__JobListGet get = CISTERN__JOB_LIST_GET__INIT;
    uint64_t id = raw_ask(client, CISTERN__MSG_TYPE__MSG_JOB_LIST, &get.base);

    return raw_expect(client, id, CISTERN__MSG_TYPE__MSG_JOB_LIST_PART,
                      &cistern__job_list_part__descriptor);
}

int user_rig_remove(struct raw_client *client, const char *name, uid_t uid)
{
    Cistern__JobName message = CISTERN__JOB_NAME__INIT;

    message.name = (char *)(uintptr_t)name;
    message.has_uid = 1;
    message.uid = uid;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &message.base);
}

void user_rig_stop(void)
{
    Cistern__JobListPart *part;

    while ((part = user_rig_list(&witness))->n_jobs > 0) {
        for (size_t i = 0; i < part->n_jobs; i++) {
            (void)user_rig_remove(&witness, part->jobs[i]->name, part->jobs[i]->uid);
        }
    }
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    (void)unlink(config);
}

void user_rig_open_in_group(struct raw_client *client, uid_t uid, gid_t gid)
{
    user_as(uid, gid);
    raw_connect(client, proc.socket);
    user_back();
}

int user_rig_greet(struct raw_client *client, uid_t uid)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;

    user_rig_open_in_group(client, uid, uid);
    hello.min_version = hello.max_version = 1;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base);
}

void user_rig_open(struct raw_client *client, uid_t uid)
{
    ck_assert_msg(user_rig_greet(client, uid) == CST_OK, "%s", client->err.text);
}

int user_rig_open_job(struct raw_client *client, uid_t uid, const char *name)
{
    struct raw_job job = {.name = name, .world = 1};

    user_rig_open(client, uid);
    return raw_job_open(client, &job);
}

int user_rig_commit(struct raw_client *client, uid_t uid, const char *name, int64_t n_params,
                    uint64_t pool_bytes)
{
    struct raw_job job = {.name = name, .world = 1, .pool_bytes = pool_bytes, .chunk_elems = 4096};

    user_rig_open(client, uid);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, (uint32_t)(n_params / 4096), 4096), CST_OK);
    return raw_status(client,
                      raw_commit(client, (uint32_t)(n_params / 4096), (uint32_t)(n_params / 4096)));
}
