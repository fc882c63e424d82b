/* SPDX-License-Identifier: Apache-2.0 */
/* The limits that the configuration sets on what one user or one group may hold: sections [quota],
 * [quota uid:N], [quota user:NAME], [quota gid:N] and [quota group:NAME] of cistern.conf(5). Knows
 * nothing of what is in use; see quota.h.
 *
 * To add a resource: a line in CST_QUOTA_MAP, and who takes and gives it back. */
#ifndef CST_QUOTA_RULES_H
#define CST_QUOTA_RULES_H

#include "cistern/status.h"
#include "proto/frame.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* X(name, key in the file, unit of a value, least limit, status of a refusal, words in a refusal)
 * One reply carries up to CST_FRAME_MAX_FDS descriptors: with less it could never be sent. */
#define CST_QUOTA_MAP(X)                                                                           \
    X(HOST, "host", BYTES, 0, CST_EBUDGET, "bytes of host memory")                                 \
    X(POOL, "pool", BYTES, 0, CST_EBUDGET, "bytes of")                                             \
    X(JOBS, "jobs", COUNT, 0, CST_EBUDGET, "jobs")                                                 \
    X(SESSIONS, "sessions", COUNT, 0, CST_EBUSY, "connections")                                    \
    X(DESCRIPTORS, "descriptors", COUNT, CST_FRAME_MAX_FDS, CST_EBUSY, "descriptors")              \
    X(REQUESTS, "requests", COUNT, 0, CST_ENOCREDIT, "requests in flight")                         \
    X(SEARCHES, "searches", COUNT, 0, CST_EBUSY, "searches for a plan")                            \
    X(TTL, "ttl", SECONDS, 0, CST_EINVAL, "seconds to live without a worker")

enum cst_quota_key {
#define CST_QUOTA_X(name, key, unit, least, status, words) CST_QUOTA_##name,
    CST_QUOTA_MAP(CST_QUOTA_X)
#undef CST_QUOTA_X
        CST_QUOTA_KEYS
};

enum cst_quota_unit { CST_QUOTA_BYTES, CST_QUOTA_COUNT, CST_QUOTA_SECONDS };

/* A row of the map. */
struct cst_quota_kind {
    const char *key;          /* in the file */
    enum cst_quota_unit unit; /* of values */
    uint64_t least;           /* smaller limits are refused; smaller parts are raised to it */
    int status;               /* of a refusal */
    const char *words;        /* what is counted, in a refusal */
};

extern const struct cst_quota_kind cst_quota_kinds[CST_QUOTA_KEYS];

#define CST_QUOTA_NONE UINT64_MAX /* a limit that nothing reaches */
#define CST_QUOTA_MAX_RULES 64    /* sections of users and groups */
#define CST_QUOTA_WHOLE 1000000   /* 100%, as the value of a limit */

struct cst_quota_limit {
    bool given;     /* false: the rule says nothing of this key */
    bool percent;   /* The value is a part of all that the daemon has. */
    uint64_t value; /* bytes, a number, seconds, or 1 / CST_QUOTA_WHOLE; CST_QUOTA_NONE: no limit */
};

enum cst_quota_whose { CST_QUOTA_UID, CST_QUOTA_GID };

/* What one section says. */
struct cst_quota_rule {
    enum cst_quota_whose whose;
    uint32_t id; /* the uid or gid */
    struct cst_quota_limit limits[CST_QUOTA_KEYS];
};

struct cst_quota_rules {
    struct cst_quota_limit any[CST_QUOTA_KEYS];       /* [quota]: of each uid */
    struct cst_quota_rule rules[CST_QUOTA_MAX_RULES]; /* of users and groups */
    unsigned n_rules;
};

/* True where @section of the file is one of quotas. */
bool cst_quota_rules_is_section(const char *section);

/* Set @key of @section to @value. CST_EINVAL: an unknown user, group or key, a value that is none,
 * one below the least of its key, a key that is set already, too many sections; the words say what
 * is allowed. */
int cst_quota_rules_set(struct cst_quota_rules *rules, const char *section, const char *key,
                        const char *value, struct cst_err *err);

/* The rule of that uid or gid, or NULL. */
const struct cst_quota_rule *cst_quota_rules_find(const struct cst_quota_rules *rules,
                                                  enum cst_quota_whose whose, uint32_t id);

/* @limit of @key as an amount where the daemon has @total: a percentage is rounded up, so that one
 * of something that there is at all is at least 1, and is no less than the least of the key. */
uint64_t cst_quota_limit_amount(enum cst_quota_key key, const struct cst_quota_limit *limit,
                                uint64_t total);

#endif
