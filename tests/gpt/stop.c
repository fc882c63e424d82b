/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the signals that request the worker's end. */
#include "client/gpt/stop.h"
#include "client/gpt/parallel.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_THREADS 3

static void catch (void)
{
    struct cst_err err = {0};

    ck_assert_msg(gpt_stop_catch(&err) == 0, "%s", err.text);
}

/* Wait until a signal has requested the end. */
static void await_signal(void)
{
    struct pollfd fd = {.fd = gpt_stop_fd(), .events = POLLIN};

    ck_assert_int_eq(poll(&fd, 1, -1), 1);
}

/* The first signal is told, and its descriptor polls readable from then on. A later signal of the
 * other kind changes nothing. */
START_TEST(first_signal_is_told)
{
    catch ();
    ck_assert_int_eq(gpt_stop_asked(), 0);
    ck_assert_int_eq(kill(getpid(), SIGTERM), 0);
    await_signal();
    ck_assert_int_eq(gpt_stop_asked(), SIGTERM);
    ck_assert_int_eq(kill(getpid(), SIGINT), 0);
    await_signal();
    ck_assert_int_eq(gpt_stop_asked(), SIGTERM);
}
END_TEST

/* The second signal of a kind ends the process at once. */
START_TEST(second_signal_ends_the_process)
{
    const pid_t pid = fork();
    int status;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct cst_err err;

        (void)signal(SIGINT, SIG_DFL); /* Check has a handler. */
        (void)gpt_stop_catch(&err);
        (void)kill(getpid(), SIGINT);
        await_signal();
        (void)kill(getpid(), SIGINT);
        for (;;) {
            (void)pause();
        }
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
}
END_TEST

/* A signal that is ignored stays ignored. */
START_TEST(ignored_signal_stays_ignored)
{
    struct sigaction now;

    ck_assert(signal(SIGINT, SIG_IGN) != SIG_ERR);
    catch ();
    ck_assert_int_eq(kill(getpid(), SIGINT), 0);
    ck_assert_int_eq(kill(getpid(), SIGTERM), 0);
    await_signal();
    ck_assert_int_eq(gpt_stop_asked(), SIGTERM);
    ck_assert_int_eq(sigaction(SIGINT, NULL, &now), 0);
    ck_assert(now.sa_handler == SIG_IGN);
}
END_TEST

/* Whether a thread that computes can be interrupted, by number of the thread. */
static void look_at_mask(void *arg, unsigned thread, size_t first, size_t last)
{
    bool *open = arg;
    sigset_t mask;

    (void)first;
    (void)last;
    (void)pthread_sigmask(SIG_BLOCK, NULL, &mask);
    open[thread] = sigismember(&mask, SIGINT) != 1 || sigismember(&mask, SIGTERM) != 1;
}

/* No signal that is caught interrupts a thread that computes, because the kernel would write the
 * signal's frame to where the stack pointer is, and oneDNN has that in the heap. */
START_TEST(threads_that_compute_are_not_interrupted)
{
    bool open[N_THREADS];

    memset(open, true, sizeof open);
    catch ();
    gpt_parallel(N_THREADS, N_THREADS, look_at_mask, open);
#ifndef __SANITIZE_THREAD__ /* Then only one thread computes. */
    for (int i = 0; i < N_THREADS; i++) {
        ck_assert_msg(!open[i], "thread %d of %d can be interrupted", i, N_THREADS);
    }
#endif
    ck_assert(!open[0]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stop");
    TCase *tcase = suite_case(suite, "stop", NULL, NULL);

    tcase_add_test(tcase, first_signal_is_told);
    tcase_add_test(tcase, second_signal_ends_the_process);
    tcase_add_test(tcase, ignored_signal_stays_ignored);
    tcase_add_test(tcase, threads_that_compute_are_not_interrupted);
    return suite_run(suite);
}
