/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/machines/vote.h"

bool cst_vote_promise(struct cst_vote *vote, uint64_t ballot)
{
    if (ballot < vote->promised) {
        return false;
    }
    vote->promised = ballot;
    return true;
}

bool cst_vote_accept(struct cst_vote *vote, uint64_t ballot, const struct cst_epoch *value)
{
    if (!cst_vote_promise(vote, ballot)) {
        return false;
    }
    vote->accepted = ballot;
    vote->value = *value;
    return true;
}

void cst_proposal_begin(struct cst_proposal *proposal, struct cst_vote *vote, uint32_t self,
                        uint64_t above)
{
    uint64_t last = above > vote->promised ? above : vote->promised;

    /* The remainder is the proposer's number: no other machine uses this ballot. */
    *proposal = (struct cst_proposal){
        .phase = CST_PROPOSAL_PREPARING,
        .ballot = (last / CST_SET_MAX + 1) * CST_SET_MAX + self,
        .answered = cst_set_of(self),
        .accepted = vote->accepted,
        .value = vote->value,
    };
    (void)cst_vote_promise(vote, proposal->ballot); /* It is above all that were promised. */
}

void cst_proposal_promised(struct cst_proposal *proposal, uint32_t from, uint64_t ballot,
                           uint64_t accepted, const struct cst_epoch *value)
{
    if (proposal->phase != CST_PROPOSAL_PREPARING || proposal->ballot != ballot) {
        return;
    }
    cst_set_add(&proposal->answered, from);
    if (accepted > proposal->accepted) {
        proposal->accepted = accepted;
        proposal->value = *value;
    }
}

bool cst_proposal_propose(struct cst_proposal *proposal, struct cst_vote *vote, uint32_t self,
                          const struct cst_epoch *value)
{
    if (proposal->accepted == 0) {
        proposal->value = *value;
    }
    proposal->phase = CST_PROPOSAL_ACCEPTING;
    proposal->answered = cst_set_of(self);
    if (!cst_vote_accept(vote, proposal->ballot, &proposal->value)) {
        proposal->phase = CST_PROPOSAL_NONE;
        return false;
    }
    return true;
}

void cst_proposal_accepted(struct cst_proposal *proposal, uint32_t from, uint64_t ballot)
{
    if (proposal->phase == CST_PROPOSAL_ACCEPTING && proposal->ballot == ballot) {
        cst_set_add(&proposal->answered, from);
    }
}
