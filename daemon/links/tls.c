/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct cstd_tls_context {
    SSL_CTX *ssl;
    char fingerprint[CST_FINGERPRINT_BYTES];
    bool has_authorities;
};

struct cstd_tls {
    SSL *ssl;
    BIO *in, *out; /* What has come, and what is to be sent; they belong to ssl. */
    cstd_tls_admit_fn admit;
    void *arg;
    struct cst_err refusal; /* Why the peer was not admitted; status 0: it was. */
    bool has_authorities;
};

/* -- errors --------------------------------------------------------------------------------- */

/* OpenSSL's words for the first error in its queue, which is emptied. */
static const char *take_words(unsigned long *code)
{
    const char *words;

    *code = ERR_peek_error();
    words = ERR_reason_error_string(*code);
    ERR_clear_error();
    return words != NULL ? words : "no reason is known";
}

/* Whether @code is an alert of the peer about our certificate. */
static bool is_refusal(unsigned long code)
{
    static const int alerts[] = {SSL_AD_BAD_CERTIFICATE,     SSL_AD_UNSUPPORTED_CERTIFICATE,
                                 SSL_AD_CERTIFICATE_REVOKED, SSL_AD_CERTIFICATE_EXPIRED,
                                 SSL_AD_CERTIFICATE_UNKNOWN, SSL_AD_UNKNOWN_CA,
                                 SSL_AD_ACCESS_DENIED,       SSL_AD_CERTIFICATE_REQUIRED};

    for (size_t i = 0; i < sizeof alerts / sizeof *alerts; i++) {
        if (ERR_GET_REASON(code) == SSL_AD_REASON_OFFSET + alerts[i]) {
            return true;
        }
    }
    return false;
}

/* Make the error of a call of OpenSSL that returned @n. */
static int explain(struct cstd_tls *tls, int n, struct cst_err *err)
{
    const int what = SSL_get_error(tls->ssl, n);
    unsigned long code;
    const char *words;

    if (what == SSL_ERROR_WANT_READ) {
        ERR_clear_error();
        return CST_EAGAIN;
    }
    if (what == SSL_ERROR_ZERO_RETURN) {
        ERR_clear_error();
        return cst_err_set(err, CST_ECONN, "the other node has closed the connection");
    }
    words = take_words(&code);
    if (tls->refusal.status != CST_OK) {
        *err = tls->refusal;
        return err->status;
    }
    if (is_refusal(code)) {
        return cst_err_set(err, CST_EDENIED,
                           "the other node does not accept the certificate of this one: on it, run "
                           "the line that 'cistern node key' prints here (and see its log)");
    }
    return cst_err_set(err, CST_EPROTO, "no TLS 1.3 with a certificate: %s", words);
}

/* -- the peer's certificate ----------------------------------------------------------------- */

bool cstd_tls_peer_is(const struct cstd_tls_peer *peer, const char *name)
{
    return X509_check_host(peer->certificate, name, 0, X509_CHECK_FLAG_NO_WILDCARDS, NULL) == 1;
}

/* Check the time of @certificate. */
static int check_time(const X509 *certificate, int *reason, struct cst_err *err)
{
    if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
        *reason = X509_V_ERR_CERT_HAS_EXPIRED;
        return cst_err_set(err, CST_EDENIED, "its certificate has expired: make another one there");
    }
    if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
        *reason = X509_V_ERR_CERT_NOT_YET_VALID;
        return cst_err_set(err, CST_EDENIED,
                           "its certificate is not valid yet: compare the clocks of both nodes");
    }
    return CST_OK;
}

/* Called by OpenSSL in place of its own check of the peer's certificate. Returns 1: admitted. */
static int on_verify(X509_STORE_CTX *store, void *arg)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct cstd_tls *tls = SSL_get_app_data(ssl);
    struct cstd_tls_peer peer = {.certificate = X509_STORE_CTX_get0_cert(store)};
    int reason = X509_V_ERR_CERT_UNTRUSTED;
    int rc = cst_certificate_fingerprint(peer.certificate, peer.fingerprint, &tls->refusal);

    (void)arg;
    rc = rc == CST_OK ? check_time(peer.certificate, &reason, &tls->refusal) : rc;
    if (rc == CST_OK) {
        peer.is_vouched = tls->has_authorities && X509_verify_cert(store) == 1;
        rc = tls->admit(tls->arg, &peer, &tls->refusal);
    }
    ERR_clear_error();
    X509_STORE_CTX_set_error(store, rc == CST_OK ? X509_V_OK : reason);
    return rc == CST_OK;
}

/* -- keys and certificates ------------------------------------------------------------------ */

/* A key with a passphrase cannot be used: nobody can be asked for it. */
static int no_passphrase(char *out, int n, int write, void *arg)
{
    (void)out;
    (void)n;
    (void)write;
    (void)arg;
    return 0;
}

/* Make the error for @path, whose @what OpenSSL did not take. */
static int refuse_file(const char *path, const char *what, struct cst_err *err)
{
    unsigned long code;
    const char *words = take_words(&code);

    return cst_err_set(err, CST_EINVAL, "%s: no %s in PEM format without a passphrase: %s", path,
                       what, words);
}

/* Make the error for @path, which cannot be opened. */
static int no_file(const char *path, int cause, struct cst_err *err)
{
    return cst_err_set(err, CST_EIO, "%s: %s: %s", path, strerror(cause),
                       cause == EACCES ? "let the daemon's group read it (chgrp, chmod 640)"
                                       : "'cistern node key' makes a key and its certificate");
}

static int check_file(const char *path, bool secret, struct cst_err *err)
{
    struct stat st;
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        return no_file(path, errno, err);
    }
    if (fstat(fileno(file), &st) == 0 && secret && (st.st_mode & (S_IROTH | S_IWOTH)) != 0) {
        (void)fclose(file);
        return cst_err_set(err, CST_EDENIED,
                           "%s: the key can be read or written by all users (mode %04o): chmod "
                           "o-rwx it, and make another one if somebody may have read it",
                           path, (unsigned)(st.st_mode & 07777));
    }
    (void)fclose(file);
    return CST_OK;
}

static int load(struct cstd_tls_context *context, const char *key, const char *certificate,
                const char *authorities, struct cst_err *err)
{
    SSL_CTX *ssl = context->ssl;
    int rc = check_file(key, true, err);

    rc = rc == CST_OK ? check_file(certificate, false, err) : rc;
    if (rc == CST_OK && SSL_CTX_use_certificate_chain_file(ssl, certificate) != 1) {
        rc = refuse_file(certificate, "certificate", err);
    }
    if (rc == CST_OK && SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) != 1) {
        rc = refuse_file(key, "key of the certificate", err);
    }
    if (rc == CST_OK && authorities != NULL && authorities[0] != '\0') {
        rc = check_file(authorities, false, err);
        if (rc == CST_OK && SSL_CTX_load_verify_file(ssl, authorities) != 1) {
            rc = refuse_file(authorities, "certificates of authorities", err);
        }
        context->has_authorities = true;
    }
    return rc == CST_OK ? cst_certificate_fingerprint(SSL_CTX_get0_certificate(ssl),
                                                      context->fingerprint, err)
                        : rc;
}

int cstd_tls_context_open(struct cstd_tls_context **out, const char *key, const char *certificate,
                          const char *authorities, struct cst_err *err)
{
    struct cstd_tls_context *context = calloc(1, sizeof *context);
    int rc;

    if (context != NULL) {
        context->ssl = SSL_CTX_new(TLS_method());
    }
    if (context == NULL || context->ssl == NULL) {
        free(context);
        ERR_clear_error();
        return cst_err_set(err, CST_ENOMEM, "no memory for keys");
    }
    (void)SSL_CTX_set_min_proto_version(context->ssl, TLS1_3_VERSION);
    (void)SSL_CTX_set_options(context->ssl, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    (void)SSL_CTX_set_num_tickets(context->ssl, 0);
    (void)SSL_CTX_set_session_cache_mode(context->ssl, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(context->ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_max_cert_list(context->ssl, CSTD_TLS_CERTIFICATE_BYTES);
    SSL_CTX_set_default_passwd_cb(context->ssl, no_passphrase);
    SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(context->ssl, on_verify, NULL);
    rc = load(context, key, certificate, authorities, err);
    if (rc != CST_OK) {
        cstd_tls_context_close(context);
        return rc;
    }
    *out = context;
    return CST_OK;
}

void cstd_tls_context_close(struct cstd_tls_context *context)
{
    if (context != NULL) {
        SSL_CTX_free(context->ssl);
        free(context);
    }
}

const char *cstd_tls_context_fingerprint(const struct cstd_tls_context *context)
{
    return context->fingerprint;
}

double cstd_tls_context_seconds_left(const struct cstd_tls_context *context)
{
    int days = 0, seconds = 0;

    (void)ASN1_TIME_diff(&days, &seconds, NULL,
                         X509_get0_notAfter(SSL_CTX_get0_certificate(context->ssl)));
    return days * 86400.0 + seconds;
}

/* -- a connection --------------------------------------------------------------------------- */

int cstd_tls_open(struct cstd_tls **out, struct cstd_tls_context *context, bool client,
                  cstd_tls_admit_fn admit, void *arg, struct cst_err *err)
{
    struct cstd_tls *tls = calloc(1, sizeof *tls);

    if (tls == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a connection");
    }
    tls->ssl = SSL_new(context->ssl);
    tls->in = BIO_new(BIO_s_mem());
    tls->out = BIO_new(BIO_s_mem());
    if (tls->ssl == NULL || tls->in == NULL || tls->out == NULL) {
        (void)BIO_free(tls->in);
        (void)BIO_free(tls->out);
        SSL_free(tls->ssl);
        free(tls);
        ERR_clear_error();
        return cst_err_set(err, CST_ENOMEM, "no memory for a connection");
    }
    (void)BIO_set_mem_eof_return(tls->in, -1); /* No bytes: more may come. */
    SSL_set_bio(tls->ssl, tls->in, tls->out);
    (void)SSL_set_app_data(tls->ssl, tls);
    tls->admit = admit;
    tls->arg = arg;
    tls->has_authorities = context->has_authorities;
    if (client) {
        SSL_set_connect_state(tls->ssl);
    } else {
        SSL_set_accept_state(tls->ssl);
    }
    *out = tls;
    return CST_OK;
}

void cstd_tls_close(struct cstd_tls *tls)
{
    if (tls != NULL) {
        SSL_free(tls->ssl);
        free(tls);
    }
}

int cstd_tls_feed(struct cstd_tls *tls, const uint8_t *bytes, size_t n, struct cst_err *err)
{
    if (n > 0 && BIO_write(tls->in, bytes, (int)n) != (int)n) {
        ERR_clear_error();
        return cst_err_set(err, CST_ENOMEM, "no memory for %zu bytes of another node", n);
    }
    return CST_OK;
}

int cstd_tls_handshake(struct cstd_tls *tls, struct cst_err *err)
{
    int n;

    ERR_clear_error();
    n = SSL_do_handshake(tls->ssl);
    return n == 1 ? CST_OK : explain(tls, n, err);
}

int cstd_tls_read(struct cstd_tls *tls, uint8_t *out, size_t n, size_t *n_read, struct cst_err *err)
{
    int rc;

    ERR_clear_error();
    rc = SSL_read_ex(tls->ssl, out, n, n_read);
    return rc == 1 ? CST_OK : explain(tls, rc, err);
}

int cstd_tls_write(struct cstd_tls *tls, const uint8_t *bytes, size_t n, struct cst_err *err)
{
    size_t n_written = 0;

    ERR_clear_error();
    if (SSL_write_ex(tls->ssl, bytes, n, &n_written) == 1 && n_written == n) {
        return CST_OK;
    }
    ERR_clear_error();
    return cst_err_set(err, CST_ENOMEM, "%zu bytes for another node cannot be encrypted", n);
}

void cstd_tls_end(struct cstd_tls *tls)
{
    ERR_clear_error();
    if (SSL_is_init_finished(tls->ssl) && tls->refusal.status == CST_OK) {
        (void)SSL_shutdown(tls->ssl);
    }
    ERR_clear_error();
}

size_t cstd_tls_waiting(const struct cstd_tls *tls)
{
    return BIO_ctrl_pending(tls->out);
}

size_t cstd_tls_take(struct cstd_tls *tls, uint8_t *out, size_t n)
{
    const int taken = BIO_read(tls->out, out, (int)n);

    return taken > 0 ? (size_t)taken : 0;
}
