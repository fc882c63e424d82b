/* SPDX-License-Identifier: Apache-2.0 */
/* The limits that the configuration sets on what one user or one group may hold: sections [quota],
 * [quota uid:N], [quota user:NAME], [quota gid:N] and [quota group:NAME] of cistern.conf(5). Does
 * not know what is in use; quota.h does. To add a resource, add a line to CSTD_QUOTA_MAP, and call
 * cstd_quota_take and cstd_quota_give where it is handed out and returned. */
#ifndef CST_QUOTA_RULES_H
#define CST_QUOTA_RULES_H

#include "cistern/status.h"
#include "proto/frame.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* X(name, key in the file, unit of a value, least limit, status of a refusal, reason of a refusal,
 * words in a refusal). The least limit of descriptors is CST_FRAME_MAX_FDS, because one reply
 * carries up to that many: a smaller limit would make it impossible to send. */
#define CSTD_QUOTA_MAP(X)                                                                          \
    X(HOST, "host", BYTES, 0, CST_EBUDGET, HOST_MEMORY, "host memory")                             \
    X(POOL, "pool", BYTES, 0, CST_EBUDGET, POOL_MEMORY, "pools")                                   \
    X(DISK, "disk", BYTES, 0, CST_EBUDGET, NONE, "files on drives")                                \
    X(JOBS, "jobs", COUNT, 0, CST_EBUDGET, JOBS, "jobs")                                           \
    X(SESSIONS, "sessions", COUNT, 0, CST_EBUSY, NONE, "connections")                              \
    X(DESCRIPTORS, "descriptors", COUNT, CST_FRAME_MAX_FDS, CST_EBUSY, NONE, "descriptors")        \
    X(FILES, "files", COUNT, 0, CST_EBUDGET, NONE, "open files")                                   \
    X(REQUESTS, "requests", COUNT, 0, CST_ENOCREDIT, NONE, "requests in flight")                   \
    X(SEARCHES, "searches", COUNT, 0, CST_EBUSY, NONE, "searches for a plan")                      \
    X(TTL, "ttl", SECONDS, 0, CST_EINVAL, NONE, "seconds to live without a worker")

enum cstd_quota_key {
#define CSTD_QUOTA_X(name, key, unit, least, status, reason, words) CSTD_QUOTA_##name,
    CSTD_QUOTA_MAP(CSTD_QUOTA_X)
#undef CSTD_QUOTA_X
        CSTD_QUOTA_KEYS
};

enum cstd_quota_unit { CSTD_QUOTA_BYTES, CSTD_QUOTA_COUNT, CSTD_QUOTA_SECONDS };

/* One row of CSTD_QUOTA_MAP. */
struct cstd_quota_kind {
    const char *key;           /* Key in the file. */
    enum cstd_quota_unit unit; /* Unit of the key's values. */
    /* Least limit: a smaller value is refused, and a percentage that gives less is raised to it. */
    uint64_t least;
    int status;             /* Status of a refusal. */
    enum cst_reason reason; /* Reason of a refusal. */
    const char *words;      /* Name of what is counted, in the words of a refusal. */
};

extern const struct cstd_quota_kind cstd_quota_kinds[CSTD_QUOTA_KEYS];

#define CSTD_QUOTA_NONE UINT64_MAX /* Value of a limit that is never reached. */
#define CSTD_QUOTA_MAX_RULES 64    /* Most sections of users and groups. */
#define CSTD_QUOTA_WHOLE 1000000   /* Value of a limit of 100%. */

struct cstd_quota_limit {
    bool given;   /* False: the section does not name this key. */
    bool percent; /* The value is a part of what the daemon has. */
    /* Bytes, a number, seconds, or a part in units of 1 / CSTD_QUOTA_WHOLE; CSTD_QUOTA_NONE: no
     * limit. */
    uint64_t value;
};

enum cstd_quota_whose { CSTD_QUOTA_UID, CSTD_QUOTA_GID };

/* The limits that one section sets. */
struct cstd_quota_rule {
    enum cstd_quota_whose whose;
    uint32_t id; /* uid or gid, as whose says. */
    struct cstd_quota_limit limits[CSTD_QUOTA_KEYS];
};

struct cstd_quota_rules {
    struct cstd_quota_limit any[CSTD_QUOTA_KEYS]; /* Limits from [quota], for every uid. */
    /* Limits from the sections of users and groups. */
    struct cstd_quota_rule rules[CSTD_QUOTA_MAX_RULES];
    unsigned n_rules;
};

/* Return whether @section of the file sets quotas. */
bool cstd_quota_rules_is_section(const char *section);

/* Set @key of @section to @value. CST_EINVAL, with words that say what is allowed: an unknown user,
 * group or key; an invalid value; a value below the least of its key; a key that is set already;
 * too many sections. */
int cstd_quota_rules_set(struct cstd_quota_rules *rules, const char *section, const char *key,
                         const char *value, struct cst_err *err);

/* Return the rule of the uid or gid @id, or NULL. */
const struct cstd_quota_rule *cstd_quota_rules_find(const struct cstd_quota_rules *rules,
                                                    enum cstd_quota_whose whose, uint32_t id);

/* Return the amount of @limit of @key if the daemon has @total. A percentage is rounded up and is
 * at least the least of @key; hence a percentage of a small total is not 0. */
uint64_t cstd_quota_limit_amount(enum cstd_quota_key key, const struct cstd_quota_limit *limit,
                                 uint64_t total);

#endif
