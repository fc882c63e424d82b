/* SPDX-License-Identifier: Apache-2.0 */
/* The one HTTP request that `cistern metrics --listen` answers: GET or HEAD of /metrics. Header
 * fields are not interpreted. A request has no body. Pure; any thread. */
#ifndef CLI_SCRAPE_REQUEST_H
#define CLI_SCRAPE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#define CLI_SCRAPE_REQUEST_MAX 8192 /* Most bytes of a request with its header fields. */

/* Return the HTTP status with which to answer the request of which @bytes has the first @n bytes;
 * 0: its end is missing. *head: only the header of the answer is wanted. The statuses:
 *   - 200: GET or HEAD of /metrics, with or without a query
 *   - 400: not a request of HTTP/1
 *   - 404: GET or HEAD of something else
 *   - 405: another method
 *   - 431: longer than CLI_SCRAPE_REQUEST_MAX */
int cli_scrape_request(const char *bytes, size_t n, bool *head);

#endif
