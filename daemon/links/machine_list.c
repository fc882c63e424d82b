/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/machine_list.h"

#include "proto/new_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char drained_word[] = "drained";

int cstd_machine_entry_make(struct cstd_machine_entry *out, const char *name, const char *address,
                            const char *identity, struct cst_err *err)
{
    struct cstd_machine_address at;
    int rc;

    if (!cst_job_name_is_valid(name)) {
        return cst_err_set(err, CST_EINVAL, "'%.80s' is not a name of a node: " CST_JOB_NAME_RULE,
                           name);
    }
    rc = cstd_machine_address_read(&at, address, err);
    if (rc == CST_OK && (at.port == 0 || strlen(address) >= sizeof out->address)) {
        rc = cst_err_set(err, CST_EINVAL, "'%.140s' is too long, or its port is 0", address);
    }
    if (rc == CST_OK && strcmp(identity, CSTD_MACHINE_CA) != 0 &&
        !cst_certificate_is_fingerprint(identity)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "'%.80s' is neither a fingerprint, sha256: and 64 lower-case digits as "
                         "'cistern node key' prints it, nor ca",
                         identity);
    }
    if (rc == CST_OK) {
        *out = (struct cstd_machine_entry){.drained = false};
        (void)snprintf(out->name, sizeof out->name, "%s", name);
        (void)snprintf(out->address, sizeof out->address, "%s", address);
        (void)snprintf(out->identity, sizeof out->identity, "%s", identity);
    }
    return rc;
}

struct cstd_machine_entry *cstd_machine_list_find(struct cstd_machine_list *list, const char *name)
{
    for (unsigned i = 0; i < list->n; i++) {
        if (strcmp(list->v[i].name, name) == 0) {
            return &list->v[i];
        }
    }
    return NULL;
}

/* Two entries with one fingerprint would be one machine under two names. */
static bool has_identity(const struct cstd_machine_list *list, const char *identity)
{
    for (unsigned i = 0; i < list->n; i++) {
        if (strcmp(identity, CSTD_MACHINE_CA) != 0 && strcmp(list->v[i].identity, identity) == 0) {
            return true;
        }
    }
    return false;
}

/* Add the entry of @line, which is changed. */
static int read_line(struct cstd_machine_list *list, char *line, struct cst_err *err)
{
    char *words[5] = {NULL}, *save = NULL;
    unsigned n = 0;
    struct cstd_machine_entry entry;
    int rc;

    for (char *word = strtok_r(line, " \t\r\n", &save); word != NULL && n < 5;
         word = strtok_r(NULL, " \t\r\n", &save)) {
        words[n++] = word;
    }
    if (n == 0 || words[0][0] == '#') {
        return CST_OK;
    }
    if (n < 3 || n > 4 || (n == 4 && strcmp(words[3], drained_word) != 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "not 'NAME HOST:PORT IDENTITY' or 'NAME HOST:PORT "
                           "IDENTITY drained'");
    }
    rc = cstd_machine_entry_make(&entry, words[0], words[1], words[2], err);
    if (rc != CST_OK) {
        return rc;
    }
    if (cstd_machine_list_find(list, entry.name) != NULL || has_identity(list, entry.identity)) {
        return cst_err_set(err, CST_EINVAL, "the node '%s', or its fingerprint, is there twice",
                           entry.name);
    }
    if (list->n == CSTD_MACHINES_MAX) {
        return cst_err_set(err, CST_EINVAL, "more than %d nodes", CSTD_MACHINES_MAX);
    }
    entry.drained = n == 4;
    list->v[list->n++] = entry;
    return CST_OK;
}

int cstd_machine_list_read(struct cstd_machine_list *out, const char *path, struct cst_err *err)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    unsigned number = 0;
    int rc = CST_OK;

    out->n = 0;
    if (file == NULL) {
        return errno == ENOENT ? CST_OK : cst_err_errno(err, CST_EIO, errno, "%s", path);
    }
    while (rc == CST_OK && getline(&line, &size, file) >= 0) {
        number++;
        rc = read_line(out, line, err);
    }
    if (rc == CST_OK && ferror(file) != 0) {
        rc = cst_err_set(err, CST_EIO, "%s: cannot be read", path);
    } else if (rc != CST_OK) {
        rc = cst_err_prefix(err, "%s:%u", path, number);
    }
    free(line);
    (void)fclose(file);
    return rc;
}

static void write_entry(const struct cstd_machine_entry *entry, FILE *to)
{
    (void)fprintf(to, "%s %s %s%s%s\n", entry->name, entry->address, entry->identity,
                  entry->drained ? " " : "", entry->drained ? drained_word : "");
}

/* Whether @line is that of the machine @name. */
static bool is_of(const char *line, const char *name)
{
    const size_t n = strlen(name);

    line += strspn(line, " \t");
    return strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == '\t');
}

/* Copy the lines of @from, of which that of @name is replaced. */
static void copy(FILE *from, FILE *to, const char *name, const struct cstd_machine_entry *entry)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t n;

    while (from != NULL && (n = getline(&line, &size, from)) >= 0) {
        if (!is_of(line, name)) {
            (void)fprintf(to, "%s%s", line, line[n - 1] == '\n' ? "" : "\n");
        } else if (entry != NULL) {
            write_entry(entry, to);
            entry = NULL;
        }
    }
    if (entry != NULL) {
        write_entry(entry, to);
    }
    free(line);
}

int cstd_machine_list_change(const char *path, const char *name,
                             const struct cstd_machine_entry *entry, struct cst_err *err)
{
    struct cst_new_file file;
    FILE *from = fopen(path, "re");
    int rc;

    if (from == NULL && errno != ENOENT) {
        return cst_err_errno(err, CST_EIO, errno, "%s", path);
    }
    rc = cst_new_file_open(&file, path, err);
    if (rc == CST_OK) {
        copy(from, file.to, name, entry);
        if (from != NULL && ferror(from) != 0) {
            rc = cst_err_set(err, CST_EIO, "%s: cannot be read", path);
        }
        rc = cst_new_file_close(&file, rc, err);
    }
    if (from != NULL) {
        (void)fclose(from);
    }
    return rc == CST_OK ? CST_OK
                        : cst_err_prefix(err, "the list of nodes is unchanged ('trusted' in [node] "
                                              "names its file)");
}
