/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of machines as people write them. No state; any thread. */
#ifndef CSTD_MACHINE_ADDRESS_H
#define CSTD_MACHINE_ADDRESS_H

#include "cistern/status.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#define CSTD_MACHINE_ADDRESS_BYTES 128 /* Most bytes of an address as text, with the NUL. */

/* A host and a port. */
struct cstd_machine_address {
    char
        host[CSTD_MACHINE_ADDRESS_BYTES]; /* A name, an address of IPv4 or IPv6, or an interface. */
    uint16_t port;                        /* CST_NODE_PORT if none was written. */
};

/* Read @text: HOST, HOST:PORT, or [HOST]:PORT, with the brackets for an address of IPv6.
 * CST_EINVAL: it has another form or is too long. */
int cstd_machine_address_read(struct cstd_machine_address *out, const char *text,
                              struct cst_err *err);

/* Set *out to @address if its host is a number. False: it is a name. */
bool cstd_machine_address_number(const struct cstd_machine_address *address,
                                 struct sockaddr_storage *out);

/* Set *out to @address, at which this machine is to listen; its host is a number, or an interface,
 * of which the first address is taken, rather of IPv4. CST_EINVAL: it is the address of all
 * interfaces; CST_ENOTFOUND: it is neither an address nor an interface with one; CST_EIO: the
 * interfaces cannot be listed. */
int cstd_machine_address_own(const struct cstd_machine_address *address,
                             struct sockaddr_storage *out, struct cst_err *err);

/* Write @at as ADDRESS:PORT or [ADDRESS]:PORT. Returns @out. */
const char *cstd_machine_address_text(const struct sockaddr *at,
                                      char out[CSTD_MACHINE_ADDRESS_BYTES]);

#endif
