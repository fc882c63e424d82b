/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/program.h"

#include "dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cst_program_open_standard_files(struct cst_err *err)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) {
            continue;
        }
        /* The lowest free number is @fd. Its mode is the one that its users do not need. */
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) {
            return cst_err_errno(err, CST_EIO, errno,
                                 "file descriptor %d is closed, and /dev/null cannot be opened",
                                 fd);
        }
    }
    return CST_OK;
}

static bool can_run(char *out, size_t size, const char *dir, const char *between, const char *name)
{
    int n = snprintf(out, size, "%s%s%s", dir, between, name);

    return n > 0 && (size_t)n < size && access(out, X_OK) == 0;
}

/* Write the directory of the calling program, with a '/' at the end and without libtool's
 * ".libs/". */
static bool own_directory(char out[PATH_MAX])
{
    static const char hidden[] = "/.libs/";
    const size_t n_hidden = sizeof hidden - 1;
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    char *slash;
    size_t length;

    out[n > 0 ? n : 0] = '\0';
    slash = strrchr(out, '/');
    if (slash == NULL) {
        return false;
    }
    slash[1] = '\0';
    length = strlen(out);
    if (length >= n_hidden && strcmp(out + length - n_hidden, hidden) == 0) {
        out[length - n_hidden + 1] = '\0';
    }
    return true;
}

/* Write the path of the libexec directory relative to bin/ or sbin/ of the same installation:
 * "../libexec/cistern/". "": the libexec directory is not below the prefix. */
static void libexec_from_bin(char out[PATH_MAX])
{
    const size_t n = strlen(CST_PREFIX);

    out[0] = '\0';
    if (strncmp(CST_LIBEXECDIR, CST_PREFIX, n) == 0 && CST_LIBEXECDIR[n] == '/') {
        (void)snprintf(out, PATH_MAX, "..%s/", &CST_LIBEXECDIR[n]);
    }
}

static bool find_near(const char *name, char *out, size_t size)
{
    char self[PATH_MAX], libexec[PATH_MAX];

    if (!own_directory(self)) {
        return false;
    }
    libexec_from_bin(libexec);
    /* In a build tree the file next to .libs is a shell script; .libs/ with the program itself is
     * tried first. */
    return can_run(out, size, self, ".libs/", name) || can_run(out, size, self, "", name) ||
           (libexec[0] != '\0' && can_run(out, size, self, libexec, name));
}

int cst_program_find(const char *name, const char *given, const char *variable, char *out,
                     size_t size, struct cst_err *err)
{
    const char *named = given != NULL && given[0] != '\0' ? given : getenv(variable);
    int rc;

    if (named != NULL) {
        if (can_run(out, size, named, "", "")) {
            return CST_OK;
        }
        rc = cst_err_errno(err, CST_ENOTFOUND, errno, "program %s", named);
    } else if (find_near(name, out, size) || can_run(out, size, CST_LIBEXECDIR, "/", name)) {
        return CST_OK;
    } else {
        rc = cst_err_set(err, CST_EAGAIN,
                         "no program: %s is neither in the directories of this program nor "
                         "in %s; set %s",
                         name, CST_LIBEXECDIR, variable);
    }
    out[0] = '\0';
    return rc;
}
