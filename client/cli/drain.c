/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern drain`.
 *
 *   --wait: BARRED --all jobs are over--> --save: SAVED --> ENDED
 *
 * While this program is BARRED, the daemon takes no new jobs. It takes some again when the
 * connection of this program ends. */
#include "client/checkpoint/save.h"
#include "client/cli/cli.h"
#include "proto/clock.h"
#include "proto/job_states.h"
#include "proto/optimizers.h"

#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where sentences are printed: not among JSON. */
static FILE *talk(const struct cli *cli)
{
    return cli->json ? stderr : stdout;
}

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
    char *dir;
    int rc;

    if (!has_states(number, step)) {
        (void)fprintf(talk(cli), "%s is not saved, because it is %s: %s\n", name, state,
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
        rc = cli_saved_print(cli, &result, name, dir) ? CST_OK : CST_EIO;
    } else if (rc == CST_EEXIST) { /* It has made no step since. */
        (void)fprintf(talk(cli), "%s is saved already: %s\n", name, err.text);
        rc = CST_OK;
    } else if (rc == CST_ENOTFOUND) { /* It was removed while others were saved. */
        (void)fprintf(talk(cli), "%s is gone: %s\n", name, err.text);
        rc = CST_OK;
    } else {
        (void)cli_fail(&err);
    }
    free(dir);
    (void)fflush(stdout);
    return rc == CST_OK;
}

/* Get all jobs. NULL: it failed; the error was printed. */
static json_t *list_jobs(struct cli *cli)
{
    json_t *jobs = json_array();

    if (jobs == NULL || !cli_list_append(cli, &cli_jobs_list, jobs)) {
        json_decref(jobs);
        return NULL;
    }
    return jobs;
}

static const char *text_of(const json_t *job, const char *key)
{
    const char *text = json_string_value(json_object_get(job, key));

    return text != NULL ? text : "?";
}

/* Save all jobs. False: not all could be saved; the errors were printed. */
static bool save_all(struct cli *cli)
{
    json_t *jobs = list_jobs(cli), *job;
    bool good = jobs != NULL;
    size_t i;

    json_array_foreach(jobs, i, job)
    {
        json_int_t uid = json_integer_value(json_object_get(job, "uid"));
        json_int_t step = json_integer_value(json_object_get(job, "step"));

        good = save(cli, text_of(job, "name"), text_of(job, "state"), step, uid) && good;
    }
    json_decref(jobs);
    return good;
}

/* -- the wait for jobs ---------------------------------------------------------------------- */

/* Whether the daemon can end as far as @job is concerned: nobody trains it. A job whose step was
 * interrupted is waited for, because its workers may be started again. */
static bool is_over(const json_t *job, const char *state)
{
    switch (cst_name_find(cst_job_state_names, state)) {
    case CST_JOB_IS_DONE:
    case CST_JOB_IS_FAILED:
        return true;
    case CST_JOB_IS_READY:
    case CST_JOB_IS_IDLE:
    case CST_JOB_IS_PAUSED:
        return json_number_value(json_object_get(job, "idle_s")) > 0; /* It has no worker. */
    default:
        return false;
    }
}

/* Write the jobs that are not over to @out: "a (training), b (interrupted)". Returns their number.
 */
static size_t list_unfinished(const json_t *jobs, char *out, size_t size)
{
    json_t *job;
    size_t i, n = 0, used = 0;

    out[0] = '\0';
    json_array_foreach(jobs, i, job)
    {
        const char *state = text_of(job, "state");

        if (is_over(job, state)) {
            continue;
        }
        if (used < size) {
            used += (size_t)snprintf(out + used, size - used, "%s%s (%s)", n > 0 ? ", " : "",
                                     text_of(job, "name"), state);
        }
        n++;
    }
    return n;
}

/* Let the daemon take no new jobs. An earlier version of it does not know the request. False: it
 * failed; the error was printed. */
static bool bar_jobs(struct cli *cli)
{
    struct cstc_call call = {0};
    struct cst_err err = {0};
    int rc = cstc_call_sync(cli->client, &call, CISTERN__MSG_TYPE__MSG_BAR, NULL,
                            CISTERN__MSG_TYPE__MSG_OK, NULL, &err);

    if (rc == CST_EUNSUPPORTED) {
        rc = cst_err_set(&err, rc,
                         "the daemon is of an earlier version than this command, and takes new "
                         "jobs until it ends: wait until 'cistern jobs' shows none that trains, "
                         "then run 'cistern drain' without --wait");
    }
    if (rc != CST_OK) {
        (void)cli_fail(&err);
    }
    cstc_call_reset(&call);
    return rc == CST_OK;
}

/* Let the daemon take no new jobs, and wait until all jobs are over. False: it failed; the
 * error was printed. */
static bool wait_for_jobs(struct cli *cli)
{
    char words[512], before[512] = "";
    size_t n = 1;

    if (!bar_jobs(cli)) {
        return false;
    }
    while (n > 0) {
        json_t *jobs = list_jobs(cli);

        if (jobs == NULL) {
            return false;
        }
        n = list_unfinished(jobs, words, sizeof words);
        json_decref(jobs);
        if (n > 0 && strcmp(words, before) != 0) {
            (void)fprintf(stderr, "cistern: no new jobs are taken; waiting for %zu: %s\n", n,
                          words);
            memcpy(before, words, sizeof before);
        }
        if (n > 0) { /* The socket is readable when the daemon ends. */
            (void)wait_until(cli->client, cst_clock_s() + 1);
        }
    }
    return true;
}

/* -- the end -------------------------------------------------------------------------------- */

/* Wait until the daemon closes the connection, which it does after its sockets. If there is still a
 * socket, it belongs to the service manager, which starts the daemon again. */
static void tell_of_socket(struct cli *cli)
{
    while (cstc_call_wait(cli->client, -1, NULL) == CST_OK) {
    }
    if (access(cli->client->path, F_OK) == 0) {
        (void)fprintf(stderr,
                      "cistern: the next connection starts the daemon again. To keep it from "
                      "that: systemctl stop cisternd.socket cisternd-manager.socket\n");
    }
}

int cli_drain(struct cli *cli)
{
    struct cstc_call call = {0};

    if (cli->wait && !wait_for_jobs(cli)) {
        return CLI_EXIT_FAILURE;
    }
    if (cli->plan.save != NULL && !save_all(cli)) {
        (void)fprintf(stderr, "cistern: the daemon goes on, because not all jobs were saved\n");
        return CLI_EXIT_FAILURE;
    }
    if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_DRAIN, NULL, CISTERN__MSG_TYPE__MSG_OK, NULL)) {
        return CLI_EXIT_FAILURE;
    }
    cstc_call_reset(&call);
    tell_of_socket(cli);
    return CLI_EXIT_OK;
}
