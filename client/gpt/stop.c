/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/stop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/eventfd.h>

static atomic_int asked;    /* number of the first signal, or 0 */
static int event = -1;      /* eventfd: readable once a signal has come */
static sigset_t requesting; /* the signals that request the end */

/* The only thread that takes signals. It unblocks a signal that has come, so that the next one of
 * that kind has its default effect. */
static void *take_signals(void *arg)
{
    sigset_t left = requesting;
    int number;

    (void)arg;
    while (sigwait(&left, &number) == 0) {
        int none = 0;
        sigset_t one;

        (void)atomic_compare_exchange_strong(&asked, &none, number);
        (void)eventfd_write(event, 1);
        (void)sigdelset(&left, number);
        (void)sigemptyset(&one);
        (void)sigaddset(&one, number);
        (void)pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    }
    return NULL;
}

/* Catch the signal, unless it is ignored: a program that is started in the background, or with
 * nohup, should stay unaffected by it. */
static void add_unless_ignored(int number)
{
    struct sigaction now;

    if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
        (void)sigaddset(&requesting, number);
    }
}

/* A handler would run on the stack of the thread that the signal interrupts. oneDNN's products in
 * fp32 have none: in many releases they point the stack pointer at an array on the heap, and the
 * kernel would write the signal's frame over what lies below that array. */
int gpt_stop_catch(struct cst_err *err)
{
    pthread_attr_t attr;
    pthread_t thread;
    int error;

    (void)sigemptyset(&requesting);
    add_unless_ignored(SIGINT);
    add_unless_ignored(SIGTERM);
    event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0) {
        return cst_err_errno(err, CST_EIO, errno, "no descriptor for signals");
    }
    (void)pthread_sigmask(SIG_BLOCK, &requesting, NULL); /* Later threads inherit it. */
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    error = pthread_create(&thread, &attr, take_signals, NULL);
    (void)pthread_attr_destroy(&attr);
    return error == 0 ? 0 : cst_err_errno(err, CST_ENOMEM, error, "no thread for signals");
}

int gpt_stop_asked(void)
{
    return atomic_load(&asked);
}

int gpt_stop_fd(void)
{
    return event;
}
