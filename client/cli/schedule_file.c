/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/schedule_file.h"

#include "offload/parallel/schedule_check.h"
#include "offload/parallel/schedule_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FILE_BYTES = 64 << 20 };

/* Read the file @path ("-": standard input) into *text, which the caller frees. CST_EIO,
 * CST_ENOMEM; CST_EINVAL: it is too large. */
static int read_file(const char *path, char **text, size_t *n, struct cst_err *err)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    size_t capacity = 0;
    int rc = CST_OK;

    *text = NULL;
    *n = 0;
    if (file == NULL) {
        return cst_err_errno(err, CST_EIO, errno, "%.255s", path);
    }
    while (rc == CST_OK && !feof(file) && !ferror(file)) {
        if (*n == capacity) {
            char *more = realloc(*text, capacity = capacity > 0 ? 2 * capacity : 4096);

            if (more == NULL) {
                rc = cst_err_set(err, CST_ENOMEM, "%.255s", path);
                break;
            }
            *text = more;
        }
        *n += fread(*text + *n, 1, capacity - *n, file);
        if (*n > MOST_FILE_BYTES) {
            rc = cst_err_set(err, CST_EINVAL, "%.255s: larger than %d MiB, which no schedule is",
                             path, MOST_FILE_BYTES >> 20);
        }
    }
    if (rc == CST_OK && ferror(file)) {
        rc = cst_err_errno(err, CST_EIO, errno, "%.255s", path);
    }
    if (file != stdin) {
        (void)fclose(file);
    }
    return rc;
}

int cli_schedule_write(const struct cst_schedule *schedule, const char *path, struct cst_err *err)
{
    const bool to_stdout = strcmp(path, "-") == 0;
    char *text;
    size_t n;
    FILE *file;
    int rc = cst_schedule_write(&text, &n, schedule, false, err);

    if (rc != CST_OK) {
        return rc;
    }
    file = to_stdout ? stdout : fopen(path, "we");
    if (file == NULL || fwrite(text, 1, n, file) != n) {
        rc = cst_err_errno(err, CST_EIO, errno, "%.255s", path);
    }
    if (file != NULL && !to_stdout && fclose(file) != 0 && rc == CST_OK) {
        rc = cst_err_errno(err, CST_EIO, errno, "%.255s", path);
    }
    free(text);
    return rc;
}

int cli_schedule_read(struct cst_schedule *out, const char *path, struct cst_err *err)
{
    char *text;
    size_t n;
    int rc = read_file(path, &text, &n, err);

    if (rc == CST_OK) {
        rc = cst_schedule_read(out, text, n, err);
        rc = rc == CST_OK ? cst_schedule_check(out, err) : rc;
        if (rc != CST_OK) {
            (void)cst_err_prefix(err, "%.255s", path);
        }
    }
    free(text);
    return rc;
}
