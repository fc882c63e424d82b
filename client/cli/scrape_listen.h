/* SPDX-License-Identifier: Apache-2.0 */
/* Where `cistern metrics --listen` listens: a Unix socket for its own user and root, or a TCP port
 * of a loopback address, which every user of the machine can read. */
#ifndef CLI_SCRAPE_LISTEN_H
#define CLI_SCRAPE_LISTEN_H

#include "cistern/status.h"

#include <stdbool.h>
#include <sys/socket.h>

struct cli_scrape_listen {
    int fd;       /* The listening, non-blocking socket. */
    bool is_port; /* A TCP port; false: a Unix socket. */
    bool is_file; /* The file of the Unix socket was made here. */
    /* The address as it is written on the command line, with the port that port 0 has become. */
    char name[128];
};

/* Read @text: an absolute path, "127.0.0.1:PORT" or "[::1]:PORT". *is_port and *address are set.
 * CST_EINVAL: another form, or an address that other machines can reach. Pure. */
int cli_scrape_listen_read(const char *text, bool *is_port, struct sockaddr_storage *address,
                           socklen_t *n, struct cst_err *err);

/* Listen at @text. A Unix socket has mode 0600; a socket file without a listener is removed first.
 * "systemd": take the one socket that systemd passes, whose unit says who may connect. Statuses of
 * cli_scrape_listen_read; CST_EINVAL: no such socket, or others, are passed; CST_EBUSY: another
 * process listens at @text; CST_EEXIST: the path is not a socket; CST_EIO. */
int cli_scrape_listen_open(struct cli_scrape_listen *out, const char *text, struct cst_err *err);

/* Stop listening, and remove the file of a Unix socket that was made here. */
void cli_scrape_listen_close(struct cli_scrape_listen *listener);

#endif
