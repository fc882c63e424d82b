/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config_compare.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_LEVELS = 8 };

struct comparison {
    cst_config_differs *differs;
    void *arg;
};

static char *text_of(json_t *value)
{
    return value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII)
                         : NULL;
}

/* Write the place of @key in the object at @place. Characters that are no printable ASCII are '?'.
 */
static void name_key(char out[CST_CONFIG_KEY_BYTES], const char *place, const char *key)
{
    (void)snprintf(out, CST_CONFIG_KEY_BYTES, "%s%s%s", place, place[0] != '\0' ? "." : "", key);
    for (char *c = out; *c != '\0'; c++) {
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    }
}

static void tell(const struct comparison *c, const char *key, json_t *a, json_t *b)
{
    char *text_a = text_of(a), *text_b = text_of(b);

    c->differs(c->arg, key, text_a, text_b);
    free(text_a);
    free(text_b);
}

static void compare_objects(const struct comparison *c, const char *place, unsigned level,
                            json_t *a, json_t *b);

/* Compare the value @a of @key with that in the object @others. */
static void compare_value(const struct comparison *c, const char *place, unsigned level,
                          const char *key, json_t *a, json_t *others)
{
    json_t *b = json_object_get(others, key);
    char path[CST_CONFIG_KEY_BYTES];

    name_key(path, place, key);
    if (json_is_object(a) && json_is_object(b) && level < MAX_LEVELS) {
        compare_objects(c, path, level + 1, a, b);
    } else if (!json_equal(a, b)) {
        tell(c, path, a, b);
    }
}

static void compare_objects(const struct comparison *c, const char *place, unsigned level,
                            json_t *a, json_t *b)
{
    char path[CST_CONFIG_KEY_BYTES];
    json_t *value;
    const char *key;

    json_object_foreach(a, key, value)
    {
        compare_value(c, place, level, key, value, b);
    }
    json_object_foreach(b, key, value)
    {
        if (json_object_get(a, key) == NULL) {
            name_key(path, place, key);
            tell(c, path, NULL, value);
        }
    }
}

bool cst_config_compare(const char *a, const char *b, cst_config_differs *differs, void *arg)
{
    const struct comparison comparison = {.differs = differs, .arg = arg};
    json_t *json_a = json_loads(a, 0, NULL), *json_b = json_loads(b, 0, NULL);
    const bool good = json_is_object(json_a) && json_is_object(json_b);

    if (good) {
        compare_objects(&comparison, "", 1, json_a, json_b);
    }
    json_decref(json_a);
    json_decref(json_b);
    return good;
}
