/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages for unknown options and words, the same for all programs of cistern. No state
 * apart from getopt_long's; any thread, but only one at a time. */
#ifndef CST_USAGE_H
#define CST_USAGE_H

#include "cistern/status.h"

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>

/* Set the error for @answer, the '?' or ':' that getopt_long returned for @argv and the long
 * options @table. The caller called it with opterr = 0 and with a ':' at the beginning of the short
 * options. The words name the option and the mistake: there is no such option (with the most
 * similar one, if there is one), the abbreviation is ambiguous (with all options that it may mean),
 * a value is missing, or the option takes none. Always returns CST_EINVAL. */
int cst_usage_refused(int answer, char *const argv[], const struct option *table,
                      struct cst_err *err);

/* Find the name in a list that a person who typed @given may have meant. Call this for each name:
 * it returns whether @name is similar to @given, and more similar than all names before. *best
 * begins as CST_USAGE_FAR and is set when the answer is true. */
/* Number of edits from one word to another from which the words are not similar. */
#define CST_USAGE_FAR 3u
bool cst_usage_nearer(const char *given, const char *name, unsigned *best);

#endif
