/* SPDX-License-Identifier: Apache-2.0 */
/* Access control of connections: a list of user and group rules, compared with the credentials that
 * the kernel attests for a peer. The module has no state; parsing looks up names in the user and
 * group databases. */
#ifndef CST_ACCESS_H
#define CST_ACCESS_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CSTD_ACCESS_MAX_RULES 32

/* The parsed rules. Zeroed: no rule. */
struct cstd_access {
    bool any; /* Everybody may connect whom the socket's file mode admits. */
    uid_t uids[CSTD_ACCESS_MAX_RULES];
    unsigned n_uids;
    gid_t gids[CSTD_ACCESS_MAX_RULES];
    unsigned n_gids;
};

/* Read "user:NAME", "group:NAME", "uid:N" or "gid:N". *group: *id is a gid. False: @text has
 * another form, or there is no such user or group. */
bool cstd_access_parse_who(const char *text, bool *group, unsigned *id);

/* Parse @text into *out. @text is "any", or a list of user:NAME, group:NAME, uid:N and gid:N,
 * separated by spaces or commas. CST_EINVAL: @text has another form, a name is unknown, or there
 * are too many rules; *out is unchanged then. */
int cstd_access_parse(struct cstd_access *out, const char *text, struct cst_err *err);

/* True if @uid or one of the @n_groups groups in @groups is allowed. root and the daemon's own user
 * are always allowed. */
bool cstd_access_allows(const struct cstd_access *access, uid_t uid, const gid_t *groups,
                        size_t n_groups);

/* True if @access allows exactly one user and no group. *uid is set to that user then. root and the
 * daemon's own user can connect in addition. */
bool cstd_access_is_sole(const struct cstd_access *access, uid_t *uid);

#endif
