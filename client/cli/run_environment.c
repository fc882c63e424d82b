/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/run_environment.h"

#include "client/lib/stepped.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void set_number(const char *name, unsigned number)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%u", number);
    (void)setenv(name, text, 1);
}

/* Set the address at which rank 0 listens, if the program is one that needs it. The port is free
 * now; nothing holds it until rank 0 listens. */
static int set_master(struct cst_err *err)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd, rc = CST_OK;

    if (getenv("MASTER_ADDR") != NULL) {
        return CST_OK;
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        rc = cst_err_errno(err, CST_EINTERNAL, errno, "a port for MASTER_PORT");
    } else {
        (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
        set_number("MASTER_PORT", ntohs(address.sin_port));
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

/* Make the file of CISTERN_STEPPED. It has no name that would have to be removed. */
static int set_stepped(struct cli_run_environment *environment, struct cst_err *err)
{
    char path[64];

    environment->stepped_fd = memfd_create(CSTC_STEPPED_NAME, MFD_CLOEXEC);
    if (environment->stepped_fd < 0) {
        return cst_err_errno(err, CST_EINTERNAL, errno, "a file for " CSTC_STEPPED);
    }
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), environment->stepped_fd);
    (void)setenv(CSTC_STEPPED, path, 1);
    return CST_OK;
}

bool cli_run_environment_has_stepped(const struct cli_run_environment *environment)
{
    struct stat st;

    return fstat(environment->stepped_fd, &st) == 0 && st.st_size > 0;
}

int cli_run_environment_init(struct cli_run_environment *environment,
                             const struct cli_run_ranks *ranks, const char *socket,
                             struct cst_err *err)
{
    const unsigned all = ranks->all > 0 ? ranks->all : ranks->n;

    environment->first = ranks->first;
    environment->sets_threads = getenv("OMP_NUM_THREADS") == NULL;
    set_number("WORLD_SIZE", all);
    set_number("LOCAL_WORLD_SIZE", ranks->n);
    (void)setenv("OMP_WAIT_POLICY", "passive", 0);
    if (socket != NULL) {
        (void)setenv("CISTERN_SOCKET", socket, 1);
    }
    if (set_stepped(environment, err) != CST_OK) {
        return CST_EINTERNAL;
    }
    return all == ranks->n ? set_master(err) : CST_OK; /* Rank 0 may be on another node. */
}

void cli_run_environment_set(const struct cli_run_environment *environment, unsigned rank,
                             unsigned restarts, unsigned threads)
{
    (void)unsetenv("CISTERN_STANDBY");
    (void)unsetenv("CISTERN_FIRST_RANK");
    set_number("RANK", environment->first + rank);
    set_number("LOCAL_RANK", rank);
    set_number("CISTERN_RESTARTS", restarts);
    if (environment->sets_threads) {
        set_number("OMP_NUM_THREADS", threads);
    }
}

void cli_run_environment_set_standby(const struct cli_run_environment *environment,
                                     unsigned threads)
{
    (void)unsetenv("RANK");
    (void)unsetenv("LOCAL_RANK");
    (void)unsetenv("CISTERN_RESTARTS");
    (void)setenv("CISTERN_STANDBY", "1", 1);
    set_number("CISTERN_FIRST_RANK", environment->first);
    if (environment->sets_threads) {
        set_number("OMP_NUM_THREADS", threads);
    }
}
