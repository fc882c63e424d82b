/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-host --rates --directory DIR: the lanes of a drive's engine go over a file with
 * O_DIRECT, in its pieces. Five passes, each over as many bytes as the file has:
 *
 *   write   not measured: the file system allocates the blocks
 *   write   disk_write
 *   read    disk_read
 *   both    disk_mixed: pieces of the first half are read and pieces of the second half written, in
 *           turns; the rate is that of both together
 *   write   disk_flush_s: the file is flushed after each ninth of the pass; the time is the median
 *           of those of the flushes alone */
#include "kernels/host/disk_rates.h"

#include "kernels/engine/self_benchmark.h"
#include "kernels/host/disk.h"
#include "kernels/host/disk_range.h"
#include "proto/clock.h"
#include "proto/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum way { READ, WRITE };

enum { N_FLUSHES = 9 }; /* Flushes whose times are measured. */

struct disk_rates {
    struct cste_self_benchmark b;
    struct cste_self_benchmark_memory memory; /* A piece for each lane. */
    int fd;                                   /* The file; -1: not open. */
    struct cste_mem file;                     /* The same file, as the device sees it. */
    struct cste_task task;
    bool reads, writes; /* What the pieces of the present pass do. */
    uint64_t first;     /* The first piece of the present pass. */
    double read, write, mixed, flush_s;
};

static struct disk_rates *rates_of(struct cste_task *task)
{
    return (struct disk_rates *)(void *)((char *)task - offsetof(struct disk_rates, task));
}

/* -- passes --------------------------------------------------------------------------------- */

static uint64_t piece_bytes(void)
{
    return cste_disk_ops.memory->piece_bytes;
}

static void move_piece(struct disk_rates *r, unsigned thread, enum way way, uint64_t piece)
{
    struct cste_addr file = {.mem = &r->file, .offset = piece * piece_bytes()};
    struct cste_addr memory = {.mem = &r->memory.mem, .offset = thread * piece_bytes()};
    struct cst_err err;

    if (cste_device_copy(&r->b.device, thread, way == WRITE ? file : memory,
                         way == WRITE ? memory : file, piece_bytes(), &err) != CST_OK) {
        cste_self_benchmark_fail(&r->b, &err);
    }
}

static void pass_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct disk_rates *r = rates_of(task);
    uint64_t half = r->file.bytes / piece_bytes() / 2;

    if (atomic_load(&r->b.failed)) {
        return;
    }
    if (!r->reads || !r->writes) {
        move_piece(r, thread, r->reads ? READ : WRITE, r->first + piece);
    } else if (piece % 2 == 0) {
        move_piece(r, thread, READ, piece / 2);
    } else {
        move_piece(r, thread, WRITE, half + piece / 2);
    }
}

/* Move as many bytes as the file has. Returns the bytes per second. */
static double pass(struct disk_rates *r, bool reads, bool writes)
{
    uint64_t n = r->file.bytes / piece_bytes();

    r->reads = reads;
    r->writes = writes;
    r->first = 0;
    r->task = (struct cste_task){.piece = pass_piece, .n_pieces = n};
    return (double)r->file.bytes / cste_self_benchmark_run(&r->b.lanes, &r->task);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Write the file once more, and flush it after each ninth. Returns the median time of a flush in
 * seconds. */
static double flushes(struct disk_rates *r)
{
    const uint64_t n = r->file.bytes / piece_bytes();
    double seconds[N_FLUSHES] = {0};
    struct cst_err err;

    r->reads = false;
    r->writes = true;
    for (unsigned i = 0; i < N_FLUSHES && !atomic_load(&r->b.failed); i++) {
        uint64_t began_ns;

        r->first = i * n / N_FLUSHES;
        r->task =
            (struct cste_task){.piece = pass_piece, .n_pieces = (i + 1) * n / N_FLUSHES - r->first};
        (void)cste_self_benchmark_run(&r->b.lanes, &r->task);
        began_ns = cst_clock_ns();
        if (cste_device_flush(&r->b.device, 0, &r->file, &err) != CST_OK) {
            cste_self_benchmark_fail(&r->b, &err);
        }
        seconds[i] = (double)(cst_clock_ns() - began_ns) * 1e-9;
    }
    qsort(seconds, N_FLUSHES, sizeof *seconds, compare);
    return seconds[N_FLUSHES / 2];
}

/* Fill the memory with numbers that no drive can store in fewer bytes. */
static void fill(struct disk_rates *r)
{
    uint64_t *words = r->memory.mem.base, n = r->memory.mem.bytes / sizeof *words, state = 1;

    for (uint64_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        words[i] = state ^ state >> 33;
    }
}

static void measure(struct disk_rates *r)
{
    (void)pass(r, false, true);
    r->file.fresh = false;
    r->write = pass(r, false, true);
    r->read = pass(r, true, false);
    r->mixed = pass(r, true, true);
    r->flush_s = flushes(r);
}

/* -- the file ------------------------------------------------------------------------------- */

/* Open a file without a name in @directory. */
static int open_file(const char *directory, int *out, struct cst_err *err)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);

    if (fd < 0 && (errno == EINVAL || errno == EOPNOTSUPP || errno == EISDIR)) {
        return cst_err_errno(err, CST_EINVAL, errno,
                             "the file system of '%.150s' has no files with O_DIRECT and "
                             "O_TMPFILE, which states need: name a directory of ext4 or XFS on a "
                             "drive",
                             directory);
    }
    if (fd < 0 && errno == ENOTDIR) {
        return cst_err_set(err, CST_EINVAL,
                           "'%.150s' is not a directory: name a directory on the drive that is to "
                           "be measured",
                           directory);
    }
    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "a file in '%.150s'", directory);
    }
    *out = fd;
    return CST_OK;
}

/* Choose the bytes of the file. */
static int choose_bytes(struct disk_rates *r, const struct cste_engine_rates_options *options,
                        struct cst_err *err)
{
    const uint64_t unit = 2 * piece_bytes();
    char wants[CST_SIZE_TEXT], has[CST_SIZE_TEXT];
    uint64_t available, bytes = options->bytes;
    struct statvfs fs;

    if (fstatvfs(r->fd, &fs) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "statvfs of '%.150s'", options->directory);
    }
    available = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes == 0) {
        bytes = available / CSTE_DISK_RATES_SHARE;
        bytes = bytes < CSTE_DISK_RATES_BYTES ? bytes : CSTE_DISK_RATES_BYTES;
        bytes = bytes > CSTE_DISK_RATES_LEAST ? bytes : CSTE_DISK_RATES_LEAST;
    }
    if (bytes < CSTE_DISK_RATES_LEAST) {
        return cst_err_set(err, CST_EINVAL,
                           "a file of %s is too small to measure a drive: at least %s are needed",
                           cst_size_text(bytes, wants), cst_size_text(CSTE_DISK_RATES_LEAST, has));
    }
    if (bytes > available) {
        return cst_err_set(err, CST_ENOMEM,
                           "no space in '%.150s': the file that is measured takes %s, and %s are "
                           "free: free space there, or name fewer bytes (--bytes, at least %" PRIu64
                           "M)",
                           options->directory, cst_size_text(bytes, wants),
                           cst_size_text(available, has), CSTE_DISK_RATES_LEAST >> 20);
    }
    r->file.bytes = (bytes + unit - 1) / unit * unit;
    return CST_OK;
}

static int map_file(struct disk_rates *r, const char *directory, struct cst_err *err)
{
    int rc;

    r->file.fresh = true;
    rc = cste_device_import(&r->b.device, 0, &r->fd, &r->file, err);
    return rc == CST_OK ? rc
                        : cst_err_prefix(err,
                                         "the drive of '%.100s' cannot be measured (name a "
                                         "directory of ext4 or XFS on a drive)",
                                         directory);
}

/* -- the device ----------------------------------------------------------------------------- */

static int open_all(struct disk_rates *r, const struct cste_engine_rates_options *options,
                    struct cst_err *err)
{
    struct cste_device_spec spec = {.cpus = &r->b.cpus};
    int rc = open_file(options->directory, &r->fd, err);

    if (rc == CST_OK) {
        rc = choose_bytes(r, options, err);
    }
    if (rc == CST_OK) {
        rc = cste_self_benchmark_open_cpus(&r->b, options->node < 0 ? 0 : options->node,
                                           &cste_disk_ops, options, err);
    }
    if (rc == CST_OK) {
        spec.n_threads = 2 * r->b.n_lanes;
        rc = cste_self_benchmark_open_device(&r->b, &cste_disk_ops, &spec, err);
    }
    if (rc == CST_OK) {
        rc = map_file(r, options->directory, err);
    }
    if (rc == CST_OK) {
        rc = cste_self_benchmark_open_lanes(&r->b, spec.n_threads, 0, err);
    }
    if (rc == CST_OK) {
        rc = cste_self_benchmark_memory_open(&r->memory, &r->b.device, &r->b.cpus, -1,
                                             spec.n_threads * piece_bytes(), &r->b.lanes, err);
    }
    return rc;
}

static void close_all(struct disk_rates *r)
{
    cste_self_benchmark_memory_close(&r->memory);
    if (r->b.device.ops != NULL) {
        cste_device_unmap(&r->b.device, &r->file);
    }
    cste_self_benchmark_close(&r->b);
    if (r->fd >= 0) {
        (void)close(r->fd);
    }
}

static int print(const struct disk_rates *r, FILE *to, struct cst_err *err)
{
    bool good = fprintf(to,
                        "{\"copy_threads\":%u,\"bytes\":%" PRIu64
                        ",\"disk_read\":%.6e,\"disk_write\":%.6e,\"disk_mixed\":%.6e"
                        ",\"disk_flush_s\":%.6e}\n",
                        r->b.n_lanes, r->file.bytes, r->read, r->write, r->mixed, r->flush_s) > 0 &&
                fflush(to) == 0;

    return good ? CST_OK : cst_err_set(err, CST_EIO, "the rates could not be written");
}

int cste_disk_rates(const struct cste_engine_rates_options *options, FILE *to, struct cst_err *err)
{
    struct disk_rates *r = calloc(1, sizeof *r);
    int rc;

    if (r == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to measure with");
    }
    r->fd = -1;
    rc = open_all(r, options, err);
    if (rc == CST_OK) {
        fill(r);
        measure(r);
        rc = cste_self_benchmark_result(&r->b, err);
    }
    if (rc == CST_OK) {
        rc = print(r, to, err);
    }
    close_all(r);
    free(r);
    return rc;
}
