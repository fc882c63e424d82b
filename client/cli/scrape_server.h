/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP server for scrapes. Everything that a peer can make it hold is bounded: connections,
 * bytes of a request, the time of a connection, and the texts per second that are made. A peer that
 * sends or reads slowly delays nobody. One request is answered per connection.
 *
 *   READING --the request is complete--> WRITING --all is sent--> DRAINING --> closed
 *
 * DRAINING: what the peer still sends is dropped until it closes, because closing a socket with
 * unread bytes would take the answer away from the peer. Each state ends with the connection's
 * time. */
#ifndef CLI_SCRAPE_SERVER_H
#define CLI_SCRAPE_SERVER_H

#include "cistern/status.h"

#include <stddef.h>

/* If there are so many, a new connection takes the place of the oldest one. */
#define CLI_SCRAPE_CONNECTIONS 16
#define CLI_SCRAPE_LIFE_MS 5000 /* Longest time of a connection. */
/* Scrapes within this time get the same text. */
#define CLI_SCRAPE_FRESH_MS 250

/* Make the text of a scrape: *text of *n bytes, which is freed with free(). CST_ENOMEM. */
typedef int (*cli_scrape_fn)(void *arg, char **text, size_t *n);

/* Answer scrapes at the listening, non-blocking socket @fd, with texts of the type @content_type
 * that @make makes. Returns CST_OK after SIGINT or SIGTERM; CST_EIO: the socket fails. */
int cli_scrape_serve(int fd, const char *content_type, cli_scrape_fn make, void *arg,
                     struct cst_err *err);

#endif
