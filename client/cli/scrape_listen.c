/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/scrape_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128 };

static int wrong_form(const char *text, struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL,
                       "'%.100s' is none of 127.0.0.1:PORT, [::1]:PORT, the absolute path of a "
                       "socket, and systemd",
                       text);
}

static int read_path(const char *text, struct sockaddr_storage *address, socklen_t *n,
                     struct cst_err *err)
{
    struct sockaddr_un *local = (struct sockaddr_un *)address;

    if (strlen(text) >= sizeof local->sun_path) {
        return cst_err_set(err, CST_EINVAL, "%s: too long for the path of a socket (%zu bytes)",
                           text, sizeof local->sun_path - 1);
    }
    local->sun_family = AF_UNIX;
    (void)strcpy(local->sun_path, text);
    *n = sizeof *local;
    return CST_OK;
}

static bool read_number(const char *text, uint16_t *port)
{
    char *end;
    const unsigned long number = strtoul(text, &end, 10);

    *port = (uint16_t)number;
    return *text >= '0' && *text <= '9' && *end == '\0' && number <= UINT16_MAX;
}

/* Set *address to @host and @port. False: @host is no address. */
static bool read_host(const char *host, uint16_t port, struct sockaddr_storage *address,
                      socklen_t *n)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;

    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        *n = sizeof *v4;
        return true;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        *n = sizeof *v6;
        return true;
    }
    return false;
}

/* Write the address of a port as --listen takes it. */
static void name_port(const struct sockaddr_storage *address, char name[128])
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    char host[INET6_ADDRSTRLEN] = "";

    if (address->ss_family == AF_INET) {
        (void)inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        (void)snprintf(name, 128, "%s:%u", host, ntohs(v4->sin_port));
    } else {
        (void)inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        (void)snprintf(name, 128, "[%s]:%u", host, ntohs(v6->sin6_port));
    }
}

/* Refuse a port that other machines can reach. */
static int check_port(const struct sockaddr_storage *address, struct cst_err *err)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    const bool is_v4 = address->ss_family == AF_INET;
    char name[128];

    if (is_v4 ? ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
              : IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)) {
        return CST_OK;
    }
    name_port(address, name);
    return cst_err_set(err, CST_EINVAL,
                       "other machines can reach %s, and requests are neither encrypted nor "
                       "checked: listen at 127.0.0.1:%u, and let a reverse proxy with TLS and "
                       "passwords answer on the network",
                       name, ntohs(is_v4 ? v4->sin_port : v6->sin6_port));
}

static int read_port(const char *text, struct sockaddr_storage *address, socklen_t *n,
                     struct cst_err *err)
{
    const char *colon = strrchr(text, ':');
    char host[64];
    uint16_t port;
    size_t length;

    if (colon == NULL || !read_number(colon + 1, &port) || (size_t)(colon - text) >= sizeof host) {
        return wrong_form(text, err);
    }
    length = (size_t)(colon - text);
    if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    (void)snprintf(host, sizeof host, "%.*s", (int)length, text);
    return read_host(host, port, address, n) ? check_port(address, err) : wrong_form(text, err);
}

int cli_scrape_listen_read(const char *text, bool *is_port, struct sockaddr_storage *address,
                           socklen_t *n, struct cst_err *err)
{
    memset(address, 0, sizeof *address);
    *is_port = text[0] != '/';
    return *is_port ? read_port(text, address, n, err) : read_path(text, address, n, err);
}

/* Remove a socket file that nobody listens at. */
static int remove_stale(const char *path, const struct sockaddr *address, socklen_t n,
                        struct cst_err *err)
{
    struct stat st;
    int fd, rc, saved;

    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? CST_OK : cst_err_errno(err, CST_EIO, errno, "%s", path);
    }
    if (!S_ISSOCK(st.st_mode)) {
        return cst_err_set(err, CST_EEXIST, "%s: exists and is not a socket", path);
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "socket");
    }
    rc = connect(fd, address, n);
    saved = errno;
    (void)close(fd);
    /* Only a refused connection proves that nobody listens. */
    if (rc == 0 || saved != ECONNREFUSED) {
        return cst_err_set(err, CST_EBUSY, "%s: another process listens there", path);
    }
    return unlink(path) == 0 || errno == ENOENT ? CST_OK
                                                : cst_err_errno(err, CST_EIO, errno, "%s", path);
}

/* bind creates the file of a Unix socket with its final mode. */
static int bind_and_listen(int fd, const char *text, const struct sockaddr *address, socklen_t n,
                           struct cst_err *err)
{
    const int yes = 1;
    const mode_t mask = umask(0177);
    int rc, saved;

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    rc = bind(fd, address, n);
    rc = rc == 0 ? listen(fd, BACKLOG) : rc;
    saved = errno;
    (void)umask(mask);
    return rc == 0
               ? CST_OK
               : cst_err_errno(err, saved == EADDRINUSE ? CST_EBUSY : CST_EIO, saved, "%s", text);
}

/* Make a socket that listens at @text. */
static int open_new(struct cli_scrape_listen *out, const char *text, struct cst_err *err)
{
    struct sockaddr_storage address;
    socklen_t n;
    int rc = cli_scrape_listen_read(text, &out->is_port, &address, &n, err);

    if (rc == CST_OK && !out->is_port) {
        rc = remove_stale(text, (const struct sockaddr *)&address, n, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    out->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "socket");
    }
    rc = bind_and_listen(out->fd, text, (const struct sockaddr *)&address, n, err);
    if (rc != CST_OK) {
        (void)close(out->fd);
        return rc;
    }
    out->is_file = !out->is_port;
    return CST_OK;
}

/* Take the socket that systemd passes, as sd_listen_fds(3) describes. */
static int inherit(struct cli_scrape_listen *out, struct cst_err *err)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof address, n_type = sizeof(int), n_accepts = sizeof(int);
    int type = 0, accepts = 0;

    out->fd = 3;
    if (pid == NULL || atol(pid) != getpid() || count == NULL || strcmp(count, "1") != 0) {
        return cst_err_set(err, CST_EINVAL, "systemd passes %s sockets to this process, not 1",
                           pid != NULL && atol(pid) == getpid() && count != NULL ? count : "0");
    }
    (void)getsockname(out->fd, (struct sockaddr *)&address, &n);
    (void)getsockopt(out->fd, SOL_SOCKET, SO_TYPE, &type, &n_type);
    (void)getsockopt(out->fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &n_accepts);
    if (type != SOCK_STREAM || accepts == 0 || fcntl(out->fd, F_SETFL, O_NONBLOCK) != 0 ||
        fcntl(out->fd, F_SETFD, FD_CLOEXEC) != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "systemd passes what is no listening socket (ListenStream=)");
    }
    out->is_port = address.ss_family != AF_UNIX;
    out->is_file = false;
    return out->is_port ? check_port(&address, err) : CST_OK;
}

int cli_scrape_listen_open(struct cli_scrape_listen *out, const char *text, struct cst_err *err)
{
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof address;
    const int rc = strcmp(text, "systemd") == 0 ? inherit(out, err) : open_new(out, text, err);

    if (rc != CST_OK) {
        return rc;
    }
    (void)snprintf(out->name, sizeof out->name, "%s", text);
    if (out->is_port && getsockname(out->fd, (struct sockaddr *)&address, &n) == 0) {
        name_port(&address, out->name);
    }
    return CST_OK;
}

void cli_scrape_listen_close(struct cli_scrape_listen *listener)
{
    (void)close(listener->fd);
    if (listener->is_file) {
        (void)unlink(listener->name);
    }
}
