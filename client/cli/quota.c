/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern quota`: prints the limits of users and groups, and their use of them. */
#include "client/cli/cli.h"
#include "client/cli/table.h"
#include "client/cli/watch.h"

#include <grp.h>
#include <pwd.h>
#include <string.h>

/* Add the name of a user or group, or the number if there is no name. */
static void add_owner(struct cli_table *table, const Cistern__QuotaAccount *account)
{
    const struct passwd *pw = account->group ? NULL : getpwuid(account->id);
    const struct group *gr = account->group ? getgrgid(account->id) : NULL;
    const char *kind = account->group ? "group " : "";

    if (pw != NULL || gr != NULL) {
        cli_table_cell(table, "%s%s", kind, pw != NULL ? pw->pw_name : gr->gr_name);
    } else {
        cli_table_cell(table, "%s%u", account->group ? "gid " : "uid ", account->id);
    }
}

/* Add an amount in the unit of @key; @none if there is none. */
static void add_amount(struct cli_table *table, const char *key, bool has, uint64_t amount,
                       const char *none)
{
    char text[CLI_HUMAN_BYTES];

    if (!has) {
        cli_table_cell(table, "%s", none);
    } else if (strcmp(key, "host") == 0 || strcmp(key, "pool") == 0 || strcmp(key, "disk") == 0) {
        cli_table_cell(table, "%s", cli_bytes(amount, text));
    } else if (strcmp(key, "ttl") == 0) {
        cli_table_cell(table, "%s", cli_seconds((double)amount, text));
    } else {
        cli_table_cell(table, "%llu", (unsigned long long)amount);
    }
}

/* Add a row for each use of an account. */
static void add_rows(struct cli_table *table, const void *item)
{
    const Cistern__QuotaAccount *account = item;

    for (size_t i = 0; i < account->n_uses; i++) {
        const Cistern__QuotaUse *use = account->uses[i];

        add_owner(table, account);
        cli_table_cell(table, "%s", use->key);
        add_amount(table, use->key, use->has_used, use->used, "-");
        add_amount(table, use->key, use->has_limit, use->limit, "none");
        cli_table_cell(table, "%s", use->device != NULL ? use->device : "");
    }
}

static size_t items_of(const ProtobufCMessage *page, ProtobufCMessage ***items, bool *more)
{
    const Cistern__QuotaPart *part = (const Cistern__QuotaPart *)page;

    *items = (ProtobufCMessage **)part->accounts;
    *more = part->more;
    return part->n_accounts;
}

static const char *const titles[] = {"USER", "LIMIT OF", ">USED", ">LIMIT", "", NULL};

const struct cli_list cli_quota_list = {
    .get = CISTERN__MSG_TYPE__MSG_QUOTA,
    .part = CISTERN__MSG_TYPE__MSG_QUOTA_PART,
    .form = &cistern__quota_part__descriptor,
    .titles = titles,
    .items = items_of,
    .add = add_rows,
};

static bool draw(struct cli *cli, FILE *out, void *arg)
{
    (void)arg;
    return cli_list_print(cli, &cli_quota_list, out);
}

int cli_quota(struct cli *cli)
{
    return cli_watch(cli, draw, NULL);
}
