/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces daemon/links/links.c and links_machine.c: links without sockets to other nodes, which
 * say what the target gives them. */
#ifndef FAKE_LINKS_H
#define FAKE_LINKS_H

#include "daemon/links/links.h"

enum {
    FAKE_NODES = 3,
    FAKE_FIRST_TYPE = CSTD_LINK_FIRST_TYPE,
    FAKE_TYPES = 14, /* Of proto/span.proto. */
};

/* What the daemon has sent last. */
struct fake_sent {
    size_t n; /* 0: nothing. */
    uint8_t *body;
};

/* Node @i, which is in the list of nodes, unless it was dropped; then NULL. */
struct cstd_machine *fake_links_node(unsigned i);

/* The link to node @i comes up, or goes down. If it is so already, nothing happens. */
void fake_links_set(unsigned i, bool up);

/* The node sends a message of @type, FAKE_FIRST_TYPE to FAKE_FIRST_TYPE + FAKE_TYPES - 1. Its link
 * goes down if the daemon refuses the message. Without a link, nothing happens. */
void fake_links_tell(unsigned i, unsigned type, const uint8_t *body, size_t n);

/* The last message of @type for node @i. */
const struct fake_sent *fake_links_sent(unsigned i, unsigned type);

/* A manager drops node @i from the list, or adds it. */
void fake_links_drop(unsigned i);
void fake_links_add(unsigned i);

/* All nodes are in the list, without links, and nothing was sent. */
void fake_links_reset(void);

#endif
