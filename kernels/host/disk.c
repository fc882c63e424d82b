/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/disk.h"

#include "kernels/host/disk_range.h"
#include "kernels/host/host.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#define STEP (1u << 20)        /* Bytes that go through a buffer at a time. */
#define ZEROS_BYTES (4u << 20) /* Bytes of zeros that are written at a time. */

/* Buffers of a thread. All begin at a multiple of CSTE_DISK_BLOCK. */
struct buffers {
    char block[CSTE_DISK_BLOCK]; /* A block of which a part is read or changes. */
    char bounce[STEP];           /* Blocks whose place in memory does not begin at a block. */
    char between[STEP];          /* Bytes on their way from file to file. */
    unsigned thread;             /* The number of the thread. */
};

struct disk {
    void *host; /* State of the host device, which has the host memory. */
    struct cste_disk_calls calls;
    uint32_t limit_s; /* Seconds after which a call is late; 0: never. */
    void *zeros;      /* ZEROS_BYTES zeros; read-only. */
    /* One for each thread; NULL: the thread has needed none. */
    struct buffers **buffers;
    unsigned n_threads;
};

static void disk_close(void *state)
{
    struct disk *disk = state;

    if (disk->host != NULL) {
        cste_host_ops.close(disk->host);
    }
    for (unsigned i = 0; disk->buffers != NULL && i < disk->n_threads; i++) {
        free(disk->buffers[i]);
    }
    free(disk->buffers);
    if (disk->zeros != MAP_FAILED) {
        (void)munmap(disk->zeros, ZEROS_BYTES);
    }
    cste_disk_calls_close(&disk->calls);
    free(disk);
}

int cste_disk_open(void **state, const struct cste_disk_io *io, const struct cste_device_spec *spec,
                   struct cste_device_about *about, struct cst_err *err)
{
    struct disk *disk = calloc(1, sizeof *disk);
    int rc;

    if (disk == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a drive");
    }
    *disk = (struct disk){
        .limit_s = spec->call_limit_s,
        /* Pages that nobody writes need no memory. */
        .zeros = mmap(NULL, ZEROS_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
        .buffers = calloc(spec->n_threads, sizeof *disk->buffers),
        .n_threads = spec->n_threads};
    cste_disk_calls_init(&disk->calls, io);
    rc = disk->buffers == NULL || disk->zeros == MAP_FAILED
             ? cst_err_set(err, CST_ENOMEM, "no memory for a drive")
             : cste_host_ops.open(&disk->host, spec, about, err);
    if (rc != CST_OK) {
        disk_close(disk);
        return rc;
    }
    /* A write beyond a limit of the process fails instead. */
    (void)signal(SIGXFSZ, SIG_IGN);
    about->name = "disk";
    about->granularity = CSTE_DISK_BLOCK;
    *state = disk;
    return CST_OK;
}

static int disk_open(void **state, const struct cste_device_spec *spec,
                     struct cste_device_about *about, struct cst_err *err)
{
    return cste_disk_open(state, &cste_disk_direct, spec, about, err);
}

/* -- memory --------------------------------------------------------------------------------- */

static struct cste_disk_range *range_of(const struct cste_mem *mem)
{
    return (struct cste_disk_range *)(uintptr_t)mem->device;
}

static int disk_map(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
                    struct cst_err *err)
{
    return cste_host_ops.memory->map(((struct disk *)state)->host, fd, node, mem, note, err);
}

static int disk_populate(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                         struct cst_err *err)
{
    return cste_host_ops.memory->populate(((struct disk *)state)->host, fd, base, offset, bytes,
                                          err);
}

static int disk_lock(void *state, const struct cste_mem *mem, struct cst_err *err)
{
    return cste_host_ops.memory->lock(((struct disk *)state)->host, mem, err);
}

static int disk_import(void *state, unsigned thread, int *fd, struct cste_mem *mem,
                       struct cst_err *err)
{
    struct disk *disk = state;
    struct cste_disk_range *range;
    int rc;

    (void)thread;
    if (*fd < 0) {
        return cst_err_set(err, CST_EINVAL, "memory on a drive needs a file");
    }
    rc = cste_disk_range_open(&range, &disk->calls, *fd, mem->file_offset, mem->bytes, mem->fresh,
                              err);
    if (rc == CST_OK) {
        mem->device = (uint64_t)(uintptr_t)range;
    }
    return rc;
}

static void disk_unmap(void *state, struct cste_mem *mem)
{
    struct disk *disk = state;

    if (mem->device == 0) {
        cste_host_ops.memory->unmap(disk->host, mem);
        return;
    }
    /* The job has failed or is gone, and nobody is left to tell if this fails, too. */
    if (mem->fresh) {
        (void)cste_disk_range_give_back(range_of(mem));
    }
    cste_disk_range_close(range_of(mem));
}

/* -- bytes ---------------------------------------------------------------------------------- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool is_aligned(const void *at)
{
    return (uintptr_t)at % CSTE_DISK_BLOCK == 0;
}

/* Find the buffers of @thread. CST_ENOMEM. */
static int find_buffers(struct disk *disk, unsigned thread, struct buffers **out,
                        struct cst_err *err)
{
    struct buffers **mine = &disk->buffers[thread];

    if (*mine == NULL) {
        *mine = aligned_alloc(CSTE_DISK_BLOCK, (sizeof **mine + CSTE_DISK_BLOCK - 1) /
                                                   CSTE_DISK_BLOCK * CSTE_DISK_BLOCK);
    }
    if (*mine != NULL) {
        (*mine)->thread = thread;
    }
    *out = *mine;
    return *mine != NULL
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM, "no memory for buffers: %zu bytes", sizeof **mine);
}

/* Read the first bytes of @bytes at @at, all of one block or as many whole blocks as possible.
 * *done receives their number. */
static int read_some(const struct cste_disk_range *range, struct buffers *buffers, uint64_t at,
                     char *to, uint64_t bytes, uint64_t *done, struct cst_err *err)
{
    uint64_t skew = at % CSTE_DISK_BLOCK, whole = bytes - bytes % CSTE_DISK_BLOCK;
    int rc;

    if (skew > 0 || whole == 0) {
        *done = least(CSTE_DISK_BLOCK - skew, bytes);
        rc = cste_disk_range_read(range, buffers->thread, at - skew, buffers->block,
                                  CSTE_DISK_BLOCK, err);
        if (rc == CST_OK) {
            memcpy(to, buffers->block + skew, *done);
        }
        return rc;
    }
    if (is_aligned(to)) {
        *done = whole;
        return cste_disk_range_read(range, buffers->thread, at, to, whole, err);
    }
    *done = least(STEP, whole);
    rc = cste_disk_range_read(range, buffers->thread, at, buffers->bounce, *done, err);
    if (rc == CST_OK) {
        memcpy(to, buffers->bounce, *done);
    }
    return rc;
}

/* Change @bytes at @at, which are within one block. Other threads may change other bytes of it. */
static int write_part(struct cste_disk_range *range, struct buffers *buffers, uint64_t at,
                      const char *from, uint64_t bytes, struct cst_err *err)
{
    uint64_t skew = at % CSTE_DISK_BLOCK;
    int rc;

    (void)pthread_mutex_lock(&range->partial);
    rc = cste_disk_range_read(range, buffers->thread, at - skew, buffers->block, CSTE_DISK_BLOCK,
                              err);
    if (rc == CST_OK) {
        memcpy(buffers->block + skew, from, bytes);
        rc = cste_disk_range_write(range, buffers->thread, at - skew, buffers->block,
                                   CSTE_DISK_BLOCK, err);
    }
    (void)pthread_mutex_unlock(&range->partial);
    return rc;
}

/* Write the first bytes of @bytes at @at, as read_some reads them. */
static int write_some(struct cste_disk_range *range, struct buffers *buffers, uint64_t at,
                      const char *from, uint64_t bytes, uint64_t *done, struct cst_err *err)
{
    uint64_t skew = at % CSTE_DISK_BLOCK, whole = bytes - bytes % CSTE_DISK_BLOCK;

    if (skew > 0 || whole == 0) {
        *done = least(CSTE_DISK_BLOCK - skew, bytes);
        return write_part(range, buffers, at, from, *done, err);
    }
    if (is_aligned(from)) {
        *done = whole;
        return cste_disk_range_write(range, buffers->thread, at, from, whole, err);
    }
    *done = least(STEP, whole);
    memcpy(buffers->bounce, from, *done);
    return cste_disk_range_write(range, buffers->thread, at, buffers->bounce, *done, err);
}

static int read_all(const struct cste_addr src, struct buffers *buffers, char *to, uint64_t bytes,
                    struct cst_err *err)
{
    struct cste_disk_range *range = range_of(src.mem);
    uint64_t done, n, sum;
    int rc = CST_OK;

    for (done = 0; done < bytes && rc == CST_OK; done += n) {
        rc = read_some(range, buffers, src.offset + done, to + done, bytes - done, &n, err);
    }
    if (rc == CST_OK && cste_disk_sums_find(&range->sums, src.offset, bytes, &sum)) {
        const uint64_t got = XXH3_64bits(to, bytes);

        rc = got == sum ? CST_OK : cste_disk_range_differs(range, src.offset, bytes, sum, got, err);
    }
    return rc;
}

static int write_all(struct cste_addr dst, struct buffers *buffers, const char *from,
                     uint64_t bytes, struct cst_err *err)
{
    struct cste_disk_range *range = range_of(dst.mem);
    const uint64_t sum = XXH3_64bits(from, bytes);
    uint64_t done, n;
    int rc = CST_OK;

    cste_disk_sums_forget(&range->sums, dst.offset, bytes);
    for (done = 0; done < bytes && rc == CST_OK; done += n) {
        rc = write_some(range, buffers, dst.offset + done, from + done, bytes - done, &n, err);
    }
    if (rc == CST_OK) {
        cste_disk_sums_keep(&range->sums, dst.offset, bytes, sum);
    }
    return rc;
}

/* Returns the place in @buffer, which begins at a block, from which bytes go to @dst without
 * another buffer. */
static char *in_step(char *buffer, struct cste_addr dst)
{
    return buffer + dst.offset % CSTE_DISK_BLOCK;
}

static int copy_between(struct buffers *buffers, struct cste_addr dst, struct cste_addr src,
                        uint64_t bytes, struct cst_err *err)
{
    int rc = CST_OK;

    while (bytes > 0 && rc == CST_OK) {
        uint64_t n = least(STEP - dst.offset % CSTE_DISK_BLOCK, bytes);
        char *buffer = in_step(buffers->between, dst);

        rc = read_all(src, buffers, buffer, n, err);
        if (rc == CST_OK) {
            rc = write_all(dst, buffers, buffer, n, err);
        }
        src = cste_addr_ahead(src, n);
        dst = cste_addr_ahead(dst, n);
        bytes -= n;
    }
    return rc;
}

static int disk_copy(void *state, unsigned thread, struct cste_addr dst, struct cste_addr src,
                     uint64_t bytes, struct cst_err *err)
{
    bool to = dst.mem->device != 0, from = src.mem->device != 0;
    struct disk *disk = state;
    struct buffers *buffers;
    int rc;

    if (!to && !from) {
        return cste_host_ops.memory->copy(disk->host, thread, dst, src, bytes, err);
    }
    rc = find_buffers(disk, thread, &buffers, err);
    if (rc != CST_OK) {
        return rc;
    }
    if (to && from) {
        return copy_between(buffers, dst, src, bytes, err);
    }
    return to ? write_all(dst, buffers, cste_addr_host(src), bytes, err)
              : read_all(src, buffers, cste_addr_host(dst), bytes, err);
}

static int disk_fill(void *state, unsigned thread, struct cste_addr dst, uint64_t bytes,
                     struct cst_err *err)
{
    struct disk *disk = state;
    struct buffers *buffers;
    int rc;

    if (dst.mem->device == 0) {
        return cste_host_ops.memory->fill(disk->host, thread, dst, bytes, err);
    }
    rc = find_buffers(disk, thread, &buffers, err);
    while (bytes > 0 && rc == CST_OK) {
        uint64_t n = least(ZEROS_BYTES - dst.offset % CSTE_DISK_BLOCK, bytes);

        rc = write_all(dst, buffers, in_step(disk->zeros, dst), n, err);
        dst = cste_addr_ahead(dst, n);
        bytes -= n;
    }
    return rc;
}

static int disk_flush(void *state, unsigned thread, const struct cste_mem *mem, struct cst_err *err)
{
    (void)state;
    return cste_disk_range_flush(range_of(mem), thread, err);
}

static int disk_check(void *state, unsigned *thread, struct cst_err *err)
{
    struct disk *disk = state;

    return disk->limit_s > 0 ? cste_disk_calls_check(&disk->calls, disk->limit_s, thread, err)
                             : CST_OK;
}

static const struct cste_memory_ops memory_ops = {
    .in_files = true,
    /* While one lane begins or ends a call, the drive works for the other one. */
    .max_lanes = 2,
    .piece_bytes = 4u << 20,
    .map = disk_map,
    .import = disk_import,
    .unmap = disk_unmap,
    .populate = disk_populate,
    .lock = disk_lock,
    .copy = disk_copy,
    .fill = disk_fill,
    .flush = disk_flush,
    .check = disk_check,
};

const struct cste_device_ops cste_disk_ops = {
    .name = "disk", .open = disk_open, .close = disk_close, .memory = &memory_ops};
