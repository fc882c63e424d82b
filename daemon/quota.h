/* SPDX-License-Identifier: Apache-2.0 */
/* What each user holds of the daemon, and how much of it a user may hold. One account per uid, as
 * the kernel attests it for a connection (SO_PEERCRED); one per gid for which the configuration
 * has a rule. Whoever hands something out takes it from the account of the user who asked, and
 * gives it back when it is no longer held. Says yes or no; owns none of what it counts, and knows
 * nothing of sessions, jobs or memory.
 *
 * Three limits can apply to one request, and all must hold:
 *   - the user's: from [quota uid:N] or [quota user:NAME], else from [quota], key by key;
 *   - those of every limited group in which the user was seen: of what its members hold together.
 *     A user is a member of a group from the first connection that had it as primary or
 *     supplementary group until the account is gone, so that nobody leaves a limit by newgrp(1).
 * Where [quota] does not name a key, a user may hold half of what there is (a ttl: seven days).
 * That default does not apply to root, to the user who runs the daemon, nor to the only user whom
 * the configuration admits.
 *
 * A resource is a key of the configuration; pools are one resource per device. All calls belong to
 * the loop's thread. A NULL account is nobody's: it can take anything. */
#ifndef CST_QUOTA_H
#define CST_QUOTA_H

#include "daemon/quota_rules.h"
#include "daemon/turns.h"

#include <stddef.h>
#include <sys/queue.h>

#define CST_QUOTA_MAX_POOLS 25 /* the host device, 8 simulated accelerators, 16 GPUs */
/* Numbers of resources: the keys of cst_quota_key, of which CST_QUOTA_POOL is the pools of the host
 * device; the pools of the other devices follow. */
#define CST_QUOTA_RESOURCES (CST_QUOTA_KEYS + CST_QUOTA_MAX_POOLS - 1)

struct cst_quota;

/* What a user, or the members of a group, hold. */
struct cst_quota_account {
    LIST_ENTRY(cst_quota_account) link;
    struct cst_quota *quota;
    uid_t uid;
    unsigned n_refs;                    /* who may still take or give; 0: it is freed */
    struct cst_turn_user turns;         /* sessions with a request to read; not used here */
    uint64_t groups;                    /* rules of groups it belongs to, a bit each */
    gid_t *gids;                        /* all groups it was seen with; owned */
    size_t n_gids;                      /* of them */
    uint64_t used[CST_QUOTA_RESOURCES]; /* bytes or numbers */
};

LIST_HEAD(cst_quota_accounts, cst_quota_account);

struct cst_quota {
    struct cst_quota_rules rules;
    struct cst_quota_accounts accounts;
    uint64_t totals[CST_QUOTA_RESOURCES];   /* what the daemon has; TTL: the default's length */
    const char *names[CST_QUOTA_MAX_POOLS]; /* "pools of the host device": the owner's */
    unsigned n_pools;                       /* devices that have a resource */
    uid_t exempt[3];                        /* users to whom the default does not apply */
    unsigned n_exempt;                      /* of them */
    /* By rule and resource: what the members of its group hold; 0 for rules of users. */
    uint64_t group_used[CST_QUOTA_MAX_RULES][CST_QUOTA_RESOURCES];
};

/* No accounts, the limits of @rules (copied), nothing to hand out yet. @sole: the only user whom
 * the configuration admits; NULL: there are several. */
void cst_quota_init(struct cst_quota *quota, const struct cst_quota_rules *rules,
                    const uid_t *sole);

/* No account is in use any more, or whoever uses one has been told to stop; frees them all. */
void cst_quota_close(struct cst_quota *quota);

/* The daemon has @total of resource @key, which is not CST_QUOTA_POOL. */
void cst_quota_set_total(struct cst_quota *quota, enum cst_quota_key key, uint64_t total);

/* The daemon has @total bytes for the pools of one more device. @name ("pools of cuda:0"), the
 * caller's, lives as long as @quota. The first one is the host device. Returns the number of its
 * resource. */
unsigned cst_quota_add_pool(struct cst_quota *quota, const char *name, uint64_t total);

/* Put @rules in the place of the limits that apply now. Whoever is over a new limit keeps what it
 * holds, and gets nothing more before it is below. */
void cst_quota_reload(struct cst_quota *quota, const struct cst_quota_rules *rules);

/* The account of @uid, made if it is not there, with a reference for the caller; @groups, primary
 * and supplementary, are added to those it was seen with. CST_ENOMEM. */
int cst_quota_open(struct cst_quota *quota, uid_t uid, const gid_t *groups, size_t n_groups,
                   struct cst_quota_account **out, struct cst_err *err);

/* One more reference to @account, and one less; the last one frees it. NULL is allowed. */
struct cst_quota_account *cst_quota_ref(struct cst_quota_account *account);
void cst_quota_unref(struct cst_quota_account *account);

/* Take @amount of @resource for @what ("job 'gpt'": words of the refusal). The status of the
 * resource's row: a limit would be passed; the words have the limit, what is in use, and the key
 * and section that set the limit, and nothing is taken. Who takes holds a reference until it has
 * given all back. */
int cst_quota_take(struct cst_quota_account *account, unsigned resource, uint64_t amount,
                   const char *what, struct cst_err *err);
void cst_quota_give(struct cst_quota_account *account, unsigned resource, uint64_t amount);

/* Take what is held already, beyond all limits if need be. To be given back as any other. */
void cst_quota_force(struct cst_quota_account *account, unsigned resource, uint64_t amount);

/* As cst_quota_take, but nothing is taken: for the longest ttl, and to look before a leap. */
int cst_quota_check(const struct cst_quota_account *account, unsigned resource, uint64_t amount,
                    const char *what, struct cst_err *err);

/* What @account itself may hold of @resource, and what it could take now under all limits;
 * CST_QUOTA_NONE: any amount. */
uint64_t cst_quota_limit(const struct cst_quota_account *account, unsigned resource);
uint64_t cst_quota_left(const struct cst_quota_account *account, unsigned resource);

/* Which limit of @resource leaves @account least, and what is in use of it: "uid 1000 has 4 of 8
 * jobs (jobs in [quota])". Longer words are cut. */
#define CST_QUOTA_WORDS 256 /* bytes that are enough */
void cst_quota_words(const struct cst_quota_account *account, unsigned resource, char *out,
                     size_t n);

/* What the members of the group of @rule may hold together of @resource. */
uint64_t cst_quota_group_limit(const struct cst_quota *quota, unsigned rule, unsigned resource);

/* The key of @resource, and its device's name for pools, else NULL. */
enum cst_quota_key cst_quota_key_of(unsigned resource);
const char *cst_quota_pool_name(const struct cst_quota *quota, unsigned resource);

#endif
