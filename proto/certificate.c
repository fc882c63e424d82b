/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/certificate.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "sha256:"
enum { PREFIX_BYTES = sizeof PREFIX - 1, DIGITS = 64 };

int cst_certificate_fingerprint(const X509 *certificate, char out[CST_FINGERPRINT_BYTES],
                                struct cst_err *err)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    if (X509_digest(certificate, EVP_sha256(), digest, &n) != 1 || 2 * n != DIGITS) {
        ERR_clear_error();
        return cst_err_set(err, CST_ENOMEM, "no memory for the digest of a certificate");
    }
    memcpy(out, PREFIX, PREFIX_BYTES);
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(out + PREFIX_BYTES + 2 * i, 3, "%02x", digest[i]);
    }
    return CST_OK;
}

int cst_certificate_read(const char *path, char out[CST_FINGERPRINT_BYTES], struct cst_err *err)
{
    FILE *file = fopen(path, "re");
    X509 *certificate;
    int rc;

    if (file == NULL) {
        return cst_err_errno(err, CST_EIO, errno, "%s", path);
    }
    certificate = PEM_read_X509(file, NULL, NULL, NULL);
    (void)fclose(file);
    ERR_clear_error();
    if (certificate == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s: there is no certificate in PEM format in it",
                           path);
    }
    rc = cst_certificate_fingerprint(certificate, out, err);
    X509_free(certificate);
    return rc;
}

bool cst_certificate_is_fingerprint(const char *text)
{
    return strncmp(text, PREFIX, PREFIX_BYTES) == 0 &&
           strspn(text + PREFIX_BYTES, "0123456789abcdef") == DIGITS &&
           text[PREFIX_BYTES + DIGITS] == '\0';
}
