/* SPDX-License-Identifier: Apache-2.0 */
/* Access control of connections: a list of rules that allow users and groups. The list is compared
 * with a peer's credentials, which the kernel attests.
 *
 * This module has no state: a struct cstd_access belongs to the caller. settings.c and
 * quota_rules.c parse, and server.c compares the list with each new peer. Loop thread only, because
 * names are looked up with getpwnam and getgrnam, which return static memory. */
#ifndef CST_ACCESS_H
#define CST_ACCESS_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CSTD_ACCESS_MAX_RULES 32

/* The parsed rules. A zeroed struct has no rules. */
struct cstd_access {
    bool any; /* Every user may connect. Only the socket's file mode still restricts users. */
    uid_t uids[CSTD_ACCESS_MAX_RULES]; /* These users may connect. */
    unsigned n_uids;
    gid_t gids[CSTD_ACCESS_MAX_RULES]; /* The members of these groups may connect. */
    unsigned n_gids;
};

/* Read @text, which is "user:NAME", "group:NAME", "uid:N" or "gid:N", and store the number in *id.
 * *group says whether *id is a gid (true) or a uid. CST_EINVAL: @text has another form, or there is
 * no user or group of that name; *group and *id are undefined then. */
int cstd_access_parse_who(const char *text, bool *group, unsigned *id, struct cst_err *err);

/* Parse @text into *out. @text is "any", or a list of user:NAME, group:NAME, uid:N and gid:N,
 * separated by spaces or commas. CST_EINVAL: @text has another form or more than 1023 characters, a
 * name is unknown, or a rule comes after CSTD_ACCESS_MAX_RULES users or as many groups; *out is
 * unchanged then. */
int cstd_access_parse(struct cstd_access *out, const char *text, struct cst_err *err);

/* Return whether a peer may connect whose user is @uid and whose groups are the @n_groups entries
 * of @groups. root and the daemon's own user are always allowed. */
bool cstd_access_allows(const struct cstd_access *access, uid_t uid, const gid_t *groups,
                        size_t n_groups);

/* Return whether the rules name exactly one user and no group, and store that user in *uid. root
 * and the daemon's own user can connect in addition. */
bool cstd_access_is_sole(const struct cstd_access *access, uid_t *uid);

#endif
