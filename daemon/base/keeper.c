/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/keeper.h"

#include "daemon/base/notify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    /* Pages of the longest environment string (MAX_ARG_STRLEN of Linux). A service manager with
     * more names than fit into LISTEN_FDNAMES cannot start the daemon. */
    STRING_PAGES = 32,
    /* Bytes of that string that are left to the name of the variable and those of sockets. */
    OTHER_NAMES = 1024,
};

void cstd_keeper_init(struct cstd_keeper *keeper, struct cstd_notify *notify)
{
    const char *limit = getenv("FDSTORE");

    *keeper = (struct cstd_keeper){.notify = notify};
    /* Without the manager's socket nothing can be sent. */
    if (limit != NULL && getenv("NOTIFY_SOCKET") != NULL) {
        keeper->limit = (uint32_t)strtoul(limit, NULL, 10);
    }
}

/* Bytes of @name and of what separates it from the next one. */
static size_t name_bytes(const struct cstd_kept_name *name, bool is_long)
{
    char text[CSTD_KEPT_NAME_BYTES];

    return strlen(cstd_kept_name_write(name, is_long, text)) + 1;
}

static void count(struct cstd_keeper *keeper, const struct cstd_kept_name *name, bool is_long)
{
    keeper->n_used++;
    keeper->name_bytes += name_bytes(name, is_long);
}

static void discount(struct cstd_keeper *keeper, const struct cstd_kept_name *name, bool is_long)
{
    keeper->n_used--;
    keeper->name_bytes -= name_bytes(name, is_long);
}

/* -- inherited descriptors -------------------------------------------------------------------- */

int cstd_keeper_inherit(struct cstd_keeper *keeper, const char *name, int fd, struct cst_err *err)
{
    struct cstd_kept kept = {.is_alone = true, .fd = fd}, *list;
    struct stat st;

    if (!cstd_kept_name_read(name, &kept.name, &kept.is_long)) {
        (void)close(fd);
        return cst_err_set(err, CST_EVERSION, "'%.63s' was stored by a later version", name);
    }
    list = reallocarray(keeper->kept, keeper->n_kept + 1, sizeof *list);
    if (list != NULL) {
        keeper->kept = list;
    }
    if (list == NULL || fstat(fd, &st) != 0) {
        (void)close(fd);
        return cst_err_set(err, CST_ENOMEM, "a descriptor of the service manager's store");
    }
    kept.inode = st.st_ino;
    list[keeper->n_kept++] = kept;
    keeper->sorted = false;
    count(keeper, &kept.name, kept.is_long);
    return CST_OK;
}

void cstd_keeper_close(struct cstd_keeper *keeper)
{
    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        if (keeper->kept[i].fd >= 0) {
            (void)close(keeper->kept[i].fd);
            keeper->kept[i].fd = -1;
        }
    }
}

static int compare(const void *a, const void *b)
{
    const struct cstd_kept *x = a, *y = b;

    return (x->inode > y->inode) - (x->inode < y->inode);
}

/* The first inherited descriptor of the file @inode or of a later one. */
static uint32_t find_inode(struct cstd_keeper *keeper, uint64_t inode)
{
    uint32_t low = 0, high = keeper->n_kept;

    if (!keeper->sorted) {
        qsort(keeper->kept, keeper->n_kept, sizeof *keeper->kept, compare);
        keeper->sorted = true;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (keeper->kept[middle].inode < inode) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The inherited descriptor of the file @inode (0: of any file) with @name; NULL: there is none. */
static struct cstd_kept *find(struct cstd_keeper *keeper, const struct cstd_kept_name *name,
                              uint64_t inode)
{
    uint32_t first = keeper->n_kept > 0 ? find_inode(keeper, inode) : 0;

    for (uint32_t i = first; i < keeper->n_kept; i++) {
        struct cstd_kept *kept = &keeper->kept[i];

        if (inode != 0 && kept->inode != inode) {
            break;
        }
        if (kept->fd >= 0 && cstd_kept_name_same(&kept->name, name)) {
            return kept;
        }
    }
    return NULL;
}

int cstd_keeper_take(struct cstd_keeper *keeper, const struct cstd_kept_name *name, uint64_t inode)
{
    struct cstd_kept *kept = find(keeper, name, inode);
    int fd = kept != NULL ? kept->fd : -1;

    if (kept != NULL) {
        kept->fd = -1;
    }
    return fd;
}

bool cstd_keeper_holds(struct cstd_keeper *keeper, const struct cstd_kept_name *name,
                       uint64_t inode)
{
    return find(keeper, name, inode) != NULL;
}

/* -- stored descriptors ----------------------------------------------------------------------- */

bool cstd_keeper_has(const struct cstd_keeper *keeper, const struct cstd_kept_name *name)
{
    for (uint32_t i = 0; i < keeper->n_stored; i++) {
        if (cstd_kept_name_same(&keeper->stored[i].name, name)) {
            return true;
        }
    }
    return false;
}

int cstd_keeper_check(const struct cstd_keeper *keeper, const struct cstd_kept_name *name,
                      uint32_t n, struct cst_err *err)
{
    size_t bytes = n * name_bytes(name, false),
           most = (size_t)sysconf(_SC_PAGESIZE) * STRING_PAGES - OTHER_NAMES;

    if (keeper->limit == 0) {
        return CST_OK;
    }
    if (keeper->n_used > keeper->limit || n > keeper->limit - keeper->n_used) {
        return cst_err_set(err, CST_EBUDGET,
                           "it needs %u descriptors, and %u of %u in the service manager's store "
                           "are in use (FileDescriptorStoreMax= in cisternd.service; a job that is "
                           "removed gives its descriptors back)",
                           n, keeper->n_used, keeper->limit);
    }
    if (keeper->name_bytes > most || bytes > most - keeper->name_bytes) {
        return cst_err_set(err, CST_EBUDGET,
                           "the names of %u more descriptors have %zu bytes, and %zu of %zu are in "
                           "use, with which the service manager can start the daemon again "
                           "(remove jobs: cistern rm)",
                           n, bytes, keeper->name_bytes, most);
    }
    return CST_OK;
}

/* The inherited descriptors under @name are stored now. Returns whether their names are long. */
static bool join(struct cstd_keeper *keeper, const struct cstd_kept_name *name)
{
    bool is_long = false;

    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        struct cstd_kept *kept = &keeper->kept[i];

        if (kept->is_alone && cstd_kept_name_same(&kept->name, name)) {
            kept->is_alone = false;
            is_long = kept->is_long;
            discount(keeper, name, is_long);
        }
    }
    return is_long;
}

int cstd_keeper_reserve(struct cstd_keeper *keeper, uint32_t n, struct cst_err *err)
{
    uint32_t capacity = keeper->n_stored + n;
    struct cstd_stored *stored;
    int *fds;

    if (capacity <= keeper->capacity) {
        return CST_OK;
    }
    stored = reallocarray(keeper->stored, capacity, sizeof *stored);
    keeper->stored = stored != NULL ? stored : keeper->stored;
    fds = reallocarray(keeper->fds, capacity, sizeof *fds);
    keeper->fds = fds != NULL ? fds : keeper->fds;
    if (stored == NULL || fds == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of descriptors");
    }
    keeper->capacity = capacity;
    return CST_OK;
}

int cstd_keeper_store(struct cstd_keeper *keeper, const struct cstd_kept_name *name, const int *fds,
                      uint32_t n, bool sent, struct cst_err *err)
{
    char text[CSTD_KEPT_NAME_BYTES];
    bool is_long;

    if (cstd_keeper_reserve(keeper, n, err) != CST_OK) {
        return err->status;
    }
    if (keeper->limit > 0 && !sent &&
        cstd_notify_store(keeper->notify, cstd_kept_name_write(name, false, text), fds, n, err) !=
            CST_OK) {
        return err->status;
    }
    keeper->n_changes++;
    is_long = sent && join(keeper, name);
    for (uint32_t i = 0; i < n; i++) {
        keeper->stored[keeper->n_stored++] =
            (struct cstd_stored){.name = *name, .is_long = is_long, .fd = fds[i]};
        count(keeper, name, is_long);
    }
    return CST_OK;
}

/* Remove what the service manager has under @name. */
static void unstore(struct cstd_keeper *keeper, const struct cstd_kept_name *name, bool is_long)
{
    char text[CSTD_KEPT_NAME_BYTES];

    if (keeper->limit > 0) {
        cstd_notify_unstore(keeper->notify, cstd_kept_name_write(name, is_long, text));
    }
}

void cstd_keeper_forget(struct cstd_keeper *keeper, const struct cstd_kept_name *name)
{
    bool any[2] = {false, false}; /* Short names, and long ones. */
    uint32_t n = 0;

    for (uint32_t i = 0; i < keeper->n_stored; i++) {
        const struct cstd_stored *stored = &keeper->stored[i];

        if (cstd_kept_name_same(&stored->name, name)) {
            discount(keeper, name, stored->is_long);
            any[stored->is_long] = true;
        } else {
            keeper->stored[n++] = *stored;
        }
    }
    keeper->n_changes += n != keeper->n_stored;
    keeper->n_stored = n;
    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        struct cstd_kept *kept = &keeper->kept[i];

        if (kept->is_alone && cstd_kept_name_same(&kept->name, name)) {
            discount(keeper, name, kept->is_long);
            kept->is_alone = false;
            any[kept->is_long] = true;
        }
    }
    for (unsigned is_long = 0; is_long < 2; is_long++) {
        if (any[is_long]) {
            unstore(keeper, name, is_long == 1);
        }
    }
}
