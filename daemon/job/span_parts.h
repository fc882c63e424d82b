/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a span share: span_find.c (which part is meant), span_tell.c (what is told),
 * span.c (meeting, the end), span_chunks.c (chunks and rank blocks), span_join.c (engines),
 * span_core.c (members and cores), span_read.c (states on other nodes), span_keep.c (the ledger),
 * span_replace.c (parts in the places of lost ones), span_message.c (messages), span_view.c (what
 * users see). Loop thread only. */
#ifndef CSTD_SPAN_PARTS_H
#define CSTD_SPAN_PARTS_H

#include "daemon/job/span.h"
#include "proto/span.pb-c.h"

/* The key of the part here; borrows from @job. */
Span__Key cstd_span_key(const struct cstd_job *job);

/* The job of @key that has a span, in whatever life; NULL: none. */
struct cstd_job *cstd_span_job(struct cstd_daemon *daemon, const Span__Key *key);

/* The part on @peer; NULL: there is none. */
struct cstd_span_machine *cstd_span_find(struct cstd_span *span, const struct cstd_machine *peer);

/* The part that has sent a message with @key over the link to @peer; NULL: it is none that is known
 * here, in this life. *job: as of cstd_span_job, in either case. */
struct cstd_span_machine *cstd_span_sender(struct cstd_daemon *daemon,
                                           const struct cstd_machine *peer, const Span__Key *key,
                                           struct cstd_job **job);

/* Number of @machine, which belongs to @span. */
static inline uint32_t cstd_span_number(const struct cstd_span *span,
                                        const struct cstd_span_machine *machine)
{
    return (uint32_t)(machine - span->machines);
}

/* True if a job that is not here may be one of an earlier daemon, and come back: with this daemon
 * soon, or with a later one. */
bool cstd_span_may_come_back(const struct cstd_daemon *daemon);

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

/* Machine @m, which is no member, does not come. */
void cstd_span_away(struct cstd_span *span, uint32_t m);

/* Machine @m has no part of the job any more, so that its record is lost. */
void cstd_span_lost(struct cstd_span *span, uint32_t m);

/* Machine @m has an engine that knows nothing of what was copied: the members begin a round. */
void cstd_span_anew(struct cstd_span *span, uint32_t m);

/* Tell machine @m of the engine here, if both are there, and ask for its own if it has not joined.
 */
void cstd_span_tell_engine(struct cstd_span *span, uint32_t m);

/* Make the window from which other nodes copy what they have asked for. */
int cstd_span_open_window(struct cstd_job *job, struct cst_err *err);

/* Machine @m has joined: with a link, it is there for the members. */
void cstd_span_joined(struct cstd_span *span, uint32_t m);

/* Unmap the segments of machine @m, or the window here, and forget what it has told of them. */
void cstd_span_forget_segments(struct cstd_span *span, uint32_t m);

/* Answer a message of @peer that names a part @key which is not known here: there is no such job,
 * which @job NULL says; or another part has taken its place in @job. Nothing is told while a job of
 * the earlier daemon may still go on. */
void cstd_span_tell_none(struct cstd_daemon *daemon, const struct cstd_job *job,
                         struct cstd_machine *peer, const Span__Key *key);

/* The other machines go on without this part, as @text says: it ends. */
void cstd_span_leave(struct cstd_span *span, const char *text);

/* Make an empty span of @job, in its life @life; 0: a new one. */
int cstd_span_make(struct cstd_job *job, uint64_t life, struct cst_err *err);

/* Free span->progress, if there is any. */
void cstd_span_forget_progress(struct cstd_span *span);

/* Let the links tell the span of themselves. */
void cstd_span_watch(struct cstd_span *span);

/* Free what span_join.c and span_core.c have made. */
void cstd_span_part(struct cstd_span *span);

/* True if machine @m, with its present life, is a member. */
bool cstd_span_is_member(const struct cstd_span *span, uint32_t m);

/* Of span_replace.c. The part of @here, which is not known, may take the place of one that was
 * lost. False: it cannot. */
bool cstd_span_replace(struct cstd_job *job, struct cstd_machine *peer, const Span__Here *here);
/* A part is lost: another node may have one that waits to take its place. */
void cstd_span_seek(struct cstd_job *job);
/* The core has moved on, or another epoch holds: parts may be told how far the job is. */
void cstd_span_answer_states(struct cstd_job *job);
void cstd_span_handle_replace(struct cstd_daemon *daemon);

/* Tell @peer of the part here. @heard: the life of its part that is known here; 0: none. */
void cstd_span_tell_here(struct cstd_job *job, struct cstd_machine *peer, uint64_t heard);

/* Tell @to the sizes of the chunks, which are laid out. */
void cstd_span_send_chunks(struct cstd_job *job, const struct cstd_span_machine *to);

/* Of span_read.c. Machine @m is gone: end what waits for it. */
void cstd_span_read_open(struct cstd_span *span);
void cstd_span_read_close(struct cstd_span *span);
/* The core has moved on: a read may have waited for the step. */
void cstd_span_serve(struct cstd_job *job);
void cstd_span_read_down(struct cstd_job *job, uint32_t m);
void cstd_span_handle_reads(struct cstd_daemon *daemon);

/* Take an engine of the network for the job, unless it has one. Errors: cstd_net_engine_take. */
int cstd_span_take_engine(struct cstd_job *job, struct cst_err *err);

/* The number of rank blocks of @world ranks on one node. */
uint32_t cstd_span_blocks(const struct cstd_job *job, uint32_t world);

void cstd_span_handle_chunks(struct cstd_daemon *daemon);
void cstd_span_handle_net(struct cstd_daemon *daemon);
void cstd_span_handle_core(struct cstd_daemon *daemon);

#endif
