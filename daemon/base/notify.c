/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/notify.h"

#include "daemon/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

enum {
    STORE_FDS = 250, /* Descriptors of one message; the kernel allows 253. */
};

/* A message about descriptors. */
struct cstd_notify_store {
    STAILQ_ENTRY(cstd_notify_store) link;
    char text[96];
    unsigned n;
    int fds[]; /* Owned. */
};

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
static int send_with(const struct cstd_notify *notify, const char *text, const int *fds, unsigned n)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    alignas(struct cmsghdr) char control[CMSG_SPACE(STORE_FDS * sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (n > 0) {
        struct cmsghdr *header;

        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(n * sizeof(int));
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(header), fds, n * sizeof(int));
    }
    if (sendmsg(notify->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
        return 0;
    }
    if (errno == EAGAIN || errno == ENOBUFS || !join(notify)) {
        return errno;
    }
    return sendmsg(notify->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

static int send_text(const struct cstd_notify *notify, const char *text)
{
    return send_with(notify, text, NULL, 0);
}

/* -- descriptors ------------------------------------------------------------------------------ */

static void drop_first(struct cstd_notify *notify)
{
    struct cstd_notify_store *store = STAILQ_FIRST(&notify->stores);

    STAILQ_REMOVE_HEAD(&notify->stores, link);
    for (unsigned i = 0; i < store->n; i++) {
        (void)close(store->fds[i]);
    }
    free(store);
}

/* Send the messages about descriptors. Returns 0 or the errno of the first one that cannot be
 * sent. */
static int send_stores(struct cstd_notify *notify)
{
    struct cstd_notify_store *store;

    while ((store = STAILQ_FIRST(&notify->stores)) != NULL) {
        int errnum = send_with(notify, store->text, store->fds, store->n);

        /* ETOOMANYREFS: more descriptors are on their way than this user may have. */
        if (errnum == EAGAIN || errnum == ETOOMANYREFS) {
            return EAGAIN;
        }
        if (errnum != 0) {
            cstd_log(CSTD_LOG_WARNING, "the service manager's store of descriptors: %s",
                     strerror(errnum));
        }
        drop_first(notify);
    }
    return 0;
}

/* -- states --------------------------------------------------------------------------------- */

static void on_room(uv_poll_t *room, int status, int events);

static void flush(struct cstd_notify *notify)
{
    char text[sizeof notify->status + 32];
    int errnum;

    if (notify->fd < 0 ||
        !(notify->ready || notify->stopping || notify->changed || !STAILQ_EMPTY(&notify->stores))) {
        return;
    }
    (void)snprintf(text, sizeof text, "%s%s%s",
                   notify->stopping ? "STOPPING=1\n"
                   : notify->ready  ? "READY=1\n"
                                    : "",
                   notify->changed ? "STATUS=" : "", notify->changed ? notify->status : "");
    errnum = send_stores(notify);
    if (errnum == 0 && text[0] != '\0') {
        errnum = send_text(notify, text);
    }
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
    STAILQ_INIT(&notify->stores);
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
        while (!STAILQ_EMPTY(&notify->stores)) {
            drop_first(notify);
        }
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

/* Returns a descriptor of the file @fd that systemd takes for another one: it ignores a duplicate
 * of a descriptor that it has under another name, and a job that replaces another one can have its
 * memory. Opening a memfd makes no duplicate. A GPU driver's handle of memory can only be
 * duplicated, and belongs to one job. */
static int another(int fd)
{
    char path[40];

    if (fcntl(fd, F_GET_SEALS) < 0) {
        return fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Queue a message of @n descriptors, at most STORE_FDS. */
static int queue(struct cstd_notify *notify, const char *what, const char *name, const int *fds,
                 unsigned n)
{
    struct cstd_notify_store *store = calloc(1, sizeof *store + n * sizeof(int));

    if (store == NULL) {
        return CST_ENOMEM;
    }
    (void)snprintf(store->text, sizeof store->text, "%s=1\nFDNAME=%s\nFDPOLL=0", what, name);
    STAILQ_INSERT_TAIL(&notify->stores, store, link);
    for (unsigned i = 0; i < n; i++) {
        store->fds[i] = another(fds[i]);
        if (store->fds[i] < 0) {
            return CST_ENOMEM;
        }
        store->n++;
    }
    return CST_OK;
}

int cstd_notify_store(struct cstd_notify *notify, const char *name, const int *fds, uint32_t n,
                      struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK && notify->fd >= 0; i += STORE_FDS) {
        rc = queue(notify, "FDSTORE", name, fds + i, n - i < STORE_FDS ? n - i : STORE_FDS);
    }
    flush(notify);
    return rc == CST_OK
               ? CST_OK
               : cst_err_set(err, rc, "no memory or descriptors for the service manager's store");
}

void cstd_notify_unstore(struct cstd_notify *notify, const char *name)
{
    if (notify->fd >= 0 && queue(notify, "FDSTOREREMOVE", name, NULL, 0) != CST_OK) {
        cstd_log(CSTD_LOG_WARNING, "no memory: '%s' stays in the service manager's store", name);
    }
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
