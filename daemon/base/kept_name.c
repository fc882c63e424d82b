/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/kept_name.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LONG "kept-"

static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/* How each kind is written: the sign, the word of the long name, and the numbers in their order. */
static const struct {
    char sign;
    const char *word;
    bool has_serial, has_i, has_k;
} forms[] = {
    [CSTD_KEPT_LEDGER] = {'!', "ledger", true, false, false},
    [CSTD_KEPT_HOST] = {'+', "job", true, false, false},
    [CSTD_KEPT_DEVICE] = {'=', "device", true, true, false},
    [CSTD_KEPT_SLAB] = {'~', "slab", true, true, true},
    [CSTD_KEPT_TRAFFIC] = {'%', "traffic", false, false, true},
    [CSTD_KEPT_UNDO] = {'#', "undo", false, true, true},
};

enum { N_FORMS = sizeof forms / sizeof *forms };

bool cstd_kept_name_is_one(const char *text)
{
    return (text[0] != '\0' && strchr(digits, text[0]) == NULL) ||
           strncmp(text, LONG, sizeof LONG - 1) == 0;
}

/* Read a number to @base at *at, and move *at behind it. False: there is none, or a larger one than
 * @most. */
static bool read_number(const char **at, uint64_t base, uint64_t most, uint64_t *out)
{
    const char *begin = *at, *digit;
    uint64_t n = 0;

    while (**at != '\0' && (digit = strchr(digits, **at)) != NULL &&
           (uint64_t)(digit - digits) < base) {
        uint64_t value = (uint64_t)(digit - digits);

        if (n > (most - value) / base) {
            return false;
        }
        n = n * base + value;
        ++*at;
    }
    *out = n;
    return *at > begin;
}

/* Read the numbers of a name of @kind. A '-' stands before each in long names, and between them in
 * short ones. */
static bool read_numbers(const char *at, enum cstd_kept_kind kind, bool is_long,
                         struct cstd_kept_name *out)
{
    const bool has[] = {forms[kind].has_serial, forms[kind].has_i, forms[kind].has_k};
    uint64_t numbers[3] = {0};
    bool first = true;

    for (unsigned n = 0; n < 3; n++) {
        if (!has[n]) {
            continue;
        }
        if ((is_long || !first) && *at++ != '-') {
            return false;
        }
        if (!read_number(&at, is_long ? 10 : 62, n == 0 ? UINT64_MAX : UINT32_MAX, &numbers[n])) {
            return false;
        }
        first = false;
    }
    *out = (struct cstd_kept_name){
        .kind = kind, .serial = numbers[0], .i = (uint32_t)numbers[1], .k = (uint32_t)numbers[2]};
    return *at == '\0' && (!forms[kind].has_serial || numbers[0] != 0);
}

bool cstd_kept_name_read(const char *text, struct cstd_kept_name *out, bool *is_long)
{
    *is_long = strncmp(text, LONG, sizeof LONG - 1) == 0;
    for (unsigned kind = CSTD_KEPT_LEDGER; kind < N_FORMS; kind++) {
        size_t n = strlen(forms[kind].word);
        const char *at = *is_long ? text + sizeof LONG - 1 : text;
        bool fits = *is_long ? strncmp(at, forms[kind].word, n) == 0 : *at == forms[kind].sign;

        if (fits &&
            read_numbers(at + (*is_long ? n : 1), (enum cstd_kept_kind)kind, *is_long, out)) {
            return true;
        }
    }
    *out = (struct cstd_kept_name){.kind = CSTD_KEPT_UNKNOWN};
    return false;
}

static char *write_number(char *at, uint64_t base, uint64_t n)
{
    char reversed[32];
    unsigned n_digits = 0;

    do {
        reversed[n_digits++] = digits[n % base];
        n /= base;
    } while (n > 0);
    while (n_digits > 0) {
        *at++ = reversed[--n_digits];
    }
    return at;
}

const char *cstd_kept_name_write(const struct cstd_kept_name *name, bool is_long,
                                 char out[CSTD_KEPT_NAME_BYTES])
{
    const bool has[] = {forms[name->kind].has_serial, forms[name->kind].has_i,
                        forms[name->kind].has_k};
    const uint64_t numbers[] = {name->serial, name->i, name->k};
    char *at = out;
    bool first = true;

    if (is_long) {
        at = stpcpy(stpcpy(at, LONG), forms[name->kind].word);
    } else {
        *at++ = forms[name->kind].sign;
    }
    for (unsigned n = 0; n < 3; n++) {
        if (has[n]) {
            if (is_long || !first) {
                *at++ = '-';
            }
            at = write_number(at, is_long ? 10 : 62, numbers[n]);
            first = false;
        }
    }
    *at = '\0';
    return out;
}

bool cstd_kept_name_same(const struct cstd_kept_name *a, const struct cstd_kept_name *b)
{
    return a->kind == b->kind && a->serial == b->serial && a->i == b->i && a->k == b->k;
}
