/* SPDX-License-Identifier: Apache-2.0 */
/* What a program says of options and words that it does not know: one wording for all programs of
 * cistern. No state; any thread, but for what getopt_long itself keeps. */
#ifndef CST_USAGE_H
#define CST_USAGE_H

#include "cistern/status.h"

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>

/* Words for the '?' or ':' (@answer) that getopt_long answered for @argv with the long options
 * @table. It must have been called with opterr = 0 and with a
 * ':' at the beginning of its short options. Says which option it was and what is wrong: there is
 * no such option (with the nearest one, if one is near), the abbreviation is ambiguous (with all
 * that it may mean), a value is missing, or it takes none. CST_EINVAL, always. */
int cst_usage_refused(int answer, char *const argv[], const struct option *table,
                      struct cst_err *err);

/* Of a list of names, the one that a person who typed @given may have meant: is @name near to it,
 * and nearer than the best of those that were asked for before? *best begins as CST_USAGE_FAR and
 * is changed when the answer is true. */
#define CST_USAGE_FAR 3u /* edits that turn one word into another: fewer are near */
bool cst_usage_nearer(const char *given, const char *name, unsigned *best);

#endif
