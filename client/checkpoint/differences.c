/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/differences.h"

#include "client/checkpoint/manifest.h"
#include "proto/config_compare.h"
#include "proto/optimizers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
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

/* Where keys of a configuration go. */
struct config_text {
    const struct text *text;
    const char *file; /* Name of the configuration's file in a checkpoint. */
};

static void add_key(void *arg, const char *key, const char *saved, const char *now)
{
    const struct config_text *config = arg;

    add(config->text, "%s of %s was %.40s, now %.40s", key, config->file,
        saved != NULL ? saved : "absent", now != NULL ? now : "absent");
}

static void compare_configs(const struct text *text, const char *file, const char *saved,
                            const char *now)
{
    struct config_text config = {text, file};

    if (saved != NULL && now != NULL && !cst_config_compare(saved, now, add_key, &config) &&
        strcmp(saved, now) != 0) {
        add(text, "another %s", file);
    }
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
