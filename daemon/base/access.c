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

/* Make the error for the user or group @name, which does not exist. */
static int no_such(const char *what, const char *name, const char *number, const char *database,
                   struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL,
                       "there is no %s '%.64s' on this machine: name one that 'getent %s' lists, "
                       "or write %s:N",
                       what, name, database, number);
}

int cstd_access_parse_who(const char *text, bool *group, unsigned *id, struct cst_err *err)
{
    const struct passwd *pw;
    const struct group *gr;

    *group = strncmp(text, "gid:", 4) == 0 || strncmp(text, "group:", 6) == 0;
    if ((strncmp(text, "uid:", 4) == 0 || strncmp(text, "gid:", 4) == 0) &&
        parse_id(text + 4, id)) {
        return CST_OK;
    }
    if (strncmp(text, "user:", 5) == 0) {
        pw = getpwnam(text + 5);
        *id = pw != NULL ? pw->pw_uid : 0;
        return pw != NULL ? CST_OK : no_such("user", text + 5, "uid", "passwd", err);
    }
    if (strncmp(text, "group:", 6) == 0) {
        gr = getgrnam(text + 6);
        *id = gr != NULL ? gr->gr_gid : 0;
        return gr != NULL ? CST_OK : no_such("group", text + 6, "gid", "group", err);
    }
    return cst_err_set(err, CST_EINVAL,
                       "'%.64s' names no user or group: write user:NAME, group:NAME, uid:N or "
                       "gid:N",
                       text);
}

static int add_rule(struct cstd_access *access, const char *rule, struct cst_err *err)
{
    unsigned id;
    bool group;
    int rc = CST_OK;

    if (access->n_uids == CSTD_ACCESS_MAX_RULES || access->n_gids == CSTD_ACCESS_MAX_RULES) {
        return cst_err_set(err, CST_EINVAL, "more than %d rules", CSTD_ACCESS_MAX_RULES);
    }
    if (strcmp(rule, "any") == 0) {
        access->any = true;
    } else {
        rc = cstd_access_parse_who(rule, &group, &id, err);
        if (rc == CST_OK && group) {
            access->gids[access->n_gids++] = id;
        } else if (rc == CST_OK) {
            access->uids[access->n_uids++] = id;
        }
    }
    return rc;
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
