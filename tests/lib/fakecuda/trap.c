/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/trap.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t armed;
static struct sigaction former[2]; /* previous actions for SIGSEGV and SIGBUS */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Pass the signal on to the previous action: call its function, or restore it so that the repeated
 * fault reaches it. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    const struct sigaction *old = &former[number == SIGBUS];

    if ((old->sa_flags & SA_SIGINFO) != 0) {
        old->sa_sigaction(number, info, context);
    } else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
        old->sa_handler(number);
    } else {
        (void)sigaction(number, old, NULL);
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    if (armed) {
        armed = 0;
        siglongjmp(back, 1);
    }
    pass_on(number, info, context);
}

static void set_trap(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGSEGV, &action, &former[0]);
    (void)sigaction(SIGBUS, &action, &former[1]);
}

CUresult cst_fake_trap(struct cst_fake_op *op)
{
    CUresult result;

    (void)pthread_once(&once, set_trap);
    if (sigsetjmp(back, 1) != 0) {
        fprintf(stderr, "fakecuda: %s touched an address that is not there\n", op->kind);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    armed = 1;
    result = op->run(op);
    armed = 0;
    return result;
}
