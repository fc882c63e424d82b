/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and durations as people write them, on all command lines and in the configuration. Pure;
 * any thread. */
#ifndef CST_SIZE_H
#define CST_SIZE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_SIZE_TEXT 32 /* Most bytes of a text of cst_size_text. */

/* Read a size in bytes: "4096", "64K", "1.5G", "1.5GB" or "1.5GiB". Units are powers of 1024 (K, M,
 * G, T, in either case). Unless @whole is 0, also a percentage of @whole: "40%" or "12.5%".
 * CST_EINVAL: anything else, a negative number, more than 100 %, a fraction without a unit, or more
 * than 2^63; the words quote @text and show what can be written. */
int cst_size_parse(const char *text, uint64_t whole, uint64_t *out, struct cst_err *err);

/* Read a size like cst_size_parse without percentages, or @word ("auto", "no"), which stands for
 * @value. */
int cst_size_parse_or(const char *text, const char *word, uint64_t value, uint64_t *out,
                      struct cst_err *err);

/* Read a percentage: "25%", "12.5%". *percent may be more than 100. False: @text is not a
 * percentage. */
bool cst_size_percent(const char *text, double *percent);

/* Read a duration in seconds: "30", "30s", "5m", "2h", "1d". CST_EINVAL: anything else, or more
 * than @max seconds. */
int cst_size_parse_seconds(const char *text, uint32_t max, uint32_t *out, struct cst_err *err);

/* Write @bytes for people: "1.5 GiB". Returns @buf. */
const char *cst_size_text(uint64_t bytes, char buf[CST_SIZE_TEXT]);

#define CST_SIZE_EXACT 64 /* Most bytes of a text of cst_size_exact. */

/* Write @bytes for people, with the exact number: "1.5 GiB (1610612736 bytes)", or "100 bytes".
 * Returns @buf. */
const char *cst_size_exact(uint64_t bytes, char buf[CST_SIZE_EXACT]);

#endif
