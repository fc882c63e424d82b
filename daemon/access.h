/* SPDX-License-Identifier: Apache-2.0 */
/* Who may connect: a list of user and group rules over what the kernel attests about a peer. Pure
 * but for name look-ups. */
#ifndef CST_ACCESS_H
#define CST_ACCESS_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CST_ACCESS_MAX_RULES 32

struct cst_access {
    bool any; /* everybody whom the socket's mode lets in */
    uid_t uids[CST_ACCESS_MAX_RULES];
    unsigned n_uids;
    gid_t gids[CST_ACCESS_MAX_RULES];
    unsigned n_gids;
};

/* Read "any", or a list of user:NAME, group:NAME, uid:N, gid:N divided by spaces or commas.
 * CST_EINVAL: something else, an unknown name, or too many; *out is untouched. */
int cst_access_parse(struct cst_access *out, const char *text, struct cst_err *err);

/* True where @uid, or one of its @n_groups groups, is allowed. root and the daemon's own user
 * always are. */
bool cst_access_allows(const struct cst_access *access, uid_t uid, const gid_t *groups,
                       size_t n_groups);

/* True where @access admits one user and no group, so that nobody but root, the daemon's own user
 * and that user can connect; *uid is that user then. */
bool cst_access_is_sole(const struct cst_access *access, uid_t *uid);

#endif
