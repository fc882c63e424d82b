/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files (memfds) that the daemon has dropped and that other processes may still hold: pools,
 * staging and arenas that were handed to workers. arena.c drops them here, and this module then
 * owns their descriptors and charges.
 *
 * When a file is dropped, its pages are punched out, hence a process that keeps the file keeps no
 * memory. A process that writes through its old mapping fills the file again. The daemon therefore
 * keeps a descriptor as long as any other process has the file. A user who has a limit stays
 * charged for the whole file until then. To other users, who are trusted, the daemon charges twice
 * a second the memory that has come back. It punches the memory out again in both cases.
 *
 * The kernel tells whether another process has a file: workers receive descriptors that are opened
 * anew (see cstd_segment_share), and the kernel grants a write lease (F_SETLEASE in fcntl(2), no
 * lease of a worker) on the daemon's own descriptor only if no such descriptor or mapping is left
 * in any process. If the kernel supports no leases, the file is closed after it was punched.
 *
 * This check does not see pages that a process has pinned (io_uring's registered buffers); the
 * process's RLIMIT_MEMLOCK limits them. Memory of GPUs is not a file and is not kept here. Loop
 * thread only. */
#ifndef CST_REMAINS_H
#define CST_REMAINS_H

#include "daemon/budget/arena.h"

#include <uv.h>

struct cstd_remain; /* private: one file */

struct cstd_remains {
    uv_timer_t timer; /* Active while there are files; does not keep the loop running. */
    TAILQ_HEAD(, cstd_remain) files;
    uint32_t n; /* Number of files. */
    /* When the last check because of a refusal began, and how long it took. */
    uint64_t looked_ns, took_ns;
};

/* Free all memory of the memfd @fd of @bytes, for the daemon and for all processes that map it. */
void cstd_remains_punch(int fd, uint64_t bytes);

void cstd_remains_init(struct cstd_remains *remains, uv_loop_t *loop);

/* Close all files and give their charges back, even if other processes still hold them. The caller
 * must run the loop once more, to close the timer's handle. */
void cstd_remains_close(struct cstd_remains *remains);

/* Drop the memfd @fd of @bytes, of which @charged are charged to @budget and @account (NULL: to no
 * user). The function takes over the descriptor and the charge, and frees the memory. It gives the
 * charge back at once if no other process holds the file. Otherwise a user who has a limit stays
 * charged, and other users are charged for what a process has written again meanwhile. */
void cstd_remains_drop(struct cstd_remains *remains, int fd, uint64_t bytes, uint64_t charged,
                       struct cstd_budget *budget, struct cstd_quota_account *account);

/* The sealed memfd *@fd of @bytes, which other processes may hold and none can write, is no longer
 * used. If a process holds it, it is charged to @budget and @account, and kept here until no
 * process does; otherwise it is closed. *fd is -1 then. CST_EBUDGET: a process holds it, and a
 * limit is exceeded; *fd is then another descriptor of the file, for reading. With @force it is
 * charged even beyond the limits. CST_ENOMEM: *fd is as it was. */
int cstd_remains_retire(struct cstd_remains *remains, int *fd, uint64_t bytes,
                        struct cstd_budget *budget, struct cstd_quota_account *account, bool force,
                        const char *what, struct cst_err *err);

/* Check all files now, because a request is about to be refused for lack of memory, and forget
 * those that no other process holds. False: there are none, or the checks take too much time. */
bool cstd_remains_look_again(struct cstd_remains *remains);

/* Check all files now: charge and punch the memory that has come back, and forget the files that no
 * other process holds. */
void cstd_remains_look(struct cstd_remains *remains);

#endif
