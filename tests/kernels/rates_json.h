/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of the engines' --rates: the JSON of a program. For test programs that consist
 * of one file. */
#ifndef CST_TESTS_RATES_JSON_H
#define CST_TESTS_RATES_JSON_H

#include "tests/lib/suite.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Run @command and parse its output as JSON. NULL if the command failed. */
static inline json_t *rates_run(const char *command)
{
    FILE *from = popen(command, "r");
    static char text[4096];
    json_t *object;
    json_error_t what;
    size_t n;

    ck_assert_ptr_nonnull(from);
    n = fread(text, 1, sizeof text - 1, from);
    text[n] = '\0';
    if (pclose(from) != 0) {
        ck_assert_uint_eq(n, 0);
        return NULL;
    }
    ck_assert_ptr_eq(strchr(text, '\n'), text + n - 1); /* the output is one line */
    object = json_loads(text, JSON_REJECT_DUPLICATES, &what);
    ck_assert_msg(object != NULL, "%s: %s", what.text, text);
    return object;
}

static inline double rates_number(const json_t *object, const char *name)
{
    const json_t *field = json_object_get(object, name);

    ck_assert_msg(json_is_number(field), "%s", name);
    ck_assert_msg(isfinite(json_number_value(field)), "%s", name);
    return json_number_value(field);
}

#endif
