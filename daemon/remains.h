/* SPDX-License-Identifier: Apache-2.0 */
/* Files of memory that the daemon has dropped and that processes may still hold: pools, staging and
 * arenas that were handed to workers. A file is punched empty when it is dropped, so that whoever
 * keeps it keeps nothing. A process that writes through its old mapping fills the file again: the
 * daemon therefore keeps a descriptor for as long as anybody else has the file, looks at it twice a
 * second, charges what has come back to the budget and the user, and punches it empty again.
 *
 * That nobody else has a file is asked of the kernel: what workers get is opened anew (see
 * cst_segment_share), and a read lease on the daemon's own descriptor is granted only when no
 * such descriptor or mapping of it is left, in whichever process. Where the kernel gives no leases
 * a file is closed when it has been punched.
 *
 * Not seen are pages that a process has pinned (io_uring's registered buffers); its RLIMIT_MEMLOCK
 * bounds them. Memory of GPUs is no file and is not kept here. Loop thread only. */
#ifndef CST_REMAINS_H
#define CST_REMAINS_H

#include "daemon/arena.h"

#include <uv.h>

struct cst_remain; /* private: one file */

struct cst_remains {
    uv_timer_t timer; /* runs while there are files; keeps no loop running */
    TAILQ_HEAD(, cst_remain) files;
    uint32_t n; /* of them */
};

/* Take all memory of the memfd @fd, of @bytes, away from it and from whoever maps it. */
void cst_remains_punch(int fd, uint64_t bytes);

void cst_remains_init(struct cst_remains *remains, uv_loop_t *loop);

/* Forget all files. The loop has a handle to close after that. */
void cst_remains_close(struct cst_remains *remains);

/* Drop the memfd @fd of @bytes, with which @budget and @account are charged. The descriptor and the
 * charge are taken over: the charge is given back as the memory leaves, which is at once unless
 * somebody writes to it meanwhile. */
void cst_remains_drop(struct cst_remains *remains, int fd, uint64_t bytes,
                      struct cst_budget *budget, struct cst_quota_account *account);

/* Look at all files now: what has come back, and who is gone. */
void cst_remains_look(struct cst_remains *remains);

#endif
