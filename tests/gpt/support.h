/* SPDX-License-Identifier: Apache-2.0 */
/* Support for the tests of the reference worker: reproducible numbers, comparisons, temporary
 * files, options. */
#ifndef GPT_TEST_SUPPORT_H
#define GPT_TEST_SUPPORT_H

#include "client/gpt/layers.h"
#include "client/gpt/options.h"

#include <stddef.h>
#include <stdint.h>

/* Tables of the instruction sets that this CPU can run; at most 3. Returns their number. */
unsigned test_isas(const struct gpt_simd *rows[3]);

/* Fill @out with normally distributed numbers of standard deviation @deviation, a function of
 * @seed. */
void test_fill(float *out, size_t n, uint64_t seed, float deviation);
/* As test_fill, rounded to bf16. */
void test_fill_bf16(uint16_t *out, size_t n, uint64_t seed, float deviation);

/* Two measures of the difference between a and b: max |a - b| / max |b|, and sqrt(sum (a - b)^2 /
 * sum b^2). test_distance is NaN if a value is NaN. */
double test_worst(const float *a, const double *b, size_t n);
double test_distance(const float *a, const double *b, size_t n);

/* Path of file @name in a directory of this process, which is removed at exit. The path is valid
 * until the next call with this @slot (0..7). */
const char *test_path(unsigned slot, const char *name);

/* Write @n bytes to a file at test_path(slot, name) and return the path. */
const char *test_file(unsigned slot, const char *name, const void *bytes, size_t n);

/* The file's bytes; the caller frees them. The test fails if the file cannot be read. */
void *test_read(const char *path, size_t *n_out);

/* The small text that reference_tiny.bin was computed from. */
#define TEST_TEXT_BYTES 4096
void test_text(uint8_t out[TEST_TEXT_BYTES]);

/* Options from the words of @line, as on the command line. The test fails if they are wrong. */
struct gpt_options test_options(const char *line);

/* Options from the words of @base and @more, with test_text as the data, in the file of slot 0. */
struct gpt_options test_text_options(const char *base, const char *more);

#endif
