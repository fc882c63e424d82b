/* Sizes and durations as a person writes them. Pure. */
#ifndef CST_SIZE_H
#define CST_SIZE_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

#define CST_SIZE_TEXT 32 /* bytes that cst_size_text needs at most */

/* "4096", "64K", "24G", "1T" (binary) or "75%" of @whole to bytes. CST_EINVAL: something else,
 * negative, or beyond 2^63. */
int cst_size_parse(const char *text, uint64_t whole, uint64_t *out, struct cst_err *err);

/* "30", "30s", "5m", "2h", "1d" to seconds. CST_EINVAL: something else or beyond @max seconds. */
int cst_size_parse_seconds(const char *text, uint32_t max, uint32_t *out, struct cst_err *err);

/* "1.5 GiB". Returns @buf. */
const char *cst_size_text(uint64_t bytes, char buf[CST_SIZE_TEXT]);

#endif
