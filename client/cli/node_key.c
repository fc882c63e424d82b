/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern node key`: makes the key of this node and its certificate. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "dirs.h"
#include "proto/certificate.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION_3 = 2 }; /* Of X.509. */

struct files {
    char key[512], certificate[512];
    char name[256]; /* Name of the host, without its domain. */
    char fingerprint[CST_FINGERPRINT_BYTES];
};

static int no_key(struct cst_err *err)
{
    const char *words = ERR_reason_error_string(ERR_peek_error());

    return cst_err_set(err, CST_EINTERNAL, "no key could be made: %s",
                       words != NULL ? words : "no reason is known");
}

/* Add the extension @number with @value. */
static bool extend(X509 *certificate, int number, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, number, value);
    const bool good = extension != NULL && X509_add_ext(certificate, extension, -1) == 1;

    X509_EXTENSION_free(extension);
    return good;
}

/* Fill @certificate for @key. It has no end: a node is trusted until it is dropped. */
static bool fill(X509 *certificate, EVP_PKEY *key, const char *name)
{
    X509_NAME *subject = X509_get_subject_name(certificate);
    uint64_t serial = 0;

    return RAND_bytes((unsigned char *)&serial, sizeof serial) == 1 &&
           X509_set_version(certificate, VERSION_3) == 1 &&
           ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), serial >> 1) == 1 &&
           X509_gmtime_adj(X509_getm_notBefore(certificate), -86400) != NULL &&
           ASN1_TIME_set_string(X509_getm_notAfter(certificate), "99991231235959Z") == 1 &&
           X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1,
                                      -1, 0) == 1 &&
           X509_set_issuer_name(certificate, subject) == 1 &&
           X509_set_pubkey(certificate, key) == 1 &&
           extend(certificate, NID_basic_constraints, "critical,CA:FALSE") &&
           extend(certificate, NID_ext_key_usage, "serverAuth,clientAuth") &&
           X509_sign(certificate, key, EVP_sha256()) > 0;
}

/* Open a file for writing that does not exist yet. As root, the daemon's group may read a secret.
 */
static FILE *create(const char *path, bool secret, struct cst_err *err)
{
    const struct group *group = geteuid() == 0 ? getgrnam("cistern") : NULL;
    const mode_t mode = !secret ? 0644 : group != NULL ? 0640 : 0600;
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;

    if (file == NULL || (group != NULL && fchown(fd, (uid_t)-1, group->gr_gid) != 0) ||
        fchmod(fd, mode) != 0) {
        (void)cst_err_errno(err, CST_EIO, errno, "%s", path);
        if (file != NULL) {
            (void)fclose(file);
            (void)unlink(path);
        } else if (fd >= 0) {
            (void)close(fd);
        }
        return NULL;
    }
    return file;
}

/* Write the key, or the certificate if @key is NULL. */
static int write_file(const char *path, EVP_PKEY *key, X509 *certificate, struct cst_err *err)
{
    FILE *file = create(path, key != NULL, err);
    bool good;

    if (file == NULL) {
        return CST_EIO;
    }
    good = (key != NULL ? PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL)
                        : PEM_write_X509(file, certificate)) == 1;
    good = fflush(file) == 0 && fsync(fileno(file)) == 0 && good;
    good = fclose(file) == 0 && good;
    if (!good) {
        (void)unlink(path);
        return cst_err_errno(err, CST_EIO, errno, "%s cannot be written", path);
    }
    return CST_OK;
}

static int make_files(const struct files *files, struct cst_err *err)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    int rc = key != NULL && certificate != NULL && fill(certificate, key, files->name)
                 ? write_file(files->key, key, NULL, err)
                 : no_key(err);

    if (rc == CST_OK) {
        rc = write_file(files->certificate, NULL, certificate, err);
        if (rc != CST_OK) {
            (void)unlink(files->key);
        }
    }
    X509_free(certificate);
    EVP_PKEY_free(key);
    return rc;
}

/* Make @dir, if only its last part is missing. */
static int need_dir(const char *dir, struct cst_err *err)
{
    return mkdir(dir, 0755) == 0 || errno == EEXIST
               ? CST_OK
               : cst_err_errno(err, CST_EIO, errno,
                               "the directory %s is not there and cannot be made", dir);
}

/* Make what is missing. *is_new: the key was made now. */
static int need_files(const char *dir, struct files *files, bool *is_new, struct cst_err *err)
{
    const bool has_key = access(files->key, F_OK) == 0;
    const bool has_certificate = access(files->certificate, F_OK) == 0;
    int rc = CST_OK;

    *is_new = !has_key;
    if (has_key != has_certificate) {
        return cst_err_set(err, CST_EINVAL,
                           "%s is there and %s is not: remove it, or put back the "
                           "other one",
                           has_key ? files->key : files->certificate,
                           has_key ? files->certificate : files->key);
    }
    rc = has_key ? CST_OK : need_dir(dir, err);
    if (rc == CST_OK && !has_key) {
        rc = make_files(files, err);
    }
    return rc == CST_OK ? cst_certificate_read(files->certificate, files->fingerprint, err) : rc;
}

static bool print(const struct cli *cli, const struct files *files, bool is_new)
{
    if (cli->json) {
        return cli_json_print(json_pack("{s:s, s:s, s:s, s:b}", "key", files->key, "certificate",
                                        files->certificate, "fingerprint", files->fingerprint,
                                        "made", is_new));
    }
    (void)printf("%s %s\ncertificate %s\nfingerprint %s\n\n"
                 "On each other node, with the name and the address of this one:\n"
                 "  cistern node add %s %s:%d %s\n",
                 is_new ? "made the key" : "the key is there:", files->key, files->certificate,
                 files->fingerprint, files->name, files->name, CST_NODE_PORT, files->fingerprint);
    return true;
}

int cli_node_key(struct cli *cli)
{
    const char *dir = cli->n_args > 0 ? cli->args[0] : CST_SYSCONFDIR "/cistern";
    struct files files = {.name = ""};
    struct cst_err err = {0};
    bool is_new;

    (void)gethostname(files.name, sizeof files.name - 1);
    files.name[strcspn(files.name, ".")] = '\0';
    if ((size_t)snprintf(files.key, sizeof files.key, "%s/" CST_NODE_KEY_NAME, dir) >=
            sizeof files.key ||
        (size_t)snprintf(files.certificate, sizeof files.certificate,
                         "%s/" CST_NODE_CERTIFICATE_NAME, dir) >= sizeof files.certificate) {
        return cli_usage("the name of the directory is too long", dir);
    }
    if (need_files(dir, &files, &is_new, &err) != CST_OK) {
        return cli_fail(&err);
    }
    return print(cli, &files, is_new) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
