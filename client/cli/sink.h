/* SPDX-License-Identifier: Apache-2.0 */
/* Standard output or standard error of `cistern run`, to which lines of many ranks are written. A
 * line is never torn. Terminals and pipes are written without waiting, so that a reader that stops
 * reading does not keep the program from signals. The flags of the file that other processes share
 * are not changed. Used by the thread of the loop. */
#ifndef CLI_SINK_H
#define CLI_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define CLI_SINK_FULL (1u << 20) /* Bytes not yet written from which a sink is full. */

struct cli_sink {
    int fd;          /* Where to write. */
    bool owns_fd;    /* The file descriptor was opened for the sink. */
    char *bytes;     /* Lines that are not written yet. Owned. */
    size_t first;    /* Index of the first byte that is not written yet. */
    size_t n;        /* End of the lines in bytes. */
    size_t size;     /* Capacity of bytes. */
    int error;       /* Why output is lost, an errno; 0: none is lost. */
    uv_loop_t *loop; /* Borrowed. */
    uv_poll_t ready; /* Waits until the sink can be written. */
    bool has_poll;   /* `ready` is a handle of the loop. */
    bool is_waiting; /* `ready` is active. */
    /* Called when a sink that was full is no longer. Set by the owner. */
    void (*drained)(struct cli_sink *sink);
    void *data; /* For the owner. */
};

/* Begin to write to the file descriptor @fd, which is borrowed. */
void cli_sink_open(struct cli_sink *sink, uv_loop_t *loop, int fd);

/* Write the line @bytes of @n bytes after @prefix. If the line does not end with a newline or a
 * carriage return, a newline is added. A failure sets error, and all further output is discarded.
 */
void cli_sink_line(struct cli_sink *sink, const char *prefix, const char *bytes, size_t n);

/* Return whether the sink has so many lines to write that no more should be read. */
bool cli_sink_is_full(const struct cli_sink *sink);

/* If the sink waits for its reader, discard its lines and all further output. */
void cli_sink_give_up(struct cli_sink *sink);

/* Discard what is not written yet, and free the sink. Its handle is closed by the next turn of the
 * loop, which the caller runs before it frees the struct. */
void cli_sink_close(struct cli_sink *sink);

#endif
