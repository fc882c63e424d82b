/* SPDX-License-Identifier: Apache-2.0 */
/* fill_store: a service that fills its manager's store with FDSTORE descriptors, under the names
 * that a daemon gives to jobs with a ledger and other files. The ledgers cannot be read, so that
 * the next daemon leaves them in the store for a later one. It is ready at once, begins when the
 * file /run/cistern/fill is there, and makes /run/cistern/filled at the end: the manager, which
 * compares each descriptor with all others, answers nobody meanwhile. */
#include "daemon/base/kept_name.h"

#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FILES = 250 }; /* Most files of a job besides its ledger. */

/* The first job's number, which has as many digits as that of a daemon that has had millions. */
static const uint64_t first_serial = UINT64_C(62) * 62 * 62 * 62;

static int sock;
static struct sockaddr_un manager = {.sun_family = AF_UNIX};
static socklen_t manager_bytes;

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(EXIT_FAILURE);
}

static void open_manager(void)
{
    const char *path = getenv("NOTIFY_SOCKET");

    if (path == NULL || strlen(path) >= sizeof manager.sun_path) {
        fail("NOTIFY_SOCKET");
    }
    (void)strcpy(manager.sun_path, path);
    manager_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (path[0] == '@') {
        manager.sun_path[0] = '\0';
    }
    sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock < 0) {
        fail("socket");
    }
}

/* Send @text with @n descriptors, which are closed. */
static void say(char *text, const int *fds, unsigned n)
{
    static union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(FILES * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = text, .iov_len = strlen(text)};
    struct msghdr message = {
        .msg_name = &manager, .msg_namelen = manager_bytes, .msg_iov = &part, .msg_iovlen = 1};

    if (n > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(n * sizeof *fds);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(n * sizeof *fds);
        memcpy(CMSG_DATA(&control.header), fds, n * sizeof *fds);
    }
    if (sendmsg(sock, &message, 0) < 0) {
        fail("sendmsg");
    }
    for (unsigned i = 0; i < n; i++) {
        (void)close(fds[i]);
    }
}

/* Store @n files under the name of @kind of job @serial. */
static void store(enum cstd_kept_kind kind, uint64_t serial, unsigned n)
{
    const struct cstd_kept_name name = {.kind = kind, .serial = serial};
    char written[CSTD_KEPT_NAME_BYTES], text[CSTD_KEPT_NAME_BYTES + 64];
    int fds[FILES];

    for (unsigned i = 0; i < n; i++) {
        fds[i] = memfd_create("stored", MFD_CLOEXEC);
        if (fds[i] < 0) {
            fail("memfd_create");
        }
    }
    (void)snprintf(text, sizeof text, "FDSTORE=1\nFDNAME=%s\nFDPOLL=0",
                   cstd_kept_name_write(&name, false, written));
    say(text, fds, n);
}

/* Wait until the manager has read all messages. */
static void await_manager(void)
{
    char text[] = "BARRIER=1";
    int ends[2];
    struct pollfd p;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        fail("pipe");
    }
    p = (struct pollfd){.fd = ends[0]};
    say(text, &ends[1], 1);
    (void)poll(&p, 1, -1); /* The manager closes the other end. */
}

int main(void)
{
    const char *limit = getenv("FDSTORE");
    unsigned long n = limit != NULL ? strtoul(limit, NULL, 10) : 0;
    char ready[] = "READY=1", alive[] = "WATCHDOG=1";

    open_manager();
    say(ready, NULL, 0);
    while (access("/run/cistern/fill", F_OK) != 0) {
        (void)poll(NULL, 0, 10);
    }
    for (uint64_t serial = first_serial; n > 0; serial++) {
        const unsigned files = n > FILES ? FILES : (unsigned)n - 1;

        store(CSTD_KEPT_LEDGER, serial, 1);
        if (files > 0) {
            store(CSTD_KEPT_HOST, serial, files);
        }
        n -= 1 + files;
        say(alive, NULL, 0);
    }
    await_manager();
    if (creat("/run/cistern/filled", 0600) < 0) {
        fail("/run/cistern/filled");
    }
    for (;;) {
        say(alive, NULL, 0);
        (void)poll(NULL, 0, 200);
    }
}
