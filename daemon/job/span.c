/* SPDX-License-Identifier: Apache-2.0 */
/* Meeting, and the end. span_join.c connects the engines, span_core.c the cores. */
#include "daemon/job/span.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/net_engine.h"
#include "daemon/engine/net_peers.h"
#include "daemon/job/ended_parts.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/span_parts.h"
#include "daemon/memory/job_options.h"
#include "offload/layout/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* True if @job has ranks on other nodes. */
static bool is_wanted(const struct cstd_job *job)
{
    return cst_job_all_ranks(&job->spec) > job->world;
}

/* -- who has which ranks ---------------------------------------------------------------------- */

static void on_up(struct cstd_links_watch *watch, struct cstd_machine *peer)
{
    struct cstd_span *span = cstd_owner_of(watch, struct cstd_span, watch);

    if (span->state == CSTD_SPAN_MEETING) {
        cstd_span_tell_here(span->job, peer, 0);
    }
    cstd_span_link(span, peer, true);
}

static void on_down(struct cstd_links_watch *watch, struct cstd_machine *peer,
                    const struct cst_err *why)
{
    struct cstd_span *span = cstd_owner_of(watch, struct cstd_span, watch);
    struct cstd_span_machine *machine = cstd_span_find(span, peer);
    struct cst_err err;

    if (machine == NULL) {
        return;
    }
    if (span->state == CSTD_SPAN_JOINED) {
        cstd_span_link(span, peer, false);
    }
    if (span->members != NULL || span->record != NULL) {
        return;
    }
    (void)cst_err_set(&err, CST_ECONN, "job '%s': the link to node '%s' is down: %s",
                      span->job->name, peer->entry.name, why->text);
    span->gone = err; /* For the next phase that waits for other nodes. */
    if (span->state == CSTD_SPAN_JOINED) {
        span->job->daemon->span_ops->told(span->job);
    } else {
        span->job->daemon->span_ops->met(span->job, &err);
    }
}

/* Nobody drains a node away from a job: its jobs end first. */
static void on_drain(struct cstd_links_watch *watch, struct cstd_machine *peer)
{
    (void)watch;
    (void)peer;
}

/* Options of struct cst_job_spec that a job on several nodes cannot have yet. */
static int check_options(const struct cstd_job *job, struct cst_err *err)
{
    const struct {
        bool has;
        const char *what, *remedy;
    } rows[] = {
        {job->base != NULL, "base", "leave base out"},
        {job->files.n > 0, "disk", "leave disk out"},
        {job->predecessor != NULL, "reshape", "leave reshape out"},
        {job->spec.states.grad_over_weight, "grad_over_weight", "leave it out"},
        {job->spec.updates.overlap != CST_OVERLAP_COMMIT, "overlap", "set overlap to commit"}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].has) {
            return cst_err_set(err, CST_EUNSUPPORTED,
                               "job '%s' has ranks on several nodes, and %s: this version does "
                               "either; %s",
                               job->name, rows[i].what, rows[i].remedy);
        }
    }
    return CST_OK;
}

void cstd_span_watch(struct cstd_span *span)
{
    span->watch =
        (struct cstd_links_watch){.on_up = on_up, .on_down = on_down, .on_drain = on_drain};
    cstd_links_watch(span->job->daemon->links, &span->watch);
}

static int make(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_span *span;

    if (job->daemon->links == NULL) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "job '%s' has %" PRIu32 " ranks, of which %" PRIu32
            " are on this node, and this daemon has no links to others: set 'listen' "
            "in [node] of cistern.conf, see cistern-nodes(7)",
            job->name, cst_job_all_ranks(&job->spec), job->world);
    }
    if (check_options(job, err) != CST_OK || cstd_span_make(job, 0, err) != CST_OK) {
        return err->status;
    }
    span = job->span;
    span->n = 1;
    span->machines[0] = (struct cstd_span_machine){
        .life = span->life, .first_rank = job->spec.nodes.first_rank, .world = job->world};
    cstd_span_watch(span);
    return CST_OK;
}

static int by_first_rank(const void *a, const void *b)
{
    const struct cstd_span_machine *x = a, *y = b;

    return x->first_rank < y->first_rank ? -1 : x->first_rank > y->first_rank;
}

/* All rank blocks have as many ranks, and there are not too many. */
static int check_blocks(const struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_span *span = job->span;
    const uint32_t block =
        job->spec.updates.block_ranks > 0 ? job->spec.updates.block_ranks : span->machines[0].world;
    uint32_t n = 0;

    for (uint32_t m = 0; m < span->n; m++) {
        if (span->machines[m].world % block != 0 ||
            (job->spec.updates.block_ranks == 0 && span->machines[m].world != block)) {
            return cst_err_set(err, CST_EINVAL,
                               "job '%s' has %" PRIu32 " ranks on node '%s' and %" PRIu32
                               " on the first one: give block_ranks, of which each node has a "
                               "multiple",
                               job->name, span->machines[m].world, cstd_span_name(span, m),
                               span->machines[0].world);
        }
        n += span->machines[m].world / block;
    }
    return n <= CST_RANK_BLOCKS_MAX
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "job '%s': %" PRIu32 " rank blocks of %" PRIu32
                             " ranks; a job has at most %d: give a larger block_ranks",
                             job->name, n, block, CST_RANK_BLOCKS_MAX);
}

/* If the parts have all ranks, number them. CST_EAGAIN: they have not. */
static int number(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_span *span = job->span;
    uint32_t n_ranks = 0;

    for (uint32_t m = 0; m < span->n; m++) {
        n_ranks += span->machines[m].world;
    }
    if (n_ranks < cst_job_all_ranks(&job->spec)) {
        return CST_EAGAIN;
    }
    qsort(span->machines, span->n, sizeof *span->machines, by_first_rank);
    n_ranks = 0;
    for (uint32_t m = 0; m < span->n; m++) {
        if (span->machines[m].first_rank != n_ranks) {
            return cst_err_set(
                err, CST_EMISMATCH,
                "job '%s': rank %" PRIu32 " of all is on no node, or on two: first_rank is %" PRIu32
                " on node '%s'",
                job->name, n_ranks, span->machines[m].first_rank, cstd_span_name(span, m));
        }
        n_ranks += span->machines[m].world;
        span->self = span->machines[m].peer == NULL ? m : span->self;
    }
    if (check_blocks(job, err) != CST_OK) {
        return err->status;
    }
    if (job->spec.nodes.copies > span->n) {
        return cst_err_set(err, CST_EINVAL,
                           "job '%s': %" PRIu32 " copies of the states on %" PRIu32
                           " nodes: give copies 1 to %" PRIu32,
                           job->name, job->spec.nodes.copies, span->n, span->n);
    }
    for (uint32_t m = 0; m < span->n; m++) {
        span->names[m] = cstd_span_name(span, m);
    }
    span->state = CSTD_SPAN_PLANNING;
    cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job),
                   "%" PRIu32 " ranks on %" PRIu32 " nodes, this one is number %" PRIu32, n_ranks,
                   span->n, span->self);
    return CST_OK;
}

int cstd_span_meet(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_machine *peer;

    if (!is_wanted(job)) {
        return CST_OK;
    }
    if (make(job, err) != CST_OK) {
        return err->status;
    }
    TAILQ_FOREACH(peer, cstd_links_machines(job->daemon->links), link)
    {
        if (peer->up != NULL) {
            cstd_span_tell_here(job, peer, 0);
        }
    }
    return CST_EAGAIN;
}

/* -- HERE ------------------------------------------------------------------------------------- */

/* Compare what the part @here of @node is made for with this one. */
static int compare(const struct cstd_job *job, const struct cstd_machine *peer,
                   const Span__Here *here, struct cst_err *err)
{
    Cistern__JobOpen *open = cistern__job_open__unpack(NULL, here->options.len, here->options.data);
    struct cst_job_spec theirs = {0};
    int rc = open == NULL ? cst_err_set(err, CST_EPROTO, "the options of a part are none")
                          : cst_job_options_take(&theirs, &open->base, err);

    theirs.nodes.first_rank = job->spec.nodes.first_rank;
    theirs.nodes.all_ranks = job->spec.nodes.all_ranks; /* Compared below. */
    if (rc == CST_OK) {
        rc = cstd_job_options_same(&job->spec, &theirs, err);
    }
    if (rc == CST_OK && here->all_ranks != cst_job_all_ranks(&job->spec)) {
        rc = cst_err_set(err, CST_EMISMATCH,
                         "job '%s' has %" PRIu32 " ranks here, and %" PRIu32 " there", job->name,
                         cst_job_all_ranks(&job->spec), here->all_ranks);
    }
    if (rc == CST_OK && (here->world == 0 || here->first_rank >= here->all_ranks ||
                         here->world > here->all_ranks - here->first_rank)) {
        rc = cst_err_set(err, CST_EPROTO,
                         "job '%s' has %" PRIu32 " ranks from %" PRIu32 " on there, of %" PRIu32
                         ", which cannot be: its cistern differs",
                         job->name, here->world, here->first_rank, here->all_ranks);
    }
    if (rc == CST_OK && here->digest != cst_model_digest(&job->model, 1)) {
        rc = cst_err_set(err, CST_EMISMATCH,
                         "job '%s' has another model there, with %" PRIu32
                         " ranks, than here, with %" PRIu32
                         ": names, shapes, operators or groups of ranks differ; experts need "
                         "equally many ranks on each node",
                         job->name, here->world, job->world);
    }
    if (rc != CST_OK) {
        (void)cst_err_prefix(err, "node '%s'", peer->entry.name);
    }
    cistern__job_open__free_unpacked(open, NULL);
    return rc;
}

/* Enter the part @here of @node. */
static int add_part(struct cstd_job *job, struct cstd_machine *peer, const Span__Here *here,
                    struct cst_err *err)
{
    struct cstd_span *span = job->span;

    if (compare(job, peer, here, err) != CST_OK) {
        return err->status;
    }
    if (span->n == CST_MACHINES_MAX) {
        return cst_err_set(err, CST_EUNSUPPORTED, "job '%s': more than %d nodes", job->name,
                           CST_MACHINES_MAX);
    }
    for (uint32_t m = 0; m < span->n; m++) {
        const struct cstd_span_machine *other = &span->machines[m];

        if (here->first_rank < other->first_rank + other->world &&
            other->first_rank < here->first_rank + here->world) {
            return cst_err_set(err, CST_EMISMATCH,
                               "job '%s': ranks from %" PRIu32 " on are on node '%s', and ranks "
                               "from %" PRIu32 " on are on node '%s': some are on both",
                               job->name, other->first_rank, cstd_span_name(span, m),
                               here->first_rank, peer->entry.name);
        }
    }
    if (cstd_machine_hold(peer, err) != CST_OK) {
        return err->status;
    }
    span->replaces = span->replaces || here->goes_on;
    span->machines[span->n++] = (struct cstd_span_machine){.peer = peer,
                                                           .goes_on = here->goes_on,
                                                           .life = here->from->life,
                                                           .first_rank = here->first_rank,
                                                           .world = here->world};
    return CST_OK;
}

/* The job has all its parts, and @here is another one: it takes the place of one that was lost, or
 * is refused. A part that overlaps the one here, or differs, is told of this one, and finds why. */
static void take_other(struct cstd_job *job, struct cstd_machine *peer, const Span__Here *here)
{
    const struct cstd_span *span = job->span;
    const struct cstd_span_machine *self = &span->machines[span->self];
    struct cst_err err = {0};
    const bool fits = compare(job, peer, here, &err) == CST_OK;

    if (fits && cstd_span_replace(job, peer, here)) {
        return;
    }
    if (fits) {
        (void)cst_err_set(&err, CST_EMISMATCH,
                          "node '%s' has begun ranks %" PRIu32 " to %" PRIu32
                          " of this job, which goes on here: its part waits until the node that "
                          "had these ranks is given up (see 'cistern job %s')",
                          peer->entry.name, here->first_rank, here->first_rank + here->world - 1,
                          job->name);
    }
    cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job), "%s", err.text);
    if (here->heard != span->life &&
        (!fits || (here->first_rank < self->first_rank + self->world &&
                   self->first_rank < here->first_rank + here->world))) {
        cstd_span_tell_here(job, peer, here->from->life);
    }
}

static void take_here(struct cstd_job *job, struct cstd_machine *peer, const Span__Here *here)
{
    struct cstd_span *span = job->span;
    struct cstd_span_machine *machine = cstd_span_find(span, peer);
    const bool meets = span->state == CSTD_SPAN_MEETING;
    struct cst_err err = {0};
    int rc = CST_OK;

    if (machine == NULL && meets) {
        rc = add_part(job, peer, here, &err);
        if (rc != CST_OK) { /* That node finds the same, and tells its ranks. */
            cstd_span_tell_here(job, peer, here->from->life);
        }
    } else if (machine == NULL || machine->life != here->from->life) {
        take_other(job, peer, here);
        return;
    }
    if (rc == CST_OK && here->heard != span->life) {
        cstd_span_tell_here(job, peer, here->from->life);
    }
    if (rc == CST_OK && meets) {
        rc = number(job, &err);
    }
    if (meets && rc != CST_EAGAIN) {
        job->daemon->span_ops->met(job, &err);
    }
}

static int on_here(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                   struct cst_err *err)
{
    Span__Here *here = span__here__unpack(NULL, n, body);
    struct cstd_job *job;

    if (here == NULL || here->from->life == 0) {
        span__here__free_unpacked(here, NULL);
        return cst_err_set(err, CST_EPROTO, "no part of a job");
    }
    job = cstd_span_job(arg, here->from);
    if (job != NULL) {
        take_here(job, peer, here);
    }
    span__here__free_unpacked(here, NULL);
    return CST_OK;
}

/* -- the end ---------------------------------------------------------------------------------- */

/* This part of the job ends, because machine @machine has none any more, or tells it to. */
static void end_with(struct cstd_job *job, struct cstd_span_machine *machine, bool removed,
                     const struct cst_err *why)
{
    struct cstd_span *span = job->span;
    const uint32_t m = cstd_span_number(span, machine);

    if (span->is_complete && !cstd_span_is_member(span, m)) {
        cstd_span_away(span, m); /* It was to take the place of a lost one. */
        return;
    }
    span->gone = *why;
    /* Before all were members, nothing was trained. */
    if (removed || (span->state == CSTD_SPAN_JOINED && !span->is_complete)) {
        cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "removed: %s", why->text);
        span->ends_all = true;
        job->daemon->span_ops->removed(job, why);
    } else if (span->state == CSTD_SPAN_JOINED) {
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job), "%s", why->text);
        cstd_span_lost(span, m);
    } else {
        job->daemon->span_ops->met(job, why);
    }
}

/* False: the part that is meant may be one of an earlier daemon that does not go on yet. */
static bool may_take_gone(struct cstd_daemon *daemon, const Span__Key *key)
{
    const struct cstd_job *job = cstd_job_find(daemon, key->uid, key->name);

    return job != NULL ? job->state != CSTD_JOB_REVIVING : !cstd_span_may_come_back(daemon);
}

static int on_gone(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                   struct cst_err *err)
{
    Span__Gone *gone = span__gone__unpack(NULL, n, body);
    struct cstd_span_machine *machine;
    struct cstd_job *job;
    struct cst_err why;

    if (gone == NULL || gone->status >= 0) {
        span__gone__free_unpacked(gone, NULL);
        return cst_err_set(err, CST_EPROTO, "no end of a job");
    }
    if (!may_take_gone(arg, gone->from)) {
        span__gone__free_unpacked(gone, NULL);
        return CST_OK; /* It is told again. */
    }
    cstd_ended_parts_seen(peer, gone);
    machine = cstd_span_sender(arg, peer, gone->from, &job);
    if (machine != NULL) {
        (void)cst_err_set(&why, gone->status, "node '%s': %s", peer->entry.name, gone->why);
        end_with(job, machine, gone->removed, &why);
    }
    span__gone__free_unpacked(gone, NULL);
    return CST_OK;
}

/* A part that has lost its states comes back without them: it is no member any more. */
static int on_none(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                   struct cst_err *err)
{
    Span__None *none = span__none__unpack(NULL, n, body);
    struct cstd_span_machine *machine;
    struct cstd_job *job;
    struct cst_err why;
    char text[160];

    if (none == NULL) {
        return cst_err_set(err, CST_EPROTO, "no answer about a job");
    }
    job = cstd_span_job(arg, none->from);
    machine = job != NULL ? cstd_span_find(job->span, peer) : NULL;
    if (machine != NULL && job->span->life == none->from->life &&
        job->span->state == CSTD_SPAN_JOINED && job->span->members != NULL) {
        if (none->replaced) {
            (void)snprintf(text, sizeof text,
                           "node '%s' goes on with another part in place of this one",
                           peer->entry.name);
            cstd_span_leave(job->span, text);
        } else {
            (void)cst_err_set(&why, CST_ELOST, "node '%s' has lost its part of job '%s'",
                              peer->entry.name, job->name);
            end_with(job, machine, false, &why);
        }
    }
    span__none__free_unpacked(none, NULL);
    return CST_OK;
}

void cstd_span_end_all(struct cstd_job *job)
{
    if (job->span != NULL) {
        job->span->ends_all = true;
    }
}

/* Tell the other parts that this one ends, because of @why. */
static void tell_gone(struct cstd_job *job, const struct cst_err *why)
{
    struct cstd_span *span = job->span;
    Span__Gone gone = SPAN__GONE__INIT;
    Span__Key key = cstd_span_key(job);

    gone.from = &key;
    gone.removed = span->ends_all;
    gone.status = why->status < 0 ? why->status : CST_ECANCELLED;
    gone.why = why->status < 0 ? (char *)(uintptr_t)why->text
                               : (char *)(uintptr_t) "the job was removed there";
    for (uint32_t m = 0; m < span->n; m++) {
        if (span->machines[m].peer != NULL) {
            cstd_ended_parts_tell(job->daemon, span->machines[m].peer, &gone);
        }
    }
}

void cstd_span_close(struct cstd_job *job, const struct cst_err *why)
{
    struct cstd_span *span = job->span;

    if (span == NULL || span->watch.on_up == NULL) {
        cstd_span_drop(job); /* It was not opened. */
        return;
    }
    if (span->record == NULL) { /* Otherwise a later daemon may go on with it. */
        tell_gone(job, why);
    }
    cstd_links_unwatch(&span->watch);
    cstd_span_read_close(span);
    cstd_span_part(span);
    for (uint32_t m = 0; m < span->n; m++) {
        struct cstd_span_machine *machine = &span->machines[m];

        if (machine->peer != NULL) {
            cstd_machine_release(machine->peer);
        }
        free(machine->squares);
        free(machine->told);
        free(machine->end);
    }
    if (span->has_engine) {
        cstd_net_engine_release(job->daemon->engines, span->engine);
    }
    job->span = NULL;
    free(span);
}

void cstd_span_handle(struct cstd_daemon *daemon, const struct cstd_span_ops *ops)
{
    daemon->span_ops = ops;
    cstd_ended_parts_handle(daemon);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_HERE, on_here, daemon);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_GONE, on_gone, daemon);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_NONE, on_none, daemon);
    cstd_span_handle_chunks(daemon);
    cstd_span_handle_net(daemon);
    cstd_span_handle_core(daemon);
    cstd_span_handle_reads(daemon);
    cstd_span_handle_replace(daemon);
}
