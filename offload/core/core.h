/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of one job. It takes an event and fills a list of actions. It does no I/O,
 * starts no threads and reads no clock: the daemon drives it with real engines, tests/sim and the
 * planner drive it with a virtual clock. Only one thread may use a core at a time.
 *
 *   event (request, completion, death, tick) -> cst_core_step() -> actions (commands, replies)
 *
 * Engines. Which engine executes a command:
 *
 *   - UPDATE, conversions and copies between arenas and staging segments: the engine of the chunk's
 *     node.
 *   - NORM: the engine of the first node.
 *   - Copies between a pool and an arena: the engine of the pool's GPU; for a pool in host memory,
 *     the engine of the chunk's node.
 *   - REDUCE: the engine that offload/gradient/reduce_site.h chooses.
 *
 * Therefore a command's `after` can name tickets of other engines. The driver gives the command to
 * its engine only when those tickets are complete. If a command fails, the commands that wait for
 * it fail with CST_ECANCELLED, unless it is `may_fail`. A ticket that is not in flight counts as
 * complete.
 *
 * Replies and completions. Each request carries a tag, which gets exactly one CST_ACT_REPLY, from
 * the same call or from a later one. Each command carries a ticket; tickets increase. The driver
 * must send exactly one CST_EV_DONE for each ticket, whatever happens to the engine in the
 * meantime.
 *
 * The phases of a job, as the core sees them:
 *
 *   all ranks SYNC --> RUNNING (attempt a, step s) --all ranks STEP--> commit: step s + 1
 *        ^                |                                            (same attempt)
 *        |                |
 *        +- INTERRUPTED <-+  A rank dies or leaves during a step, the accelerator of its pool is
 *        |                |  lost, a deadline passes, or the ranks' hyper-parameters differ:
 *        |                |  waiting requests are answered, contributions are dropped, updates of
 *        |                |  committed steps go on.
 *        |                |
 *        +- IDLE <--------+  A rank leaves before any other rank has begun the next step: nothing
 *                            is lost. INTERRUPTED becomes IDLE when all ranks have left in good
 *                            order, unless early updates of the step have begun.
 *
 * Loss of an accelerator. The engine of a lost accelerator returns its commands with EENGINE or
 * ELOST. The pools and the device reservation in its memory are lost; states in host memory are
 * not.
 *
 *   - Any command that was to read or write a lost pool interrupts the attempt. If all ranks have
 *     asked for the step, it is committed first, unless a sum or a contribution to it is lost.
 *   - The ranks with pools there get the accelerator's name and the cause as the answer to every
 *     request, until they leave or die and attach again. Their pools may be elsewhere by then
 *     (cst_core_move_pool). The other ranks wait for them in SYNC.
 *   - Updates that were begun go on, including early updates of the current step.
 *   - The job fails if states were on the accelerator or on their way from it
 *     (offload/update/update_end.c).
 *
 * Loss of a node's engine (CST_EV_NODE_DOWN): the engine died too often to be restarted at once.
 * Everything that it works on lies in host memory, and the driver keeps its commands. An engine
 * that is started later first restores what was half changed and then executes these commands, so
 * no state is lost.
 *
 *   - The attempt is interrupted, whether or not all ranks have asked for the step.
 *   - All attached ranks get the cause as the answer to every request, until they attach again.
 *   - Commands to and from staging segments (`io`) are not kept, because their requests are
 *     answered: these commands fail.
 *   - A failed WRITE of master weights fails the job, and so does a command that the driver has
 *     kept too often.
 *
 * A failed job does not train any more. Its rows can still be READ, except those of chunks for
 * which a command failed that was to change them.
 *
 * Copies of weights into a pool. An engine makes them with COPY commands, unless the pool has
 * worker_copies: then the rank's worker makes them. In such a pool a FETCH_WEIGHT is answered as
 * soon as a block is free and the chunk's update and writes are done. The reply says where the row
 * is (`home`).
 *
 *   - The row is not written while the worker reads it. Updates are issued at a commit (early
 *     updates are issued before, and write the other weight row), a commit needs the STEP of every
 *     rank, and a worker sends STEP when all its copies are done. WRITEs are refused from the first
 *     fetch to the commit. A worker that breaks this rule, or an attempt that is interrupted, can
 *     leave torn weights only in blocks leased by that worker. These blocks are then STALE and are
 *     granted to nobody.
 *   - The block is leased until its release, so it cannot be evicted. If the rank fetches the chunk
 *     again before, the reply has `home` again and is not a hit.
 *   - RELEASE means that the weights are in the block: from then on the block is cached as if an
 *     engine had filled it.
 *   - A lease that ends by death, leave or sync does not mean that: its block becomes free. A
 *     worker that goes on sends SYNC after its copies have ended. The blocks of a worker that hung
 *     up stay in quarantine until it is dead.
 *   - Such a pool is loaded by fetches only. PREFETCH does nothing and the trace is not followed:
 *     the worker fetches ahead itself.
 *
 * Groups. The sum of a chunk waits only for the ranks in its group (chunk.ranks of the layout).
 * Other ranks can neither fetch the chunk nor hand in its gradient (CST_EINVAL). SYNC and STEP
 * concern all ranks. A frozen chunk has no gradient (CST_EINVAL), no sum and no update. Its MASTER,
 * moments and GRAD cannot be read (CST_EUNSUPPORTED); a WRITE of its MASTER sets the weights. A
 * chunk of a base job cannot be written (CST_EDENIED).
 *
 * Micro-batches. Each rank counts its own: ACCUMULATE ends a micro-batch, STEP ends the last one. A
 * chunk collects one micro-batch at a time: what a rank hands in during its micro-batch m is added
 * when the group's contributions to micro-batch m - 1 are all in the row. A rank that ends
 * micro-batch m without handing in contributes zero. A rank that is ahead and opens the gradient
 * again waits until its previous contribution is in the row.
 *
 * An fp32 row takes contributions as they come, in the order of micro-batches and, in each
 * micro-batch, of ranks. Each addition is rounded to fp32, whether it has a command of its own or
 * not. Therefore, if a pool is short of blocks, the contributions of the first ranks can be added
 * before the last ones have come, with the same bits. (They cannot be spilled like a contribution
 * to a bf16 row, because an fp32 row holds the sum so far.) No rank can be blocked by this: of the
 * ranks in the earliest micro-batch, the lowest one can always empty its pool.
 *
 * Gradients in the weight row (layout's states.grad_over_weight). A chunk's sum, or a contribution
 * that leaves a pool, is written to the weight row. From then until the chunk's UPDATE is issued,
 * weights are made from the master weights, of which they are the bf16 rounding, by a ROUND into
 * the block or staging segment in place of a COPY. This stays so after an interrupted attempt or a
 * skipped step, until the next update. READ of GRAD gets CST_EUNSUPPORTED unless the row holds the
 * gradient. WRITE of WEIGHT gets CST_EUNSUPPORTED: a WRITE of MASTER sets the weights. WRITE of
 * MASTER gets CST_EBUSY while a gradient is being moved to the row. The gradients of fp32 tensors
 * have rows of their own all the same.
 *
 * fp32 tensors. Their weight row is the master row, too: READ and WRITE of MASTER use it, and an
 * UPDATE reads it as it reads the weights of split masters. Contributions to their gradients are
 * fp32, as their grad rows are, but what was said above of bf16 rows holds for these grad rows, if
 * there are no micro-batches: they keep one spilled contribution, and take a sum whole.
 *
 * Two weight rows (policy.overlap EARLY or DELAYED, or for readers; layout->states.two_weights).
 * Fetches read one row, an update writes the other, and a commit switches the rows:
 *
 *   - EARLY. By PREPARE a rank announces the hyper-parameters of its STEP. If all ranks have
 *     announced the same ones and do not clip, a chunk is updated as soon as its gradient is
 *     complete. All other updates are issued at the commit. Fetches read the old row until the
 *     commit. If the attempt is interrupted before it, the step must be repeated with the same
 *     hyper-parameters (else EMISMATCH). The repetition reads the same weights, and gradients of
 *     chunks that are already updated are dropped (n_dropped). So the step has the same bits as in
 *     the first attempt, provided that the gradients have. Until the commit, MASTER and moments of
 *     an updated chunk cannot be read, and no state can be written (EBUSY). If the sum was made
 *     within the update, GRAD cannot be read (EUNSUPPORTED). A step that all ranks prepared is not
 *     skipped because of a gradient beyond proto/grad_limit.h: its tile keeps its states.
 *   - DELAYED, from step delay_from on (the number of steps committed before it). Commit i switches
 *     to the row that update i - 1 wrote, then update i is issued: step i + 1 reads weights without
 *     it. READ returns the newest weights. A WRITE of weights or master weights ends the delay
 *     once: all chunks switch to their last updates.
 *
 * Stages (model->n_stages > 0). By NEXT a rank asks what it may do, and the core answers with a
 * unit, which is a stage, a micro-batch and a direction (offload/base/work_unit.h). The next
 * NEXT names the unit, and says that it is done. Instead of ACCUMULATE, units separate
 * micro-batches. The differences to other jobs:
 *
 *   - Ranks come and go. An attempt begins when all ranks that are attached have sent SYNC, and
 *     goes on when a rank dies, leaves, or sends SYNC again: its unit is given to another one. A
 *     rank that sends SYNC later joins the attempt that runs. The attempt is interrupted when no
 *     rank is left in it, or for a reason other than a rank's end.
 *   - The process of a rank that hung up may still write to the memory for activations, as may
 *     another rank that does its unit again. Its unit is therefore kept until the process is dead,
 *     or the driver has given the ranks other memory (CST_EV_SHUT_OUT). The latter ends the
 *     attempt, because what was put in this step is in the old memory: the step is done again.
 *   - A chunk collects the contributions of units in a fixed order: those of the last stage that
 *     uses the chunk by micro-batch, then those of the stage before it. Each is one addition in
 *     fp32, so the sum depends neither on the number of ranks nor on who computed what. What a dead
 *     rank has handed in counts. If another rank does the unit again, it hands in the same bits,
 *     which are dropped (n_dropped).
 *   - STEP is accepted when all units are done. The step is committed when all ranks that take part
 *     have sent it. The loss is the mean over the micro-batches, from the NEXTs of the last stage.
 *   - The trace of a rank predicts units of the pass that it keeps, and nothing about its next
 *     pass: nothing is prefetched. When a rank gets a unit of a stage or direction that it does not
 *     keep, the weights in its pool are dropped. Therefore a rank loads as much for a pass as any
 *     other would; if the pool has room for the stage, its weights are loaded once.
 *   - Several micro-batches are needed, and updates that are not early. All ranks hold all tensors.
 *   - With several rank blocks here (config.block_ranks), each has as many micro-batches, which are
 *     numbered rank block after rank block. Any rank does units of all of them.
 *
 * Other machines (config.machines; offload/base/machines.h says what cores tell each other):
 *
 *   - An attempt begins when all ranks of all machines are in SYNC, and ends on all machines when
 *     it ends on one. No attempt begins before the first CST_EV_MACHINES. With stages, ranks come
 *     and go on each machine as they do on one; each machine needs one that takes part.
 *   - A step is committed on all machines or on none. A step that closes is therefore interrupted
 * by the death of a rank until this machine is READY.
 *   - A chunk whose states are on other machines only has weights here, and the sum of the ranks
 *     here. READs and WRITEs of its other rows get CST_EUNSUPPORTED; a WRITE of MASTER sets the
 *     weights.
 *   - If no member has the states of a chunk, SYNC gets CST_ELOST, which names all such chunks,
 * until CST_EV_MACHINES brings a member that has them. Its weights cannot be read if they had not
 * come.
 *
 * In INTERRUPTED and IDLE, requests of the old attempt get EPEERDIED. Before the first SYNC they
 * get EINVAL ("sync first"). The blocks of a surviving rank stay leased until its SYNC, because
 * only then is it known that the worker no longer uses them. */
#ifndef CST_CORE_H
#define CST_CORE_H

#include "offload/base/core_config.h"
#include "offload/base/event.h"
#include "offload/base/stats.h"
#include "cistern/status.h"
#include "proto/table.h"

struct cst_core;
struct cst_core_record;

/* -- the core ------------------------------------------------------------------------------- */

/* CST_OK if a model that is cut into stages can be trained in a job with @micro_batches of each
 * rank block and @overlap, or if the model has no stages. Else CST_EINVAL. */
int cst_core_check_stages(const struct cst_model *model, uint32_t micro_batches,
                          enum cst_overlap overlap, struct cst_err *err);

/* Bytes of the heap that one more entry of the record of a rank's requests can take, in the record
 * and in the phases that are learned from it. */
#define CST_CORE_TRACE_ENTRY_BYTES 68

/* Let the record of @rank's requests have at most @n entries between two steps. Requests beyond
 * that are not learned, and nothing else depends on it. Without this call there is no such limit
 * below CST_TRACE_MAX_RECORD (offload/books/trace.h), which also limits @n. */
void cst_core_limit_trace(struct cst_core *core, uint32_t rank, uint32_t n);

/* Return whether the record of @rank will soon have as many entries as it may. */
bool cst_core_trace_wants(const struct cst_core *core, uint32_t rank);

/* Bytes of the heap that a core of @layout and @world ranks takes, with @n_blocks blocks in all
 * pools, without what it learns from the workers' requests. */
uint64_t cst_core_heap_bytes(const struct cst_layout *layout, const struct cst_model *model,
                             uint32_t world, uint64_t n_blocks);

/* Open a core. The caller closes *out with cst_core_close. Statuses:
 *
 *   - CST_EINVAL: cst_core_check_stages; too many ranks or device reservations, or no rank;
 *     micro-batches without fp32
 *     grad rows; early or delayed updates without a second weight row; a pool smaller than
 *     min_blocks of a size class; gradients in weight rows with a pool whose worker copies; a chunk
 *     with states on an accelerator without a device reservation that fits it.
 *   - CST_ENOMEM. */
int cst_core_open(struct cst_core **out, const struct cst_core_config *config, struct cst_err *err);
/* Free the core; NULL is allowed. Commands in flight are forgotten. */
void cst_core_close(struct cst_core *core);

/* Process @event and replace the contents of @actions by the resulting actions, which the caller
 * must carry out in order. Never fails: errors of a request are in its reply. Use the same @actions
 * for all calls: its capacity covers what is in flight, so only a new request can run out of memory
 * (CST_ENOMEM).
 *
 * How waits end: a command by its CST_EV_DONE; all others after peer_timeout_ns at the latest, a
 * NEXT so long after the last unit was done. Then a SYNC is answered with the missing ranks; a STEP
 * is, too, and the attempt ends; a fetch that waits for a block is answered with the states of the
 * blocks.
 *
 * That last deadline can end a step in one case: bf16 grad rows, groups of three or more ranks,
 * pools near min_blocks, and ranks that open different gradients (an expert without tokens in some
 * ranks). A bf16 row takes only one contribution before its sum. Groups of one or two ranks are
 * safe, and so are all groups with fp32 rows. */
void cst_core_step(struct cst_core *core, const struct cst_event *event,
                   struct cst_actions *actions);

/* Bytes in a staging segment of @n_elems elements of row @row of a tensor of @dtype, with `raw` and
 * `exponents` as in struct cst_event. Elements that are `bf16` have 2 bytes instead. */
uint64_t cst_core_io_bytes(const struct cst_layout_states *states, enum cst_dtype dtype,
                           enum cst_row row, bool raw, bool exponents, uint64_t n_elems);

/* CST_OK if @rank's pool can be moved. CST_EBUSY: the rank is attached; a block of the pool is in
 * use or being copied; or its accelerator is lost (@gone) and another attached rank has a pool
 * there and has not been told. */
int cst_core_may_move(const struct cst_core *core, uint32_t rank, bool gone, struct cst_err *err);

/* Replace the place of @rank's pool by that of @pool: memory of another accelerator or of the host.
 * The blocks and slabs stay the same. The caller has changed the ids in the array `segments`. */
void cst_core_move_pool(struct cst_core *core, uint32_t rank, const struct cst_core_pool *pool);

/* The slabs of @rank's pool that can have the only results of device updates, because the pool
 * lends its memory: their number, from slab *@first on; 0: there are none. A driver whose job is to
 * go on after its own death keeps them, and gives the new core a pool with these slabs in their
 * places. */
uint32_t cst_core_lent_slabs(const struct cst_core *core, uint32_t rank, uint32_t *first);

/* Set prefetch_depth of cst_core_policy, from the next look ahead on. */
void cst_core_set_prefetch(struct cst_core *core, uint32_t depth);

/* Set k of device updates, from the next commit on: the last of every @k consecutive chunks of a
 * node, in the order of updates, gets a device update. 0: none (k = infinity); 1: all. Has no
 * effect without device reservations. A chunk that fits no device reservation is updated by its
 * node. Results do not depend on k. */
void cst_core_set_interleave(struct cst_core *core, uint32_t k);

/* The latest time at which the core needs a TICK, in ns; or CST_CORE_NEVER. */
uint64_t cst_core_deadline(const struct cst_core *core);

/* Check all invariants: NULL, or the name of one that does not hold. For tests; slow. */
const char *cst_core_check(const struct cst_core *core);

/* Number of the last attempt that is over; 0: none is. */
uint64_t cst_core_attempt_over(const struct cst_core *core);

/* Return whether the core has device reservation @what and has not given it up (stats.h). Compared
 * are `engine`, `lent` and, if the memory is lent, `rank`. */
bool cst_core_uses_reservation(const struct cst_core *core,
                               const struct cst_core_device_reservation *what);

/* Time at which the lease @generation of @rank on the weights or the gradient of @chunk was
 * granted, the last time if it was granted several times, in ns; 0: there is no such lease. */
uint64_t cst_core_granted_at(const struct cst_core *core, uint32_t rank, uint32_t chunk, bool grad,
                             uint64_t generation);

/* True if states of the job are lost. */
bool cst_core_has_failed(const struct cst_core *core);

/* True if a reader can keep what is in the weight row @row (CST_EV_KEEP): it is readable, and the
 * commit that is being made, if any, does not overwrite it. */
bool cst_core_may_keep(const struct cst_core *core, uint32_t row);

/* The step of the last commit that this core has recorded, with other machines: the last step, or
 * the one after it. */
uint64_t cst_core_recorded_step(const struct cst_core *core);

/* True if no step can begin or be committed before machines come that have the ranks of lost ones
 * (epochs.h). */
bool cst_core_awaits_ranks(const struct cst_core *core);

/* COPYs from other machines that have failed. When there are more, CST_EV_MACHINES has to follow
 * (offload/base/machines.h). */
uint64_t cst_core_failed_transfers(const struct cst_core *core);

/* Exposed update time of the last committed step, in ns: last_exposed_ns of cst_core_stats. */
uint64_t cst_core_exposed_ns(const struct cst_core *core);

/* Statistics of a rank, and of the job. */
void cst_core_rank_stats(const struct cst_core *core, uint32_t rank, struct cst_rank_stats *out);
void cst_core_stats(const struct cst_core *core, struct cst_core_stats *out);

/* Statistics of machine @machine of the job; all 0 if there is none, or it is this one. */
void cst_core_machine_stats(const struct cst_core *core, uint32_t machine,
                            struct cst_machine_stats *out);

/* The set of machines of which something is missing now for the step, though all of it is done
 * here; 0: there is none. *since_ns receives the time of the last work here or arrival. */
uint64_t cst_core_waits_for(const struct cst_core *core, uint64_t *since_ns);

/* What the driver records of the last committed step of a durable job (CST_ACT_SEAL). */
struct cst_core_seal {
    uint32_t place; /* 0 or 1: which place of each row has the states. */
    /* Checksums of chunk c's rows in files at c x CST_DURABLE_ROWS (proto/durable.h); 0: not known.
     * Borrowed until the next event. */
    const uint64_t *sums;
};

/* True if the last committed step of a durable job is still to be sealed, and the job has not
 * failed. */
bool cst_core_seals(const struct cst_core *core);

void cst_core_seal_of(const struct cst_core *core, struct cst_core_seal *out);

/* Return CST_OK if @attempt runs. Otherwise *err says why not: CST_EPEERDIED if the attempt is
 * over, CST_EINVAL if it was never begun, or why the job failed. */
int cst_core_check_attempt(const struct cst_core *core, uint64_t attempt, struct cst_err *err);

/* Fill in how many Adam steps each tensor had no gradient in, in the order of declaration; 0 if the
 * job does not skip such tensors. */
void cst_core_missed_steps(const struct cst_core *core, uint64_t *missed);

/* True if other ranks wait for @rank, or will, which hung up: CST_EV_SHUT_OUT ends that. */
bool cst_core_held_up_by(const struct cst_core *core, uint32_t rank);

/* Write the ranks into @text for which others wait in SYNC or STEP: "rank 1 (died in step 4), rank
 * 3 (never attached)". Empty if no rank waits for another. */
void cst_core_waits(const struct cst_core *core, char *text, size_t size);

/* Write sentences for people into @lines, each NUL-terminated, at most @max: where chunk @chunk is
 * in host memory and in each rank, in which state, and why (next use, waiting fetches, last
 * eviction). Returns the number of lines. */
unsigned cst_core_explain(const struct cst_core *core, uint32_t chunk, char lines[][192],
                          unsigned max);

/* Fill the chunks, the spans and grad_bytes of the job table from the layout. Spans are the tensors
 * that are not frozen. cst_table_size has set the counts in the header. @table has
 * header->total_bytes. */
void cst_core_write_table(const struct cst_core_config *config, struct cst_table_header *table);

/* True if a new core over the same rows would read the same states: fetches read the first weight
 * row of every chunk, and it has the newest weights. Updates may be in flight. */
bool cst_core_is_plain(const struct cst_core *core);

/* The job is restored to Adam step @adam_step: clear the marks of later UPDATEs, so that none of
 * the updates to come is taken for one that is done. No UPDATE is in flight. */
void cst_core_forget_updates(struct cst_table_header *table, uint64_t adam_step);

#endif
