/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/new_file.h"

#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_replaced(const char *path)
{
    struct stat st;

    return lstat(path, &st) != 0 || S_ISREG(st.st_mode);
}

int cst_new_file_open(struct cst_new_file *file, const char *path, struct cst_err *err)
{
    char *beside = NULL;
    FILE *to;

    if (is_replaced(path) && asprintf(&beside, "%s.%d.new", path, (int)getpid()) < 0) {
        return cst_err_set(err, CST_ENOMEM, "no memory to write %s", path);
    }
    to = beside != NULL ? fopen(beside, "wxe") : fopen(path, "we");
    if (to == NULL) {
        int rc = cst_err_errno(err, CST_EIO, errno, "%s", errno == EEXIST ? beside : path);

        free(beside);
        return rc;
    }
    *file = (struct cst_new_file){.to = to, .path = path, .beside = beside};
    return CST_OK;
}

int cst_new_file_check(const char *path, struct cst_err *err)
{
    struct stat st;
    char *copy;
    int rc = CST_OK;

    if (!is_replaced(path)) {
        /* It is not opened: a pipe's reader would be disturbed by one that is opened twice. */
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            return cst_err_errno(err, CST_EIO, EISDIR, "%s", path);
        }
        return access(path, W_OK) == 0 || errno == ENOENT
                   ? CST_OK /* A link to what does not exist yet is among them. */
                   : cst_err_errno(err, CST_EIO, errno, "%s", path);
    }
    copy = strdup(path);
    if (copy == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to write %s", path);
    }
    if (access(dirname(copy), W_OK | X_OK) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%s", path);
    }
    free(copy);
    return rc;
}

int cst_new_file_close(struct cst_new_file *file, int rc, struct cst_err *err)
{
    int cause = 0; /* errno of the first failure. */

    /* Without fsync, a crash of the machine after the rename could leave an empty file. */
    if (fflush(file->to) != 0 || (file->beside != NULL && fsync(fileno(file->to)) != 0)) {
        cause = errno;
    } else if (ferror(file->to)) {
        cause = EIO;
    }
    if (fclose(file->to) != 0 && cause == 0) {
        cause = errno;
    }
    if (rc == CST_OK && cause == 0 && file->beside != NULL &&
        rename(file->beside, file->path) != 0) {
        cause = errno;
    }
    if (rc == CST_OK && cause != 0) {
        rc = cst_err_errno(err, CST_EIO, cause, "%s", file->path);
    }
    if (rc != CST_OK && file->beside != NULL) {
        (void)unlink(file->beside);
    }
    free(file->beside);
    *file = (struct cst_new_file){.to = NULL};
    return rc;
}
