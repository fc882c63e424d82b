/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern quota`: prints the limits of users and groups, and their use of them. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/watch.h"

#include <grp.h>
#include <pwd.h>
#include <string.h>

typedef bool (*account_fn)(const Cistern__QuotaAccount *account, void *arg);

/* Request all accounts that the daemon shows to this user, and call @fn for each. False: it failed;
 * the error was printed to stderr, unless @fn returned false. */
static bool each_account(struct cli *cli, account_fn fn, void *arg)
{
    uint32_t first = 0;
    bool more = true, good = true;

    while (more && good) {
        Cistern__QuotaGet msg = CISTERN__QUOTA_GET__INIT;
        const Cistern__QuotaPart *part;
        struct cstc_call call = {0};

        msg.first = first;
        if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_QUOTA, &msg.base,
                     CISTERN__MSG_TYPE__MSG_QUOTA_PART, &cistern__quota_part__descriptor)) {
            return false;
        }
        part = (const Cistern__QuotaPart *)call.reply;
        more = part->more && part->n_accounts > 0; /* An empty page would repeat for ever. */
        first += (uint32_t)part->n_accounts;
        for (size_t i = 0; i < part->n_accounts && good; i++) {
            good = fn(part->accounts[i], arg);
        }
        cstc_call_reset(&call);
    }
    return good;
}

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
    } else if (strcmp(key, "host") == 0 || strcmp(key, "pool") == 0) {
        cli_table_cell(table, "%s", cli_bytes(amount, text));
    } else if (strcmp(key, "ttl") == 0) {
        cli_table_cell(table, "%s", cli_seconds((double)amount, text));
    } else {
        cli_table_cell(table, "%llu", (unsigned long long)amount);
    }
}

static bool add_rows(const Cistern__QuotaAccount *account, void *arg)
{
    struct cli_table *table = arg;

    for (size_t i = 0; i < account->n_uses; i++) {
        const Cistern__QuotaUse *use = account->uses[i];

        add_owner(table, account);
        cli_table_cell(table, "%s", use->key);
        add_amount(table, use->key, use->has_used, use->used, "-");
        add_amount(table, use->key, use->has_limit, use->limit, "none");
        cli_table_cell(table, "%s", use->device != NULL ? use->device : "");
    }
    return true;
}

static bool add_json(const Cistern__QuotaAccount *account, void *array)
{
    return json_array_append_new(array, cli_json(&account->base)) == 0;
}

static bool draw(struct cli *cli, void *arg)
{
    static const char *const titles[] = {"USER", "LIMIT OF", ">USED", ">LIMIT", "", NULL};
    struct cli_table table;
    bool good;

    (void)arg;
    if (cli->json) {
        json_t *array = json_array();

        good = array != NULL && each_account(cli, add_json, array);
        if (!good) {
            json_decref(array);
        }
        return good && cli_json_print(array);
    }
    cli_table_init(&table, titles);
    good = each_account(cli, add_rows, &table);
    return cli_table_print(&table, good ? stdout : stderr) && good;
}

int cli_quota(struct cli *cli)
{
    return cli_watch(cli, draw, NULL);
}
