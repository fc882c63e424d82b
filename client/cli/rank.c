/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/rank.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void on_line(void *arg, const char *bytes, size_t n)
{
    struct cli_rank_stream *stream = arg;

    cli_sink_line(stream->sink, stream->rank->prefix, bytes, n);
}

void cli_rank_name(struct cli_rank *rank, const char *name, const char *prefix)
{
    (void)snprintf(rank->name, sizeof rank->name, "%s", name);
    (void)snprintf(rank->prefix, sizeof rank->prefix, "%s", prefix);
}

void cli_rank_init(struct cli_rank *rank, unsigned number, const char *name, const char *prefix,
                   uv_loop_t *loop, struct cli_sink *out, struct cli_sink *err)
{
    rank->number = number;
    rank->loop = loop;
    rank->n_handles = 0;
    cli_rank_name(rank, name, prefix);
    for (int i = 0; i < 2; i++) {
        struct cli_rank_stream *stream = &rank->streams[i];

        stream->rank = rank;
        stream->sink = i == 0 ? out : err;
        stream->is_open = false;
        stream->lines = (struct cli_lines){.bytes = stream->line, .line = on_line, .arg = stream};
    }
}

/* -- the end ---------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle)
{
    struct cli_rank *rank = handle->data;

    if (--rank->n_handles == 0 && rank->ended != NULL) {
        rank->ended(rank);
    }
}

static void close_handle(struct cli_rank *rank, void *handle)
{
    ((uv_handle_t *)handle)->data = rank;
    uv_close(handle, on_closed);
}

static void close_stream(struct cli_rank_stream *stream)
{
    stream->is_open = false;
    cli_lines_end(&stream->lines);
    close_handle(stream->rank, &stream->pipe);
}

void cli_rank_kill(struct cli_rank *rank)
{
    if (cli_rank_is_running(rank) && !uv_is_closing((uv_handle_t *)&rank->control)) {
        close_handle(rank, &rank->control);
    }
}

void cli_rank_tell(struct cli_rank *rank, unsigned char byte)
{
    const uv_buf_t buf = uv_buf_init((char *)&byte, 1);

    /* If this fails, the process has closed its standard input, because it ends. */
    if (cli_rank_is_running(rank) && !uv_is_closing((uv_handle_t *)&rank->control)) {
        (void)uv_try_write((uv_stream_t *)&rank->control, &buf, 1);
    }
}

static void on_exit(uv_process_t *process, int64_t status, int number)
{
    struct cli_rank *rank = process->data;

    rank->status = status;
    rank->signal = number;
    cli_rank_kill(rank); /* Closes the pipe to a process that has ended. */
    close_handle(rank, process);
}

/* -- output ----------------------------------------------------------------------------------- */

/* All reads use the same memory, because what is read is copied at once. */
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    static char bytes[65536];

    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(bytes, sizeof bytes);
}

static void on_read(uv_stream_t *pipe, ssize_t n, const uv_buf_t *buf)
{
    struct cli_rank_stream *stream = pipe->data;

    if (n < 0) { /* The end, or an error that has the same consequence. */
        close_stream(stream);
        return;
    }
    cli_lines_add(&stream->lines, buf->base, (size_t)n);
    if (cli_sink_is_full(stream->sink)) {
        (void)uv_read_stop(pipe);
    }
}

void cli_rank_resume(struct cli_rank *rank, const struct cli_sink *sink)
{
    for (int i = 0; i < 2; i++) {
        struct cli_rank_stream *stream = &rank->streams[i];

        if (stream->sink == sink && stream->is_open &&
            !uv_is_active((uv_handle_t *)&stream->pipe)) {
            (void)uv_read_start((uv_stream_t *)&stream->pipe, on_alloc, on_read);
        }
    }
}

/* -- the beginning ---------------------------------------------------------------------------- */

/* Make a pipe for a stream. *to is its end for the program. Programs may open /dev/stdout again,
 * which is possible with a pipe, but not with the sockets that libuv would make. */
static int open_stream(struct cli_rank_stream *stream, int *to)
{
    int fds[2], rc;

    if (pipe2(fds, O_CLOEXEC) != 0) {
        return -errno;
    }
    rc = uv_pipe_open(&stream->pipe, fds[0]);
    if (rc != 0) {
        (void)close(fds[0]);
        (void)close(fds[1]);
        return rc;
    }
    *to = fds[1];
    return 0;
}

static int spawn(struct cli_rank *rank, char **argv, const int to[2])
{
    uv_stdio_container_t stdio[] = {
        {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&rank->control},
        {.flags = UV_INHERIT_FD, .data.fd = to[0]},
        {.flags = UV_INHERIT_FD, .data.fd = to[1]}};
    const uv_process_options_t options = {.exit_cb = on_exit,
                                          .file = argv[0],
                                          .args = argv,
                                          .flags = UV_PROCESS_DETACHED,
                                          .stdio_count = 3,
                                          .stdio = stdio};

    return uv_spawn(rank->loop, &rank->process, &options);
}

/* Close what belongs to a process that could not be started. */
static void abandon(struct cli_rank *rank)
{
    rank->status = CLI_RANK_CANNOT_START;
    rank->signal = 0;
    for (int i = 0; i < 2; i++) {
        close_handle(rank, &rank->streams[i].pipe);
    }
    close_handle(rank, &rank->control);
    if (rank->n_handles == 4) {
        close_handle(rank, &rank->process);
    }
}

int cli_rank_start(struct cli_rank *rank, char **argv, struct cst_err *err)
{
    int to[2] = {-1, -1}, rc = 0;

    (void)uv_pipe_init(rank->loop, &rank->control, 0);
    for (int i = 0; i < 2; i++) {
        (void)uv_pipe_init(rank->loop, &rank->streams[i].pipe, 0);
        rank->streams[i].pipe.data = &rank->streams[i];
    }
    rank->n_handles = 3;
    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = open_stream(&rank->streams[i], &to[i]);
    }
    rank->process = (uv_process_t){.data = rank};
    if (rc == 0) {
        rc = spawn(rank, argv, to);
        rank->n_handles = 4;
    }
    for (int i = 0; i < 2; i++) {
        if (to[i] >= 0) {
            (void)close(to[i]);
        }
    }
    if (rc != 0) {
        abandon(rank);
        return cst_err_set(err, CST_EINTERNAL, "%s: %.200s cannot be started: %s", rank->name,
                           argv[0], uv_strerror(rc));
    }
    for (int i = 0; i < 2; i++) {
        rank->streams[i].is_open = true;
        cli_rank_resume(rank, rank->streams[i].sink);
    }
    return CST_OK;
}

bool cli_rank_is_running(const struct cli_rank *rank)
{
    return rank->n_handles > 0;
}

void cli_rank_signal(struct cli_rank *rank, int number)
{
    if (cli_rank_is_running(rank) && uv_is_active((uv_handle_t *)&rank->process)) {
        (void)uv_process_kill(&rank->process, number);
    }
}
