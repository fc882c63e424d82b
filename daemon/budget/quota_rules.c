/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/budget/quota_rules.h"

#include "daemon/base/access.h"
#include "proto/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Name of the section for every uid; other sections are "quota uid:N" and so on. */
static const char plain[] = "quota";

const struct cstd_quota_kind cstd_quota_kinds[CSTD_QUOTA_KEYS] = {
#define CSTD_QUOTA_X(name, key, unit, least, status, reason, words)                                \
    [CSTD_QUOTA_##name] = {key, CSTD_QUOTA_##unit, least, status, CST_REASON_##reason, words},
    CSTD_QUOTA_MAP(CSTD_QUOTA_X)
#undef CSTD_QUOTA_X
};

bool cstd_quota_rules_is_section(const char *section)
{
    size_t n = sizeof plain - 1;

    return strncmp(section, plain, n) == 0 && (section[n] == '\0' || section[n] == ' ');
}

/* -- sections ------------------------------------------------------------------------------- */

static int parse_whose(const char *text, enum cstd_quota_whose *whose, uint32_t *id,
                       struct cst_err *err)
{
    bool group;

    if (cstd_access_parse_who(text, &group, id, err) != CST_OK) {
        return cst_err_prefix(err, "section [quota %s]", text);
    }
    *whose = group ? CSTD_QUOTA_GID : CSTD_QUOTA_UID;
    return CST_OK;
}

const struct cstd_quota_rule *cstd_quota_rules_find(const struct cstd_quota_rules *rules,
                                                    enum cstd_quota_whose whose, uint32_t id)
{
    for (unsigned i = 0; i < rules->n_rules; i++) {
        if (rules->rules[i].whose == whose && rules->rules[i].id == id) {
            return &rules->rules[i];
        }
    }
    return NULL;
}

/* Find the limits of @section, or add them. */
static int find_limits(struct cstd_quota_rules *rules, const char *section,
                       struct cstd_quota_limit **out, struct cst_err *err)
{
    enum cstd_quota_whose whose = CSTD_QUOTA_UID;
    uint32_t id = 0;

    if (strcmp(section, plain) == 0) {
        *out = rules->any;
        return CST_OK;
    }
    if (parse_whose(section + sizeof plain, &whose, &id, err) != CST_OK) {
        return CST_EINVAL;
    }
    for (unsigned i = 0; i < rules->n_rules; i++) {
        if (rules->rules[i].whose == whose && rules->rules[i].id == id) {
            *out = rules->rules[i].limits;
            return CST_OK;
        }
    }
    if (rules->n_rules == CSTD_QUOTA_MAX_RULES) {
        return cst_err_set(err, CST_EINVAL, "more than %d sections of users and groups",
                           CSTD_QUOTA_MAX_RULES);
    }
    rules->rules[rules->n_rules] = (struct cstd_quota_rule){.whose = whose, .id = id};
    *out = rules->rules[rules->n_rules++].limits;
    return CST_OK;
}

/* -- values --------------------------------------------------------------------------------- */

static int find_key(const char *key, const char *section, struct cst_err *err)
{
    char known[128] = "";

    for (int i = 0; i < CSTD_QUOTA_KEYS; i++) {
        size_t used = strlen(known);

        if (strcmp(cstd_quota_kinds[i].key, key) == 0) {
            return i;
        }
        (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                       cstd_quota_kinds[i].key);
    }
    (void)cst_err_set(err, CST_EINVAL, "unknown key '%s' in [%s] (known: %s)", key, section, known);
    return -1;
}

/* Accepts "12.5%", "64G" and "8". */
static int parse_amount(const char *value, struct cstd_quota_limit *out, struct cst_err *err)
{
    double percent;

    out->percent = cst_size_percent(value, &percent) && percent <= 100;
    if (out->percent) {
        out->value = (uint64_t)(percent * CSTD_QUOTA_WHOLE / 100 + 0.5);
        return CST_OK;
    }
    return cst_size_parse(value, 0, &out->value, err);
}

static int parse_limit(const struct cstd_quota_kind *kind, const char *value,
                       struct cstd_quota_limit *out, struct cst_err *err)
{
    struct cstd_quota_limit limit = {.given = true, .value = CSTD_QUOTA_NONE};
    uint32_t seconds;
    int rc = CST_OK;

    if (strcmp(value, "none") == 0) {
        *out = limit;
        return CST_OK;
    }
    if (kind->unit == CSTD_QUOTA_SECONDS) {
        rc = cst_size_parse_seconds(value, UINT32_MAX, &seconds, err);
        limit.value = rc == CST_OK ? seconds : 0;
    } else {
        rc = parse_amount(value, &limit, err);
    }
    if (rc != CST_OK) {
        return cst_err_set(
            err, CST_EINVAL, "'%s' is not a limit for %s (write %s, or 'none')", value, kind->words,
            kind->unit == CSTD_QUOTA_SECONDS ? "a number with s, m, h or d"
                                             : "a number with K, M, G or T, 0% to 100%");
    }
    if (limit.percent && kind == &cstd_quota_kinds[CSTD_QUOTA_DISK]) {
        return cst_err_set(
            err, CST_EINVAL,
            "'%s' is not a limit for %s, whose number the daemon does not have (write "
            "a number with K, M, G or T, or 'none')",
            value, kind->words);
    }
    if (!limit.percent && limit.value < kind->least) {
        return cst_err_set(err, CST_EINVAL, "'%s' is too small: at least %" PRIu64 " %s", value,
                           kind->least, kind->words);
    }
    *out = limit;
    return CST_OK;
}

int cstd_quota_rules_set(struct cstd_quota_rules *rules, const char *section, const char *key,
                         const char *value, struct cst_err *err)
{
    struct cstd_quota_limit *limits = NULL;
    int i = find_key(key, section, err);

    if (i < 0 || find_limits(rules, section, &limits, err) != CST_OK) {
        return CST_EINVAL;
    }
    if (limits[i].given) {
        return cst_err_set(err, CST_EINVAL, "'%s' is set twice in [%s]", key, section);
    }
    if (parse_limit(&cstd_quota_kinds[i], value, &limits[i], err) != CST_OK) {
        return cst_err_prefix(err, "[%s] %s", section, key);
    }
    return CST_OK;
}

uint64_t cstd_quota_limit_amount(enum cstd_quota_key key, const struct cstd_quota_limit *limit,
                                 uint64_t total)
{
    const uint64_t whole = CSTD_QUOTA_WHOLE, least = cstd_quota_kinds[key].least;
    uint64_t amount;

    if (!limit->percent || limit->value == CSTD_QUOTA_NONE) {
        return limit->value;
    }
    /* The product is split, since @total times the value could overflow. */
    amount = total / whole * limit->value + (total % whole * limit->value + whole - 1) / whole;
    return amount > least ? amount : least;
}
