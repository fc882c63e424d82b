/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/lines.h"

#include <stdbool.h>

void cli_lines_end(struct cli_lines *lines)
{
    if (lines->n > 0) {
        lines->line(lines->arg, lines->bytes, lines->n);
        lines->n = 0;
    }
}

void cli_lines_add(struct cli_lines *lines, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const bool is_complete =
            lines->n == CLI_LINES_MAX - 1 || (lines->n > 0 && lines->bytes[lines->n - 1] == '\r');

        if (is_complete && bytes[i] != '\n') {
            cli_lines_end(lines);
        }
        lines->bytes[lines->n++] = bytes[i];
        if (bytes[i] == '\n') {
            cli_lines_end(lines);
        }
    }
}
