/* SPDX-License-Identifier: Apache-2.0 */
/* Short time slices for threads that others wait for and that never run long. If all processors are
 * busy, a thread that requests a shorter slice is scheduled sooner (Linux 6.12: sched(7),
 * sched_setattr(2)). Its share of processor time does not grow, and no privilege is needed. */
#ifndef CST_SCHED_SLICE_H
#define CST_SCHED_SLICE_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CST_SCHED_SLICE_NS 100000 /* The shortest slice that the kernel accepts. */

/* Request a short slice for the calling thread. Threads and processes that it starts later do not
 * inherit it. Older kernels reject the request, which changes nothing. */
static inline void cst_sched_slice_short(void)
{
    struct { /* sched_attr, which some C libraries lack */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = sizeof attr,
              .flags = 1, /* SCHED_FLAG_RESET_ON_FORK */
              .nice = getpriority(PRIO_PROCESS, 0),
              .runtime = CST_SCHED_SLICE_NS};

    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

#endif
