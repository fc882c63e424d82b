/* SPDX-License-Identifier: Apache-2.0 */
/* Files of memory that the daemon has dropped and that other processes may still hold: pools,
 * staging and arenas that were handed to workers. When a file is dropped, its pages are punched
 * out, hence a process that keeps the file keeps no memory. A process that writes through its old
 * mapping fills the file again. The daemon therefore keeps a descriptor as long as any other
 * process has the file. Twice a second it charges the memory that has come back to the budget and
 * the user, and punches it out again.
 *
 * The kernel tells whether another process has a file: workers receive descriptors that are opened
 * anew (see cstd_segment_share), and a read lease on the daemon's own descriptor is granted only if
 * no such descriptor or mapping is left in any process. If the kernel supports no leases, the file
 * is closed after it was punched.
 *
 * Not seen are pages that a process has pinned (io_uring's registered buffers); the process's
 * RLIMIT_MEMLOCK limits them. Memory of GPUs is not a file and is not kept here. Loop thread
 * only. */
#ifndef CST_REMAINS_H
#define CST_REMAINS_H

#include "daemon/arena.h"

#include <uv.h>

struct cstd_remain; /* private: one file */

struct cstd_remains {
    uv_timer_t timer; /* Runs while there are files; does not keep the loop running. */
    TAILQ_HEAD(, cstd_remain) files;
    uint32_t n; /* Number of files. */
};

/* Free all memory of the memfd @fd of @bytes, for the daemon and for all processes that map it. */
void cstd_remains_punch(int fd, uint64_t bytes);

void cstd_remains_init(struct cstd_remains *remains, uv_loop_t *loop);

/* Forget all files. The loop must run once more, to close the timer's handle. */
void cstd_remains_close(struct cstd_remains *remains);

/* Drop the memfd @fd of @bytes, which is charged to @budget and @account. Takes over the descriptor
 * and the charge. The charge is given back when the memory is free; this is at once, unless another
 * process writes to the file meanwhile. */
void cstd_remains_drop(struct cstd_remains *remains, int fd, uint64_t bytes,
                       struct cstd_budget *budget, struct cstd_quota_account *account);

/* Check all files now: charge and punch the memory that has come back, and forget the files that no
 * other process holds. */
void cstd_remains_look(struct cstd_remains *remains);

#endif
