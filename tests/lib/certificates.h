/* SPDX-License-Identifier: Apache-2.0 */
/* Makes keys and certificates for tests of links between machines. */
#ifndef CST_TESTS_CERTIFICATES_H
#define CST_TESTS_CERTIFICATES_H

#include "proto/certificate.h"

struct certificate_spec {
    const char *name;       /* The common name and, unless it is an authority, the DNS name. */
    long from_s, until_s;   /* From when and until when it is valid, s from now. */
    bool is_authority;      /* It can sign others. */
    const char *signer_key; /* Files of the authority that signs it; NULL: itself. */
    const char *signer;
};

/* Write @key and @certificate, PEM files, and the fingerprint to @out. */
void certificate_make(const struct certificate_spec *spec, const char *key, const char *certificate,
                      char out[CST_FINGERPRINT_BYTES]);

/* Write to @key a key that looks like that of @certificate, and is another one. */
void certificate_forge_key(const char *certificate, const char *key);

#endif
