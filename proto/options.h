/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of a program, described by a table of its options: one reader, one wording of
 * errors, and one form of the help for all programs of cistern. Uses getopt_long, hence its state:
 * one thread at a time. */
#ifndef CST_OPTIONS_H
#define CST_OPTIONS_H

#include "cistern/status.h"
#include "proto/value.h"

#include <stdbool.h>
#include <stdio.h>

#define CST_OPTIONS_MAX 96 /* Most rows of a table, with the last one. */

/* A row of the table. The help lists the rows in the order of the table. */
struct cst_option {
    const char *name;       /* Name without the dashes; NULL: a heading, which @help contains. */
    char letter;            /* Short form; 0: none. */
    unsigned uses;          /* Bits of the commands that take the option; 0: all. */
    const char *argument;   /* Name of the value in the help; NULL: the option has no value. */
    struct cst_value value; /* What the option sets. */
    const char *help; /* Description; the help breaks it into lines. NULL: end of the table. */
    /* Value if the option is written without one; NULL: the value must be written. */
    const char *without;
    const char *section; /* Its section in a file (proto/options_file.h); NULL: it is in none. */
    bool only_in_file;   /* The command line does not have it. */
    /* Options of a job (proto/job_options.h): the member of the struct, the field in messages, and
     * bits of its traits. */
    const char *member, *field;
    int traits;
};

/* Initializers of the rows. The last argument is the value. */
/* clang-format off */
#define CST_OPTION(option, short_form, users, argument_name, text, ...)                            \
    {.name = (option), .letter = (short_form), .uses = (users), .argument = (argument_name),       \
     .help = (text), .value = __VA_ARGS__}
#define CST_OPTION_MAY(option, users, argument_name, otherwise, text, ...)                         \
    {.name = (option), .uses = (users), .argument = (argument_name), .help = (text),               \
     .without = (otherwise), .value = __VA_ARGS__}
#define CST_OPTION_IN(in_section, option, argument_name, text, ...)                                \
    {.name = (option), .argument = (argument_name), .help = (text), .section = (in_section),       \
     .value = __VA_ARGS__}
#define CST_OPTION_IN_FILE(in_section, option, text, ...)                                          \
    {.name = (option), .help = (text), .section = (in_section), .only_in_file = true,              \
     .value = __VA_ARGS__}
#define CST_OPTION_HEADING(text) {.help = (text)}
#define CST_OPTION_END {.help = NULL}
/* clang-format on */

/* What a command line contains, in addition to the fields that its options set. */
struct cst_options_given {
    bool rows[CST_OPTIONS_MAX]; /* Per row of the table: the option was given. */
    int first;                  /* Index in argv of the first word that is not an option. */
};

/* Read the options of a command line into the fields of @base. Words that are not options are moved
 * to the end of @argv. CST_EINVAL: an unknown option or a bad value; @err names the option and says
 * what is allowed, and some fields may have been set. */
int cst_options_read(const struct cst_option *table, void *base, int argc, char **argv,
                     struct cst_options_given *given, struct cst_err *err);

/* Return whether commands with the bits @uses take the option. */
bool cst_options_is_taken(const struct cst_option *option, unsigned uses);

/* Print the lines of the help about the options that commands with the bits @uses take. */
void cst_options_print(const struct cst_option *table, unsigned uses, FILE *out);

#endif
