#include "daemon/size.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtoull without its liberties: no sign, no leading space, at least one digit. */
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

int cst_size_parse(const char *text, uint64_t whole, uint64_t *out, struct cst_err *err)
{
    static const char units[] = "KMGT";
    const char *rest, *unit;
    uint64_t n;
    unsigned shift = 0;

    if (parse_number(text, &n, &rest) != 0) {
        goto err_invalid;
    }
    if (strcmp(rest, "%") == 0) {
        if (n > 100) {
            goto err_invalid;
        }
        *out = whole / 100 * n;
        return CST_OK;
    }
    if (*rest != '\0') {
        unit = strchr(units, toupper((unsigned char)*rest));
        if (unit == NULL || rest[1] != '\0') {
            goto err_invalid;
        }
        shift = 10 * (unsigned)(unit - units + 1);
    }
    if (n > (UINT64_C(1) << (63 - shift))) {
        goto err_invalid;
    }
    *out = n << shift;
    return CST_OK;

err_invalid:
    return cst_err_set(err, CST_EINVAL,
                       "'%s' is not a size (a number with K, M, G or T, or 0%% to 100%%)", text);
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
