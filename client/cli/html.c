/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/html.h"

#include <stdarg.h>

static void escape(FILE *to, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            (void)fputs("&amp;", to);
            break;
        case '<':
            (void)fputs("&lt;", to);
            break;
        case '>':
            (void)fputs("&gt;", to);
            break;
        case '"':
            (void)fputs("&quot;", to);
            break;
        default:
            (void)fputc(*text, to);
            break;
        }
    }
}

static void text(FILE *to, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

static void text(FILE *to, const char *fmt, va_list ap)
{
    char words[1024];

    (void)vsnprintf(words, sizeof words, fmt, ap);
    escape(to, words);
}

void cli_html_text(FILE *to, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    text(to, fmt, ap);
    va_end(ap);
}

void cli_html_element(FILE *to, const char *name, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)fprintf(to, "<%s>", name);
    text(to, fmt, ap);
    (void)fprintf(to, "</%s>", name);
    va_end(ap);
}

void cli_html_table_begin(FILE *to, const char *title, const char *const *columns)
{
    (void)fputs("<details><summary>", to);
    cli_html_text(to, "%s", title);
    (void)fputs("</summary>\n<div class=\"scroll\"><table><thead><tr>", to);
    for (; *columns != NULL; columns++) {
        (void)fputs("<th scope=\"col\">", to);
        cli_html_text(to, "%s", *columns);
        (void)fputs("</th>", to);
    }
    (void)fputs("</tr></thead>\n<tbody>\n", to);
}

void cli_html_table_end(FILE *to)
{
    (void)fputs("</tbody></table></div></details>\n", to);
}
