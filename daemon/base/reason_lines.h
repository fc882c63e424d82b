/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons in the reply to `cistern explain`, whose lines are short. No state. */
#ifndef CSTD_REASON_LINES_H
#define CSTD_REASON_LINES_H

/* Write @text, which is clean (proto/text.h), in indented lines, at most @max, which break at
 * spaces if possible. Returns their number. */
unsigned cstd_reason_lines(const char *text, char lines[][192], unsigned max);

#endif
