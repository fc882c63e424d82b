/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/keeper.h"

#include "daemon/report/notify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* All names of stored descriptors begin with this. */
#define PREFIX "kept-"

void cstd_keeper_init(struct cstd_keeper *keeper, struct cstd_notify *notify)
{
    const char *limit = getenv("FDSTORE");

    *keeper = (struct cstd_keeper){.notify = notify};
    /* Without the manager's socket nothing can be sent. */
    if (limit != NULL && getenv("NOTIFY_SOCKET") != NULL) {
        keeper->limit = (uint32_t)strtoul(limit, NULL, 10);
    }
}

bool cstd_keeper_is_name(const char *name)
{
    return strncmp(name, PREFIX, sizeof PREFIX - 1) == 0;
}

int cstd_keeper_inherit(struct cstd_keeper *keeper, const char *name, int fd, struct cst_err *err)
{
    struct cstd_kept *kept = reallocarray(keeper->kept, keeper->n_kept + 1, sizeof *kept);
    struct stat st;

    if (kept != NULL) {
        keeper->kept = kept;
    }
    if (kept == NULL || fstat(fd, &st) != 0) {
        (void)close(fd);
        return cst_err_set(err, CST_ENOMEM, "a descriptor of the service manager's store");
    }
    kept = &keeper->kept[keeper->n_kept++];
    *kept = (struct cstd_kept){.fd = fd, .inode = st.st_ino};
    (void)snprintf(kept->name, sizeof kept->name, "%s", name);
    return CST_OK;
}

void cstd_keeper_close(struct cstd_keeper *keeper)
{
    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        if (keeper->kept[i].fd >= 0) {
            (void)close(keeper->kept[i].fd);
        }
    }
    free(keeper->kept);
    keeper->kept = NULL;
    keeper->n_kept = 0;
}

int cstd_keeper_take(struct cstd_keeper *keeper, const char *name, uint64_t inode)
{
    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        struct cstd_kept *kept = &keeper->kept[i];

        if (kept->fd >= 0 && (inode == 0 || kept->inode == inode) &&
            strcmp(kept->name, name) == 0) {
            int fd = kept->fd;

            kept->fd = -1;
            return fd;
        }
    }
    return -1;
}

bool cstd_keeper_has(const struct cstd_keeper *keeper, const char *name)
{
    for (uint32_t i = 0; i < keeper->n_stored; i++) {
        if (strcmp(keeper->stored[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

bool cstd_keeper_has_room(const struct cstd_keeper *keeper, uint32_t n)
{
    return keeper->limit == 0 ||
           (keeper->n_stored <= keeper->limit && n <= keeper->limit - keeper->n_stored);
}

int cstd_keeper_store(struct cstd_keeper *keeper, const char *name, const int *fds, uint32_t n,
                      bool sent, struct cst_err *err)
{
    struct cstd_stored *stored = reallocarray(keeper->stored, keeper->n_stored + n, sizeof *stored);

    if (stored == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of descriptors");
    }
    keeper->stored = stored;
    if (keeper->limit > 0 && !sent &&
        cstd_notify_store(keeper->notify, name, fds, n, err) != CST_OK) {
        return err->status;
    }
    for (uint32_t i = 0; i < n; i++) {
        stored[keeper->n_stored].fd = fds[i];
        (void)snprintf(stored[keeper->n_stored++].name, sizeof stored->name, "%s", name);
    }
    return CST_OK;
}

void cstd_keeper_forget(struct cstd_keeper *keeper, const char *name)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < keeper->n_stored; i++) {
        if (strcmp(keeper->stored[i].name, name) != 0) {
            keeper->stored[n++] = keeper->stored[i];
        }
    }
    keeper->n_stored = n;
    if (keeper->limit > 0) {
        cstd_notify_unstore(keeper->notify, name);
    }
}
