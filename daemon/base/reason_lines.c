/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/reason_lines.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 192 - sizeof "  " }; /* Bytes in a line, without the indent. */

/* Return the bytes of @text that fit in a line: up to a space in its second half, if there is one.
 * A character of UTF-8 is not cut. */
static size_t line_bytes(const char *text)
{
    size_t length = strlen(text), cut = MOST;

    if (length <= MOST) {
        return length;
    }
    while (((unsigned char)text[cut] & 0xc0) == 0x80) {
        cut--;
    }
    for (length = MOST; length > MOST / 2; length--) {
        if (text[length] == ' ') {
            return length;
        }
    }
    return cut;
}

unsigned cstd_reason_lines(const char *text, char lines[][192], unsigned max)
{
    unsigned n = 0;

    while (*text != '\0' && n < max) {
        size_t length = line_bytes(text);

        (void)snprintf(lines[n++], 192, "  %.*s", (int)length, text);
        text += length;
        text += *text == ' ';
    }
    return n;
}
