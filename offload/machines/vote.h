/* SPDX-License-Identifier: Apache-2.0 */
/* The vote of an epoch's members on the next epoch: single-decree Paxos (Lamport, Paxos Made
 * Simple, 2001). Every member is an acceptor, and any member can propose.
 *
 *   proposer:  NONE --begin--> PREPARING --quorum has promised--> ACCEPTING --quorum--> decided
 *                ^________________________ stop, or a new ballot ____________|
 *
 * A ballot is a number that only one proposer uses. An acceptor promises a ballot if it has
 * promised no higher one, and accepts the value of a ballot if it has promised no higher one. A
 * proposer that finds accepted values in the promises proposes the one of the highest ballot,
 * otherwise its own. members.h has the proof and says what is recorded before it is sent. Pure
 * functions. */
#ifndef CST_VOTE_H
#define CST_VOTE_H

#include "offload/machines/epoch.h"

/* What an acceptor has to remember. All 0: nothing was promised. */
struct cst_vote {
    uint64_t promised;      /* The highest ballot that was promised. */
    uint64_t accepted;      /* The ballot whose value was accepted; 0: none. */
    struct cst_epoch value; /* The accepted value. */
};

enum cst_proposal_phase {
    CST_PROPOSAL_NONE,
    CST_PROPOSAL_PREPARING, /* Promises are collected. */
    CST_PROPOSAL_ACCEPTING, /* `value` is proposed: acceptances are collected. */
};

/* What a proposer knows of its ballot. It need not be remembered. */
struct cst_proposal {
    enum cst_proposal_phase phase;
    uint64_t ballot;
    struct cst_set answered; /* Members that have promised or, in ACCEPTING, accepted. */
    uint64_t accepted;       /* PREPARING: the highest ballot of an accepted value; 0: none. */
    struct cst_epoch value;  /* PREPARING: that value. ACCEPTING: the value of this ballot. */
};

/* Promise @ballot. False: a higher one was promised. */
bool cst_vote_promise(struct cst_vote *vote, uint64_t ballot);

/* Accept *value in @ballot. False: a higher ballot was promised. */
bool cst_vote_accept(struct cst_vote *vote, uint64_t ballot, const struct cst_epoch *value);

/* Begin a ballot of machine @self that is above @above and above all that *vote has promised;
 * @self promises it. */
void cst_proposal_begin(struct cst_proposal *proposal, struct cst_vote *vote, uint32_t self,
                        uint64_t above);

/* Machine @from has promised @ballot, and had accepted *value in ballot @accepted, or nothing,
 * which is 0. Has no effect unless this ballot is being prepared. */
void cst_proposal_promised(struct cst_proposal *proposal, uint32_t from, uint64_t ballot,
                           uint64_t accepted, const struct cst_epoch *value);

/* A quorum has promised: propose the value that was found or, if there is none, *value; @self
 * accepts it. False: it cannot, because it has promised a higher ballot; the proposal is over. */
bool cst_proposal_propose(struct cst_proposal *proposal, struct cst_vote *vote, uint32_t self,
                          const struct cst_epoch *value);

/* Machine @from has accepted the value of @ballot. Has no effect unless this ballot is being
 * accepted. */
void cst_proposal_accepted(struct cst_proposal *proposal, uint32_t from, uint64_t ballot);

#endif
