/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/tensors.h"

#include "client/cli/json.h"
#include "client/cli/table.h"
#include "proto/message_json.h"
#include "proto/usage.h"

#include <stdio.h>
#include <string.h>

/* Get all tensors of the job that the command names, and call @each with every one until it returns
 * false. The statuses of cstc_call_sync; CST_ENOMEM: @each has returned false. */
static int get_tensors(struct cli *cli, bool (*each)(void *arg, const Cistern__TensorInfo *tensor),
                       void *arg, struct cst_err *err)
{
    Cistern__TensorsGet msg = CISTERN__TENSORS_GET__INIT;
    bool more = true;
    int rc = CST_OK;

    msg.job = cli->args[0];
    msg.has_uid = cli->uid != CLI_NO_UID;
    msg.uid = cli->uid;
    while (rc == CST_OK && more) {
        const Cistern__TensorsPart *part;
        struct cstc_call call = {0};

        rc = cstc_call_sync(cli->client, &call, CISTERN__MSG_TYPE__MSG_TENSORS, &msg.base,
                            CISTERN__MSG_TYPE__MSG_TENSORS_PART, &cistern__tensors_part__descriptor,
                            err);
        if (rc != CST_OK) {
            return rc;
        }
        part = (const Cistern__TensorsPart *)call.reply;
        for (size_t i = 0; rc == CST_OK && i < part->n_tensors; i++) {
            rc = each(arg, part->tensors[i]) ? CST_OK
                                             : cst_err_set(err, CST_ENOMEM, "out of memory");
        }
        more = part->more && part->n_tensors > 0;
        msg.first += (uint32_t)part->n_tensors;
        cstc_call_reset(&call);
    }
    return rc;
}

/* -- the command ---------------------------------------------------------------------------- */

static bool append(void *arg, const Cistern__TensorInfo *tensor)
{
    return json_array_append_new(arg, cst_message_to_json(&tensor->base)) == 0;
}

static bool add(void *arg, const Cistern__TensorInfo *tensor)
{
    struct cli_table *table = arg;
    char shape[8 * 24] = "", text[CLI_HUMAN_BYTES];

    for (size_t i = 0; i < tensor->n_shape && strlen(shape) + 24 < sizeof shape; i++) {
        (void)snprintf(shape + strlen(shape), 24, "%s%lld", i > 0 ? "x" : "",
                       (long long)tensor->shape[i]);
    }
    cli_table_cell(table, "%s", tensor->name);
    cli_table_cell(table, "%s", shape);
    cli_table_cell(table, "%s", tensor->dtype);
    cli_table_cell(table, "%s", tensor->pattern);
    cli_table_cell(table, "%s", cli_bytes(tensor->weight_bytes, text));
    cli_table_cell(table, "%s",
                   tensor->has_state_bytes ? cli_bytes(tensor->state_bytes, text) : "-");
    cli_table_cell(table, "%s", tensor->states != NULL ? tensor->states : "-");
    if (tensor->has_chunk) {
        cli_table_cell(table, "%u", tensor->chunk);
    } else {
        cli_table_cell(table, "-");
    }
    return !table->failed;
}

int cli_tensors(struct cli *cli)
{
    static const char *const titles[] = {"TENSOR",  "SHAPE", "TYPE",   "PATTERN", ">WEIGHTS",
                                         ">STATES", "WHERE", ">CHUNK", NULL};
    json_t *array = cli->json ? json_array() : NULL;
    struct cli_table table;
    struct cst_err err = {0};
    int rc;

    cli_table_init(&table, titles);
    rc = cli->json ? get_tensors(cli, append, array, &err) : get_tensors(cli, add, &table, &err);
    if (rc != CST_OK) {
        json_decref(array);
        (void)cli_table_print(&table, stderr); /* stdout has complete lists only. */
        return cli_fail(&err);
    }
    if (cli->json) {
        return cli_json_print(array) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
    }
    if (table.n_cells == 0) {
        (void)printf("job '%s' has declared no tensors yet\n", cli->args[0]);
    }
    return cli_table_print(&table, stdout) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

/* -- hints ---------------------------------------------------------------------------------- */

/* A search for the name that is most similar to another one. */
struct search {
    const char *name;
    unsigned best;
    char nearest[256];
    unsigned n; /* Number of tensors. */
};

static bool compare(void *arg, const Cistern__TensorInfo *tensor)
{
    struct search *search = arg;

    search->n++;
    /* A part of a name is what people remember of a long one. */
    if (cst_usage_nearer(search->name, tensor->name, &search->best) ||
        (search->nearest[0] == '\0' && strstr(tensor->name, search->name) != NULL)) {
        (void)snprintf(search->nearest, sizeof search->nearest, "%s", tensor->name);
    }
    return true;
}

const char *cli_tensors_hint(struct cli *cli, const char *name, char out[CLI_TENSORS_HINT_BYTES])
{
    struct search search = {.name = name, .best = CST_USAGE_FAR};

    out[0] = '\0';
    if (get_tensors(cli, compare, &search, NULL) == CST_OK) {
        (void)snprintf(out, CLI_TENSORS_HINT_BYTES, ": %s%s%s'cistern tensors %s' lists all %u",
                       search.nearest[0] != '\0' ? "did you mean '" : "", search.nearest,
                       search.nearest[0] != '\0' ? "'? " : "", cli->args[0], search.n);
    }
    return out;
}
