/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the core that end a step. Private to offload/.
 *
 *   commit.c          norm, commit, order of updates
 *   update.c          one update of a chunk
 *   overlap.c         which weight row is read and written; early and delayed updates
 *   device_update.c   updates on accelerators
 *   kept_gradients.c  gradients that stay on an accelerator
 *   fallback.c        failed commands of updates on accelerators
 *   exposure.c        how long updates are in flight */
#ifndef CST_UPDATES_H
#define CST_UPDATES_H

#include "offload/hyper.h"
#include "offload/parts.h"

/* -- commit.c: the step ----------------------------------------------------------------------- */

/* Handle CST_EV_STEP. */
void cst_commit_step(struct cst_core *core, const struct cst_event *event);

/* Issue the NORM if all gradients are reduced and no WRITE is in flight. */
void cst_commit_close(struct cst_core *core);

/* Handle the completion of the NORM: commit. */
void cst_commit_normed(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event);

/* -- update.c: one chunk ---------------------------------------------------------------------- */

/* Where the next update of @chunk writes its weights. */
struct cst_place cst_update_weight(const struct cst_core *core, uint32_t chunk);

/* Issue the update @what, as a device update if it is the chunk's turn. */
void cst_update_issue(struct cst_core *core, const struct cst_update *what);
/* Issue the update @what to the node's engine. Returns the command, which the caller may extend. */
struct cst_command *cst_update_at_home(struct cst_core *core, const struct cst_update *what);
/* Fill in the fields of the command that do not depend on where @what is executed. */
void cst_chunk_update_fill(const struct cst_core *core, struct cst_command *command,
                           const struct cst_update *what);

/* Make @command wait until everything that the chunk's update writes is there. (A command that only
 * reads the weights waits for update_ticket.) */
void cst_chunk_update_before(struct cst_command *command, const struct cst_chunk *chunk);
/* True if no update of the chunk is in flight. */
bool cst_chunk_update_is_over(const struct cst_chunk *chunk);

/* Issue the last update of @chunk to the node's engine. Replaces a device update of which nothing
 * has been copied down. */
void cst_update_return(struct cst_core *core, uint32_t chunk);

/* Handle the completion of any command of an update. */
void cst_update_end(struct cst_core *core, const struct cst_flight *flight,
                    const struct cst_event *event);

/* -- device_update.c: updates on accelerators -------------------------------------------------- */

/* CST_EINVAL: too many device reservations; or a chunk has its states on an accelerator without a
 * device reservation that fits it. CST_ENOMEM. The caller calls cst_device_updates_close in any
 * case. */
int cst_device_updates_open(struct cst_core *core, const struct cst_core_config *config,
                            struct cst_err *err);
/* Free the books of all device reservations. */
void cst_device_updates_close(struct cst_core *core);
/* All updates of a step are issued: the next update is number 1 of a new order, with the k that is
 * set then. */
void cst_device_updates_end(struct cst_core *core);
/* The device reservation for the next update, which is that of @chunk; CST_NONE: none. Counts the
 * update. */
uint32_t cst_device_update_choose(struct cst_core *core, uint32_t chunk);
/* True if the next update, that of @chunk, is to be made by its node; it is then counted. False: it
 * is to be a device update. */
bool cst_device_update_pass(struct cst_core *core, uint32_t chunk);
/* Issue the device update @what in the device reservation @room. */
void cst_device_update_update(struct cst_core *core, uint32_t room, const struct cst_update *what);

/* The device update of @chunk failed and nothing has been copied down: the next update in its
 * buffer waits for nothing. */
void cst_device_update_leave(struct cst_core *core, uint32_t chunk);
/* Use the device reservation @room for no further updates. */
void cst_device_update_give_up(struct cst_core *core, uint32_t room);
/* Issue again the COPY down after a device update that @flight was and that failed. */
void cst_device_update_copy_again(struct cst_core *core, const struct cst_flight *flight);

/* -- fallback.c: failed device updates -------------------------------------------------------- */

/* A gradient could not be kept in a device reservation. Nothing else depends on it. */
void cst_update_end_kept(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event);

/* -- overlap.c: weight rows and times of updates ----------------------------------------------- */

/* Weight rows of @chunk: side (the weight side): the one that fetches read; newest: the one with
 * all committed updates; target: the one that an update issued now writes. */
enum cst_row cst_weight_row_side(const struct cst_core *core, uint32_t chunk);
enum cst_row cst_weight_row_newest(const struct cst_core *core, uint32_t chunk);
enum cst_row cst_weight_row_target(const struct cst_core *core, uint32_t chunk);

/* CST_EBUSY: @row of @chunk belongs to a step that is not committed. CST_EUNSUPPORTED: the gradient
 * was never stored. */
int cst_overlap_check_read(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                           struct cst_err *err);
/* CST_EBUSY: a step that is not committed has updated chunks. */
int cst_overlap_check_write(const struct cst_core *core, struct cst_err *err);

/* The step is committed: update @chunk as @update says, unless that is already done, and switch
 * fetches to the row that they read from now on. NULL: the step is skipped. */
void cst_overlap_committed(struct cst_core *core, uint32_t chunk, const struct cst_update *update);
/* Switch fetches to the last updates now, not at the next commit. */
void cst_overlap_flush(struct cst_core *core);

/* True if updates of the current step keep the states of tiles beyond proto/grad_limit.h. */
bool cst_overlap_guards(const struct cst_core *core);

/* The gradient of @chunk is complete: update the chunk now if early updates are allowed. */
void cst_overlap_complete(struct cst_core *core, uint32_t chunk);
/* All contributions have come: issue one command for sum and update if that is allowed. False:
 * nothing was done. */
bool cst_overlap_fuse(struct cst_core *core, uint32_t chunk);
/* Handle CST_EV_PREPARE. */
int cst_prepare_compare_steps(const struct cst_core *core, struct cst_err *err);
void cst_prepare(struct cst_core *core, const struct cst_event *event);
/* CST_EMISMATCH: @rank's STEP differs from what was prepared, or from the begun updates. */
int cst_prepare_check_step(const struct cst_core *core, uint32_t rank, struct cst_err *err);

/* -- kept_gradients.c: gradients that stay on an accelerator ----------------------------------- */

/* CST_ENOMEM: the caller calls cst_kept_gradients_close nevertheless. */
int cst_kept_gradients_open(struct cst_room *room);
void cst_kept_gradients_close(struct cst_room *room);
/* The sum of @chunk is about to be issued: keep a copy of its gradient on the accelerator if
 * possible. Returns the ticket that the sum has to wait for; 0: none. */
uint64_t cst_kept_gradients_keep(struct cst_core *core, uint32_t chunk, uint32_t rank);
/* The place of @chunk's kept gradient, for an update in the same device reservation. The slot is
 * freed when the caller's command, whose flight names device reservation and slot, is complete. */
struct cst_place cst_kept_gradients_use(struct cst_core *core, uint32_t chunk);
/* The kept gradient of the chunk is not needed. */
void cst_kept_gradients_drop(struct cst_core *core, uint32_t chunk);
/* Handle the completion of a command that wrote or read a slot. */
void cst_kept_gradients_done(struct cst_core *core, const struct cst_flight *flight);
/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_kept_gradients_check(const struct cst_core *core);

/* -- exposure.c: durations of updates ---------------------------------------------------------- */

/* A command that ends an update was issued: an UPDATE in place or a COPY down after a device
 * update. */
void cst_exposure_issued(struct cst_core *core);
/* One command was issued in place of @n commands that end an update. */
void cst_exposure_replaced(struct cst_core *core, uint32_t n);
/* The step is committed and all its updates, if any, are issued. */
void cst_exposure_all_issued(struct cst_core *core);
/* A command that ends an update is done. */
void cst_exposure_done(struct cst_core *core);

/* Fill in the statistics about rounds and durations of updates. */
void cst_exposure_stats(const struct cst_core *core, struct cst_core_stats *out);
/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_exposure_check(const struct cst_core *core);

#endif
