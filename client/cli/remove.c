/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern rm`, which says what was removed. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/table.h"

#include <stdio.h>

/* The bytes of the pools of all ranks. */
static uint64_t pool_bytes(const Cistern__JobInfo *job)
{
    uint64_t bytes = 0;

    for (size_t r = 0; r < job->n_ranks; r++) {
        bytes += job->ranks[r]->pool != NULL ? job->ranks[r]->pool->capacity : 0;
    }
    return bytes;
}

static bool print_json(const Cistern__JobInfo *job, const Cistern__Removed *removed)
{
    json_t *saved = job->has_saved_step ? json_integer((json_int_t)job->saved_step) : json_null();
    json_t *left_on = json_array();

    for (size_t i = 0; i < removed->n_left_on; i++) {
        (void)json_array_append_new(left_on, json_string(removed->left_on[i]));
    }

    return cli_json_print(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "job", job->name,
                                    "uid", (json_int_t)job->uid, "step", (json_int_t)job->step,
                                    "host_bytes", (json_int_t)job->arena_bytes, "pool_bytes",
                                    (json_int_t)pool_bytes(job), "device_bytes",
                                    (json_int_t)(job->device_states + job->device_update_bytes),
                                    "saved_step", saved, "left_on", left_on));
}

static void print_saved(const Cistern__JobInfo *job)
{
    if (!job->has_saved_step) {
        (void)printf("it was not saved since the daemon started\n");
    } else if (job->saved_step >= job->step) {
        (void)printf("its checkpoint of step %llu has all steps\n",
                     (unsigned long long)job->saved_step);
    } else {
        (void)printf("its newest checkpoint is of step %llu, and the %llu later steps are lost\n",
                     (unsigned long long)job->saved_step,
                     (unsigned long long)(job->step - job->saved_step));
    }
}

/* Print ", @bytes of @what", unless there are none. */
static void print_freed(uint64_t bytes, const char *what)
{
    char text[CLI_HUMAN_BYTES];

    if (bytes > 0) {
        (void)printf(", %s of %s", cli_bytes(bytes, text), what);
    }
}

/* Print on which nodes a part of the job remains. */
static void print_left(const Cistern__JobInfo *job, const Cistern__Removed *removed)
{
    for (size_t i = 0; i < removed->n_left_on; i++) {
        (void)printf("%s%s", i == 0 ? "there is no link to node " : ", ", removed->left_on[i]);
    }
    if (removed->n_left_on > 0) {
        (void)printf(
            ": the part of the job there remains until there is one; 'cistern rm %s' there "
            "removes it at once\n",
            job->name);
    }
}

static bool print(const Cistern__JobInfo *job, const Cistern__Removed *removed)
{
    char host[CLI_HUMAN_BYTES];

    (void)printf("removed job '%s' of uid %u at step %llu: freed %s of host memory", job->name,
                 job->uid, (unsigned long long)job->step, cli_bytes(job->arena_bytes, host));
    print_freed(pool_bytes(job), "pools"); /* Those of a job that is done were freed before. */
    print_freed(job->device_states + job->device_update_bytes, "devices");
    (void)printf("; ");
    print_saved(job);
    print_left(job, removed);
    return true;
}

/* Remove the job, and say so. False: it failed; the error was printed. */
static bool remove_job(struct cli *cli, const Cistern__JobInfo *job)
{
    struct cstc_call call = {0};
    bool good = cli_ask_about(cli, &call, CISTERN__MSG_TYPE__MSG_JOB_REMOVE,
                              CISTERN__MSG_TYPE__MSG_OK, &cistern__removed__descriptor);

    if (good) {
        const Cistern__Removed *removed = (const Cistern__Removed *)call.reply;

        good = cli->json ? print_json(job, removed) : print(job, removed);
    }
    cstc_call_reset(&call);
    return good;
}

int cli_remove(struct cli *cli)
{
    const Cistern__JobInfo *job;
    struct cstc_call call = {0};
    bool good;

    /* A job without workers makes no step between the two requests. */
    if (!cli_ask_job(cli, &call)) {
        return CLI_EXIT_FAILURE;
    }
    job = ((const Cistern__JobInfoReply *)call.reply)->job;
    good = remove_job(cli, job);
    cstc_call_reset(&call);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
