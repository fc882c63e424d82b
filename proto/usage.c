/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/usage.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WORD = 32 }; /* Words that differ over a longer part are similar to none. */

static unsigned least(unsigned a, unsigned b, unsigned c)
{
    unsigned ab = a < b ? a : b;

    return ab < c ? ab : c;
}

/* Return the number of letters to insert, delete, replace, or swap with the next one, to turn @a
 * into @b: the optimal string alignment distance, computed row by row. */
static unsigned edits(const char *a, size_t n_a, const char *b, size_t n_b)
{
    unsigned rows[3][MAX_WORD + 1];
    unsigned *two_up = rows[0], *up = rows[1], *row = rows[2], *last;

    for (size_t j = 0; j <= n_b; j++) {
        up[j] = (unsigned)j;
        two_up[j] = 0;
    }
    for (size_t i = 1; i <= n_a; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            row[j] = least(up[j] + 1, row[j - 1] + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two_up[j - 2] + 1 < row[j]) {
                row[j] = two_up[j - 2] + 1;
            }
        }
        last = two_up;
        two_up = up;
        up = row;
        row = last;
    }
    return up[n_b];
}

static bool nearer(const char *given, size_t n, const char *name, unsigned *best)
{
    const size_t n_given = n;
    size_t n_name = strlen(name), all = n_name;
    unsigned d;

    /* What both begin or end with needs no edits. */
    while (n > 0 && n_name > 0 && given[n - 1] == name[n_name - 1]) {
        n--;
        n_name--;
    }
    while (n > 0 && n_name > 0 && *given == *name) {
        given++;
        name++;
        n--;
        n_name--;
    }
    if (n_given == 0 || n > MAX_WORD || n_name > MAX_WORD) {
        return false;
    }
    d = edits(given, n, name, n_name);
    /* If half of a short word is replaced, it is another word. */
    if (d >= *best || 2 * d > all) {
        return false;
    }
    *best = d;
    return true;
}

bool cst_usage_nearer(const char *given, const char *name, unsigned *best)
{
    return nearer(given, strlen(given), name, best);
}

/* List the options that begin with the first @n letters of @word: "--dev" may mean --device and
 * --device-states. Returns their number. */
static unsigned list_meant(const char *word, size_t n, const struct option *table, char *out,
                           size_t size)
{
    unsigned n_meant = 0;
    size_t used = 0;

    out[0] = '\0';
    for (const struct option *o = table; o->name != NULL && used < size; o++) {
        if (strncmp(o->name, word, n) == 0) {
            used += (size_t)snprintf(out + used, size - used, "%s--%s", n_meant > 0 ? ", " : "",
                                     o->name);
            n_meant++;
        }
    }
    return n_meant;
}

static int refuse_long(const char *word, const struct option *table, struct cst_err *err)
{
    const size_t n = strcspn(word, "=");
    const char *nearest = NULL;
    unsigned best = CST_USAGE_FAR;
    char meant[160];

    if (list_meant(word, n, table, meant, sizeof meant) > 1) {
        return cst_err_set(err, CST_EINVAL, "--%.*s is ambiguous: it may be %s", (int)n, word,
                           meant);
    }
    for (const struct option *o = table; o->name != NULL; o++) {
        if (nearer(word, n, o->name, &best)) {
            nearest = o->name;
        }
    }
    if (nearest != NULL) {
        return cst_err_set(err, CST_EINVAL, "there is no option --%.*s: did you mean --%s?", (int)n,
                           word, nearest);
    }
    return cst_err_set(err, CST_EINVAL, "there is no option --%.*s (see --help)", (int)n, word);
}

/* Return whether @word is "NAME=value" of an option that exists, which getopt_long refused because
 * it takes no value. */
static bool is_known(const char *word, const struct option *table)
{
    const size_t n = strcspn(word, "=");

    for (const struct option *o = table; o->name != NULL; o++) {
        if (word[n] == '=' && o->val == optopt && strncmp(o->name, word, n) == 0) {
            return true;
        }
    }
    return false;
}

int cst_usage_refused(int answer, char *const argv[], const struct option *table,
                      struct cst_err *err)
{
    const char *word = argv[optind - 1];
    bool is_long = strncmp(word, "--", 2) == 0;

    if (answer == ':') {
        return is_long ? cst_err_set(err, CST_EINVAL, "%s: a value is missing", word)
                       : cst_err_set(err, CST_EINVAL, "-%c: a value is missing", optopt);
    }
    if (is_long && is_known(word + 2, table)) {
        return cst_err_set(err, CST_EINVAL, "%.*s takes no value", (int)strcspn(word, "="), word);
    }
    if (optopt == 0) {
        return refuse_long(word + 2, table, err);
    }
    return cst_err_set(err, CST_EINVAL, "there is no option -%c (see --help)", optopt);
}
