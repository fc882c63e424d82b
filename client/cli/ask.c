/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "proto/message_json.h"
#include "client/cli/table.h"
#include "client/cli/top/screen.h"

#include <stdio.h>

int cli_fail(const struct cst_err *err)
{
    cli_screen_close(); /* The error must be seen after the program has ended. */
    (void)fprintf(stderr, "cistern: %s\n", err->text);
    return CLI_EXIT_FAILURE;
}

int cli_usage(const char *what, const char *which)
{
    (void)fprintf(stderr, "cistern: %s%s%s\nTry 'cistern --help'.\n", what, which[0] ? ": " : "",
                  which);
    return CLI_EXIT_USAGE;
}

bool cli_ask(struct cli *cli, struct cstc_call *call, uint16_t type, const ProtobufCMessage *body,
             uint16_t reply_type, const ProtobufCMessageDescriptor *reply_form)
{
    struct cst_err err = {0};

    if (cstc_call_sync(cli->client, call, type, body, reply_type, reply_form, &err) != CST_OK) {
        (void)cli_fail(&err);
        return false;
    }
    return true;
}

/* Request all pages of a list, and add the items to @table and to @array, if they are not NULL. */
static bool get_list(struct cli *cli, const struct cli_list *list, struct cli_table *table,
                     json_t *array)
{
    /* The requests of all lists have the same form: the number of the first item. */
    Cistern__JobListGet msg = CISTERN__JOB_LIST_GET__INIT;
    bool more = true, good = true;

    while (more && good) {
        struct cstc_call call = {0};
        ProtobufCMessage **items;
        size_t n;

        if (!cli_ask(cli, &call, list->get, &msg.base, list->part, list->form)) {
            return false;
        }
        n = list->items(call.reply, &items, &more);
        more = more && n > 0; /* An empty page would repeat for ever. */
        msg.first += (uint32_t)n;
        for (size_t i = 0; i < n && good; i++) {
            if (table != NULL) {
                list->add(table, items[i]);
            }
            good =
                array == NULL || json_array_append_new(array, cst_message_to_json(items[i])) == 0;
        }
        cstc_call_reset(&call);
    }
    return good;
}

bool cli_list_append(struct cli *cli, const struct cli_list *list, json_t *array)
{
    return get_list(cli, list, NULL, array);
}

bool cli_list_print(struct cli *cli, const struct cli_list *list, FILE *out)
{
    struct cli_table table;
    bool good;

    if (cli->json) {
        json_t *array = json_array();

        good = array != NULL && get_list(cli, list, NULL, array);
        if (!good) {
            json_decref(array);
        }
        return good && cli_json_print(array);
    }
    cli_table_init(&table, list->titles);
    good = get_list(cli, list, &table, NULL);
    if (good && table.n_cells == 0 && !table.failed && list->none != NULL) {
        (void)fprintf(out, "%s\n", list->none);
        return true;
    }
    /* After a failure, the pages received before go to stderr: @out has complete lists only. */
    return cli_table_print(&table, good ? out : stderr) && good;
}
