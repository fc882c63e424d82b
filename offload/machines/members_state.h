/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an instance of members.h, which its .c files share. */
#ifndef CST_MEMBERS_STATE_H
#define CST_MEMBERS_STATE_H

#include "offload/machines/members.h"

/* What is known of another machine. */
struct cst_members_peer {
    bool up;          /* There is a link. */
    bool told;        /* It has sent a TELL over this link. */
    bool blank;       /* In the life that it has told, it has been in no epoch. */
    bool differs;     /* Its epoch has this one's number and other members. */
    uint64_t life;    /* Which it has told; 0: none. Kept after the link is lost. */
    uint64_t since;   /* When it became a member, or its link was lost if that was later; ns. */
    uint64_t commits; /* Step of the last commit that it has told in this round. */
};

/* What WAITS has said last. */
enum cst_members_reason {
    CST_MEMBERS_NO_REASON,
    CST_MEMBERS_NOT_ADDED, /* No epoch has this machine. */
    CST_MEMBERS_LEAVING,   /* The last epoch does not have it, and none of its members knows. */
    CST_MEMBERS_REMOVED,   /* The last epoch does not have it any more. */
    CST_MEMBERS_AWAY,      /* Members are away, and have time to come back. */
    CST_MEMBERS_MINORITY,  /* Members are away, and the others may not decide. */
    CST_MEMBERS_VOTES,     /* The others decide on the next epoch. */
    CST_MEMBERS_ROUND,     /* Members have not told the round. */
    CST_MEMBERS_IS_HELD,   /* The epoch holds. */
};

struct cst_members {
    uint32_t self;
    uint64_t wait; /* ns. */
    const char *const *names;
    struct cst_members_record record;
    uint64_t committed; /* Step of the last commit that this machine has recorded. */
    struct cst_set got; /* Members that have told this round, among them this machine. */
    bool known; /* A member of the last epoch, which does not have this machine, has told it. */
    bool holds;
    bool stopped; /* The epoch has held before the current event, and has ended its round. */
    bool again;   /* An epoch was entered in the last event: there may be more to propose. */
    uint64_t now; /* Of the last event; ns. */
    struct cst_proposal proposal;
    uint64_t refused; /* The highest ballot that somebody has preferred to one of this machine. */
    uint64_t propose_at; /* ns; NEVER: nothing is to be proposed. */
    uint64_t planned_at; /* When changes that interrupt no attempt may be proposed, ns. */
    enum cst_members_reason reason; /* That WAITS has said last, and of which machines. */
    struct cst_set about;
    struct cst_members_actions *actions; /* Of the current event; borrowed. */
    struct cst_members_peer peers[CST_SET_MAX];
};

/* -- who is there ----------------------------------------------------------------------------- */

/* True if this machine is a member of its epoch. */
static inline bool cst_members_belongs(const struct cst_members *members)
{
    return cst_epoch_has(&members->record.epoch, members->self, members->record.life);
}

/* True if there is a link to the member, in the life that the epoch has, or it is this machine. */
bool cst_members_is_present(const struct cst_members *members, uint32_t machine);

/* The members that are present, and those of which a new life is present, so that the one in the
 * epoch is over. */
struct cst_set cst_members_present(const struct cst_members *members);
struct cst_set cst_members_renewed(const struct cst_members *members);

/* The members without which the others may decide: said to be down, and not present. */
struct cst_set cst_members_down(const struct cst_members *members);

/* When the member, which is not present, is lost; ns. */
uint64_t cst_members_lost_at(const struct cst_members *members, uint32_t machine);

/* -- changes ---------------------------------------------------------------------------------- */

/* Write the epoch that this machine would propose at @now to *out. False: nothing is to change, or
 * those who are present may not decide. */
bool cst_members_wanted(const struct cst_members *members, uint64_t now, struct cst_epoch *out);

/* Go on with the proposal of this machine, or begin one if it is due. True: *out, a new epoch, is
 * decided. */
bool cst_members_propose(struct cst_members *members, uint64_t now, struct cst_epoch *out);

/* A message of the vote came from a member that is present. */
void cst_members_vote(struct cst_members *members, uint32_t from,
                      const struct cst_members_message *message);

/* -- actions ---------------------------------------------------------------------------------- */

struct cst_members_action *cst_members_act(struct cst_members *members,
                                           enum cst_members_action_kind kind);

/* Send *message, whose life is filled in, to the machines of @to that have a link. */
void cst_members_send(struct cst_members *members, struct cst_set to,
                      struct cst_members_message message);

/* Write the names of the machines to @text: "a, b and c". Returns @text. */
char *cst_members_name(const struct cst_members *members, const struct cst_set *set, char *text,
                       size_t size);

/* Why the epoch does not hold at this machine, and which machines that is about. */
enum cst_members_reason cst_members_reason(const struct cst_members *members, uint64_t now,
                                           struct cst_set *about);

#endif
