/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the output of a program into lines. A line ends after a newline, or after a carriage return
 * that no newline follows, with which programs draw a progress bar again. No byte is changed or
 * interpreted otherwise. Pure. */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <stddef.h>

#define CLI_LINES_MAX 65536 /* Most bytes of a line. A longer one is cut into several. */

struct cli_lines {
    char *bytes; /* The line so far, in CLI_LINES_MAX bytes. Owned by the caller. */
    size_t n;    /* Number of bytes in it. */
    /* Called with each line, which is borrowed. It ends with '\n' or '\r', except a line that was
     * too long, and the last one. */
    void (*line)(void *arg, const char *bytes, size_t n);
    void *arg;
};

/* Add the @n bytes @bytes to the output. */
void cli_lines_add(struct cli_lines *lines, const char *bytes, size_t n);

/* End the output: what it has after its last line is a line, too. */
void cli_lines_end(struct cli_lines *lines);

#endif
