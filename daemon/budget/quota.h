/* SPDX-License-Identifier: Apache-2.0 */
/* What each user holds of the daemon's resources, and how much a user may hold. There is one
 * account per uid, as the kernel attests it for a connection (SO_PEERCRED), and one sum per gid for
 * which the configuration has a rule. A module that hands something out takes it from the account
 * of the user who asked, and gives it back when it is no longer held. This module only permits or
 * refuses: it owns nothing of what it counts, and knows nothing of sessions, jobs or memory.
 *
 * Up to four kinds of limit apply to one request, and all must hold:
 * - The user's limit: from [quota uid:N] or [quota user:NAME], otherwise from [quota], key by key.
 * - The limit of every limited group in which the user was seen, for what its members hold
 *   together. A user is a member of a group from the first connection that had it as primary or
 *   supplementary group until the account is gone. Hence newgrp(1) does not evade a limit.
 * - The default, if [quota] does not name a key: a user may hold half of what there is (a ttl:
 *   seven days). The default does not apply to root, to the user who runs the daemon, nor to the
 *   only user whom the configuration admits.
 * - Of open files (CSTD_QUOTA_FILES) all users together may hold what the daemon has. The totals of
 *   the other resources are limited by the modules that hand them out.
 *
 * A resource is a key of the configuration; pools are one resource per device. Loop thread only.
 * With a NULL account nothing is counted or refused. */
#ifndef CST_QUOTA_H
#define CST_QUOTA_H

#include "daemon/budget/quota_rules.h"
#include "daemon/base/turns.h"

#include <stddef.h>
#include <sys/queue.h>

#define CSTD_QUOTA_MAX_POOLS 25 /* The host device, 8 simulated accelerators, 16 GPUs. */
/* Number of resources: the keys of cstd_quota_key, of which CSTD_QUOTA_POOL is the pools of the
 * host device, followed by the pools of the other devices. */
#define CSTD_QUOTA_RESOURCES (CSTD_QUOTA_KEYS + CSTD_QUOTA_MAX_POOLS - 1)

struct cstd_quota;

/* What one user holds. */
struct cstd_quota_account {
    LIST_ENTRY(cstd_quota_account) link;
    struct cstd_quota *quota;
    uid_t uid;
    /* Number of references; the account is freed when it becomes 0. */
    unsigned n_refs;
    /* The user's sessions with a request to read; not used by this module. */
    struct cstd_turn_user turns;
    uint64_t groups; /* Bit i: the user belongs to the group of rule i. */
    gid_t *gids;     /* All groups with which the user was seen; owned. */
    size_t n_gids;   /* Number of entries in gids. */
    /* What the user holds of each resource, in bytes or as a number. */
    uint64_t used[CSTD_QUOTA_RESOURCES];
};

LIST_HEAD(cst_quota_accounts, cstd_quota_account);

struct cstd_quota {
    struct cstd_quota_rules rules;
    struct cst_quota_accounts accounts;
    /* What the daemon has of each resource; CSTD_QUOTA_TTL: the configured ttl, seconds. */
    uint64_t totals[CSTD_QUOTA_RESOURCES];
    /* Names of the devices' pools ("pools of the host device"); belong to the caller. */
    const char *names[CSTD_QUOTA_MAX_POOLS];
    unsigned n_pools;                        /* Number of devices that have a resource. */
    uid_t exempt[3];                         /* Users to whom the default does not apply. */
    unsigned n_exempt;                       /* Number of entries in exempt. */
    uint64_t all_used[CSTD_QUOTA_RESOURCES]; /* What all users hold together of each resource. */
    /* By rule and resource: what the members of the rule's group hold together; 0 for rules of
     * users. */
    uint64_t group_used[CSTD_QUOTA_MAX_RULES][CSTD_QUOTA_RESOURCES];
};

/* Initialise @quota with the limits of @rules, which are copied, no accounts and nothing to hand
 * out. @sole: the only user whom the configuration admits; NULL: there are several. */
void cstd_quota_init(struct cstd_quota *quota, const struct cstd_quota_rules *rules,
                     const uid_t *sole);

/* Free all accounts. No account is used afterwards. */
void cstd_quota_close(struct cstd_quota *quota);

/* Set what the daemon has of @resource: one that is not the pools of a device, or what
 * cstd_quota_add_pool has returned. */
void cstd_quota_set_total(struct cstd_quota *quota, unsigned resource, uint64_t total);

/* Add the pools of one more device, for which the daemon has @total bytes. The first device is the
 * host. @name ("pools of cuda:0") belongs to the caller and outlives @quota. Returns the number of
 * the resource. */
unsigned cstd_quota_add_pool(struct cstd_quota *quota, const char *name, uint64_t total);

/* Replace the limits by @rules. A user who exceeds a new limit keeps what is held, and gets nothing
 * more until it is below the limit. */
void cstd_quota_reload(struct cstd_quota *quota, const struct cstd_quota_rules *rules);

/* Find or make the account of @uid, and take a reference for the caller. @groups, primary and
 * supplementary, are added to the groups with which the user was seen. CST_ENOMEM. */
int cstd_quota_open(struct cstd_quota *quota, uid_t uid, const gid_t *groups, size_t n_groups,
                    struct cstd_quota_account **out, struct cst_err *err);

/* Take or drop a reference to @account, which may be NULL. The last reference frees it. */
struct cstd_quota_account *cstd_quota_ref(struct cstd_quota_account *account);
void cstd_quota_unref(struct cstd_quota_account *account);

/* Take @amount of @resource for @what ("job 'gpt'", part of a refusal's words), or give it back. If
 * a limit would be exceeded, take returns the status of the resource's row in CSTD_QUOTA_MAP and
 * takes nothing; the words have the limit, what is in use, and the key and section that set the
 * limit. The caller holds a reference to the account until it has given everything back. */
int cstd_quota_take(struct cstd_quota_account *account, unsigned resource, uint64_t amount,
                    const char *what, struct cst_err *err);
void cstd_quota_give(struct cstd_quota_account *account, unsigned resource, uint64_t amount);

/* Take what is already held, even beyond the limits. It is given back with cstd_quota_give. */
void cstd_quota_force(struct cstd_quota_account *account, unsigned resource, uint64_t amount);

/* Check like cstd_quota_take, but take nothing: for the longest ttl, and to check before a long
 * operation. */
int cstd_quota_check(const struct cstd_quota_account *account, unsigned resource, uint64_t amount,
                     const char *what, struct cst_err *err);

/* Return what @account itself may hold of @resource, and what it can take now under all limits.
 * CSTD_QUOTA_NONE: any amount. */
uint64_t cstd_quota_limit(const struct cstd_quota_account *account, unsigned resource);
uint64_t cstd_quota_left(const struct cstd_quota_account *account, unsigned resource);

/* Write to @out which limit of @resource leaves the least to @account, and what is in use of it:
 * "uid 1000 has 4 of 8 jobs (jobs in [quota])". Longer words are cut. */
#define CSTD_QUOTA_WORDS 256 /* Bytes that suffice for the words of cstd_quota_words. */
void cstd_quota_words(const struct cstd_quota_account *account, unsigned resource, char *out,
                      size_t n);

/* Return what the members of the group of @rule may hold together of @resource; CSTD_QUOTA_NONE:
 * any amount. */
uint64_t cstd_quota_group_limit(const struct cstd_quota *quota, unsigned rule, unsigned resource);

/* Return the key of @resource, and the name of its device's pools; the name is NULL if the resource
 * is not of pools. */
enum cstd_quota_key cstd_quota_key_of(unsigned resource);
const char *cstd_quota_pool_name(const struct cstd_quota *quota, unsigned resource);

#endif
