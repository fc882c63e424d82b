/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of a drive that are under way. A drive that does not answer keeps a thread in
 * its call for ever, and the process cannot even be killed. The list says which call that is. Any
 * thread. */
#ifndef CST_DISK_CALLS_H
#define CST_DISK_CALLS_H

#include "cistern/status.h"
#include "kernels/host/disk_io.h"

#include <pthread.h>
#include <sys/queue.h>

/* The number of a thread that does no command. */
#define CSTE_DISK_NO_THREAD UINT32_MAX

/* A call under way; a variable of the function that makes it. */
struct cste_disk_call {
    TAILQ_ENTRY(cste_disk_call) link; /* Entry in the list. */
    unsigned thread;                  /* The device's number of the thread. */
    const char *what;                 /* "reading", "writing", "flushing" or the like. */
    const char *name;                 /* The file and the drive, for messages; borrowed. */
    uint64_t offset, bytes;           /* The place in the file; 0 bytes: the whole file. */
    uint64_t began_ns;                /* Monotonic time of the beginning. */
};

struct cste_disk_calls {
    const struct cste_disk_io *io; /* System calls; borrowed. */
    pthread_mutex_t mutex;
    TAILQ_HEAD(, cste_disk_call) list; /* The oldest call is the first one. */
};

/* Initialise an empty list of calls of @io. */
void cste_disk_calls_init(struct cste_disk_calls *calls, const struct cste_disk_io *io);

/* No call may be under way. */
void cste_disk_calls_close(struct cste_disk_calls *calls);

/* Enter @call, of which thread, what, name, offset and bytes are set, before the system call, and
 * remove it afterwards. errno is kept. */
void cste_disk_calls_begin(struct cste_disk_calls *calls, struct cste_disk_call *call);
void cste_disk_calls_end(struct cste_disk_calls *calls, struct cste_disk_call *call);

/* Check that no call has been under way for @limit_s seconds or longer. CST_ETIMEDOUT: the oldest
 * one has; @err names its place and time, and *thread is its thread. */
int cste_disk_calls_check(struct cste_disk_calls *calls, uint32_t limit_s, unsigned *thread,
                          struct cst_err *err);

#endif
