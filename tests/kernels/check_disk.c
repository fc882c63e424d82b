/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the device "disk" in this process: copies of any bytes to and from ranges of files, at
 * the same time, and with system calls that fail. */
#include "kernels/host/disk.h"

#include "tests/lib/disk_file.h"
#include "tests/lib/disk_rows.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK 4096
#define N_THREADS 8
#define FILE_OFFSET (3 * BLOCK)
#define BYTES ((uint64_t)3 << 20) /* of the range, more than a buffer has */

static uint64_t seed, state;
static struct cste_cpus cpus;
static const struct cste_disk_io *io;

static uint64_t next(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static void fill(char *at, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) {
        at[i] = (char)next(256);
    }
}

/* -- a drive and host memory ---------------------------------------------------------------- */

static struct cste_device drive;
static struct cste_mem host, file; /* host memory of BYTES and a range of BYTES */
static int fd;

static int open_io(void **out, const struct cste_device_spec *spec, struct cste_device_about *about,
                   struct cst_err *err)
{
    return cste_disk_open(out, io, spec, about, err);
}

static void open_drive(void)
{
    static struct cste_device_ops ops;
    struct cste_device_spec spec = {
        .cpus = &cpus, .n_team = 1, .n_threads = N_THREADS, .call_limit_s = 1};
    struct cst_err err;

    ops = cste_disk_ops;
    ops.open = open_io;
    ck_assert_msg(cste_device_open(&drive, &ops, &spec, &err) == CST_OK, "%s", err.text);
}

static int import(struct cste_mem *mem, uint64_t offset, uint64_t bytes, bool fresh,
                  struct cst_err *err)
{
    int handle = fd;

    *mem = (struct cste_mem){.bytes = bytes, .file_offset = offset, .fresh = fresh};
    return cste_device_import(&drive, 0, &handle, mem, err);
}

static void must_import(struct cste_mem *mem, uint64_t offset, uint64_t bytes, bool fresh)
{
    struct cst_err err;

    ck_assert_msg(import(mem, offset, bytes, fresh, &err) == CST_OK, "%s", err.text);
}

static void set_up_with(const struct cste_disk_io *with)
{
    struct cst_err err, note;
    int memory = memfd_create("test", MFD_CLOEXEC);

    state = seed;
    disk_faults = (struct disk_faults){0};
    io = with;
    open_drive();
    host = (struct cste_mem){.bytes = BYTES};
    ck_assert_int_eq(ftruncate(memory, BYTES), 0);
    ck_assert_int_eq(cste_device_map(&drive, memory, -1, &host, &note, &err), CST_OK);
    (void)close(memory);
    fill(host.base, BYTES);
    fd = disk_file_make(FILE_OFFSET + BYTES + BLOCK, 0);
    must_import(&file, FILE_OFFSET, BYTES, false);
}

static void set_up(void)
{
    set_up_with(&cste_disk_direct);
}

static void set_up_failing(void)
{
    set_up_with(&disk_failing);
}

static void set_up_stuck(void)
{
    set_up_with(&disk_stuck);
}

static void tear_down(void)
{
    cste_device_unmap(&drive, &file);
    cste_device_unmap(&drive, &host);
    cste_device_close(&drive);
    (void)close(fd);
}

static struct cste_addr at(const struct cste_mem *mem, uint64_t offset)
{
    return (struct cste_addr){.mem = mem, .offset = offset};
}

static void must_copy(struct cste_addr dst, struct cste_addr src, uint64_t bytes, unsigned thread)
{
    struct cst_err err;

    suite_must(cste_device_copy(&drive, thread, dst, src, bytes, &err) == CST_OK, "%s", err.text);
}

/* Compare the file with @expected, the bytes of the range. What lies before and behind is zero. */
static void check_file(const char *expected)
{
    static const char zeros[FILE_OFFSET];
    uint64_t all = FILE_OFFSET + BYTES + BLOCK;
    char *now = aligned_alloc(BLOCK, all);

    disk_file_read(fd, now, all, 0);
    ck_assert_mem_eq(now, zeros, FILE_OFFSET);
    ck_assert_mem_eq(now + FILE_OFFSET, expected, BYTES);
    ck_assert_mem_eq(now + FILE_OFFSET + BYTES, zeros, BLOCK);
    free(now);
}

/* -- bytes ---------------------------------------------------------------------------------- */

/* A place and a length: blocks, and bytes that begin or end anywhere, some of one block. */
static uint64_t choose(uint64_t *offset)
{
    uint64_t bytes = next(4) == 0 ? next(2 * BLOCK) : next(BYTES);

    *offset = next(BYTES - bytes + 1);
    if (next(3) == 0) {
        *offset -= *offset % BLOCK;
    }
    if (next(3) == 0) {
        bytes -= bytes % BLOCK;
    }
    return bytes;
}

/* Copies up, down and between ranges of files, and fills, of any bytes at any place, change these
 * bytes and no others. */
START_TEST(test_any_bytes)
{
    char *expected = calloc(1, BYTES), *own = host.base;
    struct cste_mem other; /* the file once more, as another segment */
    struct cst_err err;

    must_import(&other, FILE_OFFSET, BYTES, false);
    for (int i = 0; i < 300; i++) {
        uint64_t there, here, bytes = choose(&there);

        here = next(BYTES - bytes + 1);
        here = next(2) == 0 ? there : here;
        switch (next(4)) {
        case 0:
            must_copy(at(&file, there), at(&host, here), bytes, 0);
            memcpy(expected + there, own + here, bytes);
            break;
        case 1:
            must_copy(at(&host, here), at(&file, there), bytes, 0);
            suite_must(memcmp(own + here, expected + there, bytes) == 0,
                       "%" PRIu64 " bytes at %" PRIu64 " read to %" PRIu64, bytes, there, here);
            break;
        case 2:
            bytes = bytes < BYTES / 2 ? bytes : BYTES / 2;
            there = next(BYTES / 2 - bytes + 1);
            here = BYTES / 2 + next(BYTES / 2 - bytes + 1);
            must_copy(at(&file, here), at(&other, there), bytes, 0);
            memcpy(expected + here, expected + there, bytes);
            break;
        default:
            suite_must(cste_device_fill(&drive, 0, at(&file, there), bytes, &err) == CST_OK, "%s",
                       err.text);
            memset(expected + there, 0, bytes);
        }
        fill(own + next(BYTES - 64), 64);
    }
    check_file(expected);
    cste_device_unmap(&drive, &other);
    free(expected);
}
END_TEST

/* Copies within host memory work, too. */
START_TEST(test_host_to_host)
{
    must_copy(at(&host, 0), at(&host, BYTES / 2), 1000, 0);
    ck_assert_mem_eq(host.base, (char *)host.base + BYTES / 2, 1000);
}
END_TEST

/* -- neighbours ----------------------------------------------------------------------------- */

#define N_CUTS 400
#define AREA ((uint64_t)64 * BLOCK)

static uint64_t cuts[N_CUTS + 1]; /* where pieces of the area end, in ascending order */
static atomic_uint piece;
static pthread_barrier_t barrier;

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Threads write pieces whose ends share blocks, read from memory that does not share them. */
static void *write_pieces(void *arg)
{
    unsigned thread = *(unsigned *)arg, i;

    (void)pthread_barrier_wait(&barrier);
    while ((i = atomic_fetch_add(&piece, 1)) < N_CUTS) {
        must_copy(at(&file, cuts[i]), at(&host, cuts[i] + 1), cuts[i + 1] - cuts[i], thread);
    }
    return NULL;
}

/* Many threads write neighbouring bytes of the same blocks at the same time. No byte is lost. */
START_TEST(test_neighbours)
{
    char *expected = calloc(1, BYTES);
    pthread_t threads[N_THREADS];
    unsigned numbers[N_THREADS];

    (void)pthread_barrier_init(&barrier, NULL, N_THREADS);
    for (int round = 0; round < 8; round++) {
        fill(host.base, AREA + 1);
        memcpy(expected, (char *)host.base + 1, AREA);
        for (unsigned i = 0; i < N_CUTS; i++) {
            cuts[i] = i == 0 ? 0 : next(AREA);
        }
        cuts[N_CUTS] = AREA;
        qsort(cuts, N_CUTS, sizeof cuts[0], compare);
        atomic_store(&piece, 0);
        for (unsigned i = 0; i < N_THREADS; i++) {
            numbers[i] = i;
            ck_assert_int_eq(pthread_create(&threads[i], NULL, write_pieces, &numbers[i]), 0);
        }
        for (unsigned i = 0; i < N_THREADS; i++) {
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        }
        check_file(expected);
    }
    (void)pthread_barrier_destroy(&barrier);
    free(expected);
}
END_TEST

/* -- failures ------------------------------------------------------------------------------- */

#define ODD_AT 1000
#define ODD_BYTES (5 * BLOCK + 17)

/* Writes and then reads bytes that neither begin nor end at a block. Returns the first failure. */
static int there_and_back(struct cst_err *err)
{
    int rc = cste_device_copy(&drive, 0, at(&file, ODD_AT), at(&host, 0), ODD_BYTES, err);

    return rc != CST_OK ? rc
                        : cste_device_copy(&drive, 0, at(&host, BYTES / 2), at(&file, ODD_AT),
                                           ODD_BYTES, err);
}

static void check_odd(void)
{
    char *expected = calloc(1, BYTES);

    memcpy(expected + ODD_AT, host.base, ODD_BYTES);
    ck_assert_mem_eq((char *)host.base + BYTES / 2, host.base, ODD_BYTES);
    check_file(expected);
    free(expected);
}

/* Whichever call fails, the copy fails with a message that names the file, the drive, the place and
 * the error; done again, it is complete. */
START_TEST(test_each_call_fails)
{
    struct cst_err err;
    unsigned n;

    ck_assert_int_eq(there_and_back(&err), CST_OK);
    n = disk_faults.calls;
    ck_assert_uint_ge(n, 8);
    for (unsigned i = 1; i <= n; i++) {
        disk_faults = (struct disk_faults){.nth = i, .errnum = EIO};
        suite_must(there_and_back(&err) == CST_EIO, "call %u", i);
        suite_must(strstr(err.text, strerror(EIO)) != NULL &&
                       strstr(err.text, "on drive") != NULL &&
                       strstr(err.text, "cistern-disk-") != NULL &&
                       (strstr(err.text, "ing 4096 bytes at ") != NULL ||
                        strstr(err.text, "ing 16384 bytes at 16384 of ") != NULL),
                   "call %u: %s", i, err.text);
        suite_must(disk_faults.calls == i, "call %u: %u calls", i, disk_faults.calls);
        disk_faults = (struct disk_faults){0};
        ck_assert_int_eq(there_and_back(&err), CST_OK);
    }
    check_odd();
}
END_TEST

/* A drive without space is no failure of the drive. */
START_TEST(test_no_space)
{
    struct cst_err err;

    disk_faults = (struct disk_faults){.nth = 2, .errnum = ENOSPC};
    ck_assert_int_eq(there_and_back(&err), CST_ENOMEM);
    ck_assert_ptr_nonnull(strstr(err.text, strerror(ENOSPC)));
}
END_TEST

/* Calls that are interrupted or do only a part, be it a part of a block, are continued. */
START_TEST(test_parts)
{
    static const uint64_t most[] = {BLOCK, BLOCK + 1, 2 * BLOCK + 512};
    struct cst_err err;

    disk_faults = (struct disk_faults){.most = most[_i], .interrupted = true};
    ck_assert_msg(there_and_back(&err) == CST_OK, "%s", err.text);
    disk_faults = (struct disk_faults){0};
    check_odd();
}
END_TEST

/* Copy @bytes at @offset of the host memory to the file, and back behind the middle of the host
 * memory. A lie is told by call @nth of the drive; 0: by none. */
static int lied_to(uint64_t offset, uint64_t bytes, unsigned nth, struct cst_err *err)
{
    struct cste_addr to = at(&host, BYTES / 2);
    int rc;

    disk_faults = (struct disk_faults){.nth = nth, .lies = true};
    rc = cste_device_copy(&drive, 0, at(&file, offset), at(&host, offset), bytes, err);
    ck_assert_msg(rc == CST_OK, "%s", err->text); /* A drive that lies has no errors. */
    rc = cste_device_copy(&drive, 0, to, at(&file, offset), bytes, err);
    disk_faults = (struct disk_faults){0};
    return rc;
}

/* Change a bit of the block at @offset of the file, past the engine. */
static void change_file(uint64_t offset)
{
    char *block = aligned_alloc(BLOCK, BLOCK);

    disk_file_read(fd, block, BLOCK, offset);
    block[BLOCK / 2] ^= 1;
    ck_assert_int_eq(cste_disk_direct.write(fd, block, BLOCK, offset), BLOCK);
    free(block);
}

/* A drive that loses a write or reads other bytes is found out, in blocks and in parts of blocks,
 * and what is read again or written again is right. */
START_TEST(test_lies)
{
    static const uint64_t places[][2] = {{0, BLOCK}, {4 * BLOCK, 16 * BLOCK}, {BLOCK, 3 * BLOCK}};
    const uint64_t offset = places[_i][0], bytes = places[_i][1];
    char *own = host.base;
    struct cst_err err;

    for (unsigned nth = 1; nth <= 2; nth++) { /* The write, and the read. */
        fill(own + offset, bytes);
        ck_assert_int_eq(lied_to(offset, bytes, nth, &err), CST_EIO);
        suite_must(strstr(err.text, "are not those that were written (checksum ") != NULL &&
                       strstr(err.text, "cistern-disk-") != NULL &&
                       strstr(err.text, "on drive") != NULL,
                   "%s", err.text);
        ck_assert_int_eq(lied_to(offset, bytes, 0, &err), CST_OK);
        ck_assert_mem_eq(own + BYTES / 2, own + offset, bytes);
    }
    /* Another owner of the file changes what only this engine may change. */
    change_file(FILE_OFFSET + offset);
    ck_assert_int_eq(
        cste_device_copy(&drive, 0, at(&host, BYTES / 2), at(&file, offset), bytes, &err), CST_EIO);
    /* What is read in other portions is not checked, nor what was changed in part since. */
    must_copy(at(&host, BYTES / 2), at(&file, offset), bytes - 1, 0);
    must_copy(at(&file, offset + 5), at(&host, offset), 3, 0);
    must_copy(at(&host, BYTES / 2), at(&file, offset), bytes, 0);
}
END_TEST

/* A call that does nothing is an error, and is not repeated for ever. */
START_TEST(test_nothing_done)
{
    struct cst_err err;

    disk_faults = (struct disk_faults){.most = 512};
    ck_assert_int_eq(there_and_back(&err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "the call did 512 bytes"));
}
END_TEST

/* A flush that fails is an error with the file and the cause, and one that is interrupted is called
 * again. Memory that is in no file cannot be flushed. */
START_TEST(test_flush_fails)
{
    struct cst_err err;

    disk_faults = (struct disk_faults){.nth = 2, .errnum = EIO, .flushes = true};
    for (int i = 0; i < 2; i++) {
        must_copy(at(&file, 0), at(&host, 0), BLOCK, 0);
        ck_assert_int_eq(cste_device_flush(&drive, 0, &file, &err), i == 0 ? CST_OK : CST_EIO);
    }
    ck_assert_msg(strstr(err.text, "flushing '") != NULL &&
                      strstr(err.text, "Input/output error: the kernel's log") != NULL,
                  "%s", err.text);
    disk_faults = (struct disk_faults){.interrupted = true};
    ck_assert_int_eq(cste_device_flush(&drive, 0, &file, &err), CST_OK);
    ck_assert_uint_eq(atomic_load(&disk_faults.calls), 2);
    ck_assert_int_eq(cste_device_flush(&drive, 0, &host, &err), CST_EUNSUPPORTED);
}
END_TEST

static void *copy_as_five(void *arg)
{
    must_copy(at(&file, 0), at(&host, 0), 2 * BLOCK, 5);
    return arg;
}

static void *flush_as_five(void *arg)
{
    struct cst_err err;

    suite_must(cste_device_flush(&drive, 5, &file, &err) == CST_OK, "%s", err.text);
    return arg;
}

/* A call that does not return is late after its time, with its place and its thread, and others go
 * on. When it has returned, none is late. */
START_TEST(test_late)
{
    static const char *const words[] = {"writing 8192 bytes at 12288 of '", "flushing '"};
    char path[64];
    struct cst_err err;
    unsigned thread = 0;
    pthread_t waiting;

    (void)snprintf(path, sizeof path, "/tmp/check_disk-%d.tmp", (int)getpid());
    disk_stuck_until = path;
    disk_faults = (struct disk_faults){.nth = 1, .flushes = _i == 1};
    ck_assert_int_eq(cste_device_check_late(&drive, &thread, &err), CST_OK);
    ck_assert_int_eq(pthread_create(&waiting, NULL, _i == 0 ? copy_as_five : flush_as_five, NULL),
                     0);
    while (cste_device_check_late(&drive, &thread, &err) == CST_OK) {
        uint64_t bytes = atomic_load(&disk_faults.calls) > 0 ? BLOCK : 0;

        must_copy(at(&file, (uint64_t)4 * BLOCK), at(&host, 0), bytes, 0);
    }
    ck_assert_int_eq(err.status, CST_ETIMEDOUT);
    ck_assert_uint_eq(thread, 5);
    ck_assert_msg(strstr(err.text, words[_i]) != NULL &&
                      strstr(err.text, "the drive has not answered for ") != NULL,
                  "%s", err.text);
    (void)close(open(path, O_CREAT | O_WRONLY, 0600));
    ck_assert_int_eq(pthread_join(waiting, NULL), 0);
    ck_assert_int_eq(cste_device_check_late(&drive, &thread, &err), CST_OK);
    (void)unlink(path);
}
END_TEST

/* If the file was truncated, reading and writing fail with both sizes, also where the file still
 * has bytes, and the file is not extended again. */
START_TEST(test_truncated)
{
    static const uint64_t sizes[] = {0, FILE_OFFSET + 100, FILE_OFFSET + BYTES - 1};
    struct cst_err err;
    char words[64];

    ck_assert_int_eq(ftruncate(fd, (off_t)sizes[_i]), 0);
    (void)snprintf(words, sizeof words, "truncated to %" PRIu64 " bytes", sizes[_i]);
    for (int i = 0; i < 2; i++) {
        int rc = i == 0 ? cste_device_copy(&drive, 0, at(&file, BYTES - 2 * BLOCK), at(&host, 0),
                                           2 * BLOCK, &err)
                        : cste_device_copy(&drive, 0, at(&host, 0), at(&file, BYTES - 2 * BLOCK),
                                           2 * BLOCK, &err);

        ck_assert_int_eq(rc, CST_EIO);
        ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
        ck_assert_uint_eq(disk_file_bytes(fd), sizes[_i]);
    }
}
END_TEST

/* -- import --------------------------------------------------------------------------------- */

static void must_refuse(int handle, uint64_t offset, uint64_t bytes, const char *words)
{
    struct cste_mem mem = {.bytes = bytes, .file_offset = offset};
    struct cst_err err;

    ck_assert_int_eq(cste_device_import(&drive, 0, &handle, &mem, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, words) != NULL, "'%s' is not in '%s'", words, err.text);
    ck_assert_uint_eq(mem.device, 0);
}

/* What is no file with O_DIRECT on a drive, or not as long as the range, is refused with the
 * reason. */
START_TEST(test_refused)
{
    int ends[2], memory = memfd_create("test", 0), appending = disk_file_make(BLOCK, O_APPEND);
    int plain = disk_file_make(BLOCK, 0), folder = open("/", O_RDONLY | O_DIRECTORY), same;
    char path[40];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(ftruncate(memory, BLOCK), 0);
    must_refuse(ends[0], 0, BLOCK, "no regular file");
    must_refuse(folder, 0, BLOCK, "no regular file");
    must_refuse(-1, 0, BLOCK, "needs a file");
    must_refuse(appending, 0, BLOCK, "without O_APPEND");
    must_refuse(memory, 0, BLOCK, "O_DIRECT");
    if (fcntl(memory, F_SETFL, O_DIRECT) == 0) {
        must_refuse(memory, 0, BLOCK, "in memory");
    }
    must_refuse(fd, 512, BLOCK, "multiples of 4096");
    must_refuse(fd, UINT64_MAX - BLOCK + 1, BLOCK, "multiples of 4096");
    must_refuse(fd, 0, BLOCK + 512, "multiples of 4096");
    must_refuse(fd, 0, 0, "multiples of 4096");
    must_refuse(fd, FILE_OFFSET, BYTES + 2 * BLOCK, "has ");
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    same = open(path, O_RDONLY | O_DIRECT);
    must_refuse(same, 0, BLOCK, "O_RDWR");
    ck_assert_int_eq(fcntl(plain, F_SETFL, 0), 0);
    must_refuse(plain, 0, BLOCK, "O_DIRECT");
    for (int i = 0; i < 2; i++) {
        (void)close(ends[i]);
    }
    (void)close(memory);
    (void)close(appending);
    (void)close(plain);
    (void)close(folder);
    (void)close(same);
}
END_TEST

/* A new range is allocated, in a file that is extended for it. If it is unmapped before it was
 * filled, the space is given back, also if another range follows. */
START_TEST(test_given_back)
{
    struct cste_mem first, second;
    uint64_t old = disk_file_bytes(fd), space = disk_file_space(fd);

    must_import(&first, old, BYTES, true);
    ck_assert_uint_eq(disk_file_bytes(fd), old + BYTES);
    ck_assert_uint_ge(disk_file_space(fd), space + BYTES);
    must_import(&second, old + BYTES, BYTES, true);
    ck_assert_uint_eq(disk_file_bytes(fd), old + 2 * BYTES);
    ck_assert_uint_ge(disk_file_space(fd), space + 2 * BYTES);
    if (_i == 0) {
        cste_device_unmap(&drive, &first);
        ck_assert_uint_eq(disk_file_bytes(fd), old + 2 * BYTES);
        ck_assert_uint_lt(disk_file_space(fd), space + BYTES + BYTES / 2);
        cste_device_unmap(&drive, &second);
        ck_assert_uint_eq(disk_file_bytes(fd), old + BYTES);
    } else {
        cste_device_unmap(&drive, &second);
        cste_device_unmap(&drive, &first);
        ck_assert_uint_eq(disk_file_bytes(fd), old);
    }
    ck_assert_uint_lt(disk_file_space(fd), space + BYTES / 2);
}
END_TEST

/* A range that was filled stays when it is unmapped. */
START_TEST(test_kept)
{
    uint64_t old = disk_file_bytes(fd);
    struct cste_mem mem;
    struct cst_err err;

    must_import(&mem, old, BYTES, true);
    ck_assert_int_eq(cste_device_fill(&drive, 0, at(&mem, 0), BYTES, &err), CST_OK);
    mem.fresh = false;
    cste_device_unmap(&drive, &mem);
    ck_assert_uint_eq(disk_file_bytes(fd), old + BYTES);
}
END_TEST

/* If the file system has too little space, the message has the bytes, and what was taken is given
 * back. */
START_TEST(test_too_little_space)
{
    uint64_t old = disk_file_bytes(fd), space = disk_file_space(fd);
    struct cste_mem mem;
    struct cst_err err;

    disk_faults = (struct disk_faults){.nth = 1, .errnum = ENOSPC, .takes_half = true};
    ck_assert_int_eq(import(&mem, old, BYTES, true, &err), CST_ENOMEM);
    ck_assert_msg(strstr(err.text, "allocating 3145728 bytes") != NULL &&
                      strstr(err.text, strerror(ENOSPC)) != NULL,
                  "%s", err.text);
    ck_assert_uint_eq(mem.device, 0);
    ck_assert_uint_eq(disk_file_bytes(fd), old);
    ck_assert_uint_lt(disk_file_space(fd), space + BYTES / 4);
}
END_TEST

/* A file system that cannot allocate in advance is no obstacle. */
START_TEST(test_no_allocation)
{
    uint64_t old = disk_file_bytes(fd);
    struct cste_mem mem;

    disk_faults = (struct disk_faults){.nth = 1, .errnum = EOPNOTSUPP};
    must_import(&mem, old, BYTES, true);
    ck_assert_uint_eq(disk_file_bytes(fd), old + BYTES);
    cste_device_unmap(&drive, &mem);
    ck_assert_uint_eq(disk_file_bytes(fd), old);
}
END_TEST

/* -- records -------------------------------------------------------------------------------- */

static void set_up_recording(void)
{
    set_up_with(&disk_recording);
    disk_record_fd = memfd_create("record", 0);
}

/* The writes that are recorded, one after the other, are the file. The flush is the last call. */
START_TEST(test_record)
{
    uint64_t n = 0, all = FILE_OFFSET + BYTES + BLOCK, bytes;
    char *replayed = calloc(1, all), *now = aligned_alloc(BLOCK, all);
    struct disk_record head;
    struct cst_err err;

    for (int i = 0; i < 20; i++) {
        uint64_t there;

        bytes = choose(&there);
        must_copy(at(&file, there), at(&host, next(BYTES - bytes + 1)), bytes, 0);
    }
    ck_assert_int_eq(cste_device_flush(&drive, 0, &file, &err), CST_OK);
    while (pread(disk_record_fd, &head, sizeof head, (off_t)n) == sizeof head) {
        n += sizeof head;
        ck_assert_uint_le(head.offset + head.bytes, all);
        ck_assert_int_eq(pread(disk_record_fd, replayed + head.offset, head.bytes, (off_t)n),
                         (ssize_t)head.bytes);
        n += head.bytes;
    }
    ck_assert_uint_eq(head.kind, DISK_RECORD_FLUSHED);
    disk_file_read(fd, now, all, 0);
    ck_assert_mem_eq(now, replayed, all);
    (void)close(disk_record_fd);
    disk_record_fd = -1;
    free(now);
    free(replayed);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("disk");
    TCase *bytes = suite_case(suite, "bytes", set_up, tear_down);
    TCase *faults = suite_case(suite, "faults", set_up_failing, tear_down);
    TCase *files = suite_case(suite, "files", set_up_failing, tear_down);
    TCase *records = suite_case(suite, "records", set_up_recording, tear_down);
    struct cst_err err;

    if (disk_file_is_missing("check_disk")) {
        return DISK_FILE_SKIP;
    }
    if (cste_cpus_open(&cpus, 0, &err) != CST_OK) {
        fprintf(stderr, "check_disk: %s\n", err.text);
        return EXIT_FAILURE;
    }
    seed = suite_seed();
    tcase_add_test(bytes, test_any_bytes);
    tcase_add_test(bytes, test_host_to_host);
    tcase_add_test(bytes, test_neighbours);
    tcase_add_test(faults, test_each_call_fails);
    tcase_add_test(faults, test_no_space);
    tcase_add_loop_test(faults, test_parts, 0, 3);
    tcase_add_loop_test(faults, test_lies, 0, 3);
    tcase_add_test(faults, test_nothing_done);
    tcase_add_loop_test(faults, test_truncated, 0, 3);
    tcase_add_test(faults, test_flush_fails);
    tcase_add_loop_test(suite_case(suite, "late", set_up_stuck, tear_down), test_late, 0, 2);
    tcase_add_test(files, test_refused);
    tcase_add_loop_test(files, test_given_back, 0, 2);
    tcase_add_test(files, test_kept);
    tcase_add_test(files, test_too_little_space);
    tcase_add_test(files, test_no_allocation);
    tcase_add_test(records, test_record);
    return suite_run(suite);
}
