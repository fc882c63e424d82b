/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the device "disk" in this process: copies of any bytes to and from ranges of files, at
 * the same time, and their records. */
#include "kernels/host/disk.h"

#include "tests/lib/disk_file.h"
#include "tests/lib/disk_rig.h"
#include "tests/lib/disk_rows.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void set_up(void)
{
    disk_rig_open(&cste_disk_direct);
}

/* -- bytes ---------------------------------------------------------------------------------- */

/* Copies up, down and between ranges of files, and fills, of any bytes at any place, change these
 * bytes and no others. */
START_TEST(test_any_bytes)
{
    char *expected = calloc(1, DISK_RIG_BYTES), *own = disk_rig.host.base;
    struct cste_mem other; /* the file once more, as another segment */
    struct cst_err err;

    disk_rig_import(&other, DISK_RIG_OFFSET, DISK_RIG_BYTES, false);
    for (int i = 0; i < 300; i++) {
        uint64_t there, here, bytes = disk_rig_choose(&there);

        here = disk_rig_next(DISK_RIG_BYTES - bytes + 1);
        here = disk_rig_next(2) == 0 ? there : here;
        switch (disk_rig_next(4)) {
        case 0:
            disk_rig_copy(disk_rig_at(&disk_rig.file, there), disk_rig_at(&disk_rig.host, here),
                          bytes, 0);
            memcpy(expected + there, own + here, bytes);
            break;
        case 1:
            disk_rig_copy(disk_rig_at(&disk_rig.host, here), disk_rig_at(&disk_rig.file, there),
                          bytes, 0);
            suite_must(memcmp(own + here, expected + there, bytes) == 0,
                       "%" PRIu64 " bytes at %" PRIu64 " read to %" PRIu64, bytes, there, here);
            break;
        case 2:
            bytes = bytes < DISK_RIG_BYTES / 2 ? bytes : DISK_RIG_BYTES / 2;
            there = disk_rig_next(DISK_RIG_BYTES / 2 - bytes + 1);
            here = DISK_RIG_BYTES / 2 + disk_rig_next(DISK_RIG_BYTES / 2 - bytes + 1);
            disk_rig_copy(disk_rig_at(&disk_rig.file, here), disk_rig_at(&other, there), bytes, 0);
            memcpy(expected + here, expected + there, bytes);
            break;
        default:
            suite_must(cste_device_fill(&disk_rig.drive, 0, disk_rig_at(&disk_rig.file, there),
                                        bytes, &err) == CST_OK,
                       "%s", err.text);
            memset(expected + there, 0, bytes);
        }
        disk_rig_fill(own + disk_rig_next(DISK_RIG_BYTES - 64), 64);
    }
    disk_rig_check(expected);
    cste_device_unmap(&disk_rig.drive, &other);
    free(expected);
}
END_TEST

/* Copies within host memory work, too. */
START_TEST(test_host_to_host)
{
    disk_rig_copy(disk_rig_at(&disk_rig.host, 0), disk_rig_at(&disk_rig.host, DISK_RIG_BYTES / 2),
                  1000, 0);
    ck_assert_mem_eq(disk_rig.host.base, (char *)disk_rig.host.base + DISK_RIG_BYTES / 2, 1000);
}
END_TEST
/* -- neighbours ----------------------------------------------------------------------------- */

#define N_CUTS 400
#define AREA ((uint64_t)64 * DISK_RIG_BLOCK)

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
        disk_rig_copy(disk_rig_at(&disk_rig.file, cuts[i]),
                      disk_rig_at(&disk_rig.host, cuts[i] + 1), cuts[i + 1] - cuts[i], thread);
    }
    return NULL;
}

/* Many threads write neighbouring bytes of the same blocks at the same time. No byte is lost. */
START_TEST(test_neighbours)
{
    char *expected = calloc(1, DISK_RIG_BYTES);
    pthread_t threads[DISK_RIG_THREADS];
    unsigned numbers[DISK_RIG_THREADS];

    (void)pthread_barrier_init(&barrier, NULL, DISK_RIG_THREADS);
    for (int round = 0; round < 8; round++) {
        disk_rig_fill(disk_rig.host.base, AREA + 1);
        memcpy(expected, (char *)disk_rig.host.base + 1, AREA);
        for (unsigned i = 0; i < N_CUTS; i++) {
            cuts[i] = i == 0 ? 0 : disk_rig_next(AREA);
        }
        cuts[N_CUTS] = AREA;
        qsort(cuts, N_CUTS, sizeof cuts[0], compare);
        atomic_store(&piece, 0);
        for (unsigned i = 0; i < DISK_RIG_THREADS; i++) {
            numbers[i] = i;
            ck_assert_int_eq(pthread_create(&threads[i], NULL, write_pieces, &numbers[i]), 0);
        }
        for (unsigned i = 0; i < DISK_RIG_THREADS; i++) {
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        }
        disk_rig_check(expected);
    }
    (void)pthread_barrier_destroy(&barrier);
    free(expected);
}
END_TEST
/* -- records -------------------------------------------------------------------------------- */

static void set_up_recording(void)
{
    disk_rig_open(&disk_recording);
    disk_record_fd = memfd_create("record", 0);
}

/* The writes that are recorded, one after the other, are the file. The flush is the last call. */
START_TEST(test_record)
{
    uint64_t n = 0, all = DISK_RIG_OFFSET + DISK_RIG_BYTES + DISK_RIG_BLOCK, bytes;
    char *replayed = calloc(1, all), *now = aligned_alloc(DISK_RIG_BLOCK, all);
    struct disk_record head;
    struct cst_err err;

    for (int i = 0; i < 20; i++) {
        uint64_t there;

        bytes = disk_rig_choose(&there);
        disk_rig_copy(disk_rig_at(&disk_rig.file, there),
                      disk_rig_at(&disk_rig.host, disk_rig_next(DISK_RIG_BYTES - bytes + 1)), bytes,
                      0);
    }
    ck_assert_int_eq(cste_device_flush(&disk_rig.drive, 0, &disk_rig.file, &err), CST_OK);
    while (pread(disk_record_fd, &head, sizeof head, (off_t)n) == sizeof head) {
        n += sizeof head;
        ck_assert_uint_le(head.offset + head.bytes, all);
        ck_assert_int_eq(pread(disk_record_fd, replayed + head.offset, head.bytes, (off_t)n),
                         (ssize_t)head.bytes);
        n += head.bytes;
    }
    ck_assert_uint_eq(head.kind, DISK_RECORD_FLUSHED);
    disk_file_read(disk_rig.fd, now, all, 0);
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
    TCase *bytes = suite_case(suite, "bytes", set_up, disk_rig_close);
    TCase *records = suite_case(suite, "records", set_up_recording, disk_rig_close);

    if (!disk_rig_can("check_disk")) {
        return DISK_FILE_SKIP;
    }
    tcase_add_test(bytes, test_any_bytes);
    tcase_add_test(bytes, test_host_to_host);
    tcase_add_test(bytes, test_neighbours);
    tcase_add_test(records, test_record);
    return suite_run(suite);
}
