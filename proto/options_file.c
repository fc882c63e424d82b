/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/options_file.h"

#include "proto/json_fields.h"
#include "proto/size.h"
#include "proto/usage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 64 }; /* Most bytes of a number as text. */

/* A file that is read. */
struct source {
    const char *path; /* For messages. */
    char *text;       /* The whole file. Owned. */
    size_t n;         /* Its bytes. */
};

const char *cst_options_key(const struct cst_option *option, char key[CST_OPTIONS_KEY_MAX])
{
    (void)snprintf(key, CST_OPTIONS_KEY_MAX, "%s", option->name);
    for (char *c = key; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : *c;
    }
    return key;
}

/* -- places in the file ----------------------------------------------------------------------- */

/* Return the byte after the text that begins with the quotation mark @c. */
static const char *skip_text(const char *c)
{
    for (c++; *c != '"'; c++) {
        c += *c == '\\';
    }
    return c + 1;
}

/* Return whether the text at @c is the key @key: followed by a colon. */
static bool is_key(const char *c, const char *end, const char *key)
{
    const size_t n = strlen(key);

    return (size_t)(end - c) == n + 2 && strncmp(c + 1, key, n) == 0 &&
           end[strspn(end, " \t\r\n")] == ':';
}

/* Return the line of the key @key in section @section, or of the section itself if @key is NULL.
 * The file is JSON: jansson has read it. 0: not found, because the key is written with escapes. */
static unsigned line_of(const struct source *source, const char *section, const char *key)
{
    unsigned line = 1, depth = 0;
    bool in_section = false;

    for (const char *c = source->text; *c != '\0'; c++) {
        if (*c == '"') {
            const char *end = skip_text(c);

            if (depth == 1) {
                in_section = is_key(c, end, section);
            }
            if (in_section && (key == NULL ? depth == 1 : depth == 2 && is_key(c, end, key))) {
                return line;
            }
            c = end - 1;
        }
        line += *c == '\n';
        depth += *c == '{' || *c == '[';
        depth -= *c == '}' || *c == ']';
    }
    return 0;
}

/* Put the place before the text of @err. @key is NULL for the section itself. */
static int at(const struct source *source, const char *section, const char *key,
              struct cst_err *err)
{
    const unsigned line = line_of(source, section, key);

    if (key != NULL) {
        (void)cst_err_prefix(err, "section %s, %s", section, key);
    }
    return line > 0 ? cst_err_prefix(err, "%s:%u", source->path, line)
                    : cst_err_prefix(err, "%s", source->path);
}

/* -- values ----------------------------------------------------------------------------------- */

static const char *type_of(const json_t *value)
{
    return json_is_boolean(value)  ? "true or false"
           : json_is_string(value) ? "a text"
           : json_is_number(value) ? "a number"
           : json_is_array(value)  ? "a list"
           : json_is_object(value) ? "an object"
                                   : "null";
}

static int wrong_type(const json_t *value, const char *wanted, struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL, "the value is %s, and must be %s", type_of(value), wanted);
}

/* Return whether @kind is a number in the file. */
static bool is_number(enum cst_value_kind kind)
{
    return kind == CST_VALUE_U32 || kind == CST_VALUE_U64 || kind == CST_VALUE_REAL;
}

/* Return whether the option has numbers that JSON cannot have. */
static bool is_large(const struct cst_value *value)
{
    return value->kind == CST_VALUE_U64 && value->most > (double)INT64_MAX;
}

/* Return the value as text of the command line. NULL: the text is in @number. */
static const char *text_of(const json_t *value, char number[TEXT_MAX])
{
    if (json_is_string(value)) {
        return json_string_value(value);
    }
    if (json_is_integer(value)) {
        (void)snprintf(number, TEXT_MAX, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else {
        (void)snprintf(number, TEXT_MAX, "%.17g", json_real_value(value));
    }
    return number;
}

/* Read a number of a list. */
static int read_item(const struct cst_value *value, const json_t *item, struct cst_value_list *list,
                     struct cst_err *err)
{
    char range[CST_VALUE_RANGE_BYTES];
    const json_int_t number = json_integer_value(item);

    if (!json_is_integer(item)) {
        return wrong_type(item, cst_value_range(value, range), err);
    }
    if ((double)number < value->least || (double)number > value->most) {
        return cst_err_set(err, CST_EINVAL, "%" JSON_INTEGER_FORMAT " is not %s", number,
                           cst_value_range(value, range));
    }
    list->v[list->n++] = (uint32_t)number;
    return CST_OK;
}

/* Read a list of numbers; or, if the value has a word, one number, true or false. */
static int read_list(const struct cst_value *value, const json_t *json, struct cst_value_list *out,
                     struct cst_err *err)
{
    const bool is_or = value->words[0] != NULL;
    struct cst_value_list list = {.n = 0};
    int rc = CST_OK;

    if (is_or && json_is_true(json)) {
        list.is_all = true;
    } else if (is_or && json_is_false(json)) {
        list.is_one = true;
        list.n = 1;
    } else if (is_or && json_is_integer(json)) {
        list.is_one = true;
        rc = read_item(value, json, &list, err);
    } else if (!json_is_array(json) || json_array_size(json) == 0) {
        return wrong_type(json,
                          is_or ? "a number, a list of numbers, true or false"
                                : "a list of 1 or more numbers",
                          err);
    } else if (json_array_size(json) > CST_VALUE_LIST_MAX) {
        return cst_err_set(err, CST_EINVAL, "the list has %zu numbers: at most %d are possible",
                           json_array_size(json), CST_VALUE_LIST_MAX);
    }
    for (size_t i = 0; rc == CST_OK && i < json_array_size(json); i++) {
        rc = read_item(value, json_array_get(json, i), &list, err);
    }
    if (rc == CST_OK) {
        *out = list;
    }
    return rc;
}

/* Set the field of the option from the value in the file. */
static int set(const struct cst_option *option, void *base, const json_t *value,
               struct cst_err *err)
{
    const enum cst_value_kind kind = option->value.kind;
    char number[TEXT_MAX], range[CST_VALUE_RANGE_BYTES];

    if (kind == CST_VALUE_FLAG) {
        if (!json_is_boolean(value)) {
            return wrong_type(value, "true or false", err);
        }
        *(bool *)((char *)base + option->value.field) = json_is_true(value);
        return CST_OK;
    }
    if (kind == CST_VALUE_LIST) {
        return read_list(&option->value, value,
                         (struct cst_value_list *)(void *)((char *)base + option->value.field),
                         err);
    }
    if (is_number(kind) && !json_is_number(value) &&
        !(is_large(&option->value) && json_is_string(value))) {
        return wrong_type(value, cst_value_range(&option->value, range), err);
    }
    if ((kind == CST_VALUE_TEXT || kind == CST_VALUE_NAME) && !json_is_string(value)) {
        return wrong_type(value, "a text", err);
    }
    if (!json_is_string(value) && !json_is_number(value)) {
        return wrong_type(value, "a number or a text", err);
    }
    return cst_value_read(&option->value, base, text_of(value, number), err);
}

/* -- keys ------------------------------------------------------------------------------------- */

/* Return the option with this key in this section, or in any section if @section is NULL. */
static const struct cst_option *find(const struct cst_option *table, const char *section,
                                     const char *key)
{
    char own[CST_OPTIONS_KEY_MAX];

    for (const struct cst_option *o = table; o->help != NULL; o++) {
        if (o->section != NULL && (section == NULL || strcmp(o->section, section) == 0) &&
            strcmp(cst_options_key(o, own), key) == 0) {
            return o;
        }
    }
    return NULL;
}

static bool has_section(const struct cst_option *table, const char *section)
{
    for (const struct cst_option *o = table; o->help != NULL; o++) {
        if (o->section != NULL && strcmp(o->section, section) == 0) {
            return true;
        }
    }
    return false;
}

static int no_section(const struct cst_option *table, const char *section, struct cst_err *err)
{
    const char *nearest = NULL;
    unsigned best = CST_USAGE_FAR;

    for (const struct cst_option *o = table; o->help != NULL; o++) {
        if (o->section != NULL && cst_usage_nearer(section, o->section, &best)) {
            nearest = o->section;
        }
    }
    if (nearest == NULL) {
        return cst_err_set(err, CST_EINVAL, "there is no section '%s'", section);
    }
    return cst_err_set(err, CST_EINVAL, "there is no section '%s': did you mean '%s'?", section,
                       nearest);
}

static int no_key(const struct cst_option *table, const char *section, const char *key,
                  struct cst_err *err)
{
    const struct cst_option *nearest = find(table, NULL, key);
    char own[CST_OPTIONS_KEY_MAX];
    unsigned best = CST_USAGE_FAR;

    if (nearest != NULL) {
        return cst_err_set(err, CST_EINVAL, "this key belongs to section %s", nearest->section);
    }
    for (const struct cst_option *o = table; o->help != NULL; o++) {
        if (o->section != NULL && strcmp(o->section, section) == 0 &&
            cst_usage_nearer(key, cst_options_key(o, own), &best)) {
            nearest = o;
        }
    }
    if (nearest == NULL) {
        return cst_err_set(err, CST_EINVAL, "there is no such key");
    }
    return cst_err_set(err, CST_EINVAL, "there is no such key: did you mean '%s'?",
                       cst_options_key(nearest, own));
}

/* Read the section @section, which is the object @keys. */
static int read_section(const struct cst_option *table, void *base, const struct source *source,
                        const char *section, const json_t *keys, struct cst_options_given *given,
                        struct cst_err *err)
{
    int rc = CST_OK;

    if (!has_section(table, section)) {
        (void)no_section(table, section, err);
        return at(source, section, NULL, err);
    }
    if (!json_is_object(keys)) {
        (void)wrong_type(keys, "an object", err);
        (void)cst_err_prefix(err, "section %s", section);
        return at(source, section, NULL, err);
    }
    /* jansson wants the object as one that it may change, which it does not. */
    for (void *i = json_object_iter((json_t *)(uintptr_t)keys); i != NULL && rc == CST_OK;
         i = json_object_iter_next((json_t *)(uintptr_t)keys, i)) {
        const char *key = json_object_iter_key(i);
        const struct cst_option *option = find(table, section, key);

        rc = option == NULL ? no_key(table, section, key, err)
                            : set(option, base, json_object_iter_value(i), err);
        if (rc != CST_OK) {
            return at(source, section, key, err);
        }
        given->rows[option - table] = true;
    }
    return rc;
}

/* -- files ------------------------------------------------------------------------------------ */

static int parse(const struct source *source, json_t **out, struct cst_err *err)
{
    int rc = cst_json_parse(out, source->text, source->n, source->path, err);

    if (rc == CST_OK && !json_is_object(*out)) {
        return cst_err_set(err, CST_EINVAL, "%s is %s, and must be an object", source->path,
                           type_of(*out));
    }
    return rc;
}

int cst_options_load(const struct cst_option *table, void *base, const char *path,
                     struct cst_options_given *given, json_t **file, struct cst_err *err)
{
    struct source source = {.path = cst_json_name(path)};
    int rc;

    *file = NULL;
    rc = cst_json_read(&source.text, &source.n, path, err);
    if (rc == CST_OK) {
        rc = parse(&source, file, err);
    }
    for (void *i = rc == CST_OK ? json_object_iter(*file) : NULL; i != NULL && rc == CST_OK;
         i = json_object_iter_next(*file, i)) {
        rc = read_section(table, base, &source, json_object_iter_key(i), json_object_iter_value(i),
                          given, err);
    }
    free(source.text);
    if (rc != CST_OK) {
        json_decref(*file);
        *file = NULL;
    }
    return rc;
}

/* -- writing ---------------------------------------------------------------------------------- */

/* Write @number with the fewest digits that give the same number again. */
static void real_text(double number, char out[TEXT_MAX])
{
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(out, TEXT_MAX, "%.*g", digits, number);
        if (strtod(out, NULL) == number) {
            return;
        }
    }
}

/* Return the value of the option as JSON, for the caller. NULL: it is not set. */
static json_t *integer_of(const struct cst_value *value, uint64_t number)
{
    char text[TEXT_MAX];

    if (value->kind != CST_VALUE_SIZE &&
        ((double)number < value->least || (double)number > value->most)) {
        return NULL;
    }
    if (number <= INT64_MAX) {
        return json_integer((json_int_t)number);
    }
    if (value->kind == CST_VALUE_SIZE) {
        for (int i = 0; i < 2; i++) {
            if (value->words[i] != NULL && number == value->words_mean[i]) {
                return json_string(value->words[i]);
            }
        }
        return NULL;
    }
    (void)snprintf(text, sizeof text, "%" PRIu64, number);
    return json_string(text);
}

/* Return the list as JSON, for the caller. NULL: it is not given. */
static json_t *list_of(const struct cst_value_list *list)
{
    json_t *json;

    if (list->is_all || list->n == 0) {
        return list->is_all ? json_true() : NULL;
    }
    if (list->is_one) {
        return json_integer(list->v[0]);
    }
    json = json_array();
    for (uint32_t i = 0; json != NULL && i < list->n; i++) {
        (void)json_array_append_new(json, json_integer(list->v[i]));
    }
    return json;
}

/* Write the value of the option to @out, as JSON. Returns 1; 0: it is not set; -1: it cannot be
 * JSON, or memory is short. */
static int write_value(const struct cst_value *value, const void *base, char **out)
{
    const void *field = (const char *)base + value->field;
    char number[TEXT_MAX];
    const char *text;
    json_t *json = NULL;
    double real;

    switch (value->kind) {
    case CST_VALUE_FLAG:
    case CST_VALUE_YES:
        json = json_boolean(*(const bool *)field);
        break;
    case CST_VALUE_U32:
    case CST_VALUE_SECONDS:
        json = integer_of(value, *(const uint32_t *)field);
        break;
    case CST_VALUE_U64:
    case CST_VALUE_SIZE:
        json = integer_of(value, *(const uint64_t *)field);
        break;
    case CST_VALUE_REAL:
        real = *(const double *)field;
        real_text(real, number);
        *out = real < value->least || real > value->most ? NULL : strdup(number);
        return real < value->least || real > value->most ? 0 : *out != NULL ? 1 : -1;
    case CST_VALUE_NAME:
        json = json_string(value->names[*(const unsigned *)field - (unsigned)value->least]);
        break;
    case CST_VALUE_TEXT:
        text = *(const char *const *)field;
        if (text != NULL && (json = json_string(text)) == NULL) {
            return -1;
        }
        break;
    case CST_VALUE_PATH:
        json = *(const char *)field != '\0' ? json_string(field) : NULL;
        break;
    case CST_VALUE_LIST:
        json = list_of(field);
        break;
    case CST_VALUE_OTHER:
        json = value->write(base, field, number, sizeof number) ? json_string(number) : NULL;
        break;
    }
    *out = json != NULL ? json_dumps(json, JSON_ENCODE_ANY) : NULL;
    json_decref(json);
    return json == NULL ? 0 : *out != NULL ? 1 : -1;
}

/* Write the keys of section @section. */
static int save_section(const struct cst_option *table, const void *base, const char *section,
                        FILE *out, struct cst_err *err)
{
    char key[CST_OPTIONS_KEY_MAX], *text;
    unsigned n = 0;

    for (const struct cst_option *o = table; o->help != NULL; o++) {
        int is_set;

        if (o->section == NULL || strcmp(o->section, section) != 0) {
            continue;
        }
        is_set = write_value(&o->value, base, &text);
        if (is_set < 0) {
            return cst_err_set(err, CST_EINVAL, "--%s is not UTF-8, or memory is short", o->name);
        }
        if (is_set > 0) {
            (void)fprintf(out, "%s\n    \"%s\": %s", n++ > 0 ? "," : "", cst_options_key(o, key),
                          text);
            free(text);
        }
    }
    return CST_OK;
}

/* Return whether a row before @option is in the same section. */
static bool is_later(const struct cst_option *table, const struct cst_option *option)
{
    for (const struct cst_option *o = table; o < option; o++) {
        if (o->section != NULL && strcmp(o->section, option->section) == 0) {
            return true;
        }
    }
    return false;
}

int cst_options_save(const struct cst_option *table, const void *base, FILE *out,
                     struct cst_err *err)
{
    unsigned n = 0;
    int rc = CST_OK;

    (void)fprintf(out, "{");
    for (const struct cst_option *o = table; o->help != NULL && rc == CST_OK; o++) {
        if (o->section != NULL && !is_later(table, o)) {
            (void)fprintf(out, "%s\n  \"%s\": {", n++ > 0 ? "," : "", o->section);
            rc = save_section(table, base, o->section, out, err);
            (void)fprintf(out, "\n  }");
        }
    }
    (void)fprintf(out, "\n}\n");
    if (rc == CST_OK && (fflush(out) != 0 || ferror(out) != 0)) {
        rc = cst_err_errno(err, CST_EIO, errno, "the configuration");
    }
    return rc;
}
