/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that others wait for, and that never run for long: the less time one asks for at a turn,
 * the sooner it is its turn where all processors are busy (Linux 6.12: sched(7), sched_setattr(2)).
 * It gets no larger share, and needs no privilege. */
#ifndef CST_PROTO_SLICE_H
#define CST_PROTO_SLICE_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CST_SLICE_NS 100000 /* the least that the kernel takes */

/* Of the calling thread, not of threads and processes that it starts. Older kernels do not know it,
 * which changes nothing. */
static inline void cst_slice_short(void)
{
    struct { /* sched_attr, which not every C library has */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = sizeof attr,
              .flags = 1, /* SCHED_FLAG_RESET_ON_FORK */
              .nice = getpriority(PRIO_PROCESS, 0),
              .runtime = CST_SLICE_NS};

    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

#endif
