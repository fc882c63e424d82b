/* SPDX-License-Identifier: Apache-2.0 */
/* Serves Quota: what users hold and may hold. */
#include "daemon/base/daemon_state.h"
#include "daemon/serve/serve.h"
#include "proto/cistern.pb-c.h"
#include "daemon/budget/quota.h"
#include "daemon/budget/quota_rules.h"
#include "daemon/session/session.h"

/* Most accounts in a QuotaPart; each has at most CSTD_QUOTA_RESOURCES short uses. */
enum { ACCOUNT_PAGE = 8 };

/* A QuotaPart and the memory for its parts. */
struct page {
    Cistern__QuotaPart message;
    Cistern__QuotaAccount accounts[ACCOUNT_PAGE], *account_pointers[ACCOUNT_PAGE];
    Cistern__QuotaUse uses[ACCOUNT_PAGE][CSTD_QUOTA_RESOURCES],
        *use_pointers[ACCOUNT_PAGE][CSTD_QUOTA_RESOURCES];
    uint32_t first; /* Number of accounts that are still to be skipped. */
};

/* Return the next account of the page. NULL: the account belongs to another page. */
static Cistern__QuotaAccount *add_account(struct page *page, bool group, uint32_t id)
{
    Cistern__QuotaAccount *account;

    if (page->first > 0) {
        page->first--;
        return NULL;
    }
    if (page->message.n_accounts == ACCOUNT_PAGE) {
        page->message.more = 1;
        return NULL;
    }
    account = page->account_pointers[page->message.n_accounts] =
        &page->accounts[page->message.n_accounts];
    cistern__quota_account__init(account);
    account->group = group;
    account->id = id;
    account->uses = page->use_pointers[page->message.n_accounts];
    page->message.n_accounts++;
    return account;
}

static void add_use(struct page *page, Cistern__QuotaAccount *account,
                    const struct cstd_quota *quota, unsigned resource, uint64_t used,
                    uint64_t limit)
{
    Cistern__QuotaUse *use = &page->uses[account - page->accounts][account->n_uses];
    enum cstd_quota_key key = cstd_quota_key_of(resource);

    cistern__quota_use__init(use);
    use->key = (char *)(uintptr_t)cstd_quota_kinds[key].key;
    use->device = (char *)(uintptr_t)cstd_quota_pool_name(quota, resource);
    use->has_used = key != CSTD_QUOTA_TTL;
    use->used = used;
    use->has_limit = limit != CSTD_QUOTA_NONE;
    use->limit = limit;
    account->uses[account->n_uses++] = use;
}

static bool is_there(const struct cstd_quota *quota, unsigned resource)
{
    return resource < CSTD_QUOTA_KEYS + quota->n_pools - 1;
}

static void add_user(struct page *page, const struct cstd_quota_account *from)
{
    Cistern__QuotaAccount *to = add_account(page, false, from->uid);

    for (unsigned r = 0; to != NULL && is_there(from->quota, r); r++) {
        add_use(page, to, from->quota, r, from->used[r], cstd_quota_limit(from, r));
    }
}

/* Only the resources that the group's section limits are reported. */
static void add_group(struct page *page, const struct cstd_quota *quota, unsigned rule)
{
    Cistern__QuotaAccount *to = add_account(page, true, quota->rules.rules[rule].id);

    for (unsigned r = 0; to != NULL && is_there(quota, r); r++) {
        uint64_t limit = cstd_quota_group_limit(quota, rule, r);

        if (limit != CSTD_QUOTA_NONE) {
            add_use(page, to, quota, r, quota->group_used[rule][r], limit);
        }
    }
}

void cstd_serve_quota(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__QuotaGet *get = body;
    const struct cstd_quota *quota = session->daemon->quota;
    const struct cstd_quota_account *account;
    struct page page = {.first = get->first};

    cistern__quota_part__init(&page.message);
    page.message.accounts = page.account_pointers;
    LIST_FOREACH(account, &quota->accounts, link)
    {
        if (session->manager || account == session->account) {
            add_user(&page, account);
        }
    }
    for (unsigned i = 0; i < quota->rules.n_rules; i++) {
        if (quota->rules.rules[i].whose == CSTD_QUOTA_GID &&
            (session->manager || (session->account->groups >> i & 1) != 0)) {
            add_group(&page, quota, i);
        }
    }
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_QUOTA_PART, &page.message.base, NULL, 0);
}
