/* SPDX-License-Identifier: Apache-2.0 */
/* A job that has ranks on several nodes (struct cst_job_nodes): the part that this daemon has in
 * it. Each daemon has a job of its own, with the ranks of its node, and a core that knows the
 * others as machines (offload/base/machines.h). A job with all its ranks on one node has no span.
 *
 *   MEETING --ranks of all parts are known--> PLANNING --chunks--> JOINING --all engines are
 *                                                                           connected--> JOINED
 *
 * Meeting. Parts of a job have the same owner, the same name and the same number of ranks. Each
 * daemon tells all nodes to which it has a link of its part (HERE), until the parts have all ranks.
 * They are numbered in the order of their ranks, and node 0 says which size the chunks have
 * (CHUNKS).
 *
 * Joining. Each daemon starts an engine for the job, tells the others how it is reached and which
 * segments it serves (NET), and adds theirs. From then on, members.h says who belongs to the job,
 * and messages between the cores go over the links (span_core.c).
 *
 * A part that fails, or is removed, tells the others (GONE), whose commits then fail with the same
 * cause.
 *
 * A daemon that restarts goes on with the part that its ledger has: the span is JOINED at once, and
 * the other machines join again one by one, when they have told how their engines are reached
 * (span_keep.c). Loop thread only. */
#ifndef CSTD_SPAN_H
#define CSTD_SPAN_H

#include "daemon/base/deferred.h"
#include "daemon/links/links.h"
#include "offload/base/event.h"
#include "offload/base/machines.h"
#include "offload/layout/layout.h"
#include "daemon/ledger/ledger_file.h"
#include "offload/machines/members.h"

#define CSTD_SPAN_TOKEN_BYTES 16
/* Most bytes of messages of a later epoch that wait until it holds here. */
#define CSTD_SPAN_MAX_EARLY (16u << 20)
/* Most reads of other nodes that wait for the window. */
#define CSTD_SPAN_MAX_ASKS 1024
/* The tag of the read for which the window is used, which is that of no request (pending.h). */
#define CSTD_SPAN_READ_TAG UINT64_C(0xffffffff)

struct cstd_daemon;
struct cstd_job;
struct cstd_segment;
struct cstd_span_ask;
struct cstd_span_early;
struct cstd_span_read;
struct cstd_span_timers;

enum cstd_span_state {
    CSTD_SPAN_MEETING,
    CSTD_SPAN_PLANNING,
    CSTD_SPAN_JOINING,
    CSTD_SPAN_JOINED,
};

/* A segment of another machine. */
struct cstd_span_segment {
    uint32_t id; /* There. */
    uint64_t bytes;
    struct cstd_segment *segment; /* Here: what the net engine calls it. Holds a reference. */
};

/* The part of the job on one node. */
struct cstd_span_machine {
    struct cstd_machine *peer; /* Held; NULL: this node. */
    uint64_t life;             /* Of the part; not 0. */
    uint32_t first_rank, world;
    uint8_t *end; /* Its engine, as its daemon has told; owned. NULL: not yet. */
    size_t end_bytes;
    struct cstd_span_segment *segments; /* Owned. */
    uint32_t n_chunks;                  /* As told. */
    uint32_t n_segments, n_told;        /* As told, and how many of them have come. */
    bool connects;         /* It has told all, and the engine here maps its segments. */
    bool goes_on;          /* It trains the job already, which this part joins. */
    bool asks;             /* It takes the place of a lost part, and asks how far the job is. */
    bool added;            /* A manager's word that adds it was given to the members. */
    bool joined;           /* It does: bytes can be copied. This node: the window is mapped. */
    uint32_t n_mounting;   /* Segments that are not mapped yet. */
    struct cst_err failed; /* A segment could not be mapped; or status 0. */
    struct cst_members_message *told; /* Before it had joined; owned. NULL: nothing. */
    double *squares;                  /* Of a message in several frames; owned. */
    uint32_t n_squares, all_squares;  /* That have come, and of the whole message. */
};

struct cstd_span {
    struct cstd_job *job;
    enum cstd_span_state state;
    uint64_t life;
    struct cstd_links_watch watch;
    uint32_t n;    /* Parts that are known, this one included. */
    uint32_t self; /* Number of this one, once all are known. */
    struct cstd_span_machine machines[CST_MACHINES_MAX];
    uint8_t token[CSTD_SPAN_TOKEN_BYTES];
    uint64_t class_elems[CST_LAYOUT_MAX_CLASSES]; /* PLANNING: as node 0 has told; 0: not yet. */
    unsigned engine;                              /* The net engine; see has_engine. */
    bool has_engine;
    uint64_t told_restarts;      /* Of the engine, when the others were last told of it. */
    bool told_net;               /* The others were told of the engine. */
    struct cst_err failed;       /* JOINING: a segment could not be mapped; or status 0. */
    struct cst_members *members; /* Owned; NULL: not open. */
    /* Of an earlier daemon, for the members, until they are open; owned. NULL: there is none. */
    struct cst_members_record *record;
    const char *names[CST_MACHINES_MAX];
    struct cstd_span_timers *timers; /* Of `members`; owned. NULL: these are not open. */
    uint64_t failed_transfers;       /* Of the core, as was seen last. */
    uint32_t n_again;                /* Rounds that were begun since, without a commit. */
    bool replaces; /* This part takes the place of one that was lost: span_replace.c. */
    /* replaces: how far the job is, and steps that tensors have missed; owned. NULL: not told. */
    struct cstd_span_progress *progress;
    uint64_t epoch;   /* The last one that the core was given; 0: none. */
    uint64_t step;    /* The last commit that `members` was told. */
    bool is_complete; /* All machines have been members. */
    bool holds;       /* The epoch holds here. */
    bool ends_all;    /* Somebody wants the job to end: on all nodes. */
    bool busy;        /* `members` processes an event: the next one comes after it. */
    TAILQ_HEAD(, cstd_span_early) early; /* Messages of later epochs, in their order. */
    size_t early_bytes;
    /* Reads of states that are on other nodes, and of others of states that are here: span_read.c.
     */
    TAILQ_HEAD(, cstd_span_read) reads;
    TAILQ_HEAD(, cstd_span_ask) asks;
    uint64_t n_reads;
    bool is_asked;               /* The first of `asks` uses the window. */
    bool is_reading;             /* The core reads into the window. */
    struct cstd_segment *window; /* From which other nodes copy; holds a reference. */
    uint32_t window_id;          /* Of the window of an earlier daemon; 0: there was none. */
    struct cstd_deferred serve;
    struct cst_err gone; /* Why another part is gone; status 0: none is. */
};

/* How far the job is, for a part that takes the place of one that was lost. */
struct cstd_span_progress {
    struct cst_core_record record; /* counters, has_hyper, hyper, last_loss and last_grad_norm. */
    uint64_t *missed;              /* Owned; NULL: none are counted. */
    uint32_t n_missed, n_told;     /* That there are, and that have come. */
};

/* What a span asks of the job's other parts. */
struct cstd_span_ops {
    /* What the commit of @job waits for has come, or *@err says why it will not (commit.h). */
    void (*met)(struct cstd_job *job, const struct cst_err *err);
    /* Give @event to the core of @job (core_driver.h). */
    void (*feed)(struct cstd_job *job, struct cst_event *event);
    /* Answer the request that @reply is for (core_driver.h). */
    void (*reply)(struct cstd_daemon *daemon, const struct cst_reply *reply);
    /* What a part that takes the place of a lost one has asked for has come, or will not: the
     * answer to a READ of its copying (state_copy.h), or how far the job is. */
    void (*copied)(struct cstd_job *job, const struct cst_reply *reply);
    void (*told)(struct cstd_job *job);
    /* States have come from other nodes (commit.h). */
    void (*progress)(struct cstd_job *job);
    /* Somebody wants the job to end on all nodes, because of @why. */
    void (*removed)(struct cstd_job *job, const struct cst_err *why);
};

/* Take the messages about jobs, and call @ops. Called once, when @daemon has links. */
void cstd_span_handle(struct cstd_daemon *daemon, const struct cstd_span_ops *ops);

/* Phase MEET of the commit: CST_OK: all parts are known, or the job has no others. CST_EAGAIN:
 * ops->met follows. CST_EUNSUPPORTED: this daemon has no links, or the job has an option
 * that such jobs cannot have. */
int cstd_span_meet(struct cstd_job *job, struct cst_err *err);

/* Phase CHUNKS: take the engine. On node 0, CST_OK. On the others, CST_EAGAIN until node 0 has told
 * the sizes of chunks; ops->met follows. */
int cstd_span_prepare(struct cstd_job *job, struct cst_err *err);

/* The layout of @job is built and its pools fit: on node 0, tell the others the sizes of chunks. */
void cstd_span_tell_chunks(struct cstd_job *job);

/* Set what the layout has to be. CST_EINVAL: the ranks here are no whole number of rank blocks. */
int cstd_span_lay_out(const struct cstd_job *job, struct cst_layout_config *config,
                      struct cst_err *err);

/* The engine that serves the arenas of @job to other nodes; empty: the job has no span. */
struct cst_set cstd_span_serves(const struct cstd_job *job);

/* Phase JOIN: connect the net engines. CST_EAGAIN: ops->met follows. */
int cstd_span_join(struct cstd_job *job, struct cst_err *err);

/* The net engine of the job is up, or was given up. */
void cstd_span_engine_up(struct cstd_job *job);

/* Set *out for the core. False: the job has no span. */
bool cstd_span_machines(const struct cstd_job *job, struct cst_core_machines *out);

/* A manager does not trust the node @name any more: if it is a member of @job, it is to be removed.
 * Without a link to it, also when it was dropped before, this says that it is down for good. False:
 * it is no member. */
bool cstd_span_drop_node(struct cstd_job *job, const char *name);

/* The list of nodes has changed: a manager's word that a member of a job was to be dropped is taken
 * back if its node is in the list again, and the member has not been removed meanwhile. */
void cstd_span_add_nodes(struct cstd_daemon *daemon);

/* The core of @job is open, and its ranks may attach: agree with the others on who the members are.
 */
void cstd_span_open(struct cstd_job *job);

/* Write what a waiting commit waits for, such as "2 of 4 ranks, which no node with a link has", to
 * @text; empty: it does not wait for other nodes. */
void cstd_span_missing(const struct cstd_job *job, char *text, size_t size);

/* Somebody wants @job to end, on all its nodes: it is removed now. */
void cstd_span_end_all(struct cstd_job *job);

/* Leave the span, because of @why, which the other parts are told. */
void cstd_span_close(struct cstd_job *job, const struct cst_err *why);

/* Make the span of @draft, from which a job of an earlier daemon is made, by its ledger: the layout
 * can be built. CST_ELOST: the ledger is damaged. CST_ENOMEM. Any thread. */
int cstd_span_restore(struct cstd_job *draft, const Ledger__Span *ledger,
                      const struct cstd_ledger_members *record, struct cst_err *err);

/* Give it to @job; or free it. It may be that there is none. */
void cstd_span_move(struct cstd_job *draft, struct cstd_job *job);
void cstd_span_drop(struct cstd_job *draft);

/* Find its nodes and take an engine, before the memory of @job is opened. The job waits for a node
 * that is not in the list of nodes any more until it is added again. CST_EUNSUPPORTED: this daemon
 * has no links. Others: as in cstd_span_prepare. cstd_span_open follows. */
int cstd_span_reopen(struct cstd_job *job, const struct cstd_ledger_members *record,
                     struct cst_err *err);

/* True if the states that @event, a READ, reads are on another node. */
bool cstd_span_reads(const struct cstd_job *job, const struct cst_event *event);

/* Read them, which are @bytes at event->place: the request of event->tag is answered later.
 * CST_ECONN: the link to that node is down; CST_ENOMEM. */
int cstd_span_read(struct cstd_job *job, const struct cst_event *event, uint64_t bytes,
                   struct cst_err *err);

/* True if the states of @job come from its other nodes, because this part takes the place of one
 * that was lost. */
bool cstd_span_replaces(const struct cstd_job *job);

/* Ask how far the job is. ops->told follows when cstd_span_progress returns it, or when
 * span->gone says why it will not. CST_ECONN: there is no link to a part that goes on. */
int cstd_span_ask_progress(struct cstd_job *job, struct cst_err *err);

/* How far the job is; NULL: it has not been told yet. */
const struct cstd_span_progress *cstd_span_progress(const struct cstd_job *job);

/* The core has answered the read of another node. */
void cstd_span_answered(struct cstd_job *job, const struct cst_reply *reply);

/* The COPY of a row from another node, a command of the span (durable.h: is_ticket), has ended. */
void cstd_span_copied(struct cstd_job *job, uint64_t ticket, int status, const char *text);

/* Of span_core.c: carry out a CST_ACT_TELL of the core, and see what the core has recorded. */
void cstd_span_tell(struct cstd_job *job, uint32_t to, const struct cst_machine_message *message);
void cstd_span_stepped(struct cstd_job *job);

#endif
