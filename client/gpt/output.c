/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/output.h"

#include <errno.h>
#include <fcntl.h>
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
