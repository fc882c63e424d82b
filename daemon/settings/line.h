/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a text file of any length, in a buffer that may be shorter. */
#ifndef CST_LINE_H
#define CST_LINE_H

#include <stddef.h>
#include <stdio.h>

/* Read a line, of which @line gets what fits. Returns the bytes of the whole line; 0: there is none
 * left. */
static inline size_t cstd_line_read(char *line, size_t size, FILE *file)
{
    size_t n = 0;
    int c = 0;

    while (c != '\n' && (c = getc(file)) != EOF) {
        if (n < size - 1) {
            line[n] = (char)c;
        }
        n++;
    }
    line[n < size ? n : size - 1] = '\0';
    return n;
}

#endif
