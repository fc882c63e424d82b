/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the device "disk" in this process whose system calls fail, lie or do not return. */
#include "kernels/host/disk.h"

#include "tests/lib/disk_file.h"
#include "tests/lib/disk_rig.h"
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
#include <unistd.h>

static void set_up_failing(void)
{
    disk_rig_open(&disk_failing);
}

static void set_up_stuck(void)
{
    disk_rig_open(&disk_stuck);
}

#define ODD_AT 1000
#define ODD_BYTES (5 * DISK_RIG_BLOCK + 17)

/* Writes and then reads bytes that neither begin nor end at a block. Returns the first failure. */
static int there_and_back(struct cst_err *err)
{
    int rc = cste_device_copy(&disk_rig.drive, 0, disk_rig_at(&disk_rig.file, ODD_AT),
                              disk_rig_at(&disk_rig.host, 0), ODD_BYTES, err);

    return rc != CST_OK ? rc
                        : cste_device_copy(&disk_rig.drive, 0,
                                           disk_rig_at(&disk_rig.host, DISK_RIG_BYTES / 2),
                                           disk_rig_at(&disk_rig.file, ODD_AT), ODD_BYTES, err);
}

static void check_odd(void)
{
    char *expected = calloc(1, DISK_RIG_BYTES);

    memcpy(expected + ODD_AT, disk_rig.host.base, ODD_BYTES);
    ck_assert_mem_eq((char *)disk_rig.host.base + DISK_RIG_BYTES / 2, disk_rig.host.base,
                     ODD_BYTES);
    disk_rig_check(expected);
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
    static const uint64_t most[] = {DISK_RIG_BLOCK, DISK_RIG_BLOCK + 1, 2 * DISK_RIG_BLOCK + 512};
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
    struct cste_addr to = disk_rig_at(&disk_rig.host, DISK_RIG_BYTES / 2);
    int rc;

    disk_faults = (struct disk_faults){.nth = nth, .lies = true};
    rc = cste_device_copy(&disk_rig.drive, 0, disk_rig_at(&disk_rig.file, offset),
                          disk_rig_at(&disk_rig.host, offset), bytes, err);
    ck_assert_msg(rc == CST_OK, "%s", err->text); /* A drive that lies has no errors. */
    rc = cste_device_copy(&disk_rig.drive, 0, to, disk_rig_at(&disk_rig.file, offset), bytes, err);
    disk_faults = (struct disk_faults){0};
    return rc;
}

/* Change a bit of the block at @offset of the file, past the engine. */
static void change_file(uint64_t offset)
{
    char *block = aligned_alloc(DISK_RIG_BLOCK, DISK_RIG_BLOCK);

    disk_file_read(disk_rig.fd, block, DISK_RIG_BLOCK, offset);
    block[DISK_RIG_BLOCK / 2] ^= 1;
    ck_assert_int_eq(cste_disk_direct.write(disk_rig.fd, block, DISK_RIG_BLOCK, offset),
                     DISK_RIG_BLOCK);
    free(block);
}

/* A drive that loses a write or reads other bytes is found out, in blocks and in parts of blocks,
 * and what is read again or written again is right. */
START_TEST(test_lies)
{
    static const uint64_t places[][2] = {{0, DISK_RIG_BLOCK},
                                         {4 * DISK_RIG_BLOCK, 16 * DISK_RIG_BLOCK},
                                         {DISK_RIG_BLOCK, 3 * DISK_RIG_BLOCK}};
    const uint64_t offset = places[_i][0], bytes = places[_i][1];
    char *own = disk_rig.host.base;
    struct cst_err err;

    for (unsigned nth = 1; nth <= 2; nth++) { /* The write, and the read. */
        disk_rig_fill(own + offset, bytes);
        ck_assert_int_eq(lied_to(offset, bytes, nth, &err), CST_EIO);
        suite_must(strstr(err.text, "are not those that were written (checksum ") != NULL &&
                       strstr(err.text, "cistern-disk-") != NULL &&
                       strstr(err.text, "on drive") != NULL,
                   "%s", err.text);
        ck_assert_int_eq(lied_to(offset, bytes, 0, &err), CST_OK);
        ck_assert_mem_eq(own + DISK_RIG_BYTES / 2, own + offset, bytes);
    }
    /* Another owner of the file changes what only this engine may change. */
    change_file(DISK_RIG_OFFSET + offset);
    ck_assert_int_eq(cste_device_copy(&disk_rig.drive, 0,
                                      disk_rig_at(&disk_rig.host, DISK_RIG_BYTES / 2),
                                      disk_rig_at(&disk_rig.file, offset), bytes, &err),
                     CST_EIO);
    /* What is read in other portions is not checked, nor what was changed in part since. */
    disk_rig_copy(disk_rig_at(&disk_rig.host, DISK_RIG_BYTES / 2),
                  disk_rig_at(&disk_rig.file, offset), bytes - 1, 0);
    disk_rig_copy(disk_rig_at(&disk_rig.file, offset + 5), disk_rig_at(&disk_rig.host, offset), 3,
                  0);
    disk_rig_copy(disk_rig_at(&disk_rig.host, DISK_RIG_BYTES / 2),
                  disk_rig_at(&disk_rig.file, offset), bytes, 0);
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

    disk_faults = (struct disk_faults){.nth = 2, .errnum = EIO, .kinds = DISK_FLUSH};
    for (int i = 0; i < 2; i++) {
        disk_rig_copy(disk_rig_at(&disk_rig.file, 0), disk_rig_at(&disk_rig.host, 0),
                      DISK_RIG_BLOCK, 0);
        ck_assert_int_eq(cste_device_flush(&disk_rig.drive, 0, &disk_rig.file, &err),
                         i == 0 ? CST_OK : CST_EIO);
    }
    ck_assert_msg(strstr(err.text, "flushing '") != NULL &&
                      strstr(err.text, "Input/output error: the kernel's log") != NULL,
                  "%s", err.text);
    disk_faults = (struct disk_faults){.interrupted = true};
    ck_assert_int_eq(cste_device_flush(&disk_rig.drive, 0, &disk_rig.file, &err), CST_OK);
    ck_assert_uint_eq(atomic_load(&disk_faults.calls), 2);
    ck_assert_int_eq(cste_device_flush(&disk_rig.drive, 0, &disk_rig.host, &err), CST_EUNSUPPORTED);
}
END_TEST

static void *copy_as_five(void *arg)
{
    disk_rig_copy(disk_rig_at(&disk_rig.file, 0), disk_rig_at(&disk_rig.host, 0),
                  2 * DISK_RIG_BLOCK, 5);
    return arg;
}

static void *flush_as_five(void *arg)
{
    struct cst_err err;

    suite_must(cste_device_flush(&disk_rig.drive, 5, &disk_rig.file, &err) == CST_OK, "%s",
               err.text);
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
    disk_faults = (struct disk_faults){.nth = 1, .kinds = _i == 1 ? DISK_FLUSH : 0};
    ck_assert_int_eq(cste_device_check_late(&disk_rig.drive, &thread, &err), CST_OK);
    ck_assert_int_eq(pthread_create(&waiting, NULL, _i == 0 ? copy_as_five : flush_as_five, NULL),
                     0);
    while (cste_device_check_late(&disk_rig.drive, &thread, &err) == CST_OK) {
        uint64_t bytes = atomic_load(&disk_faults.calls) > 0 ? DISK_RIG_BLOCK : 0;

        disk_rig_copy(disk_rig_at(&disk_rig.file, (uint64_t)4 * DISK_RIG_BLOCK),
                      disk_rig_at(&disk_rig.host, 0), bytes, 0);
    }
    ck_assert_int_eq(err.status, CST_ETIMEDOUT);
    ck_assert_uint_eq(thread, 5);
    ck_assert_msg(strstr(err.text, words[_i]) != NULL &&
                      strstr(err.text, "the drive has not answered for ") != NULL,
                  "%s", err.text);
    (void)close(open(path, O_CREAT | O_WRONLY, 0600));
    ck_assert_int_eq(pthread_join(waiting, NULL), 0);
    ck_assert_int_eq(cste_device_check_late(&disk_rig.drive, &thread, &err), CST_OK);
    (void)unlink(path);
}
END_TEST

/* If the file was truncated, reading and writing fail with both sizes, also where the file still
 * has bytes, and the file is not extended again. */
START_TEST(test_truncated)
{
    static const uint64_t sizes[] = {0, DISK_RIG_OFFSET + 100,
                                     DISK_RIG_OFFSET + DISK_RIG_BYTES - 1};
    struct cst_err err;
    char words[64];

    ck_assert_int_eq(ftruncate(disk_rig.fd, (off_t)sizes[_i]), 0);
    (void)snprintf(words, sizeof words, "truncated to %" PRIu64 " bytes", sizes[_i]);
    for (int i = 0; i < 2; i++) {
        int rc =
            i == 0
                ? cste_device_copy(&disk_rig.drive, 0,
                                   disk_rig_at(&disk_rig.file, DISK_RIG_BYTES - 2 * DISK_RIG_BLOCK),
                                   disk_rig_at(&disk_rig.host, 0), 2 * DISK_RIG_BLOCK, &err)
                : cste_device_copy(&disk_rig.drive, 0, disk_rig_at(&disk_rig.host, 0),
                                   disk_rig_at(&disk_rig.file, DISK_RIG_BYTES - 2 * DISK_RIG_BLOCK),
                                   2 * DISK_RIG_BLOCK, &err);

        ck_assert_int_eq(rc, CST_EIO);
        ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
        ck_assert_uint_eq(disk_file_bytes(disk_rig.fd), sizes[_i]);
    }
}
END_TEST
int main(void)
{
    Suite *suite = suite_create("disk_faults");
    TCase *faults = suite_case(suite, "faults", set_up_failing, disk_rig_close);

    if (!disk_rig_can("check_disk_faults")) {
        return DISK_FILE_SKIP;
    }
    tcase_add_test(faults, test_each_call_fails);
    tcase_add_test(faults, test_no_space);
    tcase_add_loop_test(faults, test_parts, 0, 3);
    tcase_add_loop_test(faults, test_lies, 0, 3);
    tcase_add_test(faults, test_nothing_done);
    tcase_add_loop_test(faults, test_truncated, 0, 3);
    tcase_add_test(faults, test_flush_fails);
    tcase_add_loop_test(suite_case(suite, "late", set_up_stuck, disk_rig_close), test_late, 0, 2);
    return suite_run(suite);
}
