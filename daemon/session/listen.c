/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/listen.h"

#include "daemon/base/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

enum { BACKLOG = 128 };

void cstd_listen_allow_descriptors(int fd, bool allowed)
{
    int value = allowed;

    (void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof value);
}

static void lock_path(const struct cstd_listen *listener, char out[128])
{
    (void)snprintf(out, 128, "%s.lock", listener->path);
}

/* Returns the pid in the lock file @fd, which its holder wrote; 0: unreadable. */
static int lock_holder(int fd)
{
    char text[16] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);

    return n > 0 ? atoi(text) : 0;
}

/* True if @fd is still the file at @path. The holder removes the lock file when it ends, and a lock
 * on a removed file protects nothing. */
static bool lock_is_current(int fd, const char *path)
{
    struct stat ours, there;

    return fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

static int in_use(const char *path, int holder, struct cst_err *err)
{
    return cst_err_set(err, CST_EBUSY,
                       "%s: another cisternd (pid %d) listens there: give this one other paths "
                       "(--socket, --manager-socket), let it take over the jobs of the other one "
                       "(--handover), or end that (cistern drain)",
                       path, holder);
}

static int not_a_socket(const char *path, struct cst_err *err)
{
    return cst_err_set(err, CST_EEXIST,
                       "%s: exists and is not a socket: remove it, or give the socket another path "
                       "(--socket, --manager-socket)",
                       path);
}

/* Make the error for the lock file @path, which cannot be opened. */
static int cannot_lock(const char *path, int errnum, struct cst_err *err)
{
    const char *slash = strrchr(path, '/');
    const int n = slash != NULL ? (int)(slash - path) : 0;

    if (geteuid() != 0) {
        return cst_err_set(err, CST_EIO,
                           "%s: %s; without root, use a socket of your own: cisternd --socket "
                           "\"$XDG_RUNTIME_DIR/cistern.sock\", and CISTERN_SOCKET for workers",
                           path, strerror(errnum));
    }
    return errnum == ENOENT
               ? cst_err_set(err, CST_EIO,
                             "%s: %s: make the directory of the socket: mkdir -p %.*s", path,
                             strerror(errnum), n, path)
               : cst_err_set(err, CST_EIO,
                             "%s: %s: give the socket another path (--socket, --manager-socket)",
                             path, strerror(errnum));
}

static int take_lock(struct cstd_listen *listener, struct cst_err *err)
{
    char path[128], pid[16];
    int fd, n;

    lock_path(listener, path);
    for (;;) {
        /* O_NOFOLLOW: the file is overwritten, and the directory may belong to another user. */
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
            return cannot_lock(path, errno, err);
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            int holder = lock_holder(fd);

            (void)close(fd);
            return in_use(listener->path, holder, err);
        }
        /* The previous holder may have removed the file after it was opened here; then open the new
         * file. */
        if (lock_is_current(fd, path)) {
            break;
        }
        (void)close(fd);
    }
    n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)n, 0) != n) {
        int saved = errno;

        (void)close(fd);
        return cst_err_errno(err, CST_EIO, saved, "%s", path);
    }
    listener->lock_fd = fd;
    return CST_OK;
}

static void drop_lock(struct cstd_listen *listener)
{
    char path[128];

    if (listener->lock_fd >= 0) {
        lock_path(listener, path);
        (void)unlink(path); /* The lock must still be held; see lock_is_current. */
        (void)close(listener->lock_fd);
        listener->lock_fd = -1;
    }
}

/* Remove a socket file that nobody listens on. No cisternd can be listening, because the lock is
 * held, but another program can be. */
static int remove_stale(const struct sockaddr_un *address, struct cst_err *err)
{
    struct stat st;
    int fd, rc, saved;

    if (lstat(address->sun_path, &st) != 0) {
        return errno == ENOENT ? CST_OK
                               : cst_err_errno(err, CST_EIO, errno, "%s", address->sun_path);
    }
    if (!S_ISSOCK(st.st_mode)) {
        return not_a_socket(address->sun_path, err);
    }
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "socket");
    }
    rc = connect(fd, (const struct sockaddr *)address, sizeof *address);
    saved = errno;
    (void)close(fd);
    /* Only a refused connection proves that nobody listens. */
    if (rc == 0 || saved != ECONNREFUSED) {
        return cst_err_set(err, CST_EBUSY,
                           "%s: another process listens there: give the socket another path "
                           "(--socket, --manager-socket)",
                           address->sun_path);
    }
    return unlink(address->sun_path) == 0 || errno == ENOENT
               ? CST_OK
               : cst_err_errno(err, CST_EIO, errno,
                               "%s: nobody listens there, but the file cannot be removed",
                               address->sun_path);
}

int cstd_listen_open(struct cstd_listen *listener, const char *path, mode_t mode,
                     struct cst_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    mode_t old_mask;
    int rc;

    listener->fd = listener->lock_fd = -1;
    if (strlen(path) >= sizeof listener->path) {
        return cst_err_set(err, CST_EINVAL, "%s: too long for the path of a socket", path);
    }
    (void)strcpy(listener->path, path);
    (void)strcpy(address.sun_path, path);
    rc = take_lock(listener, err);
    if (rc != CST_OK) {
        return rc;
    }
    rc = remove_stale(&address, err);
    if (rc != CST_OK) {
        goto err_after_lock;
    }
    listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "socket");
        goto err_after_lock;
    }
    /* bind creates the file with its final mode; no peer can connect before a chmod. */
    old_mask = umask(0777 & ~mode);
    rc = bind(listener->fd, (const struct sockaddr *)&address, sizeof address);
    (void)umask(old_mask);
    if (rc != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%s", path);
        goto err_after_socket;
    }
    cstd_listen_allow_descriptors(listener->fd, false);
    if (listen(listener->fd, BACKLOG) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%s: listen", path);
        (void)unlink(path);
        goto err_after_socket;
    }
    return CST_OK;

err_after_socket:
    (void)close(listener->fd);
    listener->fd = -1;
err_after_lock:
    drop_lock(listener);
    return rc;
}

/* The pid of the daemon that holds the lock of @path; 0: nobody does. */
static int find_holder(const char *path)
{
    struct cstd_listen listener;
    char lock[128];
    int fd, holder = 0;

    (void)snprintf(listener.path, sizeof listener.path, "%s", path);
    lock_path(&listener, lock);
    fd = open(lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) {
        holder = flock(fd, LOCK_SH | LOCK_NB) != 0 ? lock_holder(fd) : 0;
        (void)close(fd);
    }
    return holder;
}

/* Check that a socket can be made at @path. */
static int check_path(const char *path, struct cst_err *err)
{
    struct cstd_listen listener;
    struct stat st;
    char *slash;

    if (strlen(path) >= sizeof listener.path) {
        return cst_err_set(err, CST_EINVAL, "%s: too long for the path of a socket", path);
    }
    if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) {
        return not_a_socket(path, err);
    }
    (void)strcpy(listener.path, path);
    slash = strrchr(listener.path, '/');
    if (slash != NULL) {
        slash[slash == listener.path] = '\0';
    }
    return access(slash != NULL ? listener.path : ".", W_OK | X_OK) == 0
               ? CST_OK
               : cst_err_errno(err, CST_EIO, errno, "%s", path);
}

int cstd_listen_check(const char *user, const char *manager, struct cst_err *err)
{
    int holder, rc = check_path(user, err);

    rc = rc == CST_OK ? check_path(manager, err) : rc;
    holder = rc == CST_OK ? find_holder(user) : 0;
    return holder == 0 || holder == find_holder(manager) ? rc : in_use(user, holder, err);
}

static int adopt(struct cstd_listen *listener, int fd, const char *name, struct cst_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t n = sizeof address;
    int flags = fcntl(fd, F_GETFL);

    if (sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, NULL, 0) <= 0) {
        return cst_err_set(err, CST_EINVAL,
                           "the socket '%s' from systemd is not a listening SOCK_SEQPACKET socket",
                           name);
    }
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &n) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "the socket '%s' from systemd", name);
    }
    cstd_listen_allow_descriptors(fd, false);
    listener->fd = fd;
    (void)snprintf(listener->path, sizeof listener->path, "%.*s", (int)sizeof listener->path - 1,
                   address.sun_path);
    return CST_OK;
}

int cstd_listen_inherit(struct cstd_listen *user, struct cstd_listen *manager,
                        struct cstd_keeper *keeper, struct cst_err *err)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names), rc = CST_OK;

    user->fd = user->lock_fd = manager->fd = manager->lock_fd = -1;
    if (n < 0) {
        return cst_err_errno(err, CST_EINVAL, -n, "LISTEN_FDS");
    }
    for (int i = 0; i < n; i++) {
        const char *name = names != NULL && names[i] != NULL ? names[i] : "unknown";
        int fd = SD_LISTEN_FDS_START + i;

        if (rc == CST_OK && cstd_kept_name_is_one(name)) {
            rc = cstd_keeper_inherit(keeper, name, fd, err);
            /* What this version cannot read stays in the store for one that can. */
            rc = rc == CST_EVERSION ? CST_OK : rc;
        } else if (rc == CST_OK && manager->fd < 0 &&
                   (strcmp(name, "manager") == 0 || strcmp(name, "manager.sock") == 0)) {
            rc = adopt(manager, fd, name, err);
        } else if (rc == CST_OK && user->fd < 0) {
            rc = adopt(user, fd, name, err);
        } else {
            (void)close(fd);
        }
        free(names != NULL ? names[i] : NULL);
    }
    free(names);
    return rc;
}

void cstd_listen_close(struct cstd_listen *listener)
{
    if (listener->fd >= 0) {
        (void)close(listener->fd);
        listener->fd = -1;
    }
    if (listener->lock_fd >= 0) { /* The file of an inherited socket belongs to systemd. */
        (void)unlink(listener->path);
        drop_lock(listener);
    }
}
