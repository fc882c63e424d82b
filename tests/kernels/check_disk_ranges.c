/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the ranges of files that the device "disk" imports, in this process: which are refused,
 * and the space that they take and give back. */
#include "kernels/host/disk.h"

#include "tests/lib/disk_file.h"
#include "tests/lib/disk_rig.h"
#include "tests/lib/disk_rows.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void set_up(void)
{
    disk_rig_open(&disk_failing);
}

static void must_refuse(int handle, uint64_t offset, uint64_t bytes, const char *words)
{
    struct cste_mem mem = {.bytes = bytes, .file_offset = offset};
    struct cst_err err;

    ck_assert_int_eq(cste_device_import(&disk_rig.drive, 0, &handle, &mem, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, words) != NULL, "'%s' is not in '%s'", words, err.text);
    ck_assert_uint_eq(mem.device, 0);
}

/* What is no file with O_DIRECT on a drive, or not as long as the range, is refused with the
 * reason. */
START_TEST(test_refused)
{
    int ends[2], memory = memfd_create("test", 0),
                 appending = disk_file_make(DISK_RIG_BLOCK, O_APPEND);
    int plain = disk_file_make(DISK_RIG_BLOCK, 0), folder = open("/", O_RDONLY | O_DIRECTORY), same;
    char path[40];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(ftruncate(memory, DISK_RIG_BLOCK), 0);
    must_refuse(ends[0], 0, DISK_RIG_BLOCK, "no regular file");
    must_refuse(folder, 0, DISK_RIG_BLOCK, "no regular file");
    must_refuse(-1, 0, DISK_RIG_BLOCK, "needs a file");
    must_refuse(appending, 0, DISK_RIG_BLOCK, "without O_APPEND");
    must_refuse(memory, 0, DISK_RIG_BLOCK, "O_DIRECT");
    if (fcntl(memory, F_SETFL, O_DIRECT) == 0) {
        must_refuse(memory, 0, DISK_RIG_BLOCK, "in memory");
    }
    must_refuse(disk_rig.fd, 512, DISK_RIG_BLOCK, "multiples of 4096");
    must_refuse(disk_rig.fd, UINT64_MAX - DISK_RIG_BLOCK + 1, DISK_RIG_BLOCK, "multiples of 4096");
    must_refuse(disk_rig.fd, 0, DISK_RIG_BLOCK + 512, "multiples of 4096");
    must_refuse(disk_rig.fd, 0, 0, "multiples of 4096");
    must_refuse(disk_rig.fd, DISK_RIG_OFFSET, DISK_RIG_BYTES + 2 * DISK_RIG_BLOCK, "has ");
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", disk_rig.fd);
    same = open(path, O_RDONLY | O_DIRECT);
    must_refuse(same, 0, DISK_RIG_BLOCK, "O_RDWR");
    ck_assert_int_eq(fcntl(plain, F_SETFL, 0), 0);
    must_refuse(plain, 0, DISK_RIG_BLOCK, "O_DIRECT");
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
    uint64_t old = disk_file_bytes(disk_rig.fd), space = disk_file_space(disk_rig.fd);

    disk_rig_import(&first, old, DISK_RIG_BYTES, true);
    ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old + DISK_RIG_BYTES);
    ck_assert_uint_ge(disk_file_space(disk_rig.fd), space + DISK_RIG_BYTES);
    disk_rig_import(&second, old + DISK_RIG_BYTES, DISK_RIG_BYTES, true);
    ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old + 2 * DISK_RIG_BYTES);
    ck_assert_uint_ge(disk_file_space(disk_rig.fd), space + 2 * DISK_RIG_BYTES);
    if (_i == 0) {
        cste_device_unmap(&disk_rig.drive, &first);
        ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old + 2 * DISK_RIG_BYTES);
        ck_assert_uint_lt(disk_file_space(disk_rig.fd),
                          space + DISK_RIG_BYTES + DISK_RIG_BYTES / 2);
        cste_device_unmap(&disk_rig.drive, &second);
        ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old + DISK_RIG_BYTES);
    } else {
        cste_device_unmap(&disk_rig.drive, &second);
        cste_device_unmap(&disk_rig.drive, &first);
        ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old);
    }
    ck_assert_uint_lt(disk_file_space(disk_rig.fd), space + DISK_RIG_BYTES / 2);
}
END_TEST

/* A range that was filled stays when it is unmapped. */
START_TEST(test_kept)
{
    uint64_t old = disk_file_bytes(disk_rig.fd);
    struct cste_mem mem;
    struct cst_err err;

    disk_rig_import(&mem, old, DISK_RIG_BYTES, true);
    ck_assert_int_eq(
        cste_device_fill(&disk_rig.drive, 0, disk_rig_at(&mem, 0), DISK_RIG_BYTES, &err), CST_OK);
    mem.fresh = false;
    cste_device_unmap(&disk_rig.drive, &mem);
    ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old + DISK_RIG_BYTES);
}
END_TEST

/* If the file system has too little space, the message has the bytes, and what was taken is given
 * back. */
START_TEST(test_too_little_space)
{
    uint64_t old = disk_file_bytes(disk_rig.fd), space = disk_file_space(disk_rig.fd);
    struct cste_mem mem;
    struct cst_err err;

    disk_faults = (struct disk_faults){.nth = 1, .errnum = ENOSPC, .takes_half = true};
    ck_assert_int_eq(disk_rig_try_import(&mem, old, DISK_RIG_BYTES, true, &err), CST_ENOMEM);
    ck_assert_msg(strstr(err.text, "allocating 3145728 bytes") != NULL &&
                      strstr(err.text, strerror(ENOSPC)) != NULL,
                  "%s", err.text);
    ck_assert_uint_eq(mem.device, 0);
    ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old);
    ck_assert_uint_lt(disk_file_space(disk_rig.fd), space + DISK_RIG_BYTES / 4);
}
END_TEST

/* A file system that cannot allocate in advance is no obstacle. */
START_TEST(test_no_allocation)
{
    uint64_t old = disk_file_bytes(disk_rig.fd);
    struct cste_mem mem;

    disk_faults = (struct disk_faults){.nth = 1, .errnum = EOPNOTSUPP};
    disk_rig_import(&mem, old, DISK_RIG_BYTES, true);
    ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old + DISK_RIG_BYTES);
    cste_device_unmap(&disk_rig.drive, &mem);
    ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), old);
}
END_TEST
int main(void)
{
    Suite *suite = suite_create("disk_ranges");
    TCase *ranges = suite_case(suite, "ranges", set_up, disk_rig_close);

    if (!disk_rig_can("check_disk_ranges")) {
        return DISK_FILE_SKIP;
    }
    tcase_add_test(ranges, test_refused);
    tcase_add_loop_test(ranges, test_given_back, 0, 2);
    tcase_add_test(ranges, test_kept);
    tcase_add_test(ranges, test_too_little_space);
    tcase_add_test(ranges, test_no_allocation);
    return suite_run(suite);
}
