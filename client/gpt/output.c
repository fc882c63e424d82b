/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* STDOUT_FILENO or STDERR_FILENO, if @path is the same file; else -1. */
static int standard_fd(const char *path)
{
    struct stat wanted, standard;

    if (stat(path, &wanted) != 0) {
        return -1;
    }
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fstat(fd, &standard) == 0 && standard.st_dev == wanted.st_dev &&
            standard.st_ino == wanted.st_ino) {
            return fd;
        }
    }
    return -1;
}

/* Duplicate the descriptor. A file that was opened by its name would have its own offset, and its
 * beginning would be overwritten. */
static FILE *open_shared(int standard)
{
    int fd = fcntl(standard, F_DUPFD_CLOEXEC, 0);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");

    if (f == NULL && fd >= 0) {
        int saved = errno;

        (void)close(fd);
        errno = saved;
    }
    /* Text that was printed before must come first in the file. */
    (void)fflush(standard == STDOUT_FILENO ? stdout : stderr);
    return f;
}

int gpt_output_open(FILE **out, const char *path, bool append, const char *what,
                    struct cst_err *err)
{
    int standard = standard_fd(path);
    FILE *f = standard >= 0 ? open_shared(standard) : fopen(path, append ? "ae" : "we");

    if (f == NULL) {
        return cst_err_errno(err, CST_EIO, errno, "%s '%s'", what, path);
    }
    *out = f;
    return 0;
}

/* Return whether this user can make files in the directory @path. Sets errno if not. */
static bool can_make_files(const char *path)
{
    struct stat st;

    if (stat(path, &st) != 0) {
        return false;
    }
    errno = ENOTDIR;
    return S_ISDIR(st.st_mode) && access(path, W_OK | X_OK) == 0;
}

/* Cut the last component off @path, which has an end. */
static void cut_name(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash == NULL) {
        (void)strcpy(path, "."); /* A name has a byte. */
    } else {
        slash[slash == path ? 1 : 0] = '\0';
    }
}

int gpt_output_check(const char *path, const char *what, struct cst_err *err)
{
    struct stat st;
    char *directory;
    int rc = 0;

    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) {
            return cst_err_set(err, CST_EINVAL, "%s '%s' is a directory: name a file in it", what,
                               path);
        }
        return access(path, W_OK) == 0
                   ? 0
                   : cst_err_set(err, CST_EINVAL, "%s '%s': %s: name a file that you can write",
                                 what, path, strerror(errno));
    }
    if (path[0] == '\0' || (directory = strdup(path)) == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s: name a file", what);
    }
    cut_name(directory);
    if (!can_make_files(directory)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "%s '%s': no file can be made in %s: %s: name one in a directory that "
                         "exists and that you can write",
                         what, path, directory, strerror(errno));
    }
    free(directory);
    return rc;
}

int gpt_output_check_directory(const char *path, const char *what, struct cst_err *err)
{
    char *existing = strdup(path);
    struct stat st;
    int rc = 0;

    if (existing == NULL || path[0] == '\0') {
        free(existing);
        return cst_err_set(err, CST_EINVAL, "%s: name a directory", what);
    }
    while (stat(existing, &st) != 0 && errno == ENOENT && strcmp(existing, ".") != 0 &&
           strcmp(existing, "/") != 0) {
        cut_name(existing);
    }
    if (!can_make_files(existing)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "%s '%s': no file can be made in %s: %s: name a directory that you can "
                         "write",
                         what, path, existing, strerror(errno));
    }
    free(existing);
    return rc;
}
