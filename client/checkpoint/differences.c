/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/differences.h"

#include "client/checkpoint/manifest.h"
#include "proto/optimizers.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
    char *out;
    size_t bytes;
};

__attribute__((format(printf, 2, 3))) static void add(const struct text *text, const char *format,
                                                      ...)
{
    size_t used = strlen(text->out);
    va_list ap;

    used += (size_t)snprintf(text->out + used, text->bytes - used, "%s", used > 0 ? "; " : "");
    if (used < text->bytes) {
        va_start(ap, format);
        (void)vsnprintf(text->out + used, text->bytes - used, format, ap);
        va_end(ap);
    }
}

/* Add the key of a configuration. NULL: it has no such key. */
static void add_key(const struct text *text, const char *file, const char *key, const json_t *saved,
                    const json_t *now)
{
    char *was = saved != NULL ? json_dumps(saved, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char *is = now != NULL ? json_dumps(now, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;

    add(text, "%s of %s was %.40s, now %.40s", key, file, was != NULL ? was : "absent",
        is != NULL ? is : "absent");
    free(was);
    free(is);
}

static void compare_configs(const struct text *text, const char *file, const char *saved,
                            const char *now)
{
    json_t *a = saved != NULL ? json_loads(saved, 0, NULL) : NULL;
    json_t *b = now != NULL ? json_loads(now, 0, NULL) : NULL;
    json_t *value;
    const char *key;

    if (json_is_object(a) && json_is_object(b)) {
        json_object_foreach(a, key, value)
        {
            if (!json_equal(value, json_object_get(b, key))) {
                add_key(text, file, key, value, json_object_get(b, key));
            }
        }
        json_object_foreach(b, key, value)
        {
            if (json_object_get(a, key) == NULL) {
                add_key(text, file, key, NULL, value);
            }
        }
    } else if (saved != NULL && now != NULL && strcmp(saved, now) != 0) {
        add(text, "another %s", file);
    }
    json_decref(a);
    json_decref(b);
}

/* Early updates have the results of those at the commit; delayed ones do not. */
static void compare_overlap(const struct text *text, const Cistern__JobDescription *saved,
                            const Cistern__JobOpen *job)
{
    bool was = saved->overlap == CST_OVERLAP_DELAYED, is = job->overlap == CST_OVERLAP_DELAYED;

    if (was != is) {
        add(text, "updates were %sdelayed, now they are%s", was ? "" : "not ", is ? "" : " not");
    }
}

void cstc_differences(const Cistern__JobDescription *saved, const Cistern__JobOpen *job, char *out,
                      size_t bytes)
{
    const struct text text = {.out = out, .bytes = bytes};

    if (saved->seed != job->seed) {
        add(&text, "the seed was %" PRIu64 ", now %" PRIu64, saved->seed, job->seed);
    }
    if (saved->rounding != job->rounding && saved->rounding < CST_ROUNDING_COUNT &&
        saved->moments != CST_MOMENTS_FP32 && job->moments != CST_MOMENTS_FP32) {
        add(&text, "rounding was %s, now %s", cst_rounding_names[saved->rounding],
            cst_rounding_names[job->rounding]);
    }
    if (saved->masters != job->masters && saved->masters < CST_MASTERS_COUNT) {
        add(&text, "masters were %s, now %s", cst_masters_names[saved->masters],
            cst_masters_names[job->masters]);
    }
    compare_overlap(&text, saved, job);
    compare_configs(&text, CSTC_MODEL_CONFIG_NAME, saved->model_config, job->model_config);
    compare_configs(&text, CSTC_ADAPTER_CONFIG_NAME, saved->adapter_config, job->adapter_config);
}
