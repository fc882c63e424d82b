/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the reference worker share: reproducible numbers, comparisons, temporary files,
 * runs on the local store. */
#ifndef GPT_TEST_SUPPORT_H
#define GPT_TEST_SUPPORT_H

#include "client/gpt/layers.h"
#include "client/gpt/options.h"

#include <stddef.h>
#include <stdint.h>

/* Rows of the table of instruction sets that this CPU can run; at most 3. */
unsigned test_isas(const struct gpt_simd *rows[3]);

/* Fill with numbers of the given deviation, a function of @seed alone. */
void test_fill(float *out, size_t n, uint64_t seed, float deviation);
/* Same, rounded to bf16. */
void test_fill_bf16(uint16_t *out, size_t n, uint64_t seed, float deviation);

/* Largest |a - b| over the largest |b|, and sqrt(sum (a - b)^2 / sum b^2). NaN where one is. */
double test_worst(const float *a, const double *b, size_t n);
double test_distance(const float *a, const double *b, size_t n);

/* Path of a file in a directory that the process has for itself; removed at exit. Valid until the
 * next call with the same @slot (0..7). */
const char *test_path(unsigned slot, const char *name);

/* Write @n bytes there and return the path. */
const char *test_file(unsigned slot, const char *name, const void *bytes, size_t n);

/* The file's bytes, freshly allocated; fails the test if it cannot be read. */
void *test_read(const char *path, size_t *n_out);

/* The small text on which reference_tiny.bin was made. */
#define TEST_TEXT_BYTES 4096
void test_text(uint8_t out[TEST_TEXT_BYTES]);

/* Options as the words of @line would give them, on the command line. Fails the test on an error.
 */
struct gpt_options test_options(const char *line);

#endif
