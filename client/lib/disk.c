/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/disk.h"

#include "client/lib/call.h"
#include "proto/cistern.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Files of one job. */
struct files {
    int fds[CST_FRAME_MAX_FDS];
    unsigned n;
};

static void close_all(struct files *files)
{
    while (files->n > 0) {
        (void)close(files->fds[--files->n]);
    }
}

/* Make a file without a name in @directory: whoever dies, nothing is left there. */
static int make(const char *directory, int *out, struct cst_err *err)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);

    if (fd < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
        return cst_err_errno(err, CST_EUNSUPPORTED, errno,
                             "disk: the file system of '%.150s' has no files with O_DIRECT and "
                             "O_TMPFILE, which states need; ext4 and XFS on a drive have",
                             directory);
    }
    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "disk: a file in '%.150s'", directory);
    }
    *out = fd;
    return CST_OK;
}

/* Make a file in each of the directories @list. */
static int make_all(const char *list, struct files *files, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && list != NULL) {
        const char *comma = strchrnul(list, ',');
        char directory[PATH_MAX];

        if (comma == list || comma - list >= PATH_MAX) {
            return cst_err_set(err, CST_EINVAL, "disk: an empty or too long directory in '%.150s'",
                               list);
        }
        if (files->n == CST_FRAME_MAX_FDS) {
            return cst_err_set(err, CST_EINVAL, "disk: more than %d directories",
                               CST_FRAME_MAX_FDS);
        }
        memcpy(directory, list, (size_t)(comma - list));
        directory[comma - list] = '\0';
        rc = make(directory, &files->fds[files->n], err);
        files->n += rc == CST_OK;
        list = *comma == ',' ? comma + 1 : NULL;
    }
    return rc;
}

int cstc_disk_give(struct cst_client *client, const struct cst_job_spec *spec, struct cst_err *err)
{
    struct files files = {.n = 0};
    struct cstc_call call = {.sent_fds = files.fds};
    int rc = make_all(spec->states.disk, &files, err);

    /* The daemon accepts descriptors only after a request without any. */
    for (int i = 0; i < 2 && rc == CST_OK; i++) {
        call.n_sent_fds = i == 0 ? 0 : files.n;
        rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_JOB_FILES, NULL,
                            CISTERN__MSG_TYPE__MSG_OK, NULL, err);
        if (rc == CST_OK) {
            cstc_call_reset(&call);
        }
    }
    close_all(&files);
    return rc;
}
