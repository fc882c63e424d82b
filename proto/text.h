/* SPDX-License-Identifier: Apache-2.0 */
/* Text that others wrote. It is cleaned before people see it: a terminal or a log must not obey
 * control characters in it, and a parser must not meet invalid UTF-8. No state; any thread. */
#ifndef CST_TEXT_H
#define CST_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Return whether all characters of @text can be shown: valid UTF-8 without control characters (C1
 * included), line separators, and characters that change the direction of writing. Pure. */
bool cst_text_is_clean(const char *text);

/* Return whether @text is NULL, or valid UTF-8, as JSON requires, of at most @most bytes. Pure. */
bool cst_text_fits(const char *text, size_t most);

/* Replace each byte of @text that is not part of a character that can be shown by "\xNN". @text is
 * a buffer of @size bytes (at most CST_TEXT_MAX). The end is cut if it does not fit, never inside a
 * character. A backslash is unchanged, hence a text can be cleaned twice. */
void cst_text_clean(char *text, size_t size);

#define CST_TEXT_MAX 1024

#endif
