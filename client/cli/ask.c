/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

#include <stdio.h>

int cli_fail(const struct cst_err *err)
{
    (void)fprintf(stderr, "cistern: %s\n", err->text);
    return CLI_EXIT_FAILURE;
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
