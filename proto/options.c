/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/options.h"

#include "proto/usage.h"

#include <getopt.h>
#include <string.h>

enum {
    FIRST_ROW = 256,   /* What getopt_long returns for row 0 if the row has no letter. */
    HELP_FIRST = 25,   /* Columns before a description, without those of short forms. */
    HELP_COLUMNS = 80, /* Longest line of the help. */
};

/* -- reading ---------------------------------------------------------------------------------- */

/* The table in the form that getopt_long wants. */
struct forms {
    struct option names[CST_OPTIONS_MAX];
    char letters[2 * CST_OPTIONS_MAX + 2];
};

/* Return the number that getopt_long returns for an option. */
static int code_of(const struct cst_option *table, const struct cst_option *option)
{
    return option->letter != '\0' ? option->letter : FIRST_ROW + (int)(option - table);
}

/* Fill in @forms. The ":" before the letters makes getopt_long return ":" for an option without its
 * value. */
static void make_forms(const struct cst_option *table, struct forms *forms)
{
    struct option *name = forms->names;
    char *letter = forms->letters;

    *letter++ = ':';
    for (const struct cst_option *o = table; o->help != NULL; o++) {
        if (o->name == NULL || o->only_in_file) {
            continue;
        }
        *name++ = (struct option){o->name,
                                  o->argument == NULL  ? no_argument
                                  : o->without != NULL ? optional_argument
                                                       : required_argument,
                                  NULL, code_of(table, o)};
        if (o->letter != '\0') {
            *letter++ = o->letter;
            if (o->argument != NULL) {
                *letter++ = ':';
            }
        }
    }
    *name = (struct option){0};
    *letter = '\0';
}

/* Return the text of the option's value. People also type an optional number after a blank, where
 * getopt_long does not look. */
static const char *value_of(const struct cst_option *option, int argc, char **argv)
{
    if (optarg != NULL || option->without == NULL) {
        return optarg;
    }
    if (optind < argc && strspn(argv[optind], "0123456789.") > 0) {
        return argv[optind++];
    }
    return option->without;
}

int cst_options_read(const struct cst_option *table, void *base, int argc, char **argv,
                     struct cst_options_given *given, struct cst_err *err)
{
    struct forms forms;
    int c;

    make_forms(table, &forms);
    *given = (struct cst_options_given){.first = 0};
    optind = 0; /* Restarts the scan, with the internal state of GNU getopt. */
    opterr = 0; /* The messages of cst_usage_refused are better. */
    while ((c = getopt_long(argc, argv, forms.letters, forms.names, NULL)) != -1) {
        const struct cst_option *option = table;

        if (c == '?' || c == ':') {
            return cst_usage_refused(c, argv, forms.names, err);
        }
        while (option->name == NULL || code_of(table, option) != c) {
            option++;
        }
        given->rows[option - table] = true;
        if (cst_value_read(&option->value, base, value_of(option, argc, argv), err) != CST_OK) {
            return cst_err_prefix(err, "--%s", option->name);
        }
    }
    given->first = optind;
    return CST_OK;
}

/* -- help ------------------------------------------------------------------------------------- */

bool cst_options_is_taken(const struct cst_option *option, unsigned uses)
{
    return option->uses == 0 || (option->uses & uses) != 0;
}

/* Print @text after @column columns of a line. Lines have at most HELP_COLUMNS columns, begin at
 * column @first, and end at each newline in @text, too. */
static void print_words(const char *text, size_t column, size_t first, FILE *out)
{
    bool must_break = column >= first;

    while (*text != '\0') {
        size_t n = strcspn(text, " \n");

        if (must_break || (column > first && column + 1 + n > HELP_COLUMNS)) {
            (void)fprintf(out, "\n");
            column = 0;
        }
        column += (size_t)fprintf(out, "%*s%.*s", column < first ? (int)(first - column) : 1, "",
                                  (int)n, text);
        must_break = text[n] == '\n';
        text += n + (text[n] != '\0');
    }
    (void)fprintf(out, "\n");
}

static void print_option(const struct cst_option *option, size_t letters, FILE *out)
{
    char letter[5] = "", typed[48];

    if (option->letter != '\0') {
        (void)snprintf(letter, sizeof letter, "-%c, ", option->letter);
    }
    (void)snprintf(typed, sizeof typed, option->without != NULL ? "--%s[=%s]" : "--%s %s",
                   option->name, option->argument != NULL ? option->argument : "");
    (void)fprintf(out, "  %-*s%s", (int)letters, letter, typed);
    print_words(option->help, 2 + letters + strlen(typed), HELP_FIRST + letters, out);
}

void cst_options_print(const struct cst_option *table, unsigned uses, FILE *out)
{
    size_t letters = 0; /* Columns for the short forms. */

    for (const struct cst_option *o = table; o->help != NULL; o++) {
        letters = o->letter != '\0' ? strlen("-x, ") : letters;
    }
    for (const struct cst_option *o = table; o->help != NULL; o++) {
        if (o->name == NULL) {
            (void)fprintf(out, "\n%s\n", o->help);
        } else if (!o->only_in_file && cst_options_is_taken(o, uses)) {
            print_option(o, letters, out);
        }
    }
}
