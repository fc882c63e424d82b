/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/scrape_request.h"

#include <string.h>

/* Return whether the first @n bytes have the empty line that ends a request. A line may end without
 * a carriage return. */
static bool is_complete(const char *bytes, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) {
        if (bytes[i] == '\n' &&
            (bytes[i + 1] == '\n' || (i + 2 < n && bytes[i + 1] == '\r' && bytes[i + 2] == '\n'))) {
            return true;
        }
    }
    return false;
}

/* The words of a request line are separated by single spaces. Cut off the next one, up to @end. */
static const char *next_word(const char **at, const char *end, size_t *n)
{
    const char *word = *at, *space = memchr(word, ' ', (size_t)(end - word));

    *n = (size_t)((space != NULL ? space : end) - word);
    *at = space != NULL ? space + 1 : end;
    return word;
}

static bool is_word(const char *word, size_t n, const char *text)
{
    return n == strlen(text) && memcmp(word, text, n) == 0;
}

/* Return whether the @n bytes are "HTTP/1." and a digit. */
static bool is_version(const char *word, size_t n)
{
    return n == 8 && memcmp(word, "HTTP/1.", 7) == 0 && word[7] >= '0' && word[7] <= '9';
}

static bool is_metrics(const char *target, size_t n)
{
    const char *query = memchr(target, '?', n);

    return is_word(target, query != NULL ? (size_t)(query - target) : n, "/metrics");
}

static int read_line(const char *line, const char *end, bool *head)
{
    size_t n_method, n_target, n_version;
    const char *method = next_word(&line, end, &n_method);
    const char *target = next_word(&line, end, &n_target);
    const char *version = next_word(&line, end, &n_version);

    if (n_method == 0 || n_target == 0 || version + n_version != end ||
        !is_version(version, n_version)) {
        return 400;
    }
    *head = is_word(method, n_method, "HEAD");
    if (!*head && !is_word(method, n_method, "GET")) {
        return 405;
    }
    return is_metrics(target, n_target) ? 200 : 404;
}

int cli_scrape_request(const char *bytes, size_t n, bool *head)
{
    const char *end;

    *head = false;
    if (!is_complete(bytes, n)) {
        return n >= CLI_SCRAPE_REQUEST_MAX ? 431 : 0;
    }
    end = memchr(bytes, '\n', n);
    if (end > bytes && end[-1] == '\r') {
        end--;
    }
    return read_line(bytes, end, head);
}
