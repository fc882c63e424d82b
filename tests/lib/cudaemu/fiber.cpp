// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/cudaemu/fiber.hpp"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define EMU_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define EMU_TSAN 1
#endif

#if defined(EMU_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(EMU_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace cudaemu
{

#if defined(EMU_ASAN)
static const size_t STACK_BYTES = 512 * 1024; /* kernels have large frames */
#else
static const size_t STACK_BYTES = 128 * 1024;
#endif

static void (*entry)(); /* body of the fiber that runs for the first time */
static fiber *left;     /* the fiber from which the last switch was made */

#if defined(__x86_64__)

/* void cst_emu_switch(void **save, void *sp): push the registers that a call preserves, change
 * stacks, and pop them. */
extern "C" void cst_emu_switch(void **save, void *sp);
asm(".text\n"
    ".p2align 4\n"
    ".globl cst_emu_switch\n"
    ".hidden cst_emu_switch\n"
    ".type cst_emu_switch, @function\n"
    "cst_emu_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size cst_emu_switch, . - cst_emu_switch\n");

#endif

static void arrived(fiber *self)
{
#if defined(EMU_ASAN)
    const void *bottom = nullptr;
    size_t bytes = 0;

    __sanitizer_finish_switch_fiber(self->asan, &bottom, &bytes);
    /* The thread's own stack is known from now on. */
    if (left != nullptr && left->stack == nullptr) {
        left->stack = const_cast<void *>(bottom);
        left->stack_bytes = bytes;
    }
#else
    (void)self;
#endif
}

static fiber *starting; /* used for the first steps on a new stack */

static void first()
{
    arrived(starting);
    entry();
    abort(); /* a body never returns */
}

void fiber_adopt(fiber *self)
{
    *self = {};
#if defined(EMU_TSAN)
    self->tsan = __tsan_get_current_fiber();
#endif
}

static void *make_stack()
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *base = mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (base == MAP_FAILED || mprotect(base, page, PROT_NONE) != 0) {
        perror("cudaemu: stack of a thread");
        abort();
    }
    return static_cast<char *>(base) + page;
}

fiber *fiber_make(void (*body)())
{
    fiber *self = static_cast<fiber *>(calloc(1, sizeof *self));

    if (self == nullptr) {
        perror("cudaemu: fiber");
        abort();
    }
    self->stack = make_stack();
    self->stack_bytes = STACK_BYTES;
    entry = body;
#if defined(__x86_64__)
    /* The stack as a call leaves it: six registers, the return address, and an offset of 8 bytes
     * from a multiple of 16. */
    void **top = reinterpret_cast<void **>(static_cast<char *>(self->stack) + STACK_BYTES) - 2;

    *top = reinterpret_cast<void *>(&first);
    self->sp = top - 6;
#else
    getcontext(&self->context);
    self->context.uc_stack.ss_sp = self->stack;
    self->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&self->context, first, 0);
#endif
#if defined(EMU_TSAN)
    self->tsan = __tsan_create_fiber(0);
#endif
    return self;
}

void fiber_switch(fiber *from, fiber *to)
{
    left = from;
    starting = to;
#if defined(EMU_ASAN)
    __sanitizer_start_switch_fiber(&from->asan, to->stack, to->stack_bytes);
#endif
#if defined(EMU_TSAN)
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#if defined(__x86_64__)
    cst_emu_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrived(from);
}

} // namespace cudaemu
