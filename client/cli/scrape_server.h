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

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* If there are so many, a new connection takes the place of the oldest one. */
#define CLI_SCRAPE_CONNECTIONS 16
#define CLI_SCRAPE_LIFE_MS                                                                         \
    5000 /* Longest time of a connection, while texts are made not counted. */
/* Scrapes within this time get the same text. */
#define CLI_SCRAPE_FRESH_MS 250

/* Make the text of a scrape: *text of *n bytes, which is freed with free(). All connections wait
 * for it: it takes a limited time, and ends soon once cli_scrape_is_ended. CST_ENOMEM. */
typedef int (*cli_scrape_fn)(void *arg, char **text, size_t *n);

/* Block SIGINT and SIGTERM, which from now on end cli_scrape_serve. *before: the signals that were
 * blocked. Called before anybody can know that there is a server. */
void cli_scrape_catch_signals(sigset_t *before);

/* True if one of both signals has arrived. */
bool cli_scrape_is_ended(void);

/* Answer scrapes at the listening, non-blocking socket @fd, with texts of the type @content_type
 * that @make makes. The signals of @mask are blocked while it waits for sockets. Returns CST_OK
 * after SIGINT or SIGTERM; CST_EIO: the socket fails. */
int cli_scrape_serve(int fd, const sigset_t *mask, const char *content_type, cli_scrape_fn make,
                     void *arg, struct cst_err *err);

#endif
