/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and durations as a person writes them, on every command line and in the configuration.
 * Pure; any thread. */
#ifndef CST_SIZE_H
#define CST_SIZE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_SIZE_TEXT 32 /* bytes that cst_size_text needs at most */

/* Read a size in bytes: "4096", "64K", "1.5G", "1.5GB" or "1.5GiB" (units are powers of 1024: K, M,
 * G, T, in either case), and, unless @whole is 0, "40%" or "12.5%" of @whole. CST_EINVAL: something
 * else, negative, more than 100 %, a fraction without a unit, or beyond 2^63; the words quote
 * @text and show what can be written. */
int cst_size_parse(const char *text, uint64_t whole, uint64_t *out, struct cst_err *err);

/* As cst_size_parse without a whole, or @word, which stands for @value: "auto", "no". */
int cst_size_parse_or(const char *text, const char *word, uint64_t value, uint64_t *out,
                      struct cst_err *err);

/* "25%", "12.5%": *percent is the number, which may be larger than 100. False: @text is no
 * percentage. */
bool cst_size_percent(const char *text, double *percent);

/* "30", "30s", "5m", "2h", "1d" to seconds. CST_EINVAL: something else or beyond @max seconds. */
int cst_size_parse_seconds(const char *text, uint32_t max, uint32_t *out, struct cst_err *err);

/* "1.5 GiB". Returns @buf. */
const char *cst_size_text(uint64_t bytes, char buf[CST_SIZE_TEXT]);

#endif
