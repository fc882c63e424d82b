/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 for the links between daemons, with certificates on both sides. The module has no
 * sockets: the caller passes on the bytes that the peer sends and those that are to be sent.
 *
 * The library is OpenSSL 3. It can work on memory alone, as libuv needs it; it has the licence of
 * cistern; and distributions support each of its versions for as long as their own. GnuTLS has all
 * that is needed, too, but its licence, and those of the two libraries below it, would be three
 * more.
 *
 * There is no session to resume and no early data, so that nothing which was recorded can be sent
 * again. Earlier versions of TLS are refused. Loop thread only. */
#ifndef CSTD_TLS_H
#define CSTD_TLS_H

#include "proto/certificate.h"

#include <stddef.h>
#include <stdint.h>

/* Most bytes of the certificates that a peer sends. */
#define CSTD_TLS_CERTIFICATE_BYTES 16384

struct cstd_tls_context; /* This machine's key and certificate, and the site's authorities. */
struct cstd_tls;         /* One connection. */

/* The certificate with which a peer has proved who it is. Valid during the call. */
struct cstd_tls_peer {
    char fingerprint[CST_FINGERPRINT_BYTES];
    bool is_vouched; /* An authority of the site has signed it, and it is for this use. */
    X509 *certificate;
};

/* Return whether the certificate has the name @name: in its alternative names or, if it has none,
 * as its common name. There are no wildcards. */
bool cstd_tls_peer_is(const struct cstd_tls_peer *peer, const char *name);

/* Decide about a peer whose certificate is within its time. CST_OK: it is admitted. Other statuses
 * end the handshake; @err is then what cstd_tls_handshake returns. */
typedef int (*cstd_tls_admit_fn)(void *arg, const struct cstd_tls_peer *peer, struct cst_err *err);

/* Read the PEM files @key and @certificate (with the chain of its authorities, if there is one),
 * and @authorities; NULL or "": none. CST_EIO: a file cannot be read; CST_EDENIED: @key can be read
 * or written by all users; CST_EINVAL: a file has other contents, or the key is not that of the
 * certificate; CST_ENOMEM. */
int cstd_tls_context_open(struct cstd_tls_context **out, const char *key, const char *certificate,
                          const char *authorities, struct cst_err *err);

/* Free @context; NULL: nothing. Connections of it go on. */
void cstd_tls_context_close(struct cstd_tls_context *context);

/* Return the fingerprint of this machine's certificate; it belongs to @context. */
const char *cstd_tls_context_fingerprint(const struct cstd_tls_context *context);

/* Return the time in s until this machine's certificate expires; negative: since it has. */
double cstd_tls_context_seconds_left(const struct cstd_tls_context *context);

/* Open a connection, as the side that dialled (@client) or the one that listened. @admit is called
 * once, with @arg, during the handshake. CST_ENOMEM. */
int cstd_tls_open(struct cstd_tls **out, struct cstd_tls_context *context, bool client,
                  cstd_tls_admit_fn admit, void *arg, struct cst_err *err);
void cstd_tls_close(struct cstd_tls *tls); /* NULL: nothing. */

/* Take the @n bytes that have come from the peer. CST_ENOMEM. */
int cstd_tls_feed(struct cstd_tls *tls, const uint8_t *bytes, size_t n, struct cst_err *err);

/* Go on with the handshake. CST_OK: it is complete. CST_EAGAIN: more must come from the peer.
 * CST_EDENIED: the peer's certificate, or ours, was refused. CST_EPROTO: what came is not TLS 1.3.
 */
int cstd_tls_handshake(struct cstd_tls *tls, struct cst_err *err);

/* Decrypt up to @n bytes into @out; *n_read: how many (at least 1). CST_EAGAIN: more must come from
 * the peer. CST_ECONN: the peer has ended the connection in order. CST_EDENIED: the peer has
 * refused our certificate. CST_EPROTO: what came is not what the peer has sent. */
int cstd_tls_read(struct cstd_tls *tls, uint8_t *out, size_t n, size_t *n_read,
                  struct cst_err *err);

/* Encrypt @n bytes, which then wait in @tls to be taken. CST_ENOMEM. */
int cstd_tls_write(struct cstd_tls *tls, const uint8_t *bytes, size_t n, struct cst_err *err);

/* Tell the peer that nothing more comes: that waits to be taken, too. */
void cstd_tls_end(struct cstd_tls *tls);

/* Return how many bytes wait to be sent, and move up to @n of them to @out. */
size_t cstd_tls_waiting(const struct cstd_tls *tls);
size_t cstd_tls_take(struct cstd_tls *tls, uint8_t *out, size_t n);

#endif
