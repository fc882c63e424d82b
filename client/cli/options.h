/* SPDX-License-Identifier: Apache-2.0 */
/* The options of all commands of `cistern`. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "client/cli/cli.h"

#include <stdio.h>

/* An option has one of these bits, or none. A command takes the options whose bit is in its `uses`,
 * and all options without a bit. */
enum {
    CLI_USES_JSON = 1 << 0,
    CLI_USES_WATCH = 1 << 1,
    CLI_USES_UID = 1 << 2,
    CLI_USES_COUNT = 1 << 3,
    CLI_USES_OUTPUT = 1 << 4,
    CLI_USES_DISK = 1 << 5,
    CLI_USES_PLAN = 1 << 6,
};

/* Contents of a command line in addition to struct cli. */
struct cli_given {
    uint64_t rows; /* The options that were given: bit i for entry i of the table in options.c. */
    bool help;     /* --help was given. */
    bool version;  /* --version was given. */
    int first;     /* Index in argv of the first word that is not an option. */
};

/* Read the options of the command line into @cli and @given. Returns CLI_EXIT_OK, or CLI_EXIT_USAGE
 * after printing the cause to stderr. */
int cli_options_parse(struct cli *cli, int argc, char **argv, struct cli_given *given);

/* Return the name of an option that was given and that a command with the bits @uses does not take;
 * NULL: there is none. */
const char *cli_options_strange(const struct cli_given *given, unsigned uses);

/* Print the help on the options that a command with the bits @uses takes. */
void cli_options_help(FILE *out, unsigned uses);

/* Print to stderr that the command line is wrong: "@what: @which", or "@what" if @which is empty.
 * Returns CLI_EXIT_USAGE. */
int cli_usage(const char *what, const char *which);

#endif
