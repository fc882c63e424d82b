/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/budget/quota.h"
#include "proto/reason.h"
#include "proto/size.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    /* Part of the total that a user may hold if [quota] does not name the key. */
    DEFAULT_PART = CSTD_QUOTA_WHOLE / 2,
    /* Longest ttl; a configured ttl that is longer takes its place. */
    DEFAULT_TTL_S = 7 * 24 * 3600
};

/* -- limits --------------------------------------------------------------------------------- */

enum cstd_quota_key cstd_quota_key_of(unsigned resource)
{
    return resource < CSTD_QUOTA_KEYS ? (enum cstd_quota_key)resource : CSTD_QUOTA_POOL;
}

/* Return the device's number of a resource of pools. */
static unsigned pool_index(unsigned resource)
{
    return resource == CSTD_QUOTA_POOL ? 0 : resource - CSTD_QUOTA_KEYS + 1;
}

const char *cstd_quota_pool_name(const struct cstd_quota *quota, unsigned resource)
{
    return cstd_quota_key_of(resource) == CSTD_QUOTA_POOL ? quota->names[pool_index(resource)]
                                                          : NULL;
}

static bool is_exempt(const struct cstd_quota *quota, uid_t uid)
{
    for (unsigned i = 0; i < quota->n_exempt; i++) {
        if (quota->exempt[i] == uid) {
            return true;
        }
    }
    return false;
}

/* A limit that applies to an account. */
struct bound {
    uint64_t limit;                     /* Amount; CSTD_QUOTA_NONE: no limit. */
    uint64_t used;                      /* What the user or all members of the group hold. */
    const struct cstd_quota_rule *rule; /* Section that sets the limit; NULL: [quota]. */
    bool is_default;                    /* No section names the key: the limit is the default. */
    bool is_total;                      /* The limit is for all users together. */
};

static uint64_t default_amount(const struct cstd_quota *quota, unsigned resource)
{
    const struct cstd_quota_limit half = {.given = true, .percent = true, .value = DEFAULT_PART};
    uint64_t ttl = quota->totals[CSTD_QUOTA_TTL];

    if (cstd_quota_key_of(resource) == CSTD_QUOTA_TTL) {
        return ttl > DEFAULT_TTL_S ? ttl : DEFAULT_TTL_S;
    }
    if (cstd_quota_key_of(resource) == CSTD_QUOTA_DISK) {
        return CSTD_QUOTA_NONE; /* The file systems have the size, and limits of their own. */
    }
    return cstd_quota_limit_amount(cstd_quota_key_of(resource), &half, quota->totals[resource]);
}

static void bound_user(const struct cstd_quota_account *account, unsigned resource,
                       struct bound *out)
{
    const struct cstd_quota *quota = account->quota;
    enum cstd_quota_key key = cstd_quota_key_of(resource);
    const struct cstd_quota_rule *rule =
        cstd_quota_rules_find(&quota->rules, CSTD_QUOTA_UID, account->uid);

    *out = (struct bound){.used = account->used[resource]};
    if (rule != NULL && rule->limits[key].given) {
        out->limit = cstd_quota_limit_amount(key, &rule->limits[key], quota->totals[resource]);
        out->rule = rule;
    } else if (quota->rules.any[key].given) {
        out->limit = cstd_quota_limit_amount(key, &quota->rules.any[key], quota->totals[resource]);
    } else if (is_exempt(quota, account->uid)) {
        out->limit = CSTD_QUOTA_NONE;
    } else {
        out->limit = default_amount(quota, resource);
        out->is_default = true;
    }
}

uint64_t cstd_quota_group_limit(const struct cstd_quota *quota, unsigned rule, unsigned resource)
{
    enum cstd_quota_key key = cstd_quota_key_of(resource);
    const struct cstd_quota_limit *limit = &quota->rules.rules[rule].limits[key];

    return limit->given ? cstd_quota_limit_amount(key, limit, quota->totals[resource])
                        : CSTD_QUOTA_NONE;
}

static void bound_group(const struct cstd_quota *quota, unsigned rule, unsigned resource,
                        struct bound *out)
{
    *out = (struct bound){.limit = cstd_quota_group_limit(quota, rule, resource),
                          .used = quota->group_used[rule][resource],
                          .rule = &quota->rules.rules[rule]};
}

static void bound_total(const struct cstd_quota *quota, unsigned resource, struct bound *out)
{
    *out = (struct bound){
        .limit = quota->totals[resource], .used = quota->all_used[resource], .is_total = true};
}

static uint64_t left_of(const struct bound *bound)
{
    if (bound->limit == CSTD_QUOTA_NONE) {
        return CSTD_QUOTA_NONE;
    }
    return bound->used < bound->limit ? bound->limit - bound->used : 0;
}

/* Find the limit that leaves @account the least. */
static void find_bound(const struct cstd_quota_account *account, unsigned resource,
                       struct bound *out)
{
    struct bound other;

    bound_user(account, resource, out);
    for (unsigned i = 0; account->groups != 0 && i < account->quota->rules.n_rules; i++) {
        if ((account->groups >> i & 1) != 0) {
            bound_group(account->quota, i, resource, &other);
            if (left_of(&other) < left_of(out)) {
                *out = other;
            }
        }
    }
    if (resource == CSTD_QUOTA_FILES) {
        bound_total(account->quota, resource, &other);
        if (left_of(&other) < left_of(out)) {
            *out = other;
        }
    }
}

/* -- opening and closing -------------------------------------------------------------------- */

void cstd_quota_init(struct cstd_quota *quota, const struct cstd_quota_rules *rules,
                     const uid_t *sole)
{
    memset(quota, 0, sizeof *quota);
    quota->rules = *rules;
    LIST_INIT(&quota->accounts);
    quota->exempt[quota->n_exempt++] = 0;
    quota->exempt[quota->n_exempt++] = geteuid();
    if (sole != NULL) {
        quota->exempt[quota->n_exempt++] = *sole;
    }
}

static void free_account(struct cstd_quota_account *account)
{
    LIST_REMOVE(account, link);
    free(account->gids);
    free(account);
}

void cstd_quota_close(struct cstd_quota *quota)
{
    while (!LIST_EMPTY(&quota->accounts)) {
        free_account(LIST_FIRST(&quota->accounts));
    }
}

void cstd_quota_set_total(struct cstd_quota *quota, unsigned resource, uint64_t total)
{
    quota->totals[resource] = total;
}

unsigned cstd_quota_add_pool(struct cstd_quota *quota, const char *name, uint64_t total)
{
    unsigned i = quota->n_pools++, resource = i == 0 ? CSTD_QUOTA_POOL : CSTD_QUOTA_KEYS + i - 1;

    quota->names[i] = name;
    quota->totals[resource] = total;
    return resource;
}

/* -- groups --------------------------------------------------------------------------------- */

static bool is_member(const struct cstd_quota_account *account, gid_t gid)
{
    for (size_t i = 0; i < account->n_gids; i++) {
        if (account->gids[i] == gid) {
            return true;
        }
    }
    return false;
}

/* Add @account to the limited groups of which it is a member and that do not count it yet. */
static void join_groups(struct cstd_quota_account *account)
{
    struct cstd_quota *quota = account->quota;

    for (unsigned i = 0; i < quota->rules.n_rules; i++) {
        const struct cstd_quota_rule *rule = &quota->rules.rules[i];

        if (rule->whose != CSTD_QUOTA_GID || (account->groups >> i & 1) != 0 ||
            !is_member(account, rule->id)) {
            continue;
        }
        account->groups |= UINT64_C(1) << i;
        for (unsigned r = 0; r < CSTD_QUOTA_RESOURCES; r++) {
            quota->group_used[i][r] += account->used[r];
        }
    }
}

/* Remember all groups, even unlimited ones, because a reload may limit them. */
static int add_groups(struct cstd_quota_account *account, const gid_t *groups, size_t n_groups,
                      struct cst_err *err)
{
    size_t n_new = 0;
    gid_t *gids;

    for (size_t i = 0; i < n_groups; i++) {
        n_new += !is_member(account, groups[i]);
    }
    if (n_new == 0) {
        return CST_OK;
    }
    gids = realloc(account->gids, (account->n_gids + n_new) * sizeof *gids);
    if (gids == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the account of uid %u",
                           (unsigned)account->uid);
    }
    account->gids = gids;
    for (size_t i = 0; i < n_groups; i++) {
        if (!is_member(account, groups[i])) {
            gids[account->n_gids++] = groups[i];
        }
    }
    join_groups(account);
    return CST_OK;
}

void cstd_quota_reload(struct cstd_quota *quota, const struct cstd_quota_rules *rules)
{
    struct cstd_quota_account *account;

    /* The numbers of rules have changed, hence memberships and sums are computed anew. */
    quota->rules = *rules;
    memset(quota->group_used, 0, sizeof quota->group_used);
    LIST_FOREACH(account, &quota->accounts, link)
    {
        account->groups = 0;
        join_groups(account);
    }
}

/* -- accounts ------------------------------------------------------------------------------- */

static struct cstd_quota_account *find_or_make(struct cstd_quota *quota, uid_t uid)
{
    struct cstd_quota_account *account;

    LIST_FOREACH(account, &quota->accounts, link)
    {
        if (account->uid == uid) {
            account->n_refs++;
            return account;
        }
    }
    account = calloc(1, sizeof *account);
    if (account != NULL) {
        account->quota = quota;
        account->uid = uid;
        account->n_refs = 1;
        cstd_turns_init_user(&account->turns);
        LIST_INSERT_HEAD(&quota->accounts, account, link);
    }
    return account;
}

int cstd_quota_open(struct cstd_quota *quota, uid_t uid, const gid_t *groups, size_t n_groups,
                    struct cstd_quota_account **out, struct cst_err *err)
{
    struct cstd_quota_account *account = find_or_make(quota, uid);
    int rc;

    if (account == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the account of uid %u", (unsigned)uid);
    }
    rc = add_groups(account, groups, n_groups, err);
    if (rc != CST_OK) {
        cstd_quota_unref(account);
        return rc;
    }
    *out = account;
    return CST_OK;
}

struct cstd_quota_account *cstd_quota_ref(struct cstd_quota_account *account)
{
    if (account != NULL) {
        account->n_refs++;
    }
    return account;
}

void cstd_quota_unref(struct cstd_quota_account *account)
{
    if (account != NULL && --account->n_refs == 0) {
        free_account(account);
    }
}

/* -- use ------------------------------------------------------------------------------------ */

/* Write who is limited ("uid 1000"), and where the limit is set ("jobs in [quota uid:1000]"). */
static void describe(const struct cstd_quota_account *account, unsigned resource,
                     const struct bound *bound, char who[32], char where[80])
{
    const char *key = cstd_quota_kinds[cstd_quota_key_of(resource)].key;
    bool is_group = bound->rule != NULL && bound->rule->whose == CSTD_QUOTA_GID;

    (void)snprintf(who, 32, is_group ? "gid %u" : "uid %u",
                   is_group ? bound->rule->id : (unsigned)account->uid);
    if (bound->is_total) {
        (void)snprintf(who, 32, "all users");
        (void)snprintf(where, 80, "LimitNOFILE of the daemon");
    } else if (bound->rule != NULL) {
        (void)snprintf(where, 80, "%s in [quota %s:%u]", key, is_group ? "gid" : "uid",
                       bound->rule->id);
    } else {
        (void)snprintf(where, 80, "%s in [quota]%s", key,
                       !bound->is_default                              ? ""
                       : cstd_quota_key_of(resource) == CSTD_QUOTA_TTL ? ", by default"
                                                                       : ", by default 50%");
    }
}

static void words_of(const struct cstd_quota_account *account, unsigned resource,
                     const struct bound *bound, char *out, size_t n)
{
    const struct cstd_quota_kind *kind = &cstd_quota_kinds[cstd_quota_key_of(resource)];
    const char *device = cstd_quota_pool_name(account->quota, resource);
    char who[32], where[80], used[CST_SIZE_TEXT], limit[CST_SIZE_TEXT];

    describe(account, resource, bound, who, where);
    if (kind->unit == CSTD_QUOTA_SECONDS) {
        (void)snprintf(out, n, "%s may have %" PRIu64 " %s (%s)", who, bound->limit, kind->words,
                       where);
    } else if (kind->unit == CSTD_QUOTA_BYTES) {
        (void)snprintf(out, n, "%s has %s of %s of %s (%s)", who, cst_size_text(bound->used, used),
                       cst_size_text(bound->limit, limit), device != NULL ? device : kind->words,
                       where);
    } else {
        (void)snprintf(out, n, "%s %s %" PRIu64 " of %" PRIu64 " %s (%s)", who,
                       bound->is_total ? "have" : "has", bound->used, bound->limit, kind->words,
                       where);
    }
}

void cstd_quota_words(const struct cstd_quota_account *account, unsigned resource, char *out,
                      size_t n)
{
    struct bound bound;

    find_bound(account, resource, &bound);
    words_of(account, resource, &bound, out, n);
}

static int refuse(const struct cstd_quota_account *account, unsigned resource,
                  const struct bound *bound, uint64_t amount, const char *what, struct cst_err *err)
{
    enum cstd_quota_key key = cstd_quota_key_of(resource);
    char words[CSTD_QUOTA_WORDS], wants[CST_SIZE_EXACT];

    words_of(account, resource, bound, words, sizeof words);
    if (cstd_quota_kinds[key].unit == CSTD_QUOTA_BYTES) {
        (void)cst_size_exact(amount, wants);
    } else {
        (void)snprintf(wants, sizeof wants, "%" PRIu64, amount);
    }
    return cst_err_give_reason(err, cstd_quota_kinds[key].reason,
                               cst_err_set(err, cstd_quota_kinds[key].status, "%s: %s wants %s%s",
                                           words, what, wants,
                                           key == CSTD_QUOTA_TTL ? "" : " more"));
}

int cstd_quota_check(const struct cstd_quota_account *account, unsigned resource, uint64_t amount,
                     const char *what, struct cst_err *err)
{
    struct bound bound;

    if (account == NULL || amount == 0) {
        return CST_OK;
    }
    find_bound(account, resource, &bound);
    return amount <= left_of(&bound) ? CST_OK
                                     : refuse(account, resource, &bound, amount, what, err);
}

/* Add @amount to the user's use and to the use of the user's limited groups. To subtract, the
 * caller passes the negative amount, and the sums wrap. */
static void count(struct cstd_quota_account *account, unsigned resource, uint64_t amount)
{
    account->used[resource] += amount;
    account->quota->all_used[resource] += amount;
    for (unsigned i = 0; account->groups != 0 && i < account->quota->rules.n_rules; i++) {
        if ((account->groups >> i & 1) != 0) {
            account->quota->group_used[i][resource] += amount;
        }
    }
}

int cstd_quota_take(struct cstd_quota_account *account, unsigned resource, uint64_t amount,
                    const char *what, struct cst_err *err)
{
    int rc = cstd_quota_check(account, resource, amount, what, err);

    if (rc == CST_OK && account != NULL) {
        count(account, resource, amount);
    }
    return rc;
}

void cstd_quota_force(struct cstd_quota_account *account, unsigned resource, uint64_t amount)
{
    if (account != NULL) {
        count(account, resource, amount);
    }
}

void cstd_quota_give(struct cstd_quota_account *account, unsigned resource, uint64_t amount)
{
    if (account != NULL) {
        assert(account->used[resource] >= amount);
        count(account, resource, UINT64_C(0) - amount);
    }
}

uint64_t cstd_quota_limit(const struct cstd_quota_account *account, unsigned resource)
{
    struct bound bound;

    bound_user(account, resource, &bound);
    return bound.limit;
}

uint64_t cstd_quota_left(const struct cstd_quota_account *account, unsigned resource)
{
    struct bound bound;

    if (account == NULL) {
        return CSTD_QUOTA_NONE;
    }
    find_bound(account, resource, &bound);
    return left_of(&bound);
}
