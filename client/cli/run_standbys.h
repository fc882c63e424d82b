/* SPDX-License-Identifier: Apache-2.0 */
/* Which process of `cistern run` is which rank, or a standby (--standby). The daemon gives the rank
 * of a process that has died to a standby. libcistern tells this program of it by a pipe
 * (client/lib/opened.h).
 *
 *   RANK    --it has committed its job and dies, and there is a standby--> STANDBY, started anew
 *   STANDBY --it opens the job as a rank---------------------------------> RANK
 *
 * There are always as many processes as ranks and standbys together. Used by the thread of the
 * loop. */
#ifndef CLI_RUN_STANDBYS_H
#define CLI_RUN_STANDBYS_H

#include "client/cli/run_group.h"

struct cli_place {
    bool is_standby;    /* The process is a standby; else it is the rank `rank`. */
    unsigned rank;      /* Number of the rank on this node. */
    bool has_committed; /* The daemon gives the rank to a standby if the process dies. */
    bool is_double;     /* The process is being killed, because a standby has become its rank. */
};

struct cli_standbys {
    struct cli_group *group;  /* Borrowed. Its members have the places. */
    unsigned n_ranks;         /* Ranks; the other members are standbys at first. */
    unsigned first;           /* The number in the job of the first rank on this node. */
    struct cli_place *places; /* One per member. Owned. */
    unsigned n_done;          /* Ranks that have ended with success. */
    bool has_ended;           /* The job is over: nothing is started again. */
    int fds[2];               /* The pipe; -1: there is none. */
    uv_poll_t poll;           /* Its end for reading. */
    bool polls;               /* The poll is open. */
};

/* Prepare for the members of @group, of which the first @n_ranks are ranks. CST_ENOMEM;
 * CST_EINTERNAL: there is no pipe. @first is the number in the job of the first rank on this node.
 * Close frees the places, and closes the pipe. */
int cli_standbys_init(struct cli_standbys *standbys, struct cli_group *group, unsigned n_ranks,
                      unsigned first, struct cst_err *err);
void cli_standbys_close(struct cli_standbys *standbys);

/* The loop of the group exists: begin or stop to read the pipe. */
void cli_standbys_listen(struct cli_standbys *standbys);
void cli_standbys_stop(struct cli_standbys *standbys);

/* Give member @i the name and the prefix of what it is. */
void cli_standbys_name(const struct cli_standbys *standbys, unsigned i);

/* Set what the process of @member has in the environment of this process, before it is started. */
void cli_standbys_set(const struct cli_standbys *standbys, const struct cli_member *member);

/* The rank of @member has died, and is started again: return true if a standby gets the rank, so
 * that @member is started as a standby. */
bool cli_standbys_replace(struct cli_standbys *standbys, const struct cli_member *member);

/* Return whether all ranks are done, or the job is over and no rank runs. */
bool cli_standbys_is_over(const struct cli_standbys *standbys);

/* Return whether a rank has died, and no standby has taken its place. */
bool cli_standbys_misses_rank(const struct cli_standbys *standbys);

static inline struct cli_place *cli_standbys_place(const struct cli_standbys *standbys,
                                                   const struct cli_member *member)
{
    return &standbys->places[member->rank.number];
}

#endif
