/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of a network as text: "10.0.0.1", "10.0.0.1:7000", "[fd00::1]", "[fd00::1]:7000". Names
 * are not looked up. Pure. */
#ifndef CST_NET_ADDRESS_H
#define CST_NET_ADDRESS_H

#include "cistern/status.h"

#include <sys/socket.h>

#define CSTE_ADDRESS_MAX 80 /* longest text, with the zero at its end */

/* Read @text. Without a port it is 0. CST_EINVAL: it is no address. */
int cste_address_read(const char *text, struct sockaddr_storage *out, socklen_t *out_bytes,
                      struct cst_err *err);

/* CST_EINVAL: @address is no address of one machine, such as 0.0.0.0. */
int cste_address_check_own(const struct sockaddr_storage *address, struct cst_err *err);

/* Write @address with its port. */
void cste_address_write(const struct sockaddr_storage *address, char out[CSTE_ADDRESS_MAX]);

#endif
