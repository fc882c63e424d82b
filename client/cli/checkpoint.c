/* SPDX-License-Identifier: Apache-2.0 */
/* The commands `cistern save`, `cistern clone`, `cistern adopt` and `cistern checkpoints`. */
#include "cistern/checkpoint.h"
#include "client/checkpoint/clone.h"
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "proto/job_states.h"
#include "proto/optimizers.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_US 200000   /* Time between two looks at the job's step. */
#define WAIT_US 60000000 /* Longest wait for the daemon's next process, as in cst_sync. */

static int save_once(struct cli *cli, uint64_t *step)
{
    const struct cst_save_spec spec = {.dir = cli->args[1],
                                       .keep = (uint32_t)cli->keep,
                                       .fp32_weights = cli->weights == CLI_WEIGHTS_FP32};
    struct cst_save_result result = {0};
    struct cst_err err = {0};
    int rc = cst_save(cli->client, cli->args[0], &spec, &result, &err);

    if (result.bytes == 0) {
        return cli_fail(&err);
    }
    *step = result.step;
    if (!cli_saved_print(cli, &result, cli->args[0], cli->args[1])) {
        return CLI_EXIT_FAILURE;
    }
    return rc == CST_OK ? CLI_EXIT_OK : cli_fail(&err);
}

/* Get the job's step. False: it failed; the error was printed. *goes_on: it may make more steps. */
static bool look(struct cli *cli, uint64_t *step, bool *goes_on)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    struct cstc_call call = {0};
    const Cistern__JobInfo *job;
    uint32_t state;

    msg.name = cli->args[0];
    if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_JOB_INFO, &msg.base,
                 CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &cistern__job_info_reply__descriptor)) {
        return false;
    }
    job = ((const Cistern__JobInfoReply *)call.reply)->job;
    *step = job->step;
    state = cst_name_find(cst_job_state_names, job->state);
    *goes_on = state != CST_JOB_IS_DONE && state != CST_JOB_IS_FAILED;
    cstc_call_reset(&call);
    return true;
}

/* Wait until the daemon's next process answers. False: the daemon has not ended, or none comes. */
static bool wait_for_daemon(struct cli *cli)
{
    struct cst_err err = {0};

    if (cstc_client_check(cli->client, NULL) == CST_OK) {
        return false;
    }
    for (int n = 0; n < WAIT_US / LOOK_US; n++) {
        if (cstc_client_reopen(cli->client, &err) == CST_OK) {
            (void)fprintf(stderr, "cistern: connected again\n");
            return true;
        }
        (void)usleep(LOOK_US);
    }
    (void)cli_fail(&err);
    return false;
}

/* Save the job each time when it has made --every more steps, and when it is done. A save that
 * fails is tried again after as many steps. */
static int follow(struct cli *cli)
{
    uint64_t saved = 0, step, tried = 0;
    bool goes_on, any = false;

    for (;;) {
        while (!look(cli, &step, &goes_on)) {
            if (!wait_for_daemon(cli)) {
                return CLI_EXIT_FAILURE;
            }
        }
        if (step / cli->every > tried / cli->every || (!goes_on && (!any || step > saved))) {
            any = save_once(cli, &saved) == CLI_EXIT_OK || any;
            tried = step;
        }
        /* The daemon may have ended during the last save. */
        if (!goes_on && any && saved == step) {
            return CLI_EXIT_OK;
        }
        if (!goes_on && !wait_for_daemon(cli)) {
            return CLI_EXIT_FAILURE;
        }
        (void)usleep(LOOK_US);
    }
}

int cli_save(struct cli *cli)
{
    uint64_t step;

    return cli->every > 0 ? follow(cli) : save_once(cli, &step);
}

int cli_adopt(struct cli *cli)
{
    const uint32_t n = (uint32_t)cli->n_args - 1;
    const char *dir = cli->args[n];
    struct cst_adopt_result result = {.step = 0};
    struct cst_err err = {0};
    char size[CLI_HUMAN_BYTES];

    if (cst_adopt((const char *const *)cli->args, n, dir, &result, &err) != CST_OK) {
        return cli_fail(&err);
    }
    if (result.warning[0] != '\0') {
        (void)fprintf(stderr, "cistern: warning: %s\n", result.warning);
    }
    if (cli->json) {
        json_t *json =
            json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:s}", "job", result.job, "step",
                      (json_int_t)result.step, "bytes", (json_int_t)result.bytes, "seconds",
                      result.seconds, "rows", (json_int_t)result.n_rows, "unchecked",
                      (json_int_t)result.n_unchecked, "warning", result.warning);

        return cli_json_print(json) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
    }
    (void)printf("saved step %llu of %s to %s: %s in %.2f s; %u of %u rows of states were compared "
                 "with their checksums\n",
                 (unsigned long long)result.step, result.job, dir, cli_bytes(result.bytes, size),
                 result.seconds, result.n_rows - result.n_unchecked, result.n_rows);
    return CLI_EXIT_OK;
}

int cli_clone(struct cli *cli)
{
    static struct cstc_clone_result result; /* Too large for a stack. */
    struct cst_err err = {0};
    json_t *files;
    char size[CLI_HUMAN_BYTES];

    if (cstc_clone(cli->client, cli->args[0], cli->args + 1, (uint32_t)cli->n_args - 1, &result,
                   &err) != CST_OK) {
        return cli_fail(&err);
    }
    if (!cli->json) {
        (void)printf("cloned step %llu of %s: %s in %.2f s, shared with the job until it writes "
                     "there\n",
                     (unsigned long long)result.step, cli->args[0], cli_bytes(result.bytes, size),
                     result.seconds);
        for (uint32_t i = 0; i < result.n; i++) {
            (void)printf("%s\n", result.paths[i]);
        }
        return CLI_EXIT_OK;
    }
    files = json_array();
    for (uint32_t i = 0; i < result.n && files != NULL; i++) {
        if (json_array_append_new(files, json_string(result.paths[i])) != 0) {
            json_decref(files);
            files = NULL;
        }
    }
    return cli_json_print(json_pack("{s:s, s:I, s:o, s:I, s:f, s:f}", "job", cli->args[0], "step",
                                    (json_int_t)result.step, "files", files, "bytes",
                                    (json_int_t)result.bytes, "seconds", result.seconds,
                                    "held_seconds", result.held_seconds))
               ? CLI_EXIT_OK
               : CLI_EXIT_FAILURE;
}

/* Add @checkpoint to @array. False: no memory. */
static bool append(json_t *array, const struct cst_checkpoint *checkpoint)
{
    json_t *entry = json_pack("{s:s, s:I, s:I, s:b}", "name", checkpoint->name, "step",
                              (json_int_t)checkpoint->step, "bytes", (json_int_t)checkpoint->bytes,
                              "whole", checkpoint->whole);
    bool good = entry != NULL;

    if (good && checkpoint->job[0] != '\0') {
        good = json_object_set_new(entry, "job", json_string(checkpoint->job)) == 0;
    }
    if (good && !checkpoint->whole) {
        good = json_object_set_new(entry, "why", json_string(checkpoint->why)) == 0;
    }
    good = good && json_array_append(array, entry) == 0;
    json_decref(entry);
    return good;
}

static int print_json(const struct cst_checkpoint *list, uint32_t n)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < n; i++) {
        if (!append(array, &list[i])) {
            json_decref(array);
            return cli_fail(&(struct cst_err){.text = "out of memory"});
        }
    }
    return cli_json_print(array) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

int cli_checkpoints(struct cli *cli)
{
    static const char *const titles[] = {"NAME", ">STEP", ">SIZE", "JOB", "STATE", NULL};
    struct cst_checkpoint *list;
    struct cli_table table;
    struct cst_err err = {0};
    char size[CLI_HUMAN_BYTES];
    uint32_t n;

    if (cst_checkpoints(cli->args[0], cli->check, &list, &n, &err) != CST_OK) {
        return cli_fail(&err);
    }
    if (cli->json) {
        int rc = print_json(list, n);

        free(list);
        return rc;
    }
    cli_table_init(&table, titles);
    for (uint32_t i = 0; i < n; i++) {
        cli_table_cell(&table, "%s", list[i].name);
        cli_table_cell(&table, "%llu", (unsigned long long)list[i].step);
        cli_table_cell(&table, "%s", list[i].bytes > 0 ? cli_bytes(list[i].bytes, size) : "-");
        cli_table_cell(&table, "%s", list[i].job[0] != '\0' ? list[i].job : "-");
        cli_table_cell(&table, "%s%s",
                       list[i].whole                  ? "whole"
                       : list[i].status == CST_EINVAL ? "torn: "
                                                      : "unreadable: ",
                       list[i].why);
    }
    free(list);
    return cli_table_print(&table, stdout) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
