/* SPDX-License-Identifier: Apache-2.0 */
/* Text and tables in HTML. All text is escaped. Write errors stay in the stream. */
#ifndef CLI_HTML_H
#define CLI_HTML_H

#include <stdio.h>

/* Write formatted text. */
void cli_html_text(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Write an element that has only text: <name>text</name>. */
void cli_html_element(FILE *to, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Begin a table that a reader can open, titled @title, with the column titles @columns up to NULL.
 * The rows follow: cli_html_element(to, "td", ...) between <tr> and </tr>. */
void cli_html_table_begin(FILE *to, const char *title, const char *const *columns);
void cli_html_table_end(FILE *to);

#endif
