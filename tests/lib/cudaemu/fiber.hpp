// SPDX-License-Identifier: Apache-2.0
/* Fibers: stacks between which a thread switches. x86-64 saves the registers that a call preserves;
 * other machines use ucontext. Informs AddressSanitizer and ThreadSanitizer of each switch. The
 * module knows nothing of CUDA. */
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
    void *sp; /* stack pointer while the fiber does not run */
#else
    ucontext_t context; /* context while the fiber does not run */
#endif
    void *stack;        /* lowest byte of the stack; NULL for the thread's own stack */
    size_t stack_bytes; /* size of the stack without the guard page below it */
    void *asan;         /* AddressSanitizer's fake stack of the fiber */
    void *tsan;         /* ThreadSanitizer's handle of the fiber */
    fiber *next;        /* next in the list of idle fibers */
};

/* Let @self stand for the calling thread's own stack. */
void fiber_adopt(fiber *self);

/* Make a fiber that runs @body when it is first switched to. @body must never return. Ends the
 * process if memory is exhausted. */
fiber *fiber_make(void (*body)());

/* Switch to @to. Returns when a fiber switches back to @from. */
void fiber_switch(fiber *from, fiber *to);

} // namespace cudaemu

#endif
