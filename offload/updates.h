/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the core that end a step. Private to offload/.
 *
 *   commit.c     norm, commit, the order of updates
 *   update.c     one update of a chunk
 *   overlap.c    which weight row is read and written; updates before the commit, and behind the
 * next room.c       updates on accelerators held.c       gradients that stay there fallback.c what
 * is done where a command of such an update fails exposure.c   how long updates are under way */
#ifndef CST_UPDATES_H
#define CST_UPDATES_H

#include "offload/hyper.h"
#include "offload/parts.h"

/* -- commit.c: the step ----------------------------------------------------------------------- */

void cst_commit_step(struct cst_core *core, const struct cst_event *event);

/* All gradients reduced and nothing written any more: ask for the norm. */
void cst_commit_close(struct cst_core *core);

/* Completions. */
void cst_commit_normed(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event);

/* -- update.c: one chunk ---------------------------------------------------------------------- */

/* Where the next update of @chunk writes its weights. */
struct cst_place cst_update_weight(const struct cst_core *core, uint32_t chunk);

/* Issue it, in a room if it is that chunk's turn. */
void cst_update_issue(struct cst_core *core, const struct cst_update *what);
/* Issue it to the node's engine. */
struct cst_command *cst_update_at_home(struct cst_core *core, const struct cst_update *what);
/* What the command says of @what wherever it is done. */
void cst_update_fill(const struct cst_core *core, struct cst_command *command,
                     const struct cst_update *what);

/* @command waits until all that the chunk's update writes is there. (Who reads the weights alone
 * waits for update_ticket.) */
void cst_update_before(struct cst_command *command, const struct cst_chunk *chunk);
/* No update of the chunk is under way. */
bool cst_update_is_over(const struct cst_chunk *chunk);

/* Issue it to the node's engine in place of the one in a room, of which nothing has come down, that
 * was issued last. */
void cst_update_return(struct cst_core *core, uint32_t chunk);

/* Completion of any of its commands. */
void cst_update_done(struct cst_core *core, const struct cst_flight *flight,
                     const struct cst_event *event);

/* -- room.c: updates on accelerators ---------------------------------------------------------- */

/* CST_EINVAL: too many, or none for a chunk whose states are on an accelerator. */
int cst_rooms_open(struct cst_core *core, const struct cst_core_config *config,
                   struct cst_err *err);
void cst_rooms_close(struct cst_core *core);
/* All updates of a step are issued: the next one is number 1, and of the k that is set by then. */
void cst_rooms_end(struct cst_core *core);
/* The room that the next update, of @chunk, goes through; CST_NONE: none. */
uint32_t cst_room_choose(struct cst_core *core, uint32_t chunk);
/* The next update, of @chunk, is to be its node's, and counts in the order; false: no, it goes
 * through a room. */
bool cst_room_pass(struct cst_core *core, uint32_t chunk);
/* Issue it there. */
void cst_room_update(struct cst_core *core, uint32_t room, const struct cst_update *what);

/* The update of @chunk, of which nothing has come down, has failed: the next one in its buffer
 * waits for nothing. */
void cst_room_leave(struct cst_core *core, uint32_t chunk);
/* @room is not gone through any more. */
void cst_room_give_up(struct cst_core *core, uint32_t room);
/* What @flight brought down from a room, but did not, is copied again. */
void cst_room_copy_again(struct cst_core *core, const struct cst_flight *flight);

/* -- fallback.c: rooms that fail -------------------------------------------------------------- */

/* @flight, of an update in a room, failed, which is made good: the update is not lost by it. False:
 * it is. */
bool cst_fallback_begin(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event);
/* It is: the job fails, and says which chunks are lost. */
void cst_fallback_fail(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event);
/* A gradient could not be kept in a room, which changes nothing else. */
void cst_fallback_kept(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event);

/* -- overlap.c: rows and times of updates ---------------------------------------------------------
 */

/* The weight row that fetches of @chunk read; that which all committed updates are in; that which
 * an update of it that is issued now writes. */
enum cst_row cst_overlap_side(const struct cst_core *core, uint32_t chunk);
enum cst_row cst_overlap_newest(const struct cst_core *core, uint32_t chunk);
enum cst_row cst_overlap_target(const struct cst_core *core, uint32_t chunk);

/* CST_EBUSY: @row of @chunk is of a step that is not committed. CST_EUNSUPPORTED: its gradient was
 * never stored. */
int cst_overlap_check_read(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                           struct cst_err *err);
/* CST_EBUSY: a step that is not committed has updated chunks. */
int cst_overlap_check_write(const struct cst_core *core, struct cst_err *err);

/* The step is committed: @chunk is updated as @update says, if it is not yet, and fetches turn to
 * the row that they are to read from now on. NULL: the step is skipped. */
void cst_overlap_committed(struct cst_core *core, uint32_t chunk, const struct cst_update *update);
/* Fetches turn to the last updates, which they else would read from the next commit on. */
void cst_overlap_flush(struct cst_core *core);

/* Updates of the step that is being done spare what is beyond proto/limit.h, one tile at a time. */
bool cst_overlap_guards(const struct cst_core *core);

/* The gradient of @chunk is complete: it is updated now, if it may be. */
void cst_overlap_complete(struct cst_core *core, uint32_t chunk);
/* All that comes has come: sum and update in one, if that may be. False: nothing was done. */
bool cst_overlap_fuse(struct cst_core *core, uint32_t chunk);
/* A collection ends, and the next one begins, as schedule.c leaves it. */
void cst_overlap_drop(struct cst_core *core, uint32_t chunk);

void cst_overlap_prepare(struct cst_core *core, const struct cst_event *event);
/* CST_EMISMATCH: what @rank's STEP says is not what was prepared, or what updates were begun with.
 */
int cst_overlap_check_step(const struct cst_core *core, uint32_t rank, struct cst_err *err);

/* -- held.c: gradients that stay up ------------------------------------------------------------ */

int cst_held_open(struct cst_room *room); /* CST_ENOMEM: closed by cst_held_close all the same */
void cst_held_close(struct cst_room *room);
/* The sum of @chunk is about to be issued: keep a copy of the gradient up, if it can be. Ticket of
 * that, which the sum has to wait for; 0: none. */
uint64_t cst_held_keep(struct cst_core *core, uint32_t chunk);
/* The chunk goes through the room that has its gradient: where that is. The caller's command, whose
 * flight names room and slot, frees it. */
struct cst_place cst_held_use(struct cst_core *core, uint32_t chunk);
/* What is kept of the chunk's gradient is not wanted. */
void cst_held_drop(struct cst_core *core, uint32_t chunk);
/* Completion of a command that wrote or read a slot. */
void cst_held_done(struct cst_core *core, const struct cst_flight *flight);
/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_held_check(const struct cst_core *core);

/* -- exposure.c: times of updates ---------------------------------------------------------------
 */

/* A command was issued that ends an update: UPDATE, or one of the COPYs down from a room. */
void cst_exposure_issued(struct cst_core *core);
/* Another command was issued in place of @n of those. */
void cst_exposure_replaced(struct cst_core *core, uint32_t n);
/* The step is committed, and all its updates are issued, if there are any. */
void cst_exposure_all_issued(struct cst_core *core);
/* One of them is done. */
void cst_exposure_done(struct cst_core *core);

void cst_exposure_stats(const struct cst_core *core, struct cst_core_stats *out);
/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_exposure_check(const struct cst_core *core);

#endif
