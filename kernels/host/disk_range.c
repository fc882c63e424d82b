/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/disk_range.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

static uint64_t end_of(const struct cste_disk_range *range)
{
    return range->offset + range->bytes;
}

/* -- checks --------------------------------------------------------------------------------- */

static void set_name(struct cste_disk_range *range, const struct stat *st)
{
    char link[40], path[128];
    ssize_t n;

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", range->fd);
    n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    (void)snprintf(range->name, sizeof range->name, "'%s' on drive %u:%u", path, major(st->st_dev),
                   minor(st->st_dev));
}

static int check_flags(const struct cste_disk_range *range, struct cst_err *err)
{
    int flags = fcntl(range->fd, F_GETFL);

    if ((flags & O_ACCMODE) != O_RDWR || (flags & O_DIRECT) == 0 || (flags & O_APPEND) != 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "%s is open with flags 0%o: O_RDWR and O_DIRECT are needed, without O_APPEND",
            range->name, (unsigned)flags);
    }
    return CST_OK;
}

/* Check that the file system stores the file on a drive, and transfers blocks past the page
 * cache. */
static int check_file_system(const struct cste_disk_range *range, struct cst_err *err)
{
    struct statfs fs;

    if (fstatfs(range->fd, &fs) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "statfs of %s", range->name);
    }
    if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC) {
        return cst_err_set(
            err, CST_EINVAL,
            "%s is in memory (file system type 0x%jx): states need a file on a drive", range->name,
            (uintmax_t)fs.f_type);
    }
#ifdef STATX_DIOALIGN
    {
        struct statx stx;

        /* A kernel that does not know the question leaves its bit out. */
        if (statx(range->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 &&
            (stx.stx_mask & STATX_DIOALIGN) != 0 &&
            (stx.stx_dio_offset_align == 0 || stx.stx_dio_offset_align > CSTE_DISK_BLOCK ||
             stx.stx_dio_mem_align > CSTE_DISK_BLOCK)) {
            return cst_err_set(err, CST_EINVAL,
                               "%s needs multiples of %u bytes for O_DIRECT, and addresses of "
                               "%u (0: it has no O_DIRECT); at most %u are possible",
                               range->name, stx.stx_dio_offset_align, stx.stx_dio_mem_align,
                               CSTE_DISK_BLOCK);
        }
    }
#endif
    return CST_OK;
}

static int check(struct cste_disk_range *range, struct stat *st, struct cst_err *err)
{
    int rc;

    if (fstat(range->fd, st) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "fstat of a file for states");
    }
    set_name(range, st);
    if (!S_ISREG(st->st_mode)) {
        return cst_err_set(err, CST_EINVAL, "%s is no regular file (mode 0%o)", range->name,
                           (unsigned)st->st_mode);
    }
    rc = check_flags(range, err);
    if (rc == CST_OK &&
        (range->bytes == 0 || range->offset % CSTE_DISK_BLOCK != 0 ||
         range->bytes % CSTE_DISK_BLOCK != 0 || range->bytes > INT64_MAX - CSTE_DISK_BLOCK ||
         range->offset > INT64_MAX - range->bytes)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "%" PRIu64 " bytes at %" PRIu64 " of %s: multiples of %u are needed",
                         range->bytes, range->offset, range->name, CSTE_DISK_BLOCK);
    }
    return rc == CST_OK ? check_file_system(range, err) : rc;
}

/* -- space ---------------------------------------------------------------------------------- */

/* Returns the status for a failed call. */
static int status_of(int errnum)
{
    return errnum == ENOSPC || errnum == EDQUOT || errnum == ENOMEM ? CST_ENOMEM : CST_EIO;
}

/* Allocate or free space, and have the call in the list. Returns 0 or an error number. */
static int change_space(const struct cste_disk_range *range, int mode, uint64_t offset,
                        uint64_t bytes)
{
    struct cste_disk_call call = {.thread = CSTE_DISK_NO_THREAD,
                                  .what = mode == 0 ? "allocating" : "freeing",
                                  .name = range->name,
                                  .offset = offset,
                                  .bytes = bytes};
    int rc;

    cste_disk_calls_begin(range->calls, &call);
    rc = range->calls->io->allocate(range->fd, mode, offset, bytes) == 0 ? 0 : errno;
    cste_disk_calls_end(range->calls, &call);
    return rc;
}

/* Returns what to do about a failed call. */
static const char *remedy(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return ": free space there, or put fewer bytes there (more drives, moments bf16 or mx8)";
    case EIO:
        return ": the kernel's log has the cause; use another drive, and load the last checkpoint";
    default:
        return "";
    }
}

/* Take space for the range, of a file that had @old_bytes. */
static int allocate(struct cste_disk_range *range, uint64_t old_bytes, struct cst_err *err)
{
    int errnum, left;

    range->old_bytes = old_bytes < end_of(range) ? old_bytes : UINT64_MAX;
    errnum = change_space(range, 0, range->offset, range->bytes);
    /* Where the file system cannot allocate in advance, the writes of zeros allocate. */
    if (errnum == EOPNOTSUPP && range->old_bytes != UINT64_MAX) {
        errnum = ftruncate(range->fd, (off_t)end_of(range)) == 0 ? 0 : errno;
    }
    if (errnum == 0 || errnum == EOPNOTSUPP) {
        return CST_OK;
    }
    left = cste_disk_range_give_back(range);
    (void)cst_err_set(err, status_of(errnum),
                      "allocating %" PRIu64 " bytes at %" PRIu64 " of %s: %s%s", range->bytes,
                      range->offset, range->name, strerror(errnum), remedy(errnum));
    return left == 0 ? err->status
                     : cst_err_prefix(err, "the file stays extended (%s)", strerror(left));
}

int cste_disk_range_give_back(const struct cste_disk_range *range)
{
    uint64_t first = range->old_bytes > range->offset ? range->old_bytes : range->offset;
    struct stat st;

    if (range->old_bytes == UINT64_MAX) {
        return 0;
    }
    if (fstat(range->fd, &st) != 0) {
        return errno;
    }
    if ((uint64_t)st.st_size <= end_of(range)) {
        return ftruncate(range->fd, (off_t)range->old_bytes) == 0 ? 0 : errno;
    }
    /* Another range follows. */
    return change_space(range, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first,
                        end_of(range) - first);
}

/* -- life ----------------------------------------------------------------------------------- */

int cste_disk_range_open(struct cste_disk_range **out, struct cste_disk_calls *calls, int fd,
                         uint64_t offset, uint64_t bytes, bool allocate_it, struct cst_err *err)
{
    struct cste_disk_range *range = calloc(1, sizeof *range);
    struct stat st;
    int rc;

    if (range == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a range of a file");
    }
    *range = (struct cste_disk_range){.calls = calls,
                                      .fd = fcntl(fd, F_DUPFD_CLOEXEC, 3),
                                      .offset = offset,
                                      .bytes = bytes,
                                      .old_bytes = UINT64_MAX};
    if (range->fd < 0) {
        rc = cst_err_errno(err, CST_EINVAL, errno, "fd %d of a file for states", fd);
        free(range);
        return rc;
    }
    (void)pthread_mutex_init(&range->partial, NULL);
    (void)pthread_mutex_init(&range->sums.lock, NULL);
    rc = check(range, &st, err);
    if (rc == CST_OK && allocate_it) {
        rc = allocate(range, (uint64_t)st.st_size, err);
    } else if (rc == CST_OK && (uint64_t)st.st_size < end_of(range)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "%s has %jd bytes, the message says %" PRIu64 " at %" PRIu64, range->name,
                         (intmax_t)st.st_size, bytes, offset);
    }
    if (rc != CST_OK) {
        cste_disk_range_close(range);
        return rc;
    }
    *out = range;
    return CST_OK;
}

void cste_disk_range_close(struct cste_disk_range *range)
{
    (void)pthread_mutex_destroy(&range->partial);
    (void)pthread_mutex_destroy(&range->sums.lock);
    free(range->sums.v);
    (void)close(range->fd);
    free(range);
}

/* -- transfers ------------------------------------------------------------------------------ */

/* Bytes of a transfer that are still to be done. */
struct rest {
    const char *what; /* "reading" or "writing". */
    uint64_t offset;  /* In the file. */
    uint64_t bytes;
};

static int fail(const struct cste_disk_range *range, const struct rest *rest, int errnum,
                struct cst_err *err)
{
    return cst_err_set(err, status_of(errnum), "%s %" PRIu64 " bytes at %" PRIu64 " of %s: %s%s",
                       rest->what, rest->bytes, rest->offset, range->name, strerror(errnum),
                       remedy(errnum));
}

int cste_disk_range_differs(const struct cste_disk_range *range, uint64_t at, uint64_t bytes,
                            uint64_t want, uint64_t got, struct cst_err *err)
{
    return cst_err_set(err, CST_EIO,
                       "reading %" PRIu64 " bytes at %" PRIu64 " of %s: they are not those that "
                       "were written (checksum %016" PRIx64 ", not %016" PRIx64 "): the drive or "
                       "its driver has changed or lost them",
                       bytes, range->offset + at, range->name, got, want);
}

/* Check that the file still has the whole range. A write would extend a file that was truncated,
 * and zeros would be read where its bytes had been. */
static int check_size(const struct cste_disk_range *range, const struct rest *rest,
                      struct cst_err *err)
{
    struct stat st;

    if (fstat(range->fd, &st) != 0) {
        return fail(range, rest, errno, err);
    }
    if ((uint64_t)st.st_size < end_of(range)) {
        return cst_err_set(err, CST_EIO,
                           "%s %" PRIu64 " bytes at %" PRIu64 " of %s: the file was truncated to "
                           "%jd bytes, and states had the first %" PRIu64
                           ": load the last checkpoint",
                           rest->what, rest->bytes, rest->offset, range->name, (intmax_t)st.st_size,
                           end_of(range));
    }
    return CST_OK;
}

/* Take the result @n of a call into account. A part of a block is done again, because calls begin
 * at whole blocks. Returns the bytes by which the transfer has advanced; 0 with *rc CST_OK: call
 * again. */
static uint64_t advance(const struct cste_disk_range *range, struct rest *rest, ssize_t n, int *rc,
                        struct cst_err *err)
{
    uint64_t done;

    *rc = CST_OK;
    if (n < 0) {
        *rc = errno == EINTR ? CST_OK : fail(range, rest, errno, err);
        return 0;
    }
    done = (uint64_t)n - (uint64_t)n % CSTE_DISK_BLOCK;
    if (done == 0) {
        *rc = check_size(range, rest, err);
        *rc = *rc != CST_OK
                  ? *rc
                  : cst_err_set(err, CST_EIO,
                                "%s %" PRIu64 " bytes at %" PRIu64 " of %s: the call did %zd bytes",
                                rest->what, rest->bytes, rest->offset, range->name, n);
    }
    rest->offset += done;
    rest->bytes -= done;
    return done;
}

static struct cste_disk_call call_of(const struct cste_disk_range *range, const struct rest *rest,
                                     unsigned thread)
{
    return (struct cste_disk_call){.thread = thread,
                                   .what = rest->what,
                                   .name = range->name,
                                   .offset = rest->offset,
                                   .bytes = rest->bytes};
}

int cste_disk_range_read(const struct cste_disk_range *range, unsigned thread, uint64_t at,
                         void *to, uint64_t bytes, struct cst_err *err)
{
    struct rest rest = {.what = "reading", .offset = range->offset + at, .bytes = bytes};
    char *next = to;
    int rc = CST_OK;

    while (rest.bytes > 0 && rc == CST_OK) {
        struct cste_disk_call call = call_of(range, &rest, thread);
        ssize_t n;

        cste_disk_calls_begin(range->calls, &call);
        n = range->calls->io->read(range->fd, next, rest.bytes, rest.offset);
        cste_disk_calls_end(range->calls, &call);
        next += advance(range, &rest, n, &rc, err);
    }
    return rc;
}

int cste_disk_range_write(const struct cste_disk_range *range, unsigned thread, uint64_t at,
                          const void *from, uint64_t bytes, struct cst_err *err)
{
    struct rest rest = {.what = "writing", .offset = range->offset + at, .bytes = bytes};
    const char *next = from;
    int rc = check_size(range, &rest, err);

    while (rest.bytes > 0 && rc == CST_OK) {
        struct cste_disk_call call = call_of(range, &rest, thread);
        ssize_t n;

        cste_disk_calls_begin(range->calls, &call);
        n = range->calls->io->write(range->fd, next, rest.bytes, rest.offset);
        cste_disk_calls_end(range->calls, &call);
        next += advance(range, &rest, n, &rc, err);
    }
    return rc;
}

int cste_disk_range_flush(const struct cste_disk_range *range, unsigned thread, struct cst_err *err)
{
    struct cste_disk_call call = {.thread = thread, .what = "flushing", .name = range->name};
    int rc;

    do {
        cste_disk_calls_begin(range->calls, &call);
        rc = range->calls->io->flush(range->fd);
        cste_disk_calls_end(range->calls, &call);
    } while (rc != 0 && errno == EINTR);
    return rc == 0 ? CST_OK
                   : cst_err_set(err, status_of(errno), "flushing %s: %s%s", range->name,
                                 strerror(errno), remedy(errno));
}
