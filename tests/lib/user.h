/* SPDX-License-Identifier: Apache-2.0 */
/* Lets tests act as other users, for daemons that ask the kernel which user connects. Needs root,
 * or a user namespace in which several uids are mapped. */
#ifndef USER_H
#define USER_H

#include <sys/types.h>

struct daemon_proc;

/* Uids that no user of the machine should have. Each has a group with the same number, and no other
 * group. */
enum { USER_ALICE = 61001, USER_BOB = 61002, USER_SERVICE = 61003 };

/* Returns NULL if this process can act as other users. Otherwise executes @argv again in a user
 * namespace in which it can, and does not return; if there can be no such namespace, returns the
 * reason. Must be called before anything else. */
const char *user_lacks(char *const *argv);

/* Let all users connect to @proc's socket for workers, and no user to its socket for managers. */
void user_admit(const struct daemon_proc *proc);

/* Act as @uid until user_back, with @gid as the primary and only group. A socket that connects
 * meanwhile belongs to @uid for ever. */
void user_as(uid_t uid, gid_t gid);
void user_back(void);

/* Make this process, a child of the test, a process of @uid for good. It still dies with the
 * test. */
void user_become(uid_t uid);

#endif
