/* SPDX-License-Identifier: Apache-2.0 */
/* The commands `cistern pause` and `cistern resume`. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "proto/message_json.h"

#include <stdio.h>
#include <unistd.h>

enum { RETRY_US = 100000 };

static void print_paused(const struct cli *cli, const Cistern__Paused *paused)
{
    char bytes[CLI_HUMAN_BYTES];

    (void)printf("job '%s' is paused%s after step %llu", cli->args[0],
                 paused->already ? " already," : "", (unsigned long long)paused->step);
    if (!paused->already) {
        (void)printf(": the step ended after %.3f s, its updates %.3f s later", paused->wait_s,
                     paused->update_s);
    }
    if (paused->has_released_bytes && paused->released_bytes > 0) {
        (void)printf("; %s of pools %s in %.3f s", cli_bytes(paused->released_bytes, bytes),
                     paused->already ? "were released" : "are released", paused->release_s);
    }
    (void)printf("\n");
}

int cli_pause(struct cli *cli)
{
    Cistern__JobPause msg = CISTERN__JOB_PAUSE__INIT;
    struct cstc_call call = {0};
    bool good = true;

    msg.name = (char *)(uintptr_t)cli->args[0];
    msg.has_uid = cli->uid != CLI_NO_UID;
    msg.uid = cli->uid;
    msg.has_release_pools = msg.release_pools = cli->release_pools;
    if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_PAUSE, &msg.base, CISTERN__MSG_TYPE__MSG_OK,
                 &cistern__paused__descriptor)) {
        return CLI_EXIT_FAILURE;
    }
    if (cli->json) {
        good = cli_json_print(cst_message_to_json(call.reply));
    } else {
        print_paused(cli, (const Cistern__Paused *)call.reply);
    }
    cstc_call_reset(&call);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

static void print_resumed(const struct cli *cli, const Cistern__Resumed *resumed)
{
    char bytes[CLI_HUMAN_BYTES];

    (void)printf("job '%s' goes on after step %llu and %.3f s of pause: it took %.3f s",
                 cli->args[0], (unsigned long long)resumed->step, resumed->paused_s,
                 resumed->resume_s);
    if (resumed->pool_bytes > 0) {
        (void)printf(", with %s of pools", cli_bytes(resumed->pool_bytes, bytes));
    }
    (void)printf("\n");
}

/* Ask once, or with --wait until there is memory for the pools. */
static int ask_resume(struct cli *cli, struct cstc_call *call, struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    bool told = false;
    int rc;

    msg.name = (char *)(uintptr_t)cli->args[0];
    msg.has_uid = cli->uid != CLI_NO_UID;
    msg.uid = cli->uid;
    do {
        rc = cstc_call_sync(cli->client, call, CISTERN__MSG_TYPE__MSG_RESUME, &msg.base,
                            CISTERN__MSG_TYPE__MSG_OK, &cistern__resumed__descriptor, err);
        if (rc == CST_EBUDGET && cli->wait) {
            if (!told) {
                (void)fprintf(stderr, "cistern: waiting: %s\n", err->text);
            }
            told = true;
            (void)usleep(RETRY_US);
        }
    } while (rc == CST_EBUDGET && cli->wait);
    return rc;
}

int cli_resume(struct cli *cli)
{
    struct cstc_call call = {0};
    struct cst_err err = {0};
    bool good = true;

    if (ask_resume(cli, &call, &err) != CST_OK) {
        return cli_fail(&err);
    }
    if (cli->json) {
        good = cli_json_print(cst_message_to_json(call.reply));
    } else {
        print_resumed(cli, (const Cistern__Resumed *)call.reply);
    }
    cstc_call_reset(&call);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
