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

/* Options and words of the command line, into @cli; *uses: the bits of those given; *first: where
 * the words begin in @argv. An enum cli_exit; -1: --help (print it) or --version was answered, and
 * all is done. */
int cli_options_parse(struct cli *cli, int argc, char **argv, unsigned *uses, int *first,
                      void (*print_help)(FILE *out));

/* The options' part of the help. */
void cli_options_help(FILE *out);

/* Say what is wrong with the command line on stderr. CLI_EXIT_USAGE. */
int cli_usage(const char *what, const char *which);

#endif
