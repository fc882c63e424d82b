/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/json_fields.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *cst_json_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* Read @in up to its first zero byte. */
static int read_stream(char **text, size_t *n, FILE *in, const char *name, struct cst_err *err)
{
    char *all = NULL;
    size_t size = 0;
    ssize_t length;

    errno = 0;
    length = getdelim(&all, &size, '\0', in); /* JSON has no zeros. */
    if (ferror(in) != 0 || (length < 0 && errno != 0)) {
        int rc = cst_err_errno(err, CST_EIO, errno, "%s", name);

        free(all);
        return rc;
    }
    *text = all;
    *n = length > 0 ? (size_t)length : 0;
    return CST_OK;
}

int cst_json_read(char **text, size_t *n, const char *path, struct cst_err *err)
{
    const bool is_file = strcmp(path, "-") != 0;
    FILE *in = is_file ? fopen(path, "re") : stdin;
    int rc;

    if (in == NULL) {
        return cst_err_errno(err, errno == ENOENT ? CST_ENOTFOUND : CST_EIO, errno, "%s", path);
    }
    rc = read_stream(text, n, in, cst_json_name(path), err);
    if (is_file) {
        (void)fclose(in);
    }
    return rc;
}

/* -- what jansson refuses --------------------------------------------------------------------- */

#define MOST_LEVELS 8  /* Of objects and arrays in which a number is told with its place. */
#define MOST_DIGITS 40 /* Of a number that are told. */

/* An object or an array in a text. */
struct level {
    bool is_array;
    long i;          /* Of the item. */
    const char *key; /* NULL: an array, or no key was read yet. */
    int n;           /* Bytes of the key. */
};

/* Return the first byte after the string at @at, which begins and ends before @end. */
static const char *after_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++) {
        at += *at == '\\';
    }
    return at + 1;
}

/* Find the objects and arrays that contain what is at @end. The @text before it is correct JSON.
 * Returns their number, which can be more than MOST_LEVELS. */
static size_t find_levels(const char *text, const char *end, struct level levels[MOST_LEVELS])
{
    struct level too_deep = {0}, *level = NULL;
    bool is_key = false;
    size_t n = 0;

    for (const char *at = text; at < end; at++) {
        if (*at == '{' || *at == '[') {
            level = n < MOST_LEVELS ? &levels[n] : &too_deep;
            *level = (struct level){.is_array = *at == '['};
            is_key = *at == '{';
            n++;
        } else if (*at == '}' || *at == ']') {
            n--;
            level = n > 0 && n <= MOST_LEVELS ? &levels[n - 1] : &too_deep;
        } else if (*at == ',' && level != NULL) {
            level->i++;
            is_key = !level->is_array;
        } else if (*at == '"') {
            const char *after = after_string(at, end);

            if (is_key && level != NULL) {
                level->key = at + 1;
                level->n = (int)(after - at - 2);
            }
            is_key = false;
            at = after - 1;
        }
    }
    return n;
}

/* Write the place of what is at @end to @out, "" if it is the root or is too deep. */
static void find_place(char out[CST_JSON_PLACE_BYTES], const char *text, const char *end)
{
    struct level levels[MOST_LEVELS];
    size_t n = find_levels(text, end, levels), used = 0;

    out[0] = '\0';
    for (size_t i = 0; n <= MOST_LEVELS && i < n && used < CST_JSON_PLACE_BYTES; i++) {
        const struct level *l = &levels[i];
        int more = l->is_array ? snprintf(out + used, CST_JSON_PLACE_BYTES - used, "[%ld]", l->i)
                               : snprintf(out + used, CST_JSON_PLACE_BYTES - used, "%s%.*s",
                                          used > 0 ? "." : "", l->n, l->key != NULL ? l->key : "");

        used += more > 0 ? (size_t)more : 0;
    }
}

/* Set the error for a number of @text that jansson has no type for. */
static int refuse_number(const char *text, const json_error_t *error, const char *name,
                         struct cst_err *err)
{
    const char *end = text + error->position, *begin = end;
    bool is_integer = true;
    char place[CST_JSON_PLACE_BYTES], limits[64];

    while (begin > text && strchr("+-.0123456789eE", begin[-1]) != NULL) {
        begin--;
        is_integer = is_integer && strchr(".eE", *begin) == NULL;
    }
    find_place(place, text, begin);
    if (is_integer) {
        (void)snprintf(limits, sizeof limits, "%" PRId64 " to %" PRId64, INT64_MIN, INT64_MAX);
    } else {
        (void)snprintf(limits, sizeof limits, "%g to %g", -DBL_MAX, DBL_MAX);
    }
    return cst_err_set(err, CST_EINVAL, "%s:%d:%d: %s%s%.*s%s is not within %s", name, error->line,
                       error->column, place, place[0] != '\0' ? ": " : "",
                       (int)(end - begin < MOST_DIGITS ? end - begin : MOST_DIGITS), begin,
                       end - begin > MOST_DIGITS ? "..." : "", limits);
}

/* Return why jansson refused a text, without the names of its constants. */
static const char *why(const json_error_t *error)
{
    const enum json_error_code code = json_error_code(error);

    return code == json_error_null_character     ? "\\u0000 is not allowed in a text"
           : code == json_error_null_byte_in_key ? "\\u0000 is not allowed in a key"
                                                 : error->text;
}

int cst_json_parse(json_t **out, const char *text, size_t n, const char *name, struct cst_err *err)
{
    const size_t mark = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    const char *json = n > 0 ? text + mark : "";
    json_error_t error;
    json_t *root = json_loadb(json, n - mark, JSON_REJECT_DUPLICATES, &error);

    if (root == NULL && json_error_code(&error) == json_error_numeric_overflow) {
        return refuse_number(json, &error, name, err);
    }
    if (root == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s:%d:%d: %s", name, error.line, error.column,
                           why(&error));
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

int cst_json_load_fd(json_t **out, int fd, const char *name, struct cst_err *err)
{
    FILE *in = fdopen(fd, "r");
    char *text;
    size_t n;
    int rc;

    if (in == NULL) {
        rc = cst_err_errno(err, CST_EIO, errno, "%s", name);
        (void)close(fd);
        return rc;
    }
    rc = read_stream(&text, &n, in, name, err);
    (void)fclose(in);
    if (rc == CST_OK) {
        rc = cst_json_parse(out, text, n, name, err);
        free(text);
    }
    return rc;
}

/* -- places and values ------------------------------------------------------------------------ */

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
