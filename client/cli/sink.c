/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Open the file of @fd once more. The new descriptor does not wait, and has flags of its own:
 * O_NONBLOCK on @fd itself would surprise the other processes that have it. -1: not possible, as
 * with a socket, or not needed, as with a file on a disk; or @fd was not open for writing, and
 * its writes shall fail. */
static int open_again(int fd)
{
    struct stat is;
    char path[32];

    if (fstat(fd, &is) != 0 || !(S_ISFIFO(is.st_mode) || S_ISCHR(is.st_mode)) ||
        (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
        return -1;
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void cli_sink_open(struct cli_sink *sink, uv_loop_t *loop, int fd)
{
    int again = open_again(fd);

    *sink = (struct cli_sink){.loop = loop, .fd = again >= 0 ? again : fd, .owns_fd = again >= 0};
}

static void stop_waiting(struct cli_sink *sink)
{
    if (sink->is_waiting) {
        sink->is_waiting = false;
        (void)uv_poll_stop(&sink->ready);
    }
}

static void lose(struct cli_sink *sink, int errnum)
{
    sink->error = errnum;
    sink->first = sink->n = 0;
    stop_waiting(sink);
}

static void on_ready(uv_poll_t *ready, int status, int events);

/* Wait until the sink can be written. */
static void wait_for(struct cli_sink *sink)
{
    int rc = 0;

    if (sink->is_waiting) {
        return;
    }
    if (!sink->has_poll) {
        rc = uv_poll_init(sink->loop, &sink->ready, sink->fd);
        sink->has_poll = rc == 0;
        sink->ready.data = sink;
    }
    if (rc == 0) {
        rc = uv_poll_start(&sink->ready, UV_WRITABLE, on_ready);
    }
    sink->is_waiting = rc == 0;
    if (rc != 0) {
        lose(sink, -rc);
    }
}

/* Write what can be written without waiting. */
static void flush(struct cli_sink *sink)
{
    while (sink->first < sink->n) {
        ssize_t n = write(sink->fd, sink->bytes + sink->first, sink->n - sink->first);

        if (n >= 0) {
            sink->first += (size_t)n;
        } else if (errno == EAGAIN) {
            wait_for(sink);
            return;
        } else if (errno != EINTR) {
            lose(sink, errno);
            return;
        }
    }
    sink->first = sink->n = 0;
    stop_waiting(sink);
}

static void on_ready(uv_poll_t *ready, int status, int events)
{
    struct cli_sink *sink = ready->data;
    const bool was_full = cli_sink_is_full(sink);

    (void)status; /* A failure is seen by the write. */
    (void)events;
    flush(sink);
    if (was_full && !cli_sink_is_full(sink) && sink->drained != NULL) {
        sink->drained(sink);
    }
}

/* Have room for @n more bytes. */
static bool reserve(struct cli_sink *sink, size_t n)
{
    size_t size;
    char *bytes;

    if (sink->n + n > sink->size && sink->first > 0) {
        sink->n -= sink->first;
        memmove(sink->bytes, sink->bytes + sink->first, sink->n);
        sink->first = 0;
    }
    if (sink->n + n <= sink->size) {
        return true;
    }
    size = 2 * (sink->n + n);
    bytes = realloc(sink->bytes, size);
    if (bytes == NULL) {
        lose(sink, ENOMEM);
        return false;
    }
    sink->bytes = bytes;
    sink->size = size;
    return true;
}

static void append(struct cli_sink *sink, const char *bytes, size_t n)
{
    memcpy(sink->bytes + sink->n, bytes, n);
    sink->n += n;
}

void cli_sink_line(struct cli_sink *sink, const char *prefix, const char *bytes, size_t n)
{
    const size_t n_prefix = strlen(prefix);

    if (sink->error != 0 || !reserve(sink, n_prefix + n + 1)) {
        return;
    }
    append(sink, prefix, n_prefix);
    append(sink, bytes, n);
    if (n == 0 || (bytes[n - 1] != '\n' && bytes[n - 1] != '\r')) {
        append(sink, "\n", 1);
    }
    if (!sink->is_waiting) {
        flush(sink);
    }
}

bool cli_sink_is_full(const struct cli_sink *sink)
{
    return sink->n - sink->first >= CLI_SINK_FULL;
}

void cli_sink_give_up(struct cli_sink *sink)
{
    const bool was_full = cli_sink_is_full(sink);

    if (sink->is_waiting) {
        lose(sink, ECANCELED);
    }
    if (was_full && sink->drained != NULL) {
        sink->drained(sink);
    }
}

void cli_sink_close(struct cli_sink *sink)
{
    stop_waiting(sink);
    if (sink->has_poll) {
        uv_close((uv_handle_t *)&sink->ready, NULL);
    }
    free(sink->bytes);
    if (sink->owns_fd) {
        (void)close(sink->fd);
    }
    sink->bytes = NULL;
}
