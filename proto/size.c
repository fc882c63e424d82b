/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/size.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Like strtoull, but without sign and leading space, and with at least one digit. */
static int parse_number(const char *text, uint64_t *out, const char **rest)
{
    char *end;

    if (!isdigit((unsigned char)*text)) {
        return -1;
    }
    errno = 0;
    *out = strtoull(text, &end, 10);
    *rest = end;
    return errno == 0 ? 0 : -1;
}

/* Read digits with at most one point between them: "12", "1.5". strtod would accept signs,
 * exponents and "inf", and would use the locale's decimal point. */
static bool parse_decimal(const char *text, long double *out, bool *has_point, const char **rest)
{
    long double value = 0, place = 1;

    if (!isdigit((unsigned char)*text)) {
        return false;
    }
    for (; isdigit((unsigned char)*text); text++) {
        value = value * 10 + (*text - '0');
    }
    *has_point = *text == '.';
    if (*has_point) {
        if (!isdigit((unsigned char)text[1])) {
            return false;
        }
        for (text++; isdigit((unsigned char)*text); text++) {
            place /= 10;
            value += place * (*text - '0');
        }
    }
    *out = value;
    *rest = text;
    return true;
}

bool cst_size_percent(const char *text, double *percent)
{
    long double value;
    const char *rest;
    bool has_point;

    if (!parse_decimal(text, &value, &has_point, &rest) || strcmp(rest, "%") != 0) {
        return false;
    }
    *percent = (double)value;
    return true;
}

/* Convert a unit to a power of two: "", "K", "KB", "KiB", in either case. */
static bool parse_unit(const char *text, unsigned *shift)
{
    static const char units[] = "KMGT";
    const char *unit;

    *shift = 0;
    if (*text == '\0') {
        return true;
    }
    unit = strchr(units, toupper((unsigned char)*text));
    if (unit == NULL ||
        (text[1] != '\0' && strcasecmp(text + 1, "B") != 0 && strcasecmp(text + 1, "iB") != 0)) {
        return false;
    }
    *shift = 10 * (unsigned)(unit - units + 1);
    return true;
}

static const char examples[] = "4096, 64K, 1.5G or 1.5GiB";

static bool parse_bytes(const char *text, uint64_t *out)
{
    const long double most = 0x1p63L;
    long double value;
    const char *rest;
    unsigned shift;
    bool has_point;

    if (!parse_decimal(text, &value, &has_point, &rest) || !parse_unit(rest, &shift) ||
        (has_point && shift == 0) || value * (long double)(UINT64_C(1) << shift) > most) {
        return false;
    }
    *out = (uint64_t)(value * (long double)(UINT64_C(1) << shift));
    return true;
}

int cst_size_parse(const char *text, uint64_t whole, uint64_t *out, struct cst_err *err)
{
    double percent;

    if (whole > 0 && cst_size_percent(text, &percent) && percent <= 100) {
        *out = (uint64_t)((long double)whole * percent / 100);
        return CST_OK;
    }
    if (parse_bytes(text, out)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EINVAL, "'%s' is not a size (write %s%s)", text, examples,
                       whole > 0 ? ", or a percentage such as 40%" : "");
}

int cst_size_parse_or(const char *text, const char *word, uint64_t value, uint64_t *out,
                      struct cst_err *err)
{
    if (strcmp(text, word) == 0) {
        *out = value;
        return CST_OK;
    }
    if (parse_bytes(text, out)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EINVAL, "'%s' is neither '%s' nor a size (write %s)", text, word,
                       examples);
}

int cst_size_parse_seconds(const char *text, uint32_t max, uint32_t *out, struct cst_err *err)
{
    const char *rest;
    uint64_t n, unit = 0;

    if (parse_number(text, &n, &rest) == 0) {
        if (*rest == '\0' || strcmp(rest, "s") == 0) {
            unit = 1;
        } else if (strcmp(rest, "m") == 0) {
            unit = 60;
        } else if (strcmp(rest, "h") == 0) {
            unit = 3600;
        } else if (strcmp(rest, "d") == 0) {
            unit = 86400;
        }
    }
    if (unit == 0 || n > max / unit) {
        return cst_err_set(err, CST_EINVAL,
                           "'%s' is not a time of at most %u s (a number with s, m, h or d)", text,
                           max);
    }
    *out = (uint32_t)(n * unit);
    return CST_OK;
}

const char *cst_size_text(uint64_t bytes, char buf[CST_SIZE_TEXT])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    unsigned i = 0;

    while (v >= 1024.0 && i + 1 < sizeof units / sizeof *units) {
        v /= 1024.0;
        i++;
    }
    (void)snprintf(buf, CST_SIZE_TEXT, i == 0 ? "%.0f %s" : "%.1f %s", v, units[i]);
    return buf;
}

const char *cst_size_exact(uint64_t bytes, char buf[CST_SIZE_EXACT])
{
    char text[CST_SIZE_TEXT];

    if (bytes < 1024) {
        (void)snprintf(buf, CST_SIZE_EXACT, "%" PRIu64 " bytes", bytes);
    } else {
        (void)snprintf(buf, CST_SIZE_EXACT, "%s (%" PRIu64 " bytes)", cst_size_text(bytes, text),
                       bytes);
    }
    return buf;
}
