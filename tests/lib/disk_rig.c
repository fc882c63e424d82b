/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/disk_rig.h"

#include "kernels/host/disk.h"
#include "tests/lib/disk_file.h"
#include "tests/lib/disk_rows.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct disk_rig disk_rig;

static uint64_t seed, state;
static struct cste_cpus cpus;
static const struct cste_disk_io *io;

uint64_t disk_rig_next(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

void disk_rig_fill(char *at, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) {
        at[i] = (char)disk_rig_next(256);
    }
}

static int open_io(void **out, const struct cste_device_spec *spec, struct cste_device_about *about,
                   struct cst_err *err)
{
    return cste_disk_open(out, io, spec, about, err);
}

static void open_drive(void)
{
    static struct cste_device_ops ops;
    struct cste_device_spec spec = {
        .cpus = &cpus, .n_team = 1, .n_threads = DISK_RIG_THREADS, .call_limit_s = 1};
    struct cst_err err;

    ops = cste_disk_ops;
    ops.open = open_io;
    ck_assert_msg(cste_device_open(&disk_rig.drive, &ops, &spec, &err) == CST_OK, "%s", err.text);
}

int disk_rig_try_import(struct cste_mem *mem, uint64_t offset, uint64_t bytes, bool fresh,
                        struct cst_err *err)
{
    int handle = disk_rig.fd;

    *mem = (struct cste_mem){.bytes = bytes, .file_offset = offset, .fresh = fresh};
    return cste_device_import(&disk_rig.drive, 0, &handle, mem, err);
}

void disk_rig_import(struct cste_mem *mem, uint64_t offset, uint64_t bytes, bool fresh)
{
    struct cst_err err;

    ck_assert_msg(disk_rig_try_import(mem, offset, bytes, fresh, &err) == CST_OK, "%s", err.text);
}

void disk_rig_open(const struct cste_disk_io *with)
{
    struct cst_err err, note;
    int memory = memfd_create("test", MFD_CLOEXEC);

    state = seed;
    disk_faults = (struct disk_faults){0};
    io = with;
    open_drive();
    disk_rig.host = (struct cste_mem){.bytes = DISK_RIG_BYTES};
    ck_assert_int_eq(ftruncate(memory, DISK_RIG_BYTES), 0);
    ck_assert_int_eq(cste_device_map(&disk_rig.drive, memory, -1, &disk_rig.host, &note, &err),
                     CST_OK);
    (void)close(memory);
    disk_rig_fill(disk_rig.host.base, DISK_RIG_BYTES);
    disk_rig.fd = disk_file_make(DISK_RIG_OFFSET + DISK_RIG_BYTES + DISK_RIG_BLOCK, 0);
    disk_rig_import(&disk_rig.file, DISK_RIG_OFFSET, DISK_RIG_BYTES, false);
}

void disk_rig_close(void)
{
    cste_device_unmap(&disk_rig.drive, &disk_rig.file);
    cste_device_unmap(&disk_rig.drive, &disk_rig.host);
    cste_device_close(&disk_rig.drive);
    (void)close(disk_rig.fd);
}

struct cste_addr disk_rig_at(const struct cste_mem *mem, uint64_t offset)
{
    return (struct cste_addr){.mem = mem, .offset = offset};
}

void disk_rig_copy(struct cste_addr dst, struct cste_addr src, uint64_t bytes, unsigned thread)
{
    struct cst_err err;

    suite_must(cste_device_copy(&disk_rig.drive, thread, dst, src, bytes, &err) == CST_OK, "%s",
               err.text);
}

void disk_rig_check(const char *expected)
{
    static const char zeros[DISK_RIG_OFFSET];
    uint64_t all = DISK_RIG_OFFSET + DISK_RIG_BYTES + DISK_RIG_BLOCK;
    char *now = aligned_alloc(DISK_RIG_BLOCK, all);

    disk_file_read(disk_rig.fd, now, all, 0);
    ck_assert_mem_eq(now, zeros, DISK_RIG_OFFSET);
    ck_assert_mem_eq(now + DISK_RIG_OFFSET, expected, DISK_RIG_BYTES);
    ck_assert_mem_eq(now + DISK_RIG_OFFSET + DISK_RIG_BYTES, zeros, DISK_RIG_BLOCK);
    free(now);
}

uint64_t disk_rig_choose(uint64_t *offset)
{
    uint64_t bytes =
        disk_rig_next(4) == 0 ? disk_rig_next(2 * DISK_RIG_BLOCK) : disk_rig_next(DISK_RIG_BYTES);

    *offset = disk_rig_next(DISK_RIG_BYTES - bytes + 1);
    if (disk_rig_next(3) == 0) {
        *offset -= *offset % DISK_RIG_BLOCK;
    }
    if (disk_rig_next(3) == 0) {
        bytes -= bytes % DISK_RIG_BLOCK;
    }
    return bytes;
}

bool disk_rig_can(const char *program)
{
    struct cst_err err;

    if (cste_cpus_open(&cpus, 0, &err) != CST_OK) {
        fprintf(stderr, "%s: %s\n", program, err.text);
        exit(EXIT_FAILURE);
    }
    seed = suite_seed();
    return !disk_file_is_missing(program);
}
