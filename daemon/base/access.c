/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/access.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool parse_id(const char *text, unsigned *out)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    /* The first character must be a digit, because strtoul accepts a sign or spaces before the
     * number. UINT32_MAX is (uid_t)-1, which is no user. */
    if (*text < '0' || *text > '9' || *end != '\0' || n >= UINT32_MAX) {
        return false;
    }
    *out = (unsigned)n;
    return true;
}

bool cstd_access_parse_who(const char *text, bool *group, unsigned *id)
{
    const struct passwd *pw;
    const struct group *gr;

    if (strncmp(text, "uid:", 4) == 0 || strncmp(text, "gid:", 4) == 0) {
        *group = text[0] == 'g';
        return parse_id(text + 4, id);
    }
    if (strncmp(text, "user:", 5) == 0 && (pw = getpwnam(text + 5)) != NULL) {
        *group = false;
        *id = pw->pw_uid;
        return true;
    }
    if (strncmp(text, "group:", 6) == 0 && (gr = getgrnam(text + 6)) != NULL) {
        *group = true;
        *id = gr->gr_gid;
        return true;
    }
    return false;
}

static int add_rule(struct cstd_access *access, const char *rule, struct cst_err *err)
{
    unsigned id;
    bool group;

    if (access->n_uids == CSTD_ACCESS_MAX_RULES || access->n_gids == CSTD_ACCESS_MAX_RULES) {
        return cst_err_set(err, CST_EINVAL, "more than %d rules", CSTD_ACCESS_MAX_RULES);
    }
    if (strcmp(rule, "any") == 0) {
        access->any = true;
    } else if (cstd_access_parse_who(rule, &group, &id)) {
        if (group) {
            access->gids[access->n_gids++] = id;
        } else {
            access->uids[access->n_uids++] = id;
        }
    } else {
        return cst_err_set(err, CST_EINVAL,
                           "'%s' is not a rule, or there is no such user or group (rules: any, "
                           "user:NAME, group:NAME, uid:N, gid:N)",
                           rule);
    }
    return CST_OK;
}

int cstd_access_parse(struct cstd_access *out, const char *text, struct cst_err *err)
{
    struct cstd_access access = {.any = false};
    char copy[1024], *save = NULL;
    unsigned n = 0;

    if (strlen(text) >= sizeof copy) {
        return cst_err_set(err, CST_EINVAL, "a list of %zu characters, limit %zu", strlen(text),
                           sizeof copy - 1);
    }
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *rule = strtok_r(copy, ", \t", &save); rule != NULL;
         rule = strtok_r(NULL, ", \t", &save)) {
        int rc = add_rule(&access, rule, err);

        if (rc != CST_OK) {
            return rc;
        }
        n++;
    }
    if (n == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "the list is empty (rules: any, user:NAME, group:NAME, uid:N, gid:N)");
    }
    *out = access;
    return CST_OK;
}

bool cstd_access_allows(const struct cstd_access *access, uid_t uid, const gid_t *groups,
                        size_t n_groups)
{
    /* To refuse root or the daemon's own user would protect nothing: both control the daemon's
     * process in any case. */
    if (access->any || uid == 0 || uid == geteuid()) {
        return true;
    }
    for (unsigned i = 0; i < access->n_uids; i++) {
        if (access->uids[i] == uid) {
            return true;
        }
    }
    for (unsigned i = 0; i < access->n_gids; i++) {
        for (size_t g = 0; g < n_groups; g++) {
            if (access->gids[i] == groups[g]) {
                return true;
            }
        }
    }
    return false;
}

bool cstd_access_is_sole(const struct cstd_access *access, uid_t *uid)
{
    if (access->any || access->n_uids != 1 || access->n_gids != 0) {
        return false;
    }
    *uid = access->uids[0];
    return true;
}
