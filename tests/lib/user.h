/* SPDX-License-Identifier: Apache-2.0 */
/* Users other than the one who runs the test, for daemons that ask the kernel who connects. Needs
 * root, or a user namespace in which several uids are mapped. */
#ifndef USER_H
#define USER_H

#include <sys/types.h>

struct daemon_proc;

/* Uids that nobody has; each has a group with the same number, and no other. */
enum { USER_ALICE = 61001, USER_BOB = 61002, USER_SERVICE = 61003 };

/* NULL if this process can be other users. Else it tries to start @argv again in a user namespace
 * in which it can, and does not return; where that cannot be, the reason. Before anything else. */
const char *user_lacks(char *const *argv);

/* Let all users connect to @proc's socket of workers, and none to that of managers. */
void user_admit(const struct daemon_proc *proc);

/* What is done until user_back is done as @uid, with @gid as primary and only group, as far as the
 * kernel checks: the sockets that connect meanwhile are @uid's for ever. */
void user_as(uid_t uid, gid_t gid);
void user_back(void);

/* This process, a child of the test's, is @uid for good, and still dies with the test. */
void user_become(uid_t uid);

#endif
