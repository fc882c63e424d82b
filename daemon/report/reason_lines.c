/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/report/reason_lines.h"

#include <stdio.h>
#include <string.h>

unsigned cstd_reason_lines(const char *text, char lines[][192], unsigned max)
{
    const size_t most = 192 - sizeof "  ";
    unsigned n = 0;

    while (*text != '\0' && n < max) {
        size_t length = strlen(text);

        if (length > most) { /* Break the line at a space. */
            for (length = most; length > most / 2 && text[length] != ' ';) {
                length--;
            }
        }
        (void)snprintf(lines[n++], 192, "  %.*s", (int)length, text);
        text += length;
        text += *text == ' ';
    }
    return n;
}
