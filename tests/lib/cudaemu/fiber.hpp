// SPDX-License-Identifier: Apache-2.0
/* Stacks that are changed by hand: x86-64 saves the registers that a call keeps, other machines
 * have ucontext. Tells ASan and TSan which stack it is on. Knows nothing of CUDA. */
#ifndef CST_CUDAEMU_FIBER_HPP
#define CST_CUDAEMU_FIBER_HPP

#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cudaemu
{

struct fiber {
#if defined(__x86_64__)
    void *sp; /* while it does not run */
#else
    ucontext_t context; /* while it does not run */
#endif
    void *stack;        /* lowest byte; NULL for the thread's own stack */
    size_t stack_bytes; /* without the page in front of it that nobody may touch */
    void *asan;         /* ASan's: frames moved to its heap */
    void *tsan;         /* TSan's name of it */
    fiber *next;        /* in the list of idle fibers */
};

/* Make @self stand for the calling thread's own stack. */
void fiber_adopt(fiber *self);

/* A fiber that runs @body, which never returns, when it is first switched to. Ends the process when
 * there is no memory. */
fiber *fiber_make(void (*body)());

/* Go on in @to; returns when somebody switches to @from. */
void fiber_switch(fiber *from, fiber *to);

} // namespace cudaemu

#endif
