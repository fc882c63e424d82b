/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `cistern`, of all its commands, and numbers as people type them. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "client/cli/cli.h"

#include <stdio.h>

/* Which commands take an option: those whose `uses` have its bit. */
enum {
    CLI_USES_JSON = 1 << 0,
    CLI_USES_WATCH = 1 << 1,
    CLI_USES_UID = 1 << 2,
    CLI_USES_COUNT = 1 << 3,
    CLI_USES_OUTPUT = 1 << 4,
    CLI_USES_DISK = 1 << 5,
    CLI_USES_PLAN = 1 << 6,
};

/* What a command line had, beside what is in struct cli. */
struct cli_given {
    uint64_t rows; /* a bit for each option that was given */
    bool help;     /* --help */
    bool version;  /* --version */
    int first;     /* where the words begin in argv */
};

/* Read options and words of the command line into @cli and @given. CLI_EXIT_OK; CLI_EXIT_USAGE: the
 * cause was said on stderr. */
int cli_options_parse(struct cli *cli, int argc, char **argv, struct cli_given *given);

/* The name of an option that was given, but that a command which has the bits @uses does not take;
 * NULL: none. */
const char *cli_options_strange(const struct cli_given *given, unsigned uses);

/* The options' part of the help: those that a command with the bits @uses takes. */
void cli_options_help(FILE *out, unsigned uses);

/* Say what is wrong with the command line on stderr. CLI_EXIT_USAGE. */
int cli_usage(const char *what, const char *which);

#endif
