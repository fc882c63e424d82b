/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a command line in a file of JSON. The keys are those of the table from which the
 * command line is read, so that no option is missing in the file:
 *
 *   { "SECTION": { "KEY": VALUE, ... }, ... }
 *
 * SECTION is that of the option's row; KEY is the option's name with '_' in place of '-'. VALUE is
 * true or false for an option without a value, a number for one with a number, a list of numbers
 * for one with several, and otherwise a text as on the command line. Sizes can also be numbers, in
 * bytes. Numbers from 2^63 on, which JSON cannot have here, are texts. Needs jansson; one thread at
 * a time for a table. */
#ifndef CST_OPTIONS_FILE_H
#define CST_OPTIONS_FILE_H

#include "proto/options.h"

#include <jansson.h>
#include <stdio.h>

#define CST_OPTIONS_KEY_MAX 64 /* Most bytes of a key, with its end. */

/* Write the key of @option to @key. Returns @key. */
const char *cst_options_key(const struct cst_option *option, char key[CST_OPTIONS_KEY_MAX]);

/* Read the file @path ("-": standard input) into the fields of @base, and note in @given which rows
 * it has. Texts are borrowed from *file, which the caller releases with json_decref when it no
 * longer needs them. Errors name the file, the line and the section. CST_ENOTFOUND or CST_EIO: the
 * file cannot be read. CST_EINVAL: it is not JSON, an unknown section or key (with the most similar
 * one, or the section where the key belongs), a repeated key, or a value of a wrong type or outside
 * its limits. After a failure, some fields may have been set, and *file is NULL. */
int cst_options_load(const struct cst_option *table, void *base, const char *path,
                     struct cst_options_given *given, json_t **file, struct cst_err *err);

/* Write the fields of @base as such a file. What is not set is left out: texts that are NULL, and
 * numbers outside the limits of their option, which stand for a choice of the program. CST_EINVAL:
 * a text is not UTF-8, which JSON must be. CST_EIO: @out cannot be written. */
int cst_options_save(const struct cst_option *table, const void *base, FILE *out,
                     struct cst_err *err);

#endif
