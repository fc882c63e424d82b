/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/child.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void *child_share(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(base, MAP_FAILED);
    return base;
}

void child_unshare(void *base, size_t bytes)
{
    (void)munmap(base, bytes);
}

pid_t child_start(void)
{
    pid_t pid;

    (void)fflush(NULL); /* otherwise the child's exit would write the buffers again */
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return pid;
}

int child_wait(pid_t pid)
{
    int status;
    pid_t got;

    do {
        got = waitpid(pid, &status, 0);
    } while (got < 0 && errno == EINTR);
    ck_assert_int_eq(got, pid);
    return status;
}

bool child_join(pid_t pid, const char *words)
{
    int status = child_wait(pid);

    if (WIFSIGNALED(status)) {
        ck_assert_int_eq(WTERMSIG(status), SIGKILL);
        return true;
    }
    ck_assert_msg(WEXITSTATUS(status) == 0, "%s", words);
    return false;
}
