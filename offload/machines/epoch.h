/* SPDX-License-Identifier: Apache-2.0 */
/* An epoch of a job on several machines: who its members are. Epochs are numbered from 1, and the
 * next one differs from the last by machines that were added or removed. members.h says how they
 * are agreed on. Pure functions; any thread. */
#ifndef CST_EPOCH_H
#define CST_EPOCH_H

#include "proto/set.h"

/* A member is a machine in one life. A life is a random number that a machine draws when it begins
 * to take part in the job; it ends when the machine loses its record (struct cst_members_record).
 * The machine can then be added again under its old number, and is another member.
 *
 * There is no padding, so that epochs can be compared with memcmp. */
struct cst_epoch {
    uint64_t number;             /* 0: no epoch; all else is then 0. */
    struct cst_set members;      /* Numbers of machines in the job. */
    uint64_t lives[CST_SET_MAX]; /* Per member: its life. 0 for all others. */
};

/* True if machine @machine in life @life, not 0, is a member. */
static inline bool cst_epoch_has(const struct cst_epoch *epoch, uint32_t machine, uint64_t life)
{
    return machine < CST_SET_MAX && life != 0 && epoch->lives[machine] == life;
}

static inline bool cst_epoch_equal(const struct cst_epoch *a, const struct cst_epoch *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Make the machine a member, in place of an earlier life; @life is not 0. Or remove it. */
void cst_epoch_add(struct cst_epoch *epoch, uint32_t machine, uint64_t life);
void cst_epoch_drop(struct cst_epoch *epoch, uint32_t machine);

/* CST_EPROTO, with words: *epoch, which came from another machine, is none: a number without
 * members or members without a number, or a life of a machine that is no member, or a member
 * without a life. */
int cst_epoch_check(const struct cst_epoch *epoch, struct cst_err *err);

/* True if the members in @answered may decide what the next epoch is, where those in @down are said
 * to be down: they are more than half of the members, or all others are down. Hence one of two
 * machines decides alone only if it is said that the other one is down. */
bool cst_epoch_quorum(const struct cst_epoch *epoch, const struct cst_set *answered,
                      const struct cst_set *down);

#endif
