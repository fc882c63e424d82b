/* SPDX-License-Identifier: Apache-2.0 */
/* Who the members of a job are: one instance for each job on each machine. It is told of time, of
 * links to other machines, of their messages and of what managers say, and returns messages to send
 * and whether the job may go on. It does no I/O. It knows neither chunks nor the work of a step:
 * the core is told the members, and the last commit that one of them has recorded.
 *
 *   WAITING to be added --an epoch has this machine--> MEMBER --an epoch lacks it--> LEAVING
 *   LEAVING --a member of that epoch has told it, and so knows it--> OUT, for good
 *
 *   MEMBER:  exchange --all members have told the same round--> holds
 *                ^______ link to a member lost, higher round told, new epoch ____|
 *
 * Epochs. A job is made by one machine, whose epoch 1 has itself alone; it adds the others. The
 * members of an epoch vote on the next one, once (vote.h). Whoever learns the result enters the new
 * epoch, votes in the old one no more, and tells everybody to whom it has a link. An epoch is told
 * as a whole, so that a machine may miss some.
 *
 * Rounds. Within an epoch the members agree in rounds on where the job stands. A machine that has
 * opened its record, or has lost the link to a member that had told it the round, begins the next
 * round. Whoever is told a higher round enters it. On entering a round, a machine stops its core
 * (WAITS) and tells the last commit that it has recorded (TELL), which does not change before the
 * round holds. An epoch holds at a machine (HOLDS) when all members, itself among them, have told
 * it the round. So all learn the same: the last commit that one of them has recorded.
 *
 * What the core has to do:
 *   - WAITS: stop. Grant, send and record nothing more of this round. Keep the gradients and sums
 *     of an attempt for which READY was sent: HOLDS says whether it was committed.
 *   - HOLDS: `committed` is the last commit. A core that has not recorded it, and whose attempt is
 *     the one of this step, commits it. What belongs to the commit comes from the machines in
 *     `recorded`; if they are gone, the round ends soon. Any later attempt is repeated.
 *   - Messages of the core carry (epoch, round). Those of an earlier one are dropped. Those of a
 *     later one, from a machine at which the round holds already, are kept until it holds here.
 *   - COMMITTED is told to this module in the turn in which the core records a commit. The core
 *     does so only while the epoch holds.
 *
 * When a change is proposed:
 *   - A member without a link is lost when it was away for `wait`: a daemon that restarts with its
 *     record comes back into the epoch. It is lost at once if a manager or scheduler says that it
 *     is down, or if it comes back without its record.
 *   - A manager adds a machine, or drops one that has a link: after the next commit if an attempt
 *     is under way, so that no work is lost, but after `wait` at the latest.
 *
 * The member with the lowest number that sees a link and a reason proposes first, and the others
 * one after the other, each CST_MEMBERS_RETRY later.
 *
 * Why an epoch number has one set of members. The votes of an epoch are Paxos: a value is decided
 * when a quorum has accepted it in one ballot, and its proposer has asked a quorum before. If each
 * two quorums share a member that remembers its promises and acceptances, all ballots above one
 * that has decided propose its value (induction over the ballots). Members remember: the record is
 * stored before anything is sent, and a machine that has lost it is in another life, which has no
 * vote. Let S be the members, and U all that were said to be down in this vote, by all managers. A
 * quorum is more than half of S, or contains S without U. Two quorums share a member:
 *   - if U is empty, because two majorities do;
 *   - if U is at most half of S, even if those in U live: S without U is at least half, so that
 *     each majority has a member in it, and each other quorum contains it;
 *   - if U is down for good, unless all that accepted the decision are in U. Then only machines
 *     outside S can go on by it.
 *
 * So a member may be said to be down if it is switched off for good, or has lost its record. If
 * more than half are, then only if nobody else goes on with the job: the place to say it is the
 * part that has the highest epoch. A machine that is cut off and may live is said to be down on one
 * side only, and on neither side more than half are. What was said counts for one vote.
 *
 * Why two separate groups do not both go on. Every step needs READY of all members of an epoch, so
 * a group goes on if the epoch holds at all its members. Let two groups be in epochs e < f. The
 * epoch after e was decided by a member p of e, which has entered it, and stored that, before it
 * told anybody. Nobody else is in it earlier, and p never comes back to e: when somebody is in a
 * later epoch, not all members are in e any more. Those that are can at most complete the step for
 * which p had sent READY; they wait for p in the next one.
 *
 * Why no commit is lost. A member of the new epoch that has recorded it tells it in the round, and
 * no round holds without all members. A commit is lost if all that have recorded it are removed;
 * two have, before anybody goes on by it.
 *
 * One thread. Times are ns of one clock that never goes back, of this machine alone. */
#ifndef CST_MEMBERS_H
#define CST_MEMBERS_H

#include "offload/machines/vote.h"

#define CST_MEMBERS_NEVER UINT64_MAX
#define CST_MEMBERS_RETRY UINT64_C(500000000) /* ns between the proposals of two members. */
#define CST_MEMBERS_MAX_ACTIONS 16            /* Of one event. */

/* -- messages --------------------------------------------------------------------------------- */

/* Messages go over a link, which keeps their order. Some that were sent may be lost when it goes
 * down. */
enum cst_members_kind {
    CST_MEMBERS_TELL = 1, /* epoch, round, committed: the sender's. */
    CST_MEMBERS_PREPARE,  /* number, ballot. */
    CST_MEMBERS_PROMISE,  /* number, ballot, accepted, epoch: the value that was accepted. */
    CST_MEMBERS_ACCEPT,   /* number, ballot, epoch: the value. */
    CST_MEMBERS_ACCEPTED, /* number, ballot. */
    CST_MEMBERS_REFUSED,  /* number, ballot: a higher one, which the sender has promised. */
};

struct cst_members_message {
    enum cst_members_kind kind;
    uint64_t life;          /* The sender's. */
    uint64_t number;        /* All but TELL: the epoch whose members vote. */
    uint64_t round;         /* TELL. */
    uint64_t committed;     /* TELL: step of the last commit that was recorded; 0: none. */
    uint64_t ballot;        /* All but TELL. */
    uint64_t accepted;      /* PROMISE: ballot in which `epoch` was accepted; 0: none was. */
    struct cst_epoch epoch; /* TELL, PROMISE, ACCEPT; otherwise 0. */
};

/* CST_EPROTO, with words: the message, which came from another machine, is none. Machines of a job
 * trust each other: that what a message says is true is not checked. */
int cst_members_check(const struct cst_members_message *message, struct cst_err *err);

/* -- record ----------------------------------------------------------------------------------- */

/* What a machine must remember. After each event, before it carries out any action, the driver
 * stores the record if memcmp says that it has changed. A daemon that restarts opens the record. A
 * machine that has lost it opens none, and draws a new life. There is no padding. */
struct cst_members_record {
    uint64_t life;          /* This machine's. */
    struct cst_epoch epoch; /* The last one that it has entered; number 0: it waits to be added. */
    uint64_t round;         /* The last one that it has entered in this epoch. */
    struct cst_vote vote;   /* On the next epoch. */
    struct cst_set down;    /* Said to be down while they had no link, in this epoch. */
    struct cst_set drops;   /* Members that a manager wants to be removed. */
    struct cst_set adds;    /* Machines that a manager wants to be added. */
};

/* -- events ----------------------------------------------------------------------------------- */

/* A word of a manager or scheduler is refused with EINVAL at a machine that is no member. */
enum cst_members_event_kind {
    CST_MEMBERS_TIME, /* The deadline has passed. */
    /* machine. There is a new link to the machine, whoever has opened it. What was sent over an
     * earlier one and has not come is lost; DOWN comes first if there was one. */
    CST_MEMBERS_UP,
    CST_MEMBERS_DOWN, /* machine. The link is lost, or the machine has been silent. */
    CST_MEMBERS_TOLD, /* machine, message: came over the link. EPROTO: it is none. */
    /* machine, idle. A manager wants the member to be removed or, if it has no link, says that it
     * is down. What it alone has is lost with it: the driver has moved that before. Takes back an
     * ADD. ENOTFOUND: it is no member. EINVAL: it is the only one. */
    CST_MEMBERS_DROP,
    /* machine, idle. A manager wants the machine to be added, with the life that it has told. Takes
     * back a DROP. EEXIST: it is a member. ECONN: it has not told a life over a link. EBUSY: it has
     * been a member in this life, and first has to begin another one. A member that has lost its
     * record is added again: this says that its old life is down. */
    CST_MEMBERS_ADD,
    /* machine. A scheduler says that the member is down. Has an effect if it has no link, or when
     * it loses it. ENOTFOUND: it is no other member. */
    CST_MEMBERS_GONE,
    CST_MEMBERS_COMMITTED, /* step. The core has recorded this commit. The epoch must hold. */
};

struct cst_members_event {
    enum cst_members_event_kind kind;
    uint64_t now; /* ns. */
    uint32_t machine;
    bool idle;     /* DROP, ADD: no attempt is under way at this machine. */
    uint64_t step; /* COMMITTED. */
    const struct cst_members_message *message; /* TOLD; borrowed. */
};

/* -- actions ---------------------------------------------------------------------------------- */

enum cst_members_action_kind {
    CST_MEMBERS_SEND,  /* to, message. To machines with a link, in the order of the actions. */
    CST_MEMBERS_LOG,   /* status, text. */
    CST_MEMBERS_HOLDS, /* epoch, round, committed, recorded. */
    CST_MEMBERS_WAITS, /* text: why. Also when the reason changes. */
    /* text. This machine is no longer a member, and will not be in this life. The instance may be
     * closed, and the record forgotten. Not earlier: this machine may be the only one that knows of
     * the epoch. */
    CST_MEMBERS_OUT,
};

struct cst_members_action {
    enum cst_members_action_kind kind;
    int status;                    /* LOG: CST_OK, or that of what is wrong. */
    const struct cst_epoch *epoch; /* HOLDS: borrowed from the instance, until the next event. */
    uint64_t round;                /* HOLDS. */
    uint64_t committed;            /* HOLDS: the step of the last commit; 0: none. */
    struct cst_set recorded;       /* HOLDS: the members that have recorded this commit. */
    struct cst_set to;             /* SEND. */
    struct cst_members_message message; /* SEND. */
    char text[640];                     /* LOG, WAITS, OUT: a sentence without a newline. */
};

struct cst_members_actions {
    struct cst_members_action v[CST_MEMBERS_MAX_ACTIONS];
    uint32_t n;
};

/* -- the instance ----------------------------------------------------------------------------- */

struct cst_members;

struct cst_members_config {
    uint32_t self; /* This machine's number in the job, below CST_SET_MAX. */
    /* Without a record: a random number, not 0. */
    uint64_t life;
    bool makes_job; /* Without a record: this machine makes the job. */
    /* ns that a member may be away before it is lost. CST_MEMBERS_NEVER: it is lost only if that is
     * said, or with its record, because what it has is nowhere else. */
    uint64_t wait;
    /* Step of the last commit that the core has recorded; 0: none, as for a machine that waits to
     * be added, whatever its core did in another life. */
    uint64_t committed;
    /* Per machine: its name, for texts. NULL: none is known yet. Borrowed until close. */
    const char *const *names;
};

/* Open an instance, with a copy of *record; NULL: there is none. The driver then sends a TIME
 * event. CST_EPROTO: the record is none. CST_ENOMEM. *out is owned by the caller. */
int cst_members_open(struct cst_members **out, const struct cst_members_config *config,
                     const struct cst_members_record *record, uint64_t now, struct cst_err *err);

/* Free it; NULL: do nothing. */
void cst_members_close(struct cst_members *members);

/* Process the event, and write what is to be done to *actions. A status other than CST_OK, with
 * words: the event was refused, and nothing has changed. A message from a machine without a link,
 * which may come late, is ignored. */
int cst_members_step(struct cst_members *members, const struct cst_members_event *event,
                     struct cst_members_actions *actions, struct cst_err *err);

/* When the next TIME event is due, ns; CST_MEMBERS_NEVER: not before another event. */
uint64_t cst_members_deadline(const struct cst_members *members);

/* The record as the last event has left it. Borrowed until the next event. */
const struct cst_members_record *cst_members_record(const struct cst_members *members);

/* True if the epoch holds at this machine: the core may go on. */
bool cst_members_hold(const struct cst_members *members);

/* Write one sentence about the present state to @text, with names and times: that the epoch holds,
 * or whom this machine waits for, and what a manager can do. */
void cst_members_explain(const struct cst_members *members, uint64_t now, char *text, size_t size);

#endif
