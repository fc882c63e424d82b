/* SPDX-License-Identifier: Apache-2.0 */
/* Text that somebody else wrote and that people are to read: a terminal or a log must not obey it,
 * and whoever parses it as UTF-8 must not stumble. */
#ifndef CST_TEXT_H
#define CST_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Every character of @text can be shown: it is valid UTF-8 without control characters (also C1),
 * and without those that separate lines or change the direction of writing. Pure. */
bool cst_text_is_clean(const char *text);

/* Write each byte of @text, a buffer of @size bytes (at most CST_TEXT_MAX), that is not part of
 * such a character as "\xNN". What does not fit any more is cut, never within a character. A
 * backslash is left as it is, so that a text can be cleaned twice. */
void cst_text_clean(char *text, size_t size);

#define CST_TEXT_MAX 1024

#endif
