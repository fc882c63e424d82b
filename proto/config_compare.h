/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of two configurations of models, which are JSON objects in texts: the config.json of
 * the library transformers, for example. Needs jansson. */
#ifndef CST_CONFIG_COMPARE_H
#define CST_CONFIG_COMPARE_H

#include <stdbool.h>

#define CST_CONFIG_KEY_BYTES 128 /* Of a key, with those of the objects in which it is: "a.b". */

/* A key whose value differs. @a, @b: its values as JSON; NULL: that configuration has no such key.
 * The texts are borrowed. */
typedef void cst_config_differs(void *arg, const char *key, const char *a, const char *b);

/* Call @differs with @arg for each key whose value is not that of the other configuration, in the
 * order of @a, and then for those that @b alone has. Objects in objects are compared key by key,
 * down to 8 levels. False: one of the texts is no JSON object, or memory is short, and nothing was
 * called. */
bool cst_config_compare(const char *a, const char *b, cst_config_differs *differs, void *arg);

#endif
