/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/report/notify.h"

#include "daemon/report/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

uint64_t cstd_notify_watchdog_ms(void)
{
    uint64_t us;

    /* Half the timeout, as sd_watchdog_enabled(3) recommends. */
    return sd_watchdog_enabled(0, &us) > 0 ? us / 2000 : 0;
}

/* -- the socket ----------------------------------------------------------------------------- */

/* Accepts "/path" and "@name", a name of the abstract namespace. */
static bool read_address(struct cstd_notify *notify, const char *name)
{
    size_t n = strlen(name);

    notify->address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if ((name[0] != '/' && name[0] != '@') || n < 2 || n >= sizeof notify->address.sun_path) {
        return false;
    }
    memcpy(notify->address.sun_path, name, n);
    if (name[0] == '@') {
        notify->address.sun_path[0] = '\0';
    }
    notify->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    return true;
}

/* A connected socket polls writable when its peer's queue has space. If the manager's socket does
 * not exist yet, send_text connects with the first message. */
static bool join(const struct cstd_notify *notify)
{
    return connect(notify->fd, (const struct sockaddr *)&notify->address, notify->address_bytes) ==
           0;
}

/* Returns 0 or an errno. A second attempt connects anew, because a restarted manager has another
 * socket under the same name. */
static int send_text(const struct cstd_notify *notify, const char *text)
{
    size_t n = strlen(text);

    if (send(notify->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
        return 0;
    }
    if (errno == EAGAIN || errno == ENOBUFS || !join(notify)) {
        return errno;
    }
    return send(notify->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

/* -- states --------------------------------------------------------------------------------- */

static void on_room(uv_poll_t *room, int status, int events);

static void flush(struct cstd_notify *notify)
{
    char text[sizeof notify->status + 32];
    int errnum;

    if (notify->fd < 0 || !(notify->ready || notify->stopping || notify->changed)) {
        return;
    }
    (void)snprintf(text, sizeof text, "%s%s%s",
                   notify->stopping ? "STOPPING=1\n"
                   : notify->ready  ? "READY=1\n"
                                    : "",
                   notify->changed ? "STATUS=" : "", notify->changed ? notify->status : "");
    errnum = send_text(notify, text);
    if (errnum == 0) {
        notify->ready = notify->stopping = notify->changed = notify->full = false;
        (void)uv_poll_stop(&notify->room);
    } else if (errnum == EAGAIN) {
        (void)uv_poll_start(&notify->room, UV_WRITABLE, on_room);
        if (!notify->full) {
            cstd_log(CSTD_LOG_WARNING,
                     "the service manager does not read its socket: '%.15s' waits", text);
        }
        notify->full = true;
    } /* Any other error means that nobody listens. The next message tries again. */
}

static void on_room(uv_poll_t *room, int status, int events)
{
    (void)status;
    (void)events;
    (void)uv_poll_stop(room);
    flush(room->data);
}

void cstd_notify_init(struct cstd_notify *notify, uv_loop_t *loop)
{
    const char *name = getenv("NOTIFY_SOCKET");

    *notify = (struct cstd_notify){.fd = -1};
    if (name == NULL) {
        return;
    }
    if (!read_address(notify, name)) {
        cstd_log(CSTD_LOG_WARNING, "NOTIFY_SOCKET '%.100s': neither a path nor '@' and a name",
                 name);
        return;
    }
    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (notify->fd < 0 || uv_poll_init(loop, &notify->room, notify->fd) != 0) {
        cstd_log(CSTD_LOG_WARNING, "NOTIFY_SOCKET '%.100s': no socket: %s", name, strerror(errno));
        if (notify->fd >= 0) {
            (void)close(notify->fd);
        }
        notify->fd = -1;
        return;
    }
    notify->room.data = notify;
    uv_unref((uv_handle_t *)&notify->room);
    (void)join(notify);
}

static void on_closed(uv_handle_t *handle)
{
    struct cstd_notify *notify = handle->data;

    (void)close(notify->fd);
    notify->fd = -1;
}

void cstd_notify_close(struct cstd_notify *notify)
{
    if (notify->fd >= 0) {
        flush(notify);
        uv_close((uv_handle_t *)&notify->room, on_closed);
    }
}

static void set_status(struct cstd_notify *notify, const char *status)
{
    if (strcmp(notify->status, status) != 0) {
        (void)snprintf(notify->status, sizeof notify->status, "%s", status);
        notify->changed = true;
    }
}

void cstd_notify_ready(struct cstd_notify *notify, const char *status)
{
    set_status(notify, status);
    notify->ready = true;
    flush(notify);
}

void cstd_notify_status(struct cstd_notify *notify, const char *status)
{
    set_status(notify, status);
    flush(notify);
}

void cstd_notify_alive(struct cstd_notify *notify)
{
    flush(notify);
    if (notify->fd >= 0 && send_text(notify, "WATCHDOG=1") != 0) {
        notify->n_dropped++;
    }
}

void cstd_notify_stopping(struct cstd_notify *notify)
{
    set_status(notify, "shutting down");
    notify->ready = false;
    notify->stopping = true;
    flush(notify);
}
