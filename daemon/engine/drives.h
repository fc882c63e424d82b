/* SPDX-License-Identifier: Apache-2.0 */
/* The drives on which states of jobs lie in files of their users. A drive is what a file system
 * calls a device (st_dev of a file). It is found when a job brings a file that lies there, and has
 * an engine of its own, so that a drive that does not answer stops only the jobs that use it. An
 * entry is constant, except for its budget, while a job uses it. Loop thread only. */
#ifndef CSTD_DRIVES_H
#define CSTD_DRIVES_H

#include "daemon/budget/arena.h"

#include <stddef.h>
#include <string.h>
#include <sys/types.h>

struct cstd_engines;

#define CSTD_DRIVES_MAX 32
/* The beginning of a drive's name, before the numbers of the device: "drive:259:1". */
#define CSTD_DRIVE "drive:"

#define CSTD_DRIVE_NAME 64 /* Bytes of a name of a block device. */

struct cstd_drive {
    char uuid[64];              /* "drive:259:1", as the engine is called. */
    char name[CSTD_DRIVE_NAME]; /* Of the block device, such as "nvme0n1p1"; its number if it has
                                   none. */
    unsigned engine;            /* Index of the drive's engine in struct cstd_engines. */
    /* Counts what jobs have there. Its only limits are the users' (`disk` in [quota]); the file
     * system has its own. */
    struct cstd_budget files;
    char files_name[96]; /* Name of the budget. */
};

struct cstd_drives {
    struct cstd_engines *engines;
    struct cstd_drive v[CSTD_DRIVES_MAX];
    unsigned n;
};

/* Initialise an empty list. */
void cstd_drives_init(struct cstd_drives *drives, struct cstd_engines *engines);

/* True if @device, of an engine, names a drive. */
static inline bool cstd_drive_is(const char *device)
{
    return strncmp(device, CSTD_DRIVE, sizeof CSTD_DRIVE - 1) == 0;
}

/* Write the name that the kernel gives the block device with the number @number, such as "259:1",
 * to
 * @out; the number if it has none. Returns @out. */
const char *cstd_drive_name(const char *number, char out[CSTD_DRIVE_NAME]);

/* Write the name of the drive of @fd to @uuid. CST_EIO: the file's properties cannot be read. */
int cstd_drive_of_file(int fd, char *uuid, size_t size, struct cst_err *err);

/* Find the drive @uuid, or add it. CST_EUNSUPPORTED: there are too many; CST_EINVAL: it is not the
 * name of a drive. */
int cstd_drives_get(struct cstd_drives *drives, const char *uuid, struct cstd_drive **out,
                    struct cst_err *err);

#endif
