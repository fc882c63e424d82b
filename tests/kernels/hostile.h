/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for the kernel tests: a seeded generator, hostile floats, and buffers that end at an
 * unmapped page, so that an access behind the end is a fault. For test programs that consist of one
 * file. */
#ifndef CST_TESTS_HOSTILE_H
#define CST_TESTS_HOSTILE_H

#include "kernels/math/kernels.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The seed of this run: CST_SEED, or a fixed one. hostile_main prints it once. */
static inline uint64_t hostile_seed(void)
{
    const char *words = getenv("CST_SEED");

    return words != NULL ? strtoull(words, NULL, 0) : 20;
}

/* splitmix64 */
static inline uint64_t hostile_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline float hostile_from_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A uniform random number in [-1, 1). */
static inline float hostile_unit(uint64_t *state)
{
    return (float)((double)(hostile_next(state) >> 11) * 0x1p-52 - 1.0);
}

/* Any bits, a special value, an ordinary number, or a subnormal. */
static inline float hostile_fp32(uint64_t *state)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
        0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
        0x7f800001, 0xffbfffff, 0x7fffffff, 0x3f800000, 0xbf800000, 0x3f80ffff,
    };
    uint64_t r = hostile_next(state);

    switch (r % 4) {
    case 0:
        return hostile_from_bits((uint32_t)(r >> 32));
    case 1:
        return hostile_from_bits(special[(r >> 32) % (sizeof special / sizeof special[0])]);
    case 2:
        return hostile_from_bits((uint32_t)(r >> 32) & 0x807fffffu);
    default:
        return hostile_unit(state);
    }
}

static inline uint16_t hostile_bf16(uint64_t *state)
{
    uint32_t bits;
    float f = hostile_fp32(state);

    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* @bytes of memory that end at an unmapped page. They are never freed, because tests are short. */
static inline void *hostile_buffer(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (bytes + page - 1) / page * page;
    char *base =
        mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(base, MAP_FAILED);
    ck_assert_int_eq(mprotect(base + whole, page, PROT_NONE), 0);
    return base + whole - bytes;
}

/* Row @i of the table. NULL, with a line in the log, if this CPU does not support it. */
static inline const struct cst_kernels *hostile_row(int i)
{
    unsigned n;
    const struct cst_kernels *rows = cst_kernels_all(&n);

    ck_assert_int_lt(i, (int)n);
    if (!rows[i].usable()) {
        printf("this CPU has no %s: not tested\n", rows[i].isa);
        return NULL;
    }
    return &rows[i];
}

static inline int hostile_n_rows(void)
{
    unsigned n;

    (void)cst_kernels_all(&n);
    return (int)n;
}

/* FNV-1a hash of @bytes, for golden values. */
static inline uint64_t hostile_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ p[i]) * 0x100000001b3ull;
    }
    return hash;
}

#define HOSTILE_HASH_START 0xcbf29ce484222325ull

/* Run @suite. Returns the exit status of main. */
static inline int hostile_main(Suite *suite)
{
    printf("CST_SEED=%llu\n", (unsigned long long)hostile_seed());
    fflush(stdout);
    /* Under a sanitizer, starting a process takes far longer than its test. */
    if (suite_is_sparse()) {
        (void)setenv("CK_FORK", "no", 0);
    }
    return suite_run(suite);
}

#endif
