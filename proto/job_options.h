/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a job, struct cst_job_spec, in one table: proto/job_options.def. An option is in
 * each message that has a field of its name, so that none is copied by hand. No state; any
 * thread. */
#ifndef CST_JOB_OPTIONS_H
#define CST_JOB_OPTIONS_H

#include "cistern/job.h"
#include "proto/options.h"
#include "proto/set.h"
#include "proto/table.h"

#include <protobuf-c/protobuf-c.h>

enum {
    CST_JOB_MAX_WORLD = CST_SET_MAX,          /* Most ranks of a job on one node. */
    CST_JOB_MAX_ALL_RANKS = 64 * CST_SET_MAX, /* On all nodes. */
    CST_MAX_COPIES = 64,                      /* Nodes that have the same states. */
};

/* Number of ranks that @spec has on all nodes. */
static inline uint32_t cst_job_all_ranks(const struct cst_job_spec *spec)
{
    return spec->nodes.all_ranks > 0 ? spec->nodes.all_ranks : spec->world;
}

/* Number of ranks of a rank block of @spec (block_ranks of struct cst_job_updates). */
static inline uint32_t cst_job_block_ranks(const struct cst_job_spec *spec)
{
    const uint32_t n = spec->updates.block_ranks;

    return n > 0 && n < spec->world ? n : spec->world;
}

/* Traits of an option. Each option has one of the first four, which say what becomes of it if a
 * rank opens a job that exists (without `reshape`). */
enum {
    CST_JOB_SAME = 1, /* The ranks of a job must give equal values, and the job shows its own. */
    CST_JOB_COMPARED = 32, /* Compared in a way of its own: EMISMATCH, or 0 for what the job has. */
    CST_JOB_FIRST = 64,    /* That of the rank that creates the job counts; others are not read. */
    CST_JOB_OWN = 128,     /* Says who opens the job and how: the job has no value of its own. */
    CST_JOB_NAME = 2,      /* The name of a job. */
    CST_JOB_CONFIG = 4,    /* UTF-8 of at most CST_MAX_CONFIG_BYTES. */
    CST_JOB_TEXT = 8,   /* A number that messages have as "name=value" in their field `options`. */
    CST_JOB_FIXED = 16, /* A job keeps its value for life, also if it is reshaped. */
    CST_JOB_ALL = -1,   /* For functions: the options with any traits, or none. */
};

/* The rows. An option of no command line has no name. The last row has no field. */
extern const struct cst_option cst_job_options[];

#define CST_JOB_VALUE_BYTES 24
#define CST_JOB_MAX_TEXTS 16 /* Most options with CST_JOB_TEXT. */

/* The options with CST_JOB_TEXT that are not 0. */
struct cst_job_texts {
    size_t n;
    char *list[CST_JOB_MAX_TEXTS]; /* Points into text. */
    char text[CST_JOB_MAX_TEXTS][40 + CST_JOB_VALUE_BYTES];
};

/* Write the texts of @spec. */
void cst_job_texts_make(struct cst_job_texts *texts, const struct cst_job_spec *spec);

/* Set the fields of @message that are named as options with some of the traits @traits. Optional
 * fields are left out if they are 0 or NULL. Texts are borrowed from @spec; a field of text for an
 * option with names gets the name. @texts are those of @spec and are borrowed, too. */
void cst_job_options_fill(ProtobufCMessage *message, const struct cst_job_spec *spec,
                          const struct cst_job_texts *texts, int traits);

/* Set in @spec the options of which @message has a field; a field that is left out is 0 or NULL.
 * Texts are borrowed from @message. The caller checks the options. CST_EINVAL: an option is unknown
 * or not a number of its range. */
int cst_job_options_take(struct cst_job_spec *spec, const ProtobufCMessage *message,
                         struct cst_err *err);

/* Check each option, and those that cannot be combined. CST_EINVAL: the words name the options. */
int cst_job_options_check(const struct cst_job_spec *spec, struct cst_err *err);

/* Return the first option with some of the traits @traits that differs; NULL: there is none. The
 * options are valid numbers. */
const struct cst_option *cst_job_options_difference(const struct cst_job_spec *a,
                                                    const struct cst_job_spec *b, int traits);

/* Return the value of @option, which is a number, as people write it: "adamw", "23", "yes". It may
 * be in @out. */
const char *cst_job_options_text(const struct cst_option *option, const struct cst_job_spec *spec,
                                 char out[CST_JOB_VALUE_BYTES]);

#endif
