/* SPDX-License-Identifier: Apache-2.0 */
/* A few machines of a job, for tests of offload/machines/members.h: the messages of each come at
 * once, in order. One clock; all that the instances say is kept. */
#ifndef MEMBERS_RIG_H
#define MEMBERS_RIG_H

#include "offload/machines/members.h"

enum { MEMBERS_RIG_MAX = 4, MEMBERS_RIG_QUEUE = 256 };

#define MEMBERS_SECOND UINT64_C(1000000000)
#define MEMBERS_WAIT (30 * MEMBERS_SECOND) /* Of all instances. */

struct members_sent {
    uint32_t from, to;
    struct cst_members_message message;
};

struct members_rig {
    uint64_t now;                                  /* ns */
    const char *names[CST_SET_MAX];                /* of the machines */
    struct cst_members *machines[MEMBERS_RIG_MAX]; /* NULL: no daemon runs */
    bool linked[MEMBERS_RIG_MAX]
               [MEMBERS_RIG_MAX]; /* messages from the first to the second arrive */
    uint32_t mute; /* what this machine tells of its epoch is lost; MEMBERS_RIG_MAX: nobody's is */
    struct members_sent queue[MEMBERS_RIG_QUEUE];
    uint32_t n_queue;
    struct cst_members_actions actions; /* of the last event */
    struct cst_err err;                 /* of the last event */
    /* Per machine: the last HOLDS, how often that came, the text of the last WAITS or OUT, and
     * whether OUT has come. */
    struct cst_members_action held[MEMBERS_RIG_MAX];
    uint32_t n_holds[MEMBERS_RIG_MAX];
    char text[MEMBERS_RIG_MAX][640];
    bool out[MEMBERS_RIG_MAX];
};

extern struct members_rig members_rig;

/* Before and after each test. */
void members_set_up(void);
void members_tear_down(void);

/* Open machine @m. Without a record, machine 0 in life 1 makes the job. */
void members_open(uint32_t m, const struct cst_members_record *record, uint64_t life,
                  uint64_t committed);
/* Close the instance as a daemon that ends, and return its record. */
struct cst_members_record members_stop(uint32_t m);
/* Make a job with the first @n machines, all linked, in lives 1, 2, .... */
void members_make_job(uint32_t n);

/* Give an event to machine @m; `now` is filled in. Messages are not delivered. */
int members_feed(uint32_t m, struct cst_members_event event);
/* The same for an event about @machine, and deliver all messages. */
int members_say(uint32_t m, enum cst_members_event_kind kind, uint32_t machine, bool idle);
/* The core of machine @m has recorded the commit of @step. */
void members_commit(uint32_t m, uint64_t step);
/* Make or cut the link of two machines, or those of @m with all others. */
void members_connect(uint32_t a, uint32_t b, bool up);
void members_isolate(uint32_t m, bool up);
/* Let time pass. Each machine is told when its deadline has come. */
void members_pass(uint64_t ns);

/* The epoch of machine @m; whether machine @m is a member by the record of machine @of; whether the
 * epoch holds at the first @n machines. */
uint64_t members_epoch_of(uint32_t m);
bool members_is_member(uint32_t m, uint32_t of);
bool members_all_hold(uint32_t n);

#endif
