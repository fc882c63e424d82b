/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/certificates.h"

#include <check.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/stat.h>

enum { VERSION_3 = 2 }; /* Of X.509. */

static FILE *must_open(const char *path, const char *mode)
{
    FILE *file = fopen(path, mode);

    ck_assert_msg(file != NULL, "%s", path);
    return file;
}

static void extend(X509 *certificate, int number, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, number, value);

    ck_assert_ptr_nonnull(extension);
    ck_assert_int_eq(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

static void add_extensions(X509 *certificate, const struct certificate_spec *spec)
{
    char name[128];

    if (spec->is_authority) {
        extend(certificate, NID_basic_constraints, "critical,CA:TRUE");
        extend(certificate, NID_key_usage, "critical,keyCertSign");
        return;
    }
    (void)snprintf(name, sizeof name, "DNS:%s", spec->name);
    extend(certificate, NID_subject_alt_name, name);
    extend(certificate, NID_ext_key_usage, "serverAuth,clientAuth");
}

static void set_issuer(X509 *certificate, const struct certificate_spec *spec)
{
    FILE *file;
    X509 *signer;

    if (spec->signer == NULL) {
        ck_assert_int_eq(X509_set_issuer_name(certificate, X509_get_subject_name(certificate)), 1);
        return;
    }
    file = must_open(spec->signer, "re");
    signer = PEM_read_X509(file, NULL, NULL, NULL);
    ck_assert_ptr_nonnull(signer);
    ck_assert_int_eq(X509_set_issuer_name(certificate, X509_get_subject_name(signer)), 1);
    X509_free(signer);
    (void)fclose(file);
}

static void sign(X509 *certificate, EVP_PKEY *own, const struct certificate_spec *spec)
{
    EVP_PKEY *key = own;

    if (spec->signer_key != NULL) {
        FILE *file = must_open(spec->signer_key, "re");

        key = PEM_read_PrivateKey(file, NULL, NULL, NULL);
        ck_assert_ptr_nonnull(key);
        (void)fclose(file);
    }
    ck_assert_int_gt(X509_sign(certificate, key, EVP_sha256()), 0);
    if (key != own) {
        EVP_PKEY_free(key);
    }
}

static void write_key(EVP_PKEY *key, const char *path)
{
    FILE *file = must_open(path, "we");

    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    ck_assert_int_eq(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    (void)fclose(file);
}

void certificate_make(const struct certificate_spec *spec, const char *key_path, const char *path,
                      char out[CST_FINGERPRINT_BYTES])
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    struct cst_err err = {0};
    uint64_t serial = 0;
    FILE *file;

    ck_assert_int_eq(RAND_bytes((unsigned char *)&serial, sizeof serial), 1);
    (void)X509_set_version(certificate, VERSION_3);
    (void)ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), serial >> 1);
    (void)X509_gmtime_adj(X509_getm_notBefore(certificate), spec->from_s);
    (void)X509_gmtime_adj(X509_getm_notAfter(certificate), spec->until_s);
    (void)X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                                     (const unsigned char *)spec->name, -1, -1, 0);
    (void)X509_set_pubkey(certificate, key);
    set_issuer(certificate, spec);
    add_extensions(certificate, spec);
    sign(certificate, key, spec);
    write_key(key, key_path);
    file = must_open(path, "we");
    ck_assert_int_eq(PEM_write_X509(file, certificate), 1);
    (void)fclose(file);
    ck_assert_msg(cst_certificate_fingerprint(certificate, out, &err) == CST_OK, "%s", err.text);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

void certificate_forge_key(const char *path, const char *key_path)
{
    FILE *file = must_open(path, "re");
    X509 *certificate = PEM_read_X509(file, NULL, NULL, NULL);
    OSSL_PARAM_BLD *builder = OSSL_PARAM_BLD_new();
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    BIGNUM *secret = BN_new();
    uint8_t point[128];
    size_t n = 0;
    EVP_PKEY *key = NULL;
    OSSL_PARAM *params;

    ck_assert_int_eq(BN_set_word(secret, 4711), 1);
    ck_assert_int_eq(EVP_PKEY_get_octet_string_param(X509_get0_pubkey(certificate),
                                                     OSSL_PKEY_PARAM_PUB_KEY, point, sizeof point,
                                                     &n),
                     1);
    ck_assert_int_eq(
        OSSL_PARAM_BLD_push_utf8_string(builder, OSSL_PKEY_PARAM_GROUP_NAME, "P-256", 0), 1);
    ck_assert_int_eq(OSSL_PARAM_BLD_push_octet_string(builder, OSSL_PKEY_PARAM_PUB_KEY, point, n),
                     1);
    ck_assert_int_eq(OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_PRIV_KEY, secret), 1);
    params = OSSL_PARAM_BLD_to_param(builder);
    ck_assert_int_eq(EVP_PKEY_fromdata_init(context), 1);
    ck_assert_int_eq(EVP_PKEY_fromdata(context, &key, EVP_PKEY_KEYPAIR, params), 1);
    write_key(key, key_path);
    EVP_PKEY_free(key);
    OSSL_PARAM_free(params);
    OSSL_PARAM_BLD_free(builder);
    EVP_PKEY_CTX_free(context);
    BN_free(secret);
    X509_free(certificate);
    (void)fclose(file);
}
