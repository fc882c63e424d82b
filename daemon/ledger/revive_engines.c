/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/revive_engines.h"

#include "daemon/base/daemon_state.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum {
    WAIT_MS = 10000, /* Longest wait for the end of an earlier daemon's engine. */
    LOOK_MS = 2,     /* Time between two attempts. */
};

/* True if no engine of a drive has locked its slot of the table of traffic @fd. */
static bool drives_are_free(int fd)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(fd, F_OFD_GETLK, &all) != 0 || all.l_type == F_UNLCK;
}

/* Wait until no engine has @fd, the table of traffic, locked. An engine holds the lock while it
 * lives. *held receives whether engines of drives live on. */
static int await_end(int fd, bool *held, struct cst_err *err)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
    char path[40];
    int own, rc, error;
    unsigned ms;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    own = open(path, O_RDWR | O_CLOEXEC); /* A file description of its own has a lock of its own. */
    if (own < 0) {
        return cst_err_errno(err, CST_EIO, errno, "the earlier daemon's table of traffic");
    }
    rc = flock(own, LOCK_EX | LOCK_NB);
    for (ms = 0; rc != 0 && errno == EWOULDBLOCK && ms < WAIT_MS; ms += LOOK_MS) {
        (void)nanosleep(&pause, NULL);
        rc = flock(own, LOCK_EX | LOCK_NB);
    }
    error = errno;
    for (; !drives_are_free(own) && ms < WAIT_MS; ms += LOOK_MS) {
        (void)nanosleep(&pause, NULL);
    }
    *held = !drives_are_free(own);
    (void)close(own);
    if (rc == 0) {
        return CST_OK;
    }
    return error == EWOULDBLOCK
               ? cst_err_set(err, CST_EBUSY,
                             "an engine of the earlier daemon still runs after %d ms", WAIT_MS)
               : cst_err_errno(err, CST_EIO, error, "the earlier daemon's table of traffic");
}

/* Make the segment *@out of @kept. */
static int adopt(struct cstd_daemon *daemon, struct cstd_kept *kept, struct cstd_segment **out,
                 struct cst_err *err)
{
    uint32_t id = kept->name.k;
    uint64_t bytes = (uint64_t)lseek(kept->fd, 0, SEEK_END);
    int rc = cstd_segment_adopt(out, id, bytes, kept->fd, NULL, NULL, err);

    kept->fd = -1;
    cstd_engines_reserve_id(daemon->engines, id);
    return rc == CST_OK ? cstd_keeper_store(&daemon->keeper, &kept->name, &(*out)->fd, 1, true, err)
                        : rc;
}

static int await_engines(const struct cstd_keeper *keeper, bool *held, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < keeper->n_kept && rc == CST_OK; i++) {
        if (keeper->kept[i].name.kind == CSTD_KEPT_TRAFFIC) {
            rc = await_end(keeper->kept[i].fd, held, err);
        }
    }
    return rc;
}

int cstd_revive_adopt_engines(struct cstd_daemon *daemon, struct cst_err *err)
{
    struct cstd_engines *engines = daemon->engines;
    struct cstd_keeper *keeper = &daemon->keeper;
    unsigned n_adopted = 0;
    int rc = await_engines(keeper, &engines->drives_held, err);

    for (uint32_t i = 0; i < keeper->n_kept && rc == CST_OK; i++) {
        struct cstd_kept *kept = &keeper->kept[i];

        if (kept->name.kind == CSTD_KEPT_TRAFFIC) {
            rc = adopt(daemon, kept, &engines->traffic_memory, err);
            n_adopted++;
        } else if (kept->name.kind == CSTD_KEPT_UNDO && kept->name.i < engines->n_nodes) {
            rc = adopt(daemon, kept, &engines->v[kept->name.i].undo, err);
            n_adopted++;
        }
    }
    keeper->engines_stored = n_adopted == engines->n_nodes + 1;
    return rc;
}

/* Store @segment under @name, unless it is stored, because it was adopted. */
static int store(struct cstd_keeper *keeper, struct cstd_kept_name name,
                 const struct cstd_segment *segment, struct cst_err *err)
{
    name.k = segment->id;
    return cstd_keeper_has(keeper, &name)
               ? CST_OK
               : cstd_keeper_store(keeper, &name, &segment->fd, 1, false, err);
}

int cstd_ledger_store_engines(struct cstd_daemon *daemon, struct cst_err *err)
{
    const struct cstd_engines *engines = daemon->engines;
    struct cstd_keeper *keeper = &daemon->keeper;
    int rc;

    if (keeper->engines_stored) {
        return CST_OK;
    }
    rc = store(keeper, (struct cstd_kept_name){.kind = CSTD_KEPT_TRAFFIC}, engines->traffic_memory,
               err);
    for (unsigned i = 0; i < engines->n_nodes && rc == CST_OK; i++) {
        rc = store(keeper, (struct cstd_kept_name){.kind = CSTD_KEPT_UNDO, .i = i},
                   engines->v[i].undo, err);
    }
    keeper->engines_stored = rc == CST_OK;
    return rc;
}
