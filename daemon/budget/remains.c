/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/budget/remains.h"

#include "daemon/base/log.h"
#include "daemon/budget/quota.h"
#include "proto/fallocate.h"
#include "proto/round_up.h"
#include "proto/size.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LOOK_MS = 500,
    LOOK_SHARE = 10, /* Checks because of refusals take at most a tenth of the loop's time. */
};

/* After this many bytes one check punches no more files, because freeing pages takes the loop's
 * time. */
static const uint64_t most_punched = UINT64_C(1) << 30;

struct cstd_remain {
    TAILQ_ENTRY(cstd_remain) link;
    int fd;         /* Opened for reading only (see is_held). */
    uint64_t bytes; /* Length of the file. */
    /* Bytes that are charged to budget and account: what the file held at the last check, or all
     * that it can hold. */
    uint64_t charged;
    bool whole;                 /* The file is charged for all that it can hold. */
    bool sealed;                /* The file cannot be emptied, nor written by another process. */
    struct cstd_budget *budget; /* Budget that the file is charged to. */
    struct cstd_quota_account *account; /* The user's account, a reference; NULL: none. */
};

static void on_timer(uv_timer_t *timer)
{
    cstd_remains_look(timer->data);
}

void cstd_remains_init(struct cstd_remains *remains, uv_loop_t *loop)
{
    TAILQ_INIT(&remains->files);
    remains->n = 0;
    (void)uv_timer_init(loop, &remains->timer);
    remains->timer.data = remains;
    uv_unref((uv_handle_t *)&remains->timer);
}

/* Open the file of @fd again with @flags. Returns the descriptor; -1: it failed. */
static int open_again(int fd, int flags)
{
    char path[40];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

/* Return whether another process has the file open or mapped. @fd must be opened for reading: the
 * kernel grants the lease if nobody else has the file open, and it counts a descriptor from
 * the service manager's store, which the manager or another daemon has had. If a process opens the
 * file just while the kernel's lease is held, the daemon gets a signal. By default this is SIGIO,
 * which would end the daemon; SIGURG, which is set here, is ignored. */
static bool is_held(int fd)
{
    if (fcntl(fd, F_SETSIG, SIGURG) != 0 || fcntl(fd, F_SETLEASE, F_WRLCK) != 0) {
        return errno == EAGAIN;
    }
    (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    return false;
}

void cstd_remains_punch(int fd, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    /* The kernel only zeroes a page that is punched in part. */
    uint64_t whole = cst_round_up(bytes, page);
    char size[CST_SIZE_TEXT];

    if (cst_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, whole) != 0) {
        cstd_log(CSTD_LOG_ERROR, "%s of memory that is no longer used cannot be freed: %s",
                 cst_size_text(bytes, size), strerror(errno));
    }
}

/* Return whether a file of @account is charged for all that it can hold. A user who has a limit is
 * not trusted: the user's processes could fill all files again between two checks, when others have
 * what was free. */
static bool is_charged_whole(const struct cstd_budget *budget,
                             const struct cstd_quota_account *account)
{
    return account != NULL && cstd_quota_limit(account, budget->resource) != CSTD_QUOTA_NONE;
}

/* Return the bytes of memory that the file holds. */
static uint64_t size_of(const struct cstd_remain *file)
{
    struct stat st;
    uint64_t present = fstat(file->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;

    return present < file->bytes ? present : file->bytes;
}

/* Change the charge of @file to @bytes, and with it the budget's count of kept bytes. */
static void recount(struct cstd_remain *file, uint64_t bytes)
{
    if (bytes > file->charged) {
        cstd_budget_force(file->budget, file->account, bytes - file->charged);
        file->budget->kept += bytes - file->charged;
    } else {
        cstd_budget_give(file->budget, file->account, file->charged - bytes);
        file->budget->kept -= file->charged - bytes;
    }
    file->charged = bytes;
}

/* Close @file and give its charge back. */
static void forget(struct cstd_remains *remains, struct cstd_remain *file)
{
    recount(file, 0);
    cstd_quota_give(file->account, CSTD_QUOTA_FILES, 1);
    cstd_quota_unref(file->account);
    (void)close(file->fd);
    TAILQ_REMOVE(&remains->files, file, link);
    remains->n--;
    free(file);
}

void cstd_remains_close(struct cstd_remains *remains)
{
    while (!TAILQ_EMPTY(&remains->files)) {
        forget(remains, TAILQ_FIRST(&remains->files));
    }
    uv_close((uv_handle_t *)&remains->timer, NULL);
}

/* Make an entry for the file, which takes over the charge. NULL: out of memory. */
static struct cstd_remain *keep(struct cstd_remains *remains, int fd, uint64_t bytes,
                                uint64_t charged, struct cstd_budget *budget,
                                struct cstd_quota_account *account)
{
    struct cstd_remain *file = calloc(1, sizeof *file);

    if (file != NULL) {
        *file = (struct cstd_remain){.fd = fd,
                                     .bytes = bytes,
                                     .charged = charged,
                                     .budget = budget,
                                     .account = cstd_quota_ref(account)};
        budget->kept += charged;
        cstd_quota_force(account, CSTD_QUOTA_FILES, 1);
        TAILQ_INSERT_TAIL(&remains->files, file, link);
        remains->n++;
    }
    return file;
}

/* Look after the files from now on. */
static void watch(struct cstd_remains *remains)
{
    if (remains->n == 1) {
        (void)uv_timer_start(&remains->timer, on_timer, LOOK_MS, LOOK_MS);
    }
}

void cstd_remains_drop(struct cstd_remains *remains, int fd, uint64_t bytes, uint64_t charged,
                       struct cstd_budget *budget, struct cstd_quota_account *account)
{
    struct cstd_remain *file = NULL;
    int reader = open_again(fd, O_RDONLY);

    cstd_remains_punch(fd, bytes);
    (void)close(fd);
    if (reader >= 0 && is_held(reader)) {
        file = keep(remains, reader, bytes, charged, budget, account);
    }
    /* No other process holds the file, or there are no means to keep it. */
    if (file == NULL) {
        if (reader >= 0) {
            (void)close(reader);
        }
        cstd_budget_give(budget, account, charged);
        return;
    }
    file->whole = is_charged_whole(budget, account);
    if (!file->whole) {
        recount(file, size_of(file));
    }
    watch(remains);
}

int cstd_remains_retire(struct cstd_remains *remains, int *fd, uint64_t bytes,
                        struct cstd_budget *budget, struct cstd_quota_account *account, bool force,
                        const char *what, struct cst_err *err)
{
    struct cstd_remain *file = NULL;
    int reader = open_again(*fd, O_RDONLY);

    if (reader < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "%s", what);
    }
    (void)close(*fd);
    *fd = reader;
    if (is_held(reader)) {
        if (!force && (cstd_budget_check(budget, account, bytes, what, err) != CST_OK ||
                       cstd_quota_check(account, CSTD_QUOTA_FILES, 1, what, err) != CST_OK)) {
            return err->status;
        }
        cstd_budget_force(budget, account, bytes);
        file = keep(remains, reader, bytes, bytes, budget, account);
        if (file == NULL) {
            cstd_budget_give(budget, account, bytes);
        }
    }
    if (file != NULL) {
        file->whole = file->sealed = true;
        watch(remains);
    } else {
        (void)close(reader);
    }
    *fd = -1;
    return CST_OK;
}

static void punch_again(const struct cstd_remain *file)
{
    int fd = open_again(file->fd, O_RDWR);

    if (fd >= 0) {
        cstd_remains_punch(fd, file->bytes);
        (void)close(fd);
    }
}

/* Forget the files that no other process holds. */
static void forget_released(struct cstd_remains *remains)
{
    struct cstd_remain *file, *next;

    for (file = TAILQ_FIRST(&remains->files); file != NULL; file = next) {
        next = TAILQ_NEXT(file, link);
        if (!is_held(file->fd)) {
            forget(remains, file);
        }
    }
    if (remains->n == 0) {
        (void)uv_timer_stop(&remains->timer);
    }
}

void cstd_remains_look(struct cstd_remains *remains)
{
    struct cstd_remain *file;
    uint64_t punched = 0, present;

    forget_released(remains);
    TAILQ_FOREACH(file, &remains->files, link)
    {
        present = file->sealed ? 0 : size_of(file);
        if (!file->whole) {
            recount(file, present);
        }
        if (present > 0 && punched < most_punched) {
            punched += present;
            punch_again(file);
        }
    }
}

bool cstd_remains_look_again(struct cstd_remains *remains)
{
    if (remains->n == 0 || uv_hrtime() - remains->looked_ns < LOOK_SHARE * remains->took_ns) {
        return false;
    }
    remains->looked_ns = uv_hrtime();
    forget_released(remains);
    remains->took_ns = uv_hrtime() - remains->looked_ns;
    return true;
}
