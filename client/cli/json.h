/* SPDX-License-Identifier: Apache-2.0 */
/* Prints JSON. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <jansson.h>
#include <stdbool.h>

/* Print @value to stdout, indented, and release it. False: @value is NULL or cannot be written; the
 * error was printed to stderr. */
bool cli_json_print(json_t *value);

#endif
