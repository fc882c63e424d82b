/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of small numbers: the ranks of a job, engines, accelerators. A set is a value, without
 * memory of its own. Sets that are stored in great number, such as one for each chunk, are kept in
 * a struct cst_sets, which has only as many words for each as the members of all need. Pure, but
 * for cst_sets_open and cst_sets_close; any thread. */
#ifndef CST_SET_H
#define CST_SET_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Members are 0 to CST_SET_MAX - 1. This is the one place that limits the ranks of a job and the
 * engines of a machine; a multiple of CST_SET_WORD. */
#define CST_SET_MAX 512
#define CST_SET_WORD 64 /* Members of a word. */
#define CST_SET_WORDS (CST_SET_MAX / CST_SET_WORD)

/* Member m is bit m % CST_SET_WORD of word m / CST_SET_WORD. All 0: the empty set. */
struct cst_set {
    uint64_t words[CST_SET_WORDS];
};

/* Run the statement that follows for each member of *set, in ascending order. It may drop the
 * member, and those before it. */
#define CST_SET_EACH(member, set)                                                                  \
    for (uint32_t member = cst_set_first(set); member < CST_SET_MAX;                               \
         member = cst_set_next(set, member + 1))

/* -- members ---------------------------------------------------------------------------------- */

/* Add @member, which must be below CST_SET_MAX. */
static inline void cst_set_add(struct cst_set *set, uint32_t member)
{
    set->words[member / CST_SET_WORD] |= UINT64_C(1) << member % CST_SET_WORD;
}

/* Remove @member, which must be below CST_SET_MAX; it need not be in the set. */
static inline void cst_set_drop(struct cst_set *set, uint32_t member)
{
    set->words[member / CST_SET_WORD] &= ~(UINT64_C(1) << member % CST_SET_WORD);
}

/* True if @member is in the set. Numbers from CST_SET_MAX on are in none. */
static inline bool cst_set_has(const struct cst_set *set, uint32_t member)
{
    return member < CST_SET_MAX &&
           (set->words[member / CST_SET_WORD] >> member % CST_SET_WORD & 1) != 0;
}

/* Return the first member that is at least @from; CST_SET_MAX: there is none. */
static inline uint32_t cst_set_next(const struct cst_set *set, uint32_t from)
{
    uint32_t w = from / CST_SET_WORD;
    uint64_t word;

    if (from >= CST_SET_MAX) {
        return CST_SET_MAX;
    }
    word = set->words[w] >> from % CST_SET_WORD << from % CST_SET_WORD;
    while (word == 0 && ++w < CST_SET_WORDS) {
        word = set->words[w];
    }
    return word == 0 ? CST_SET_MAX : w * CST_SET_WORD + (uint32_t)__builtin_ctzll(word);
}

/* Return the smallest member; CST_SET_MAX: the set is empty. */
static inline uint32_t cst_set_first(const struct cst_set *set)
{
    return cst_set_next(set, 0);
}

/* Return the greatest member; CST_SET_MAX: the set is empty. */
static inline uint32_t cst_set_last(const struct cst_set *set)
{
    for (uint32_t w = CST_SET_WORDS; w-- > 0;) {
        if (set->words[w] != 0) {
            return w * CST_SET_WORD + CST_SET_WORD - 1 - (uint32_t)__builtin_clzll(set->words[w]);
        }
    }
    return CST_SET_MAX;
}

/* True if the set is empty. */
static inline bool cst_set_none(const struct cst_set *set)
{
    uint64_t any = 0;

    for (uint32_t w = 0; w < CST_SET_WORDS; w++) {
        any |= set->words[w];
    }
    return any == 0;
}

/* Return the number of members. */
static inline uint32_t cst_set_count(const struct cst_set *set)
{
    uint32_t n = 0;

    for (uint32_t w = 0; w < CST_SET_WORDS; w++) {
        n += (uint32_t)__builtin_popcountll(set->words[w]);
    }
    return n;
}

/* Return the word of number @word of the set of all numbers below @end. */
static inline uint64_t cst_set_word_below(uint32_t word, uint32_t end)
{
    uint32_t begin = word * CST_SET_WORD;

    return end <= begin                  ? 0
           : end - begin >= CST_SET_WORD ? UINT64_MAX
                                         : (UINT64_C(1) << (end - begin)) - 1;
}

/* Return the number of members that are below @end. */
static inline uint32_t cst_set_count_below(const struct cst_set *set, uint32_t end)
{
    uint32_t n = 0;

    for (uint32_t w = 0; w < CST_SET_WORDS && w * CST_SET_WORD < end; w++) {
        n += (uint32_t)__builtin_popcountll(set->words[w] & cst_set_word_below(w, end));
    }
    return n;
}

/* Return the member with @n members before it; CST_SET_MAX: there are fewer. */
static inline uint32_t cst_set_nth(const struct cst_set *set, uint32_t n)
{
    uint32_t w = 0, member;
    uint64_t word;

    while (w < CST_SET_WORDS && n >= (uint32_t)__builtin_popcountll(set->words[w])) {
        n -= (uint32_t)__builtin_popcountll(set->words[w++]);
    }
    if (w == CST_SET_WORDS) {
        return CST_SET_MAX;
    }
    member = w * CST_SET_WORD;
    word = set->words[w];
    for (uint32_t half = CST_SET_WORD / 2; half > 0; half /= 2) {
        uint32_t below = (uint32_t)__builtin_popcountll(word & ((UINT64_C(1) << half) - 1));

        if (n >= below) {
            n -= below;
            word >>= half;
            member += half;
        }
    }
    return member;
}

/* -- sets of sets ----------------------------------------------------------------------------- */

/* Return the set that has @member alone, which must be below CST_SET_MAX. */
static inline struct cst_set cst_set_of(uint32_t member)
{
    struct cst_set set = {{0}};

    cst_set_add(&set, member);
    return set;
}

/* Return the set of all numbers from @first to @end - 1 that are below CST_SET_MAX. */
static inline struct cst_set cst_set_range(uint32_t first, uint32_t end)
{
    struct cst_set set;

    for (uint32_t w = 0; w < CST_SET_WORDS; w++) {
        set.words[w] = cst_set_word_below(w, end) & ~cst_set_word_below(w, first);
    }
    return set;
}

/* Return the members of @a or @b. */
static inline struct cst_set cst_set_union(struct cst_set a, struct cst_set b)
{
    for (uint32_t w = 0; w < CST_SET_WORDS; w++) {
        a.words[w] |= b.words[w];
    }
    return a;
}

/* Return the members that @a and @b have in common. */
static inline struct cst_set cst_set_intersect(struct cst_set a, struct cst_set b)
{
    for (uint32_t w = 0; w < CST_SET_WORDS; w++) {
        a.words[w] &= b.words[w];
    }
    return a;
}

/* Return the members of @a that @b does not have. */
static inline struct cst_set cst_set_minus(struct cst_set a, struct cst_set b)
{
    for (uint32_t w = 0; w < CST_SET_WORDS; w++) {
        a.words[w] &= ~b.words[w];
    }
    return a;
}

/* True if both have the same members. */
static inline bool cst_set_equal(const struct cst_set *a, const struct cst_set *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* True if a number is a member of both. */
static inline bool cst_set_meet(const struct cst_set *a, const struct cst_set *b)
{
    uint64_t common = 0;

    for (uint32_t w = 0; w < CST_SET_WORDS; w++) {
        common |= a->words[w] & b->words[w];
    }
    return common != 0;
}

/* True if @b has all members of @a. */
static inline bool cst_set_within(const struct cst_set *a, const struct cst_set *b)
{
    uint64_t beyond = 0;

    for (uint32_t w = 0; w < CST_SET_WORDS; w++) {
        beyond |= a->words[w] & ~b->words[w];
    }
    return beyond == 0;
}

/* -- many sets -------------------------------------------------------------------------------- */

/* Sets, numbered from 0, whose members are below one number. All 0: no sets. */
struct cst_sets {
    uint64_t *words;  /* n_words for each set; owned. */
    uint32_t n_words; /* At most CST_SET_WORDS. */
};

/* Make @n empty sets for members below @end, which is at most CST_SET_MAX. CST_ENOMEM: nothing is
 * owned. */
static inline int cst_sets_open(struct cst_sets *sets, size_t n, uint32_t end)
{
    sets->n_words = (end + CST_SET_WORD - 1) / CST_SET_WORD;
    sets->words = calloc(n * sets->n_words + 1, sizeof *sets->words);
    return sets->words != NULL ? CST_OK : CST_ENOMEM;
}

/* Free what cst_sets_open made. Also allowed for all 0. */
static inline void cst_sets_close(struct cst_sets *sets)
{
    free(sets->words);
    *sets = (struct cst_sets){NULL, 0};
}

/* Return set @i. */
static inline struct cst_set cst_sets_get(const struct cst_sets *sets, size_t i)
{
    struct cst_set set = {{0}};

    for (uint32_t w = 0; w < sets->n_words; w++) {
        set.words[w] = sets->words[i * sets->n_words + w];
    }
    return set;
}

/* Make set @i equal to *set, whose members must be below the sets' end. */
static inline void cst_sets_put(struct cst_sets *sets, size_t i, const struct cst_set *set)
{
    for (uint32_t w = 0; w < sets->n_words; w++) {
        sets->words[i * sets->n_words + w] = set->words[w];
    }
}

/* Return the word of set @i that has @member. */
static inline uint64_t *cst_sets_word(const struct cst_sets *sets, size_t i, uint32_t member)
{
    return &sets->words[i * sets->n_words + member / CST_SET_WORD];
}

/* Add @member, which must be below the sets' end, to set @i. */
static inline void cst_sets_add(struct cst_sets *sets, size_t i, uint32_t member)
{
    *cst_sets_word(sets, i, member) |= UINT64_C(1) << member % CST_SET_WORD;
}

/* Remove @member, which must be below the sets' end, from set @i. */
static inline void cst_sets_drop(struct cst_sets *sets, size_t i, uint32_t member)
{
    *cst_sets_word(sets, i, member) &= ~(UINT64_C(1) << member % CST_SET_WORD);
}

/* True if @member, which must be below the sets' end, is in set @i. */
static inline bool cst_sets_has(const struct cst_sets *sets, size_t i, uint32_t member)
{
    return (*cst_sets_word(sets, i, member) >> member % CST_SET_WORD & 1) != 0;
}

/* Add the members of set @j of @from, which has the same end, to set @i. */
static inline void cst_sets_join(struct cst_sets *sets, size_t i, const struct cst_sets *from,
                                 size_t j)
{
    for (uint32_t w = 0; w < sets->n_words; w++) {
        sets->words[i * sets->n_words + w] |= from->words[j * sets->n_words + w];
    }
}

/* True if set @i of both, which have the same end, has the same members. */
static inline bool cst_sets_equal(const struct cst_sets *a, const struct cst_sets *b, size_t i)
{
    return memcmp(&a->words[i * a->n_words], &b->words[i * a->n_words],
                  a->n_words * sizeof *a->words) == 0;
}

/* Return word @word, below n_words, of the members of *set that set @i of the sets lacks. */
static inline uint64_t cst_sets_lacks(const struct cst_sets *sets, size_t i,
                                      const struct cst_set *set, uint32_t word)
{
    return set->words[word] & ~sets->words[i * sets->n_words + word];
}

/* Make the @n sets from @i on empty. */
static inline void cst_sets_clear(struct cst_sets *sets, size_t i, size_t n)
{
    memset(&sets->words[i * sets->n_words], 0, n * sets->n_words * sizeof *sets->words);
}

#endif
