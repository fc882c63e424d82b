/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/json_fields.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *cst_json_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

int cst_json_read(char **text, size_t *n, const char *path, struct cst_err *err)
{
    const bool is_file = strcmp(path, "-") != 0;
    FILE *in = is_file ? fopen(path, "re") : stdin;
    char *all = NULL;
    size_t size = 0;
    ssize_t length;
    int rc = CST_OK;

    if (in == NULL) {
        return cst_err_errno(err, errno == ENOENT ? CST_ENOTFOUND : CST_EIO, errno, "%s", path);
    }
    errno = 0;
    length = getdelim(&all, &size, '\0', in); /* JSON has no zeros. */
    if (ferror(in) != 0 || (length < 0 && errno != 0)) {
        rc = cst_err_errno(err, CST_EIO, errno, "%s", cst_json_name(path));
    }
    if (is_file) {
        (void)fclose(in);
    }
    if (rc != CST_OK) {
        free(all);
        return rc;
    }
    *text = all;
    *n = length > 0 ? (size_t)length : 0;
    return CST_OK;
}

const char *cst_json_why(const json_error_t *error)
{
    const enum json_error_code code = json_error_code(error);

    return code == json_error_null_character     ? "\\u0000 is not allowed in a text"
           : code == json_error_null_byte_in_key ? "\\u0000 is not allowed in a key"
                                                 : error->text;
}

int cst_json_parse(json_t **out, const char *text, size_t n, const char *name, struct cst_err *err)
{
    const size_t mark = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    json_error_t error;
    json_t *root = json_loadb(n > 0 ? text + mark : "", n - mark, JSON_REJECT_DUPLICATES, &error);

    if (root == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s:%d:%d: %s", name, error.line, error.column,
                           cst_json_why(&error));
    }
    *out = root;
    return CST_OK;
}

int cst_json_load(json_t **out, const char *path, struct cst_err *err)
{
    char *text;
    size_t n;
    int rc = cst_json_read(&text, &n, path, err);

    if (rc == CST_OK) {
        rc = cst_json_parse(out, text, n, cst_json_name(path), err);
        free(text);
    }
    return rc;
}

const char *cst_json_place(char out[CST_JSON_PLACE_BYTES], const char *place, const char *key,
                           long i)
{
    const char *dot = place[0] != '\0' ? "." : "";

    if (i < 0) {
        (void)snprintf(out, CST_JSON_PLACE_BYTES, "%s%s%s", place, dot, key);
    } else {
        (void)snprintf(out, CST_JSON_PLACE_BYTES, "%s%s%s[%ld]", place, dot, key, i);
    }
    return out;
}

static const char *type_words(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "text";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "?";
}

/* Set the error "PLACE.KEY: wanted WHAT, not A". */
static int wanted(const json_t *value, const char *place, const char *key, const char *what,
                  struct cst_err *err)
{
    char text[CST_JSON_PLACE_BYTES];

    return cst_err_set(err, CST_EINVAL, "%s: wanted %s, not %s",
                       cst_json_place(text, place, key, -1), what, type_words(value));
}

int cst_json_object(const json_t *value, const char *place, const char *const *keys,
                    struct cst_err *err)
{
    const char *name = place[0] != '\0' ? place : "the file", *key;
    json_t *object = (json_t *)(uintptr_t)value, *unused;

    if (!json_is_object(value)) {
        return cst_err_set(err, CST_EINVAL, "%s: wanted an object, not %s", name,
                           type_words(value));
    }
    json_object_foreach(object, key, unused)
    {
        size_t i = 0;

        while (keys[i] != NULL && strcmp(keys[i], key) != 0) {
            i++;
        }
        if (keys[i] == NULL) {
            return cst_err_set(err, CST_EINVAL, "%s: unknown key '%.63s'", name, key);
        }
    }
    return CST_OK;
}

/* Find the value of @key. *out is NULL if the key is missing and optional. */
static int get(const json_t *object, const char *place, const char *key, enum cst_json_need need,
               const json_t **out, struct cst_err *err)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL && need == CST_JSON_REQUIRED) {
        return cst_err_set(err, CST_EINVAL, "%s: no '%s'", place[0] != '\0' ? place : "the file",
                           key);
    }
    *out = value;
    return CST_OK;
}

int cst_json_array(const json_t *object, const char *place, const char *key,
                   enum cst_json_need need, size_t min, size_t max, const json_t **out,
                   struct cst_err *err)
{
    const json_t *value = NULL;
    char text[CST_JSON_PLACE_BYTES];
    int rc = get(object, place, key, need, &value, err);

    if (rc == CST_OK && value != NULL) {
        if (!json_is_array(value)) {
            return wanted(value, place, key, "an array", err);
        }
        if (json_array_size(value) < min || json_array_size(value) > max) {
            return cst_err_set(err, CST_EINVAL, "%s: %zu values, allowed are %zu to %zu",
                               cst_json_place(text, place, key, -1), json_array_size(value), min,
                               max);
        }
    }
    if (rc == CST_OK) {
        *out = value;
    }
    return rc;
}

int cst_json_u64(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                 uint64_t max, uint64_t *out, struct cst_err *err)
{
    const json_t *value = NULL;
    char text[CST_JSON_PLACE_BYTES];
    json_int_t number;
    int rc = get(object, place, key, need, &value, err);

    if (rc != CST_OK || value == NULL) {
        return rc;
    }
    if (!json_is_integer(value)) {
        return wanted(value, place, key, "a whole number", err);
    }
    number = json_integer_value(value);
    if (number < 0 || (uint64_t)number > max) {
        return cst_err_set(err, CST_EINVAL, "%s: %lld is not within 0 to %llu",
                           cst_json_place(text, place, key, -1), (long long)number,
                           (unsigned long long)max);
    }
    *out = (uint64_t)number;
    return CST_OK;
}

int cst_json_real(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                  double *out, struct cst_err *err)
{
    const json_t *value = NULL;
    char text[CST_JSON_PLACE_BYTES];
    int rc = get(object, place, key, need, &value, err);

    if (rc != CST_OK || value == NULL) {
        return rc;
    }
    if (!json_is_number(value)) {
        return wanted(value, place, key, "a number", err);
    }
    if (!isfinite(json_number_value(value)) || json_number_value(value) < 0) {
        return cst_err_set(err, CST_EINVAL, "%s: %g is negative or not finite",
                           cst_json_place(text, place, key, -1), json_number_value(value));
    }
    *out = json_number_value(value);
    return CST_OK;
}

static bool is_printable(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            return false;
        }
    }
    return true;
}

int cst_json_text(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                  char *out, size_t n, struct cst_err *err)
{
    const json_t *value = NULL;
    char text[CST_JSON_PLACE_BYTES];
    size_t length;
    int rc = get(object, place, key, need, &value, err);

    if (rc != CST_OK || value == NULL) {
        return rc;
    }
    if (!json_is_string(value)) {
        return wanted(value, place, key, "text", err);
    }
    length = json_string_length(value);
    if (length == 0 || length >= n || !is_printable(json_string_value(value))) {
        return cst_err_set(err, CST_EINVAL, "%s: wanted 1 to %zu printable characters, not %zu",
                           cst_json_place(text, place, key, -1), n - 1, length);
    }
    memcpy(out, json_string_value(value), length + 1);
    return CST_OK;
}
