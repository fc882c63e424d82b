/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/user.h"

#include "tests/lib/daemon_proc.h"

#include <check.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char in_namespace[] = "CST_TEST_IN_NAMESPACE";

enum { MAX_ARGS = 16 };

/* True if a child of this process can become USER_ALICE. */
static bool can_be_others(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        _exit(setgroups(0, NULL) == 0 && setresgid(USER_ALICE, USER_ALICE, USER_ALICE) == 0 &&
                      setresuid(USER_ALICE, USER_ALICE, USER_ALICE) == 0
                  ? 0
                  : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

const char *user_lacks(char *const *argv)
{
    const char *again[MAX_ARGS] = {"unshare", "--user", "--map-root-user", "--map-auto"};
    unsigned n = 4;

    if (can_be_others()) {
        return NULL;
    }
    if (getenv(in_namespace) == NULL &&
        system("unshare --user --map-root-user --map-auto true 2>/dev/null") == 0) {
        while (*argv != NULL && n + 1 < MAX_ARGS) {
            again[n++] = *argv++;
        }
        (void)setenv(in_namespace, "1", 1);
        (void)execvp(again[0], (char *const *)(uintptr_t)again);
    }
    return "it takes root, or a user namespace with several uids (see subuid(5)), to be two users";
}

void user_admit(const struct daemon_proc *proc)
{
    ck_assert_int_eq(chmod(proc->dir, 0755), 0);
    ck_assert_int_eq(chmod(proc->socket, 0666), 0);
    ck_assert_int_eq(chmod(proc->manager, 0600), 0);
}

void user_as(uid_t uid, gid_t gid)
{
    ck_assert_int_eq(setgroups(0, NULL), 0);
    ck_assert_int_eq(setegid(gid), 0);
    ck_assert_int_eq(seteuid(uid), 0);
}

void user_back(void)
{
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(setegid(0), 0);
}

void user_become(uid_t uid)
{
    ck_assert_int_eq(setgroups(0, NULL), 0);
    ck_assert_int_eq(setresgid(uid, uid, uid), 0);
    ck_assert_int_eq(setresuid(uid, uid, uid), 0);
    /* The change of user has reset this setting. */
    ck_assert_int_eq(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
}
