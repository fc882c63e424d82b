/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a span share: span_find.c (which part is meant), span.c (meeting, the end),
 * span_chunks.c (chunks and rank blocks), span_join.c (engines), span_core.c (members and cores),
 * span_read.c (states on other nodes). Loop thread only. */
#ifndef CSTD_SPAN_PARTS_H
#define CSTD_SPAN_PARTS_H

#include "daemon/job/span.h"
#include "proto/span.pb-c.h"

/* The key of the part here; borrows from @job. */
Span__Key cstd_span_key(const struct cstd_job *job);

/* The job of @key that has a span, in whatever life; NULL: none. */
struct cstd_job *cstd_span_job(struct cstd_daemon *daemon, const Span__Key *key);

/* The part on @node; NULL: there is none. */
struct cstd_span_machine *cstd_span_find(struct cstd_span *span, const struct cstd_machine *peer);

/* The name of the node of machine @m. */
static inline const char *cstd_span_name(const struct cstd_span *span, uint32_t m)
{
    return span->machines[m].peer != NULL ? span->machines[m].peer->entry.name : "this node";
}

/* The address at which engines of jobs on this node are reached, without a port. Valid until the
 * next call. */
const char *cstd_span_listen(const struct cstd_daemon *daemon);

/* The link to @node is up, or down: tell the members. */
void cstd_span_link(struct cstd_span *span, const struct cstd_machine *peer, bool up);

/* Machine @m has an engine that knows nothing of what was copied: the members begin a round. */
void cstd_span_anew(struct cstd_span *span, uint32_t m);

/* Tell machine @m, whose link is up again, of the engine here. */
void cstd_span_tell_engine(struct cstd_span *span, uint32_t m);

/* Unmap the segments of other machines. */
void cstd_span_forget_segments(struct cstd_span *span);

/* Free what span_join.c and span_core.c have made. */
void cstd_span_part(struct cstd_span *span);

/* Of span_read.c. Machine @m is gone: end what waits for it. */
void cstd_span_read_open(struct cstd_span *span);
void cstd_span_read_close(struct cstd_span *span);
/* The core has moved on: a read may have waited for the step. */
void cstd_span_serve(struct cstd_job *job);
void cstd_span_read_down(struct cstd_job *job, uint32_t m);
void cstd_span_handle_reads(struct cstd_daemon *daemon);

/* The number of rank blocks of @world ranks on one node. */
uint32_t cstd_span_blocks(const struct cstd_job *job, uint32_t world);

void cstd_span_handle_chunks(struct cstd_daemon *daemon);
void cstd_span_handle_net(struct cstd_daemon *daemon);
void cstd_span_handle_core(struct cstd_daemon *daemon);

#endif
