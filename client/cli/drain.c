/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern drain`. */
#include "client/checkpoint/save.h"
#include "client/cli/cli.h"
#include "client/cli/table.h"
#include "proto/clock.h"
#include "proto/job_states.h"
#include "proto/optimizers.h"

#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* True if the job has states that can be saved. A job that was loaded, or whose workers come back,
 * has them before its next step. */
static bool has_states(uint32_t state, json_int_t step)
{
    return state != CST_JOB_IS_FAILED && (state > CST_JOB_IS_READY || step > 0);
}

static void on_begun(void *arg, uint64_t step)
{
    bool *begun = arg;

    (void)step;
    *begun = true;
}

/* Wait until @client's call can go on. False: it is @until, a time in s. */
static bool wait_until(struct cst_client *client, double until)
{
    struct pollfd fd = {.fd = cst_client_fd(client), .events = POLLIN};
    double left = until - cst_clock_s();

    return left > 0 && poll(&fd, 1, 1 + (int)(1000 * left)) != 0;
}

/* cst_save, for the job @name of user @uid. When a save begins is up to the job: with early
 * updates, at its next commit. The job's own time limit for this can be long, so the save is given
 * up after --grace (CST_ETIMEDOUT). It has a connection of its own, whose end ends the save. */
static int save_within(struct cli *cli, const char *name, uint32_t uid, struct cst_save_spec *spec,
                       struct cst_save_result *result, struct cst_err *err)
{
    const double until = cst_clock_s() + cli->grace;
    struct cst_client *client;
    bool begun = false;
    int rc = cst_connect(&client, cli->client->path, err);

    if (rc != CST_OK) {
        return rc;
    }
    spec->on_begun = on_begun;
    spec->arg = &begun;
    while ((rc = cstc_try_save_of(client, name, uid, spec, result, err)) == CST_EAGAIN) {
        if (!wait_until(client, begun ? cst_clock_s() + 1 : until) && !begun) {
            rc = cst_err_set(err, CST_ETIMEDOUT,
                             "job '%.63s' of uid %u is not saved: the job did not let the save "
                             "begin within %u s (--grace)",
                             name, uid, cli->grace);
            break;
        }
    }
    cst_disconnect(client);
    return rc;
}

/* Save one job to a directory of its name, in one of its owner's uid if that is another user. */
static bool save(struct cli *cli, const char *name, const char *state, json_int_t step,
                 json_int_t uid)
{
    const uint32_t number = cst_name_find(cst_job_state_names, state);
    struct cst_save_spec spec = {.dir = NULL};
    struct cst_save_result result = {0};
    struct cst_err err = {0};
    char *dir, size[CLI_HUMAN_BYTES];
    int rc;

    if (!has_states(number, step)) {
        (void)printf("%s is not saved, because it is %s: %s\n", name, state,
                     number == CST_JOB_IS_FAILED ? "its states may be damaged"
                                                 : "it has not begun its first step");
        return true;
    }
    rc = uid == (json_int_t)getuid() ? asprintf(&dir, "%s/%s", cli->plan.save, name)
                                     : asprintf(&dir, "%s/%lld/%s", cli->plan.save, uid, name);
    if (rc < 0) {
        (void)cli_fail(&(struct cst_err){.text = "out of memory"});
        return false;
    }
    spec.dir = dir;
    rc = save_within(cli, name, (uint32_t)uid, &spec, &result, &err);
    if (rc == CST_OK) {
        (void)printf("saved step %llu of %s to %s: %s\n", (unsigned long long)result.step, name,
                     dir, cli_bytes(result.bytes, size));
    } else if (rc == CST_EEXIST) { /* It has made no step since. */
        (void)printf("%s is saved already: %s\n", name, err.text);
        rc = CST_OK;
    } else if (rc == CST_ENOTFOUND) { /* It was removed while others were saved. */
        (void)printf("%s is gone: %s\n", name, err.text);
        rc = CST_OK;
    } else {
        (void)cli_fail(&err);
    }
    free(dir);
    (void)fflush(stdout);
    return rc == CST_OK;
}

/* Save all jobs. False: not all could be saved; the errors were printed. */
static bool save_all(struct cli *cli)
{
    json_t *jobs = json_array(), *job;
    bool good = jobs != NULL && cli_list_append(cli, &cli_jobs_list, jobs);
    size_t i;

    json_array_foreach(jobs, i, job)
    {
        const char *name = json_string_value(json_object_get(job, "name"));
        const char *state = json_string_value(json_object_get(job, "state"));
        json_int_t uid = json_integer_value(json_object_get(job, "uid"));
        json_int_t step = json_integer_value(json_object_get(job, "step"));

        good = name != NULL && state != NULL && save(cli, name, state, step, uid) && good;
    }
    json_decref(jobs);
    return good;
}

int cli_drain(struct cli *cli)
{
    struct cstc_call call = {0};

    if (cli->plan.save != NULL && !save_all(cli)) {
        (void)fprintf(stderr, "cistern: the daemon goes on, because not all jobs were saved\n");
        return CLI_EXIT_FAILURE;
    }
    if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_DRAIN, NULL, CISTERN__MSG_TYPE__MSG_OK, NULL)) {
        return CLI_EXIT_FAILURE;
    }
    cstc_call_reset(&call);
    return CLI_EXIT_OK;
}
