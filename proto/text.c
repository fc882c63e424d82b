/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Return the length of the sequence that begins with @lead; 0: @lead begins none. */
static size_t sequence_bytes(uint8_t lead)
{
    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xc2) {
        return 0; /* A continuation byte, or an overlong form of ASCII. */
    }
    if (lead < 0xe0) {
        return 2;
    }
    if (lead < 0xf0) {
        return 3;
    }
    return lead < 0xf5 ? 4 : 0;
}

static bool is_shown(uint32_t c)
{
    bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
    bool separator = c == 0x2028 || c == 0x2029;
    bool direction =
        (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0x200e || c == 0x200f;

    return !control && !separator && !direction;
}

/* Return the bytes of the character at @text, and the character in *out; 0: it is not valid. */
static size_t decode(const char *text, uint32_t *out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = sequence_bytes((uint8_t)text[0]);
    uint32_t c;

    if (n == 0) {
        return 0;
    }
    c = n == 1 ? (uint8_t)text[0] : (uint8_t)text[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (((uint8_t)text[i] & 0xc0) != 0x80) {
            return 0; /* This includes the end of the text. */
        }
        c = c << 6 | ((uint8_t)text[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
        return 0;
    }
    *out = c;
    return n;
}

/* Return the bytes of the character at @text if it is valid and can be shown; otherwise 0. */
static size_t shown_bytes(const char *text)
{
    uint32_t c;
    size_t n = decode(text, &c);

    return n > 0 && is_shown(c) ? n : 0;
}

bool cst_text_fits(const char *text, size_t most)
{
    uint32_t c;

    if (text == NULL) {
        return true;
    }
    for (size_t used = 0, n; text[used] != '\0'; used += n) {
        n = decode(text + used, &c);
        if (n == 0 || used + n > most) {
            return false;
        }
    }
    return true;
}

bool cst_text_is_clean(const char *text)
{
    while (*text != '\0') {
        size_t n = shown_bytes(text);

        if (n == 0) {
            return false;
        }
        text += n;
    }
    return true;
}

void cst_text_clean(char *text, size_t size)
{
    char dirty[CST_TEXT_MAX];
    const char *from = dirty;
    size_t used = 0;

    if (cst_text_is_clean(text)) {
        return;
    }
    (void)snprintf(dirty, sizeof dirty, "%s", text);
    while (*from != '\0') {
        size_t n_read = shown_bytes(from), n_written = n_read;
        const char *written = from;
        char escaped[8];

        if (n_read == 0) {
            n_read = 1;
            n_written =
                (size_t)snprintf(escaped, sizeof escaped, "\\x%02x", (uint8_t)*from & 0xffu);
            written = escaped;
        }
        if (used + n_written >= size) {
            break;
        }
        memcpy(text + used, written, n_written);
        used += n_written;
        from += n_read;
    }
    text[used] = '\0';
}
