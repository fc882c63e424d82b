/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/json.h"

#include <stdio.h>

bool cli_json_print(json_t *value)
{
    bool good =
        value != NULL && json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) == 0;

    if (good) {
        (void)putchar('\n');
    } else {
        (void)fprintf(stderr, "cistern: cannot write JSON\n");
    }
    json_decref(value);
    return good;
}
