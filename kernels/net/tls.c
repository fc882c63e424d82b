/* SPDX-License-Identifier: Apache-2.0 */
/* Encrypted channels: TLS 1.3 with OpenSSL. An engine makes a key and a certificate of its own when
 * it starts, which no file ever has; the daemons exchange the certificates. A certificate is
 * trusted if it is, byte for byte, that of a peer: neither names nor dates nor authorities count.
 * Both sides prove that they have the key of theirs. */
#include "kernels/net/channel.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* Validity of a certificate, which nobody checks. */
#define VALID_S (10L * 365 * 24 * 3600)
#define READ_BYTES (256u << 10)

struct tls {
    struct cste_net *net;    /* Borrowed. */
    SSL_CTX *called, *calls; /* Of connections of others, and of those that this engine makes. */
    uint8_t *certificate;    /* DER; of OpenSSL. */
    int certificate_bytes;
};

/* What OpenSSL keeps for a connection: the peer that was called; NULL: any. */
static int peer_index = -1;

static int failed(const char *what, int status, struct cst_err *err)
{
    char words[256] = "unknown error";
    unsigned long code = ERR_get_error();

    if (code != 0) {
        ERR_error_string_n(code, words, sizeof words);
    }
    ERR_clear_error();
    return cst_err_set(err, status, "%s: %s", what, words);
}

/* -- keys ----------------------------------------------------------------------------------- */

/* Make a certificate for @key, signed with itself. NULL: OpenSSL has failed. */
static X509 *make_certificate(EVP_PKEY *key)
{
    static const unsigned char name[] = "cistern-engine-net";
    X509 *made = X509_new();
    unsigned long serial = 0;

    if (made == NULL || RAND_bytes((unsigned char *)&serial, sizeof serial) != 1 ||
        X509_set_version(made, X509_VERSION_3) != 1 ||
        ASN1_INTEGER_set_uint64(X509_get_serialNumber(made), serial >> 1) != 1 ||
        X509_gmtime_adj(X509_getm_notBefore(made), 0) == NULL ||
        X509_gmtime_adj(X509_getm_notAfter(made), VALID_S) == NULL ||
        X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_ASC, name, -1, -1,
                                   0) != 1 ||
        X509_set_issuer_name(made, X509_get_subject_name(made)) != 1 ||
        X509_set_pubkey(made, key) != 1 || X509_sign(made, key, EVP_sha256()) == 0) {
        X509_free(made);
        return NULL;
    }
    return made;
}

/* Returns whether the other side's certificate @der is trusted: that of @peer, or of any peer. */
static bool is_trusted(struct tls *tls, const struct cste_net_peer *peer, const uint8_t *der,
                       size_t bytes)
{
    return peer == NULL
               ? cste_net_peers_trusts(&tls->net->peers, der, bytes)
               : peer->certificate_bytes == bytes && memcmp(peer->certificate, der, bytes) == 0;
}

/* In place of OpenSSL's verification, which is about authorities. */
static int verify(X509_STORE_CTX *store, void *arg)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    X509 *theirs = X509_STORE_CTX_get0_cert(store);
    unsigned char *der = NULL;
    int bytes = theirs != NULL ? i2d_X509(theirs, &der) : -1;
    bool trusted = ssl != NULL && bytes > 0 &&
                   is_trusted(arg, SSL_get_ex_data(ssl, peer_index), der, (size_t)bytes);

    OPENSSL_free(der);
    X509_STORE_CTX_set_error(store, trusted ? X509_V_OK : X509_V_ERR_CERT_UNTRUSTED);
    return trusted;
}

static SSL_CTX *make_context(struct tls *tls, const SSL_METHOD *method, EVP_PKEY *key,
                             X509 *certificate)
{
    SSL_CTX *context = SSL_CTX_new(method);

    if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        /* AES has instructions, and no other cipher is as fast with them. */
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_use_certificate(context, certificate) != 1 ||
        SSL_CTX_use_PrivateKey(context, key) != 1 || SSL_CTX_set_num_tickets(context, 0) != 1) {
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(context, verify, tls);
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(context,
                           SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* Several records are read from the socket at a time. */
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, READ_BYTES);
    return context;
}

static void tls_close(void *shared)
{
    struct tls *tls = shared;

    SSL_CTX_free(tls->called);
    SSL_CTX_free(tls->calls);
    OPENSSL_free(tls->certificate);
    free(tls);
}

static int tls_open(void **shared, struct cste_net *net, struct cste_net_end *end,
                    struct cst_err *err)
{
    struct tls *tls = calloc(1, sizeof *tls);
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = key != NULL ? make_certificate(key) : NULL;

    if (tls != NULL && certificate != NULL) {
        peer_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
        tls->net = net;
        tls->called = make_context(tls, TLS_server_method(), key, certificate);
        tls->calls = make_context(tls, TLS_client_method(), key, certificate);
        tls->certificate_bytes = i2d_X509(certificate, &tls->certificate);
    }
    X509_free(certificate);
    EVP_PKEY_free(key);
    if (tls == NULL || tls->called == NULL || tls->calls == NULL || tls->certificate_bytes <= 0 ||
        peer_index < 0) {
        if (tls != NULL) {
            tls_close(tls);
        }
        return failed("making a key and a certificate", CST_EINTERNAL, err);
    }
    end->certificate = tls->certificate;
    end->certificate_bytes = (size_t)tls->certificate_bytes;
    *shared = tls;
    return CST_OK;
}

/* -- channels ------------------------------------------------------------------------------- */

static int tls_start(void *shared, struct cste_channel *channel, const struct cste_net_peer *peer,
                     struct cst_err *err)
{
    struct tls *tls = shared;
    SSL *ssl = SSL_new(peer != NULL ? tls->calls : tls->called);

    if (ssl == NULL || SSL_set_fd(ssl, channel->fd) != 1 ||
        SSL_set_ex_data(ssl, peer_index, (void *)(uintptr_t)peer) != 1) {
        SSL_free(ssl);
        return failed("making a connection", CST_ENOMEM, err);
    }
    /* The handshake takes place when bytes are first sent or received. */
    if (peer != NULL) {
        SSL_set_connect_state(ssl);
    } else {
        SSL_set_accept_state(ssl);
    }
    channel->secret = ssl;
    return CST_OK;
}

static void tls_stop(struct cste_channel *channel)
{
    SSL_free(channel->secret);
    channel->secret = NULL;
}

/* Returns what send and receive return after OpenSSL has returned @n. */
static ssize_t outcome(struct cste_channel *channel, int n, struct cst_err *err)
{
    int saved = errno;

    if (n > 0) {
        return n;
    }
    switch (SSL_get_error(channel->secret, n)) {
    case SSL_ERROR_WANT_READ:
        channel->wants = POLLIN;
        return 0;
    case SSL_ERROR_WANT_WRITE:
        channel->wants = POLLOUT;
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        (void)cst_err_set(err, CST_ECONN, "it has closed the connection");
        return -1;
    case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        (void)cst_err_errno(err, CST_ECONN, saved, "the connection has ended");
        return -1;
    default:
        (void)failed("TLS", CST_ECONN, err);
        return -1;
    }
}

static int clip(size_t bytes)
{
    return bytes < INT_MAX ? (int)bytes : INT_MAX;
}

static ssize_t tls_send(struct cste_channel *channel, const void *from, size_t bytes, bool more,
                        struct cst_err *err)
{
    (void)more;
    errno = 0;
    return outcome(channel, SSL_write(channel->secret, from, clip(bytes)), err);
}

static ssize_t tls_receive(struct cste_channel *channel, void *to, size_t bytes,
                           struct cst_err *err)
{
    errno = 0;
    return outcome(channel, SSL_read(channel->secret, to, clip(bytes)), err);
}

static bool tls_is_peer(const struct cste_channel *channel, const struct cste_net_peer *peer)
{
    X509 *theirs = SSL_get0_peer_certificate(channel->secret);
    unsigned char *der = NULL;
    int bytes = theirs != NULL ? i2d_X509(theirs, &der) : -1;
    bool same = bytes > 0 && peer->certificate_bytes == (size_t)bytes &&
                memcmp(peer->certificate, der, (size_t)bytes) == 0;

    OPENSSL_free(der);
    return same;
}

const struct cste_channel_ops cste_channel_encrypted = {.open = tls_open,
                                                        .close = tls_close,
                                                        .start = tls_start,
                                                        .stop = tls_stop,
                                                        .send = tls_send,
                                                        .receive = tls_receive,
                                                        .is_peer = tls_is_peer};
