/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates the machines of one job under a virtual clock: on each the real instance of
 * offload/machines/members.h, and a plain core that commits steps as members.h demands. Messages
 * are delayed, and lost with their link; links are cut one way or both ways; daemons die and come
 * back with or without their record, or are stopped and then act on what they knew; managers add
 * and drop machines at any moment. One seeded generator chooses everything. After a while all this
 * ends, and an epoch must hold within a stated time.
 *
 * The checks, after each event:
 *   - an epoch number has one set of members, wherever it holds or is recorded;
 *   - no two groups, in each of which an epoch holds at all its members, exist at one time;
 *   - when an epoch holds at a machine, no member in this round has recorded a later commit than it
 *     is told, and all have recorded the same commits. */
#ifndef SIM_MEMBERS_H
#define SIM_MEMBERS_H

#include "offload/machines/members.h"

#define MEMBERS_MAX 8
#define MEMBERS_MAX_STEPS 1024
#define MEMBERS_MAX_EPOCHS 1024

/* The rule that a run breaks, to show that a check fails then. */
enum members_rule {
    MEMBERS_SOUND,
    MEMBERS_HALF_QUORUM, /* Half of the members are enough to decide. */
    MEMBERS_NO_VALUES,   /* Promises do not say what was accepted. */
    MEMBERS_NO_STORE,    /* The record is not always stored before messages are sent. */
    MEMBERS_OLD_LIFE,    /* A machine without its record comes back in its old life. */
    MEMBERS_ANY_WORD,    /* Managers say of any machine without a link that it is down. */
    MEMBERS_DEAF_CORE,   /* The core records commits of rounds that are over. */
};

/* -- links ------------------------------------------------------------------------------------ */

enum item_kind { ITEM_UP, ITEM_DOWN, ITEM_MEMBERS, ITEM_CORE };

enum core_kind { CORE_READY, CORE_COMMIT, CORE_RECORDED };

struct core_message {
    enum core_kind kind;
    uint64_t epoch, round;
    uint64_t step;
    uint64_t content; /* COMMIT: a number that stands for what the step has computed */
};

/* What a machine will be told over a link. */
struct item {
    struct item *next;
    enum item_kind kind;
    uint64_t at;         /* virtual time, ns */
    uint64_t connection; /* number of the connection that carries the item, or begins or ends */
    struct core_message core;
    struct cst_members_message *members; /* owned */
};

struct channel {
    struct item *first;
    uint64_t last_at; /* time of the last item */
};

/* The link between two machines. */
struct link {
    uint64_t connection; /* 0: there is none */
    uint64_t try_at;     /* no connection: when the machines try again */
    uint64_t break_at;   /* when a cut or silence is noticed; CST_MEMBERS_NEVER: neither */
    bool lossy;          /* something was lost: the connection will break */
};

/* -- machines --------------------------------------------------------------------------------- */

enum machine_state { MACHINE_OFF, MACHINE_RUNNING, MACHINE_STOPPED };

/* What a core remembers if the daemon restarts with its memory, and what it does not. */
struct core {
    uint64_t step;                        /* last recorded commit */
    uint64_t contents[MEMBERS_MAX_STEPS]; /* of each recorded step */
    uint64_t new_commit;                  /* recorded, and not yet told to the instance; 0: none */
    bool holds;
    uint64_t epoch, round; /* `holds`: which */
    struct cst_set members, ready;
    uint64_t work_at;   /* when the work of the next step is done; NEVER: none is done */
    struct item *early; /* messages of rounds that do not yet hold here; owned */
};

struct machine {
    enum machine_state state;
    bool for_good;   /* OFF, and will stay so */
    bool has_record; /* MACHINE_OFF: the record and the core's memory are kept */
    uint64_t life;
    struct cst_members *members;      /* NULL: OFF */
    struct cst_members_record record; /* as it was stored last */
    struct core core;
    uint64_t held; /* number of the last epoch that held here in this life; 0: none */
    struct cst_epoch held_epoch;
    bool out; /* the instance has said so */
};

struct members_totals {
    uint64_t runs, turns, epochs, steps, deaths, lost_records, stops, cuts, words, lies, adds,
        vouched;
    uint64_t longest_ns; /* from the end of all faults to the moment when an epoch holds */
};

struct world {
    uint64_t seed, rng, now;
    enum members_rule rule;
    uint32_t n;
    uint64_t wait; /* of the instances, ns */
    bool lies;     /* managers may be wrong; nothing is lost for good then */
    bool calm;     /* no more faults */
    struct machine machines[MEMBERS_MAX];
    struct link links[MEMBERS_MAX][MEMBERS_MAX]; /* at [a][b], a < b */
    bool cut[MEMBERS_MAX][MEMBERS_MAX];          /* nothing passes from the first to the second */
    uint64_t view[MEMBERS_MAX][MEMBERS_MAX];     /* connection that the first one knows; 0: none */
    struct channel channels[MEMBERS_MAX][MEMBERS_MAX]; /* from the first to the second */
    uint64_t connections, contents; /* numbers given out; a content is a commit */
    uint64_t mischief_from; /* until then the manager of the first machine adds the others, ns */
    uint64_t mischief_at, manager_at;
    uint32_t pause_ms; /* the longest pause between two faults */
    uint32_t luck;     /* a daemon dies at one of so many points between two actions */
    struct cst_set words[MEMBERS_MAX_EPOCHS]; /* per epoch: all that were said to be down in it */
    bool lied[MEMBERS_MAX_EPOCHS];
    struct cst_epoch decided[MEMBERS_MAX_EPOCHS];
    bool vouched; /* more than half of an epoch's members were said to be down */
    struct cst_members_actions actions;
    struct members_totals *totals;
    bool verbose;
    char failure[512]; /* the first failed check; "": none */
};

/* Run one seed. False: a check failed; *failure, of at least 512 bytes, says which. Adds to
 * *totals. */
bool members_run(uint64_t seed, enum members_rule rule, bool verbose, struct members_totals *totals,
                 char *failure);

/* -- parts of a run --------------------------------------------------------------------------- */

uint64_t world_random(struct world *world);
uint32_t world_below(struct world *world, uint32_t n);
bool world_chance(struct world *world, uint32_t percent);
/* A time from @least to @most milliseconds from now. */
uint64_t world_later(struct world *world, uint32_t least, uint32_t most);
void world_fail(struct world *world, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* links */
void channel_clear(struct channel *channel);
void link_send(struct world *world, uint32_t from, uint32_t to,
               const struct cst_members_message *members, const struct core_message *core);
void link_break(struct world *world, uint32_t a, uint32_t b);
/* Break the links that are due, and make connections. */
void links_turn(struct world *world, uint32_t a, uint32_t b);
uint64_t link_next(const struct world *world, uint32_t a, uint32_t b);
struct link *link_of(struct world *world, uint32_t a, uint32_t b);

/* machines */
int machine_feed(struct world *world, uint32_t m, struct cst_members_event event);
/* Tell the instance of the commit that the core has recorded, if there is one. */
void machine_tell_commit(struct world *world, uint32_t m);
void machine_start(struct world *world, uint32_t m, bool makes_job);
void machine_die(struct world *world, uint32_t m, bool keeps_record);
void machine_receive(struct world *world, uint32_t m, uint32_t from);
/* True if the machine has a record, or runs with one, in which it is a member. */
bool machine_is_member(const struct world *world, uint32_t m);

/* cores */
void core_holds(struct world *world, uint32_t m, const struct cst_members_action *action);
void core_waits(struct world *world, uint32_t m);
void core_receive(struct world *world, uint32_t m, uint32_t from,
                  const struct core_message *message);
void core_work(struct world *world, uint32_t m);
void core_forget(struct core *core, bool keeps_record);

/* faults and managers */
void mischief_turn(struct world *world);
void mischief_end(struct world *world);
void manager_turn(struct world *world);

/* checks */
void check_record(struct world *world, uint32_t m);
void check_holds(struct world *world, uint32_t m, const struct cst_members_action *action);
/* True if the machine is a member in the same epoch and round. One that was stopped may find, by
 * old messages, that an epoch holds that others have left. */
bool check_in_round(const struct world *world, const struct cst_members_action *action, uint32_t m);
void check_groups(struct world *world);
/* True if the life of machine @x that is a member of *epoch is over for good. */
bool check_is_over(const struct world *world, const struct cst_epoch *epoch, uint32_t x);
/* True if a machine is a member, or will learn that it is. Otherwise the job is lost. */
bool check_job_lives(const struct world *world);
/* True if the epoch of each machine that is a member holds at all its members. */
bool check_settled(const struct world *world);

#endif
