/* SPDX-License-Identifier: Apache-2.0 */
/* The device "disk" in the process of a test, with host memory and a range of a file of the same
 * size. The fixtures of a test case open and close it. Errors fail the test. */
#ifndef DISK_RIG_H
#define DISK_RIG_H

#include "kernels/engine/device.h"
#include "kernels/host/disk_io.h"

#include <stdbool.h>
#include <stdint.h>

#define DISK_RIG_BLOCK 4096                  /* Bytes of a block of the drive. */
#define DISK_RIG_THREADS 8                   /* Threads that may copy at the same time. */
#define DISK_RIG_OFFSET (3 * DISK_RIG_BLOCK) /* Where the range begins in the file. */
#define DISK_RIG_BYTES ((uint64_t)3 << 20)   /* Bytes of the range, more than a buffer has. */

struct disk_rig {
    struct cste_device drive;
    struct cste_mem host; /* Memory of DISK_RIG_BYTES with random bytes. */
    struct cste_mem file; /* The range, which is a hole at first. */
    int fd;               /* The file, with a block after the range. */
};
extern struct disk_rig disk_rig;

/* Open the processors and print the seed, once for a program. False: there is no directory for
 * files with O_DIRECT, and the program is to exit with DISK_FILE_SKIP. */
bool disk_rig_can(const char *program);

/* Open the drive with the system calls @with, none of which fails yet. */
void disk_rig_open(const struct cste_disk_io *with);
void disk_rig_close(void);

/* A random number below @below; random bytes. */
uint64_t disk_rig_next(uint64_t below);
void disk_rig_fill(char *at, uint64_t bytes);

/* A random place in the range, and a length: blocks, and bytes that begin or end anywhere, some of
 * one block. */
uint64_t disk_rig_choose(uint64_t *offset);

struct cste_addr disk_rig_at(const struct cste_mem *mem, uint64_t offset);

/* Copy by thread number @thread. */
void disk_rig_copy(struct cste_addr dst, struct cste_addr src, uint64_t bytes, unsigned thread);

/* Import a range of the file. The first form returns what the device does. */
int disk_rig_try_import(struct cste_mem *mem, uint64_t offset, uint64_t bytes, bool fresh,
                        struct cst_err *err);
void disk_rig_import(struct cste_mem *mem, uint64_t offset, uint64_t bytes, bool fresh);

/* Compare the file with @expected, the bytes of the range. What lies before and after is zero. */
void disk_rig_check(const char *expected);

#endif
