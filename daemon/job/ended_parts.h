/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of jobs on several nodes (span.h) that have ended here, and that other nodes may not know
 * of. Each such node is told (GONE) now and whenever the link to it comes up, until it has answered
 * that it was told (GONE_SEEN). A node that does not know the part, or another life of it, answers
 * too. So no part is left behind because a link was down, or went down, at the wrong time.
 *
 * The list ends with this daemon. It has at most CSTD_ENDED_PARTS_MAX parts for each node: the
 * oldest is forgotten then. Loop thread only. */
#ifndef CSTD_ENDED_PARTS_H
#define CSTD_ENDED_PARTS_H

#include "daemon/links/links.h"
#include "proto/span.pb-c.h"

enum { CSTD_ENDED_PARTS_MAX = 64 };

struct cstd_daemon;
struct cstd_ended_part;

struct cstd_ended_parts {
    struct cstd_links_watch watch;
    TAILQ_HEAD(cstd_ended_part_head, cstd_ended_part) parts; /* The oldest first; owned. */
};

/* Initialise daemon->ended_parts as an empty list, before @daemon has links. */
void cstd_ended_parts_init(struct cstd_daemon *daemon);

/* Begin to tell nodes. Called once, when @daemon has links. */
void cstd_ended_parts_handle(struct cstd_daemon *daemon);

/* Free the list, after cstd_links_stop. */
void cstd_ended_parts_close(struct cstd_daemon *daemon);

/* The part here has ended, as @gone says: tell @machine. */
void cstd_ended_parts_tell(struct cstd_daemon *daemon, struct cstd_machine *machine,
                           const Span__Gone *gone);

/* Tell @machine again that the job @name of @uid has ended here. False: that is not in the list. */
bool cstd_ended_parts_again(struct cstd_daemon *daemon, struct cstd_machine *machine, uint32_t uid,
                            const char *name);

/* Answer @machine that it has told of @gone. */
void cstd_ended_parts_seen(struct cstd_machine *machine, const Span__Gone *gone);

/* Write to @names at most @most nodes that could not be told yet that the job @name of @uid has
 * ended here, because there is no link to them. Returns their number; the names are borrowed until
 * the loop goes on. */
size_t cstd_ended_parts_untold(const struct cstd_daemon *daemon, uint32_t uid, const char *name,
                               char **names, size_t most);

#endif
