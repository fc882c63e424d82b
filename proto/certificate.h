/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of a node: the fingerprint of its certificate. Any thread. */
#ifndef CST_CERTIFICATE_H
#define CST_CERTIFICATE_H

#include "cistern/status.h"

#include <openssl/types.h>
#include <stdbool.h>

#define CST_FINGERPRINT_BYTES 72     /* "sha256:", 64 digits, and the NUL. */
#define CST_NODE_KEY_NAME "node.key" /* Files of `cistern node key`. */
#define CST_NODE_CERTIFICATE_NAME "node.crt"
#define CST_NODE_PORT 7433 /* TCP port at which a daemon listens for other nodes by default. */

/* Write "sha256:" and the SHA-256 of the certificate in DER as lower-case digits, which are those
 * of `openssl x509 -fingerprint -sha256`. CST_ENOMEM. */
int cst_certificate_fingerprint(const X509 *certificate, char out[CST_FINGERPRINT_BYTES],
                                struct cst_err *err);

/* Write the fingerprint of the first certificate in the PEM file @path. CST_EIO: it cannot be read;
 * CST_EINVAL: there is no certificate in it; CST_ENOMEM. */
int cst_certificate_read(const char *path, char out[CST_FINGERPRINT_BYTES], struct cst_err *err);

/* Return whether @text has the form of a fingerprint. */
bool cst_certificate_is_fingerprint(const char *text);

#endif
