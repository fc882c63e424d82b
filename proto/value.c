/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/value.h"

#include "proto/optimizers.h"
#include "proto/size.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Return the whole number that @limit stands for: the nearest double to UINT64_MAX is larger. */
static uint64_t whole(double limit)
{
    return limit < 0x1p64 ? (uint64_t)limit : UINT64_MAX;
}

const char *cst_value_range(const struct cst_value *value, char out[CST_VALUE_RANGE_BYTES])
{
    if (value->kind == CST_VALUE_REAL) {
        (void)snprintf(out, CST_VALUE_RANGE_BYTES, "a number from %.15g to %.15g", value->least,
                       value->most);
    } else {
        (void)snprintf(out, CST_VALUE_RANGE_BYTES, "a number from %" PRIu64 " to %" PRIu64,
                       whole(value->least), whole(value->most));
    }
    return out;
}

static int bad_number(const struct cst_value *value, const char *text, struct cst_err *err)
{
    char range[CST_VALUE_RANGE_BYTES];

    return cst_err_set(err, CST_EINVAL, "'%s' is not %s", text, cst_value_range(value, range));
}

static int read_integer(const struct cst_value *value, const char *text, uint64_t *out,
                        struct cst_err *err)
{
    char *end;
    uint64_t number;

    errno = 0;
    number = strtoull(text, &end, 10);
    /* strtoull would also accept signs and blanks. */
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0 ||
        (double)number < value->least || (double)number > value->most) {
        return bad_number(value, text, err);
    }
    *out = number;
    return CST_OK;
}

static int read_u32(const struct cst_value *value, const char *text, uint32_t *out,
                    struct cst_err *err)
{
    uint64_t number = 0;
    int rc = read_integer(value, text, &number, err);

    if (rc == CST_OK) {
        *out = (uint32_t)number;
    }
    return rc;
}

static int read_real(const struct cst_value *value, const char *text, double *out,
                     struct cst_err *err)
{
    char *end;
    double number = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(number) || number < value->least ||
        number > value->most) {
        return bad_number(value, text, err);
    }
    *out = number;
    return CST_OK;
}

static int read_yes(const char *text, bool *out, struct cst_err *err)
{
    bool yes = strcmp(text, "yes") == 0;

    if (!yes && strcmp(text, "no") != 0) {
        return cst_err_set(err, CST_EINVAL, "'%s' is none of yes, no", text);
    }
    *out = yes;
    return CST_OK;
}

static int read_name(const struct cst_value *value, const char *text, unsigned *out,
                     struct cst_err *err)
{
    uint32_t number = cst_name_find(value->names, text);
    char list[96] = "";

    if (value->names[number] != NULL) {
        *out = (unsigned)value->least + number;
        return CST_OK;
    }
    for (number = 0; value->names[number] != NULL; number++) {
        size_t used = strlen(list);

        (void)snprintf(list + used, sizeof list - used, "%s%s", number == 0 ? "" : ", ",
                       value->names[number]);
    }
    return cst_err_set(err, CST_EINVAL, "'%s' is none of %s", text, list);
}

static int read_path(const struct cst_value *value, const char *text, char *out,
                     struct cst_err *err)
{
    const size_t size = (size_t)value->most;

    if (*text != '/' || strlen(text) >= size) {
        return cst_err_set(err, CST_EINVAL, "'%s' is not an absolute path of at most %zu bytes",
                           text, size - 1);
    }
    (void)snprintf(out, size, "%s", text);
    return CST_OK;
}

static int read_size(const struct cst_value *value, const char *text, uint64_t *out,
                     struct cst_err *err)
{
    uint64_t bytes = 0;
    int rc;

    if (value->words[0] == NULL) {
        return cst_size_parse(text, 0, out, err);
    }
    if (value->words[1] != NULL && strcmp(text, value->words[1]) == 0) {
        *out = value->words_mean[1];
        return CST_OK;
    }
    rc = cst_size_parse_or(text, value->words[0], value->words_mean[0], &bytes, err);
    if (rc != CST_OK && value->words[1] != NULL) {
        rc = cst_err_set(err, CST_EINVAL, "'%s' is neither '%s' nor '%s' nor a size", text,
                         value->words[0], value->words[1]);
    }
    if (rc == CST_OK && (double)bytes < value->least && strcmp(text, value->words[0]) != 0) {
        rc = cst_err_set(err, CST_EINVAL, "'%s' is neither '%s' nor at least %.15g", text,
                         value->words[0], value->least);
    }
    if (rc == CST_OK) {
        *out = bytes;
    }
    return rc;
}

static int read_seconds(const struct cst_value *value, const char *text, uint32_t *out,
                        struct cst_err *err)
{
    uint32_t seconds = 0;
    int rc = cst_size_parse_seconds(text, (uint32_t)value->most, &seconds, err);

    if (rc == CST_OK && seconds < (uint32_t)value->least) {
        rc = cst_err_set(err, CST_EINVAL, "'%s': a time must be at least %.15g s", text,
                         value->least);
    }
    if (rc == CST_OK) {
        *out = seconds;
    }
    return rc;
}

static int read_list(const struct cst_value *value, const char *text, struct cst_value_list *out,
                     struct cst_err *err)
{
    struct cst_value_list list = {.n = 0};
    char number[24];

    if (text == NULL || (value->words[0] != NULL && strcmp(text, value->words[0]) == 0)) {
        *out = (struct cst_value_list){.is_all = true};
        return CST_OK;
    }
    list.is_one = value->words[0] != NULL && strchr(text, ',') == NULL;
    for (const char *at = text; at != NULL;) {
        const size_t n = strcspn(at, ",");

        if (list.n == CST_VALUE_LIST_MAX) {
            return cst_err_set(err, CST_EINVAL, "'%s' has more than %d numbers", text,
                               CST_VALUE_LIST_MAX);
        }
        (void)snprintf(number, sizeof number, "%.*s", (int)(n < 23 ? n : 23), at);
        if (read_u32(value, number, &list.v[list.n++], err) != CST_OK) {
            return err->status;
        }
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    *out = list;
    return CST_OK;
}

int cst_value_read(const struct cst_value *value, void *base, const char *text, struct cst_err *err)
{
    void *field = (char *)base + value->field;

    switch (value->kind) {
    case CST_VALUE_FLAG:
        *(bool *)field = true;
        return CST_OK;
    case CST_VALUE_YES:
        return read_yes(text, field, err);
    case CST_VALUE_TEXT:
        *(const char **)field = text;
        return CST_OK;
    case CST_VALUE_PATH:
        return read_path(value, text, field, err);
    case CST_VALUE_U32:
        return read_u32(value, text, field, err);
    case CST_VALUE_U64:
        return read_integer(value, text, field, err);
    case CST_VALUE_REAL:
        return read_real(value, text, field, err);
    case CST_VALUE_NAME:
        return read_name(value, text, field, err);
    case CST_VALUE_SIZE:
        return read_size(value, text, field, err);
    case CST_VALUE_SECONDS:
        return read_seconds(value, text, field, err);
    case CST_VALUE_LIST:
        return read_list(value, text, field, err);
    case CST_VALUE_OTHER:
        break;
    }
    return value->read(base, text, field, err);
}
