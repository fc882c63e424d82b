/* SPDX-License-Identifier: Apache-2.0 */
/* How the processes of a job obtain one memfd:
 *
 *   rank 0   binds and listens; waits for all others; creates the memfd; sends it to each of them
 *   others   connect (again and again until rank 0 listens); send their rank; map the memfd
 *
 * The connections stay open: the end of a connection means that its process is dead. */
#include "client/gpt/exchange_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define JOIN_MS 20000 /* Limit of a join. All ranks were present at the sync a moment ago. */
#define AGAIN_MS 10   /* interval between two attempts to connect */
#define HELLO 0x31585047u

struct hello {
    uint32_t magic;        /* HELLO */
    uint32_t rank, world;  /* rank of the sender, and number of ranks */
    uint32_t pad;          /* 0 */
    uint64_t region_bytes; /* size of a region in the sender's view */
};

struct answer {
    int32_t status; /* 0: the memfd is attached */
};

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void pause_ms(long ms)
{
    const struct timespec t = {.tv_nsec = ms * 1000000};

    (void)nanosleep(&t, NULL);
}

static socklen_t address(const struct gpt_exchange *x, struct sockaddr_un *out)
{
    const size_t n = strlen(x->name);

    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    /* sun_path[0] = 0: the name is in the abstract namespace. */
    memcpy(out->sun_path + 1, x->name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t n = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 && peer.uid == geteuid();
}

static int too_late(const struct gpt_exchange *x, struct cst_err *err)
{
    return cst_err_set(err, CST_EPEERDIED,
                       "rank %u: not all of the %u ranks joined the exchange of tokens within %d s",
                       x->rank, x->world, JOIN_MS / 1000);
}

void gpt_exchange_disconnect(struct gpt_exchange *x)
{
    for (size_t i = 0; i < GPT_EXCHANGE_MAX_RANKS; i++) {
        if (x->connections[i] >= 0) {
            (void)close(x->connections[i]);
            x->connections[i] = -1;
        }
    }
}

/* After the join nothing is sent on a connection. Therefore a readable connection has ended. */
static bool ended(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return fd >= 0 && poll(&p, 1, 0) > 0;
}

bool gpt_exchange_lost(const struct gpt_exchange *x)
{
    for (size_t i = 0; i < GPT_EXCHANGE_MAX_RANKS; i++) {
        if (ended(x->connections[i])) {
            return true;
        }
    }
    return false;
}

static int map(struct gpt_exchange *x, int memfd, struct cst_err *err)
{
    void *p = mmap(NULL, gpt_exchange_bytes(x->world, x->region_bytes), PROT_READ | PROT_WRITE,
                   MAP_SHARED, memfd, 0);

    if (p == MAP_FAILED) {
        return cst_err_errno(err, CST_ENOMEM, errno, "memory of %u ranks for tokens", x->world);
    }
    x->segment = p;
    return 0;
}

/* -- rank 0 ------------------------------------------------------------------------------------ */

static int make_memfd(const struct gpt_exchange *x, int *out, struct cst_err *err)
{
    const size_t bytes = gpt_exchange_bytes(x->world, x->region_bytes);
    int fd = memfd_create("cistern-gpt", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "a memfd for tokens");
    }
    /* The size is sealed, so that no process can truncate the memory under another one. */
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        const int rc = cst_err_errno(err, CST_EIO, errno, "a memfd of %zu bytes for tokens", bytes);

        (void)close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

/* Bind and listen. The name may be in use at first, because an earlier rank 0 has not ended yet. */
static int start_listening(const struct gpt_exchange *x, int64_t deadline, int *out,
                           struct cst_err *err)
{
    struct sockaddr_un name;
    const socklen_t n = address(x, &name);
    int rc, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "a socket for the exchange of tokens");
    }
    while (bind(fd, (const struct sockaddr *)&name, n) != 0) {
        if (errno != EADDRINUSE || now_ms() >= deadline) {
            rc = cst_err_errno(err, errno == EADDRINUSE ? CST_EBUSY : CST_EIO, errno,
                               "the exchange of tokens, '%s'", x->name);
            goto err_close;
        }
        pause_ms(AGAIN_MS);
    }
    if (listen(fd, GPT_EXCHANGE_MAX_RANKS) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "the exchange of tokens, '%s'", x->name);
        goto err_close;
    }
    *out = fd;
    return 0;
err_close:
    (void)close(fd);
    return rc;
}

static void answer(int fd, int status, int memfd)
{
    struct answer a = {.status = status};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = &a, .iov_len = sizeof a};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (memfd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &memfd, sizeof memfd);
    }
    /* If the receiver has died, the first barrier will show it. */
    (void)sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* Accept the process at the other end of @fd. A second connection of a rank replaces the first: a
 * new worker has taken the place of a dead one. */
static int take(struct gpt_exchange *x, int fd, struct cst_err *err)
{
    const struct timeval patience = {.tv_sec = 1};
    struct hello h;

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    /* Connections of other users or other programs are dropped without an error. */
    if (!same_user(fd) || recv(fd, &h, sizeof h, 0) != sizeof h || h.magic != HELLO) {
        (void)close(fd);
        return 0;
    }
    if (h.world != x->world || h.rank == 0 || h.rank >= x->world ||
        h.region_bytes != x->region_bytes) {
        answer(fd, CST_EMISMATCH, -1);
        (void)close(fd);
        return cst_err_set(
            err, CST_EMISMATCH, "rank %u of %u exchanges tokens in %llu bytes, rank 0 of %u in %zu",
            h.rank, h.world, (unsigned long long)h.region_bytes, x->world, x->region_bytes);
    }
    if (x->connections[h.rank] >= 0) {
        (void)close(x->connections[h.rank]);
    }
    x->connections[h.rank] = fd;
    return 0;
}

static uint32_t n_connected(const struct gpt_exchange *x)
{
    uint32_t n = 0;

    for (size_t i = 1; i < GPT_EXCHANGE_MAX_RANKS; i++) {
        n += x->connections[i] >= 0 ? 1 : 0;
    }
    return n;
}

static int gather(struct gpt_exchange *x, int listener, int64_t deadline, struct cst_err *err)
{
    int rc = 0;

    while (rc == 0 && n_connected(x) < x->world - 1) {
        const int64_t left = deadline - now_ms();
        struct pollfd p = {.fd = listener, .events = POLLIN};
        int fd;

        if (left <= 0) {
            return too_late(x, err);
        }
        if (poll(&p, 1, (int)left) > 0) {
            fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) {
                rc = take(x, fd, err);
            } else if (errno != ECONNABORTED && errno != EINTR) {
                /* Any other error would occur again at once. */
                rc = cst_err_errno(err, CST_EIO, errno, "the exchange of tokens, '%s'", x->name);
            }
        }
    }
    return rc;
}

static int host(struct gpt_exchange *x, int64_t deadline, struct cst_err *err)
{
    int listener = -1, memfd = -1, rc = start_listening(x, deadline, &listener, err);

    if (rc != 0) {
        return rc;
    }
    rc = gather(x, listener, deadline, err);
    if (rc == 0) {
        rc = make_memfd(x, &memfd, err);
    }
    if (rc == 0) {
        rc = map(x, memfd, err);
        for (uint32_t i = 1; rc == 0 && i < x->world; i++) {
            answer(x->connections[i], 0, memfd);
        }
        (void)close(memfd);
    }
    (void)close(listener);
    return rc;
}

/* -- the others -------------------------------------------------------------------------------- */

/* Receive the answer of rank 0 and map the memfd. CST_EAGAIN: rank 0 is gone. */
static int receive(struct gpt_exchange *x, int64_t deadline, struct cst_err *err)
{
    struct pollfd p = {.fd = x->connections[0], .events = POLLIN};
    struct answer a = {0};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = &a, .iov_len = sizeof a};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    const int64_t left = deadline - now_ms();
    struct stat st;
    int memfd, rc;

    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    if (left <= 0 || poll(&p, 1, (int)left) <= 0) {
        return too_late(x, err);
    }
    if (recvmsg(x->connections[0], &message, MSG_CMSG_CLOEXEC) != sizeof a) {
        return CST_EAGAIN;
    }
    if (a.status != 0) {
        return cst_err_set(err, CST_EMISMATCH,
                           "rank 0 exchanges tokens otherwise than rank %u of "
                           "%u, in %zu bytes",
                           x->rank, x->world, x->region_bytes);
    }
    if (message.msg_controllen < sizeof(struct cmsghdr) || control.head.cmsg_type != SCM_RIGHTS) {
        return CST_EAGAIN;
    }
    memcpy(&memfd, CMSG_DATA(&control.head), sizeof memfd);
    rc = fstat(memfd, &st) == 0 &&
                 (size_t)st.st_size == gpt_exchange_bytes(x->world, x->region_bytes)
             ? map(x, memfd, err)
             : cst_err_set(err, CST_EMISMATCH, "rank 0 exchanges tokens in other memory");
    (void)close(memfd);
    return rc;
}

/* Connect to rank 0 and receive its answer. CST_EAGAIN: rank 0 does not listen yet, or has
 * ended. */
static int visit(struct gpt_exchange *x, int64_t deadline, struct cst_err *err)
{
    const struct hello h = {
        .magic = HELLO, .rank = x->rank, .world = x->world, .region_bytes = x->region_bytes};
    struct sockaddr_un name;
    const socklen_t n = address(x, &name);

    x->connections[0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (x->connections[0] < 0) {
        return cst_err_errno(err, CST_EIO, errno, "a socket for the exchange of tokens");
    }
    if (connect(x->connections[0], (const struct sockaddr *)&name, n) != 0) {
        return CST_EAGAIN;
    }
    /* Any user could bind the abstract name first. */
    if (!same_user(x->connections[0])) {
        return cst_err_set(err, CST_EDENIED, "another user answers for '%s'", x->name);
    }
    if (send(x->connections[0], &h, sizeof h, MSG_NOSIGNAL) != sizeof h) {
        return CST_EAGAIN;
    }
    return receive(x, deadline, err);
}

int gpt_exchange_connect(struct gpt_exchange *x, struct cst_err *err)
{
    const int64_t deadline = now_ms() + JOIN_MS;
    int rc;

    if (x->rank == 0) {
        rc = host(x, deadline, err);
    } else {
        while ((rc = visit(x, deadline, err)) == CST_EAGAIN) {
            gpt_exchange_disconnect(x);
            if (now_ms() >= deadline) {
                rc = too_late(x, err);
                break;
            }
            pause_ms(AGAIN_MS);
        }
    }
    if (rc != 0) {
        gpt_exchange_disconnect(x);
    }
    return rc;
}
