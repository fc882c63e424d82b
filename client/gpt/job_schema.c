/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the JSON Schema of files with options, cistern-job.json(5): the sections, keys, types,
 * limits and help of the options of cistern-gpt. The program runs while cistern is built. */
#include "client/gpt/options.h"
#include "proto/options_file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* The schema of a number with the limits of the option. Sizes have no upper limit. */
static json_t *number_schema(const struct cst_value *value)
{
    const bool is_real = value->kind == CST_VALUE_REAL;
    json_t *schema = json_object();

    json_object_set_new(schema, "type", json_string(is_real ? "number" : "integer"));
    json_object_set_new(schema, "minimum",
                        is_real ? json_real(value->least) : json_integer((json_int_t)value->least));
    if (is_real) {
        json_object_set_new(schema, "maximum", json_real(value->most));
    } else if (value->most > 0 && value->most < 0x1p63) {
        json_object_set_new(schema, "maximum", json_integer((json_int_t)value->most));
    }
    return schema;
}

/* The schema of a number, or of a text with this pattern. */
static json_t *either_schema(const struct cst_value *value, const char *pattern)
{
    json_t *any = json_array(), *text = json_object(), *schema = json_object();

    json_array_append_new(any, number_schema(value));
    json_object_set_new(text, "type", json_string("string"));
    json_object_set_new(text, "pattern", json_string(pattern));
    json_array_append_new(any, text);
    json_object_set_new(schema, "anyOf", any);
    return schema;
}

/* The schema of a list of numbers, or of what may be there instead. */
static json_t *list_schema(const struct cst_value *value)
{
    json_t *list = json_pack("{s:s, s:o, s:i, s:i}", "type", "array", "items", number_schema(value),
                             "minItems", 1, "maxItems", CST_VALUE_LIST_MAX);

    return value->words[0] == NULL ? list
                                   : json_pack("{s:[o, o, {s:s}]}", "anyOf", list,
                                               number_schema(value), "type", "boolean");
}

#define SIZE_PATTERN "[0-9]+(\\.[0-9]+)?([KMGTkmgt](i?[Bb])?)?"

static json_t *value_schema(const struct cst_value *value)
{
    json_t *schema = json_object(), *names = json_array();
    char pattern[128];

    switch (value->kind) {
    case CST_VALUE_FLAG:
    case CST_VALUE_YES:
        json_object_set_new(schema, "type", json_string("boolean"));
        break;
    case CST_VALUE_TEXT:
    case CST_VALUE_PATH:
        json_object_set_new(schema, "type", json_string("string"));
        break;
    case CST_VALUE_NAME:
        for (const char *const *name = value->names; *name != NULL; name++) {
            json_array_append_new(names, json_string(*name));
        }
        json_object_set(schema, "enum", names);
        break;
    case CST_VALUE_U32:
    case CST_VALUE_U64:
    case CST_VALUE_REAL:
    case CST_VALUE_SECONDS:
        json_decref(schema);
        schema = value->most < 0x1p63 ? number_schema(value) : either_schema(value, "^[0-9]+$");
        break;
    case CST_VALUE_SIZE:
        json_decref(schema);
        (void)snprintf(pattern, sizeof pattern, "^(" SIZE_PATTERN "|%s%s%s)$",
                       value->words[0] != NULL ? value->words[0] : "0",
                       value->words[1] != NULL ? "|" : "",
                       value->words[1] != NULL ? value->words[1] : "");
        schema = either_schema(value, pattern);
        break;
    case CST_VALUE_LIST:
        json_decref(schema);
        schema = list_schema(value);
        break;
    case CST_VALUE_OTHER: /* --pool */
        json_decref(schema);
        schema = either_schema(value, "^(" SIZE_PATTERN "|[0-9]+(\\.[0-9]+)?%)$");
        break;
    }
    json_decref(names);
    return schema;
}

static json_t *object_schema(void)
{
    json_t *schema = json_object();

    json_object_set_new(schema, "type", json_string("object"));
    json_object_set_new(schema, "additionalProperties", json_false());
    json_object_set_new(schema, "properties", json_object());
    return schema;
}

/* The schema of the files that the options have, which the caller frees. */
static char *make_schema(void)
{
    json_t *root = json_object(), *sections;
    char key[CST_OPTIONS_KEY_MAX], *text;

    json_object_set_new(root, "$schema",
                        json_string("https://json-schema.org/draft/2020-12/schema"));
    json_object_set_new(root, "title", json_string("cistern-job.json"));
    json_object_update_new(root, object_schema());
    sections = json_object_get(root, "properties");
    for (const struct cst_option *o = gpt_options_table; o->help != NULL; o++) {
        json_t *keys, *one;

        if (o->section == NULL) {
            continue;
        }
        if (json_object_get(sections, o->section) == NULL) {
            json_object_set_new(sections, o->section, object_schema());
        }
        keys = json_object_get(json_object_get(sections, o->section), "properties");
        one = value_schema(&o->value);
        json_object_set_new(one, "description", json_string(o->help));
        json_object_set_new(keys, cst_options_key(o, key), one);
    }
    text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(root);
    return text;
}

int main(void)
{
    char *text = make_schema();
    const int rc = text == NULL || puts(text) == EOF || fflush(stdout) != 0;

    free(text);
    return rc;
}
