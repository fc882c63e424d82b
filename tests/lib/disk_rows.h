/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of system calls for drives (kernels/host/disk_io.h) that fail, record or wait. Their
 * settings are for the whole process, and are set while no call is under way. */
#ifndef DISK_ROWS_H
#define DISK_ROWS_H

#include "kernels/host/disk_io.h"

#include <stdatomic.h>
#include <stdbool.h>

enum disk_call { DISK_READ = 1, DISK_WRITE = 2, DISK_ALLOCATE = 4, DISK_FLUSH = 8 };

/* Settings of disk_failing; those down to n_fail are for disk_stuck, too. */
struct disk_faults {
    unsigned nth;    /* The call that fails, counted from 1; 0: none. */
    unsigned kinds;  /* Calls that are counted, and fail: of enum disk_call; 0: all. */
    const char *dir; /* Only calls for files in this directory count; NULL: all. */
    unsigned n_fail; /* How many calls fail from there on; 0: one. */
    int errnum;      /* How they fail. */
    /* Most bytes of a call; 0: as many as asked for. It does the whole blocks among them. */
    uint64_t most;
    bool interrupted; /* Every second call fails with EINTR. */
    /* The calls that would fail succeed instead, and do something else: a read gets other bytes
     * than it was to get, a write is lost. */
    bool lies;
    /* An allocation that fails has taken space for half of what was asked for. */
    bool takes_half;
    atomic_uint calls; /* Calls so far. */
};

extern struct disk_faults disk_faults;
extern const struct cste_disk_io disk_failing;

enum disk_record_kind {
    DISK_RECORD_WRITE,   /* A write begins; the data follow. */
    DISK_RECORD_WRITTEN, /* The write `call` is done. */
    DISK_RECORD_FLUSH,   /* A flush of the file begins. */
    DISK_RECORD_FLUSHED, /* The flush `call` is done. */
};

/* What disk_recording writes to disk_record_fd. For programs that replay it. */
struct disk_record {
    uint64_t kind;          /* enum disk_record_kind */
    uint64_t call;          /* Number of the call, of all processes. */
    uint64_t inode;         /* The file. */
    uint64_t offset, bytes; /* WRITE; otherwise 0. */
};

/* Record a call for the file @fd: a number for its end. @from: data of WRITE. Ends the process if
 * that fails. */
uint64_t disk_record(int fd, enum disk_record_kind kind, uint64_t call, const void *from,
                     uint64_t bytes, uint64_t offset);

extern int disk_record_fd; /* -1: nothing is recorded. */
extern const struct cste_disk_io disk_recording;

/* The calls of disk_stuck that would fail by nth and n_fail of disk_faults wait until the file
 * disk_stuck_until appears. */
extern const char *disk_stuck_until;
extern const struct cste_disk_io disk_stuck;

/* Each call of disk_slow begins with a sleep of disk_slow_us microseconds. */
extern unsigned disk_slow_us;
extern const struct cste_disk_io disk_slow;

#endif
