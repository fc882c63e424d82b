/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that `cistern run` starts together, its members: ranks, or connections to nodes on
 * which ranks run. If one member fails for good, all are asked to end.
 *
 *   TRAINING --a signal, or a member fails for good--> ENDING
 *   ENDING --a second signal, or the time of `grace_s` is over--> KILLING
 *
 * In TRAINING, members that die may be started again. In ENDING, all members have got a signal and
 * are waited for. In KILLING, what is left is killed. In all states the group is done when no
 * member is running or waiting for its restart. Used by one thread. */
#ifndef CLI_RUN_GROUP_H
#define CLI_RUN_GROUP_H

#include "cistern/status.h"
#include "client/cli/rank.h"
#include "client/cli/sink.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum cli_group_state { CLI_GROUP_TRAINING, CLI_GROUP_ENDING, CLI_GROUP_KILLING };

enum { CLI_GROUP_SIGNALS = 3 }; /* SIGINT, SIGTERM, SIGHUP. */

struct cli_member {
    struct cli_rank rank; /* The process. */
    uv_timer_t pause;     /* Time before the next restart. */
    bool is_left;         /* The member runs, or waits for its restart. */
};

struct cli_group;

/* What the members of a group are. */
struct cli_group_kind {
    const char *one, *many; /* Words for a member and for several: "rank", "ranks". */
    /* Start the member. If that is not possible, the member's `ended` is called all the same. */
    void (*start)(struct cli_group *group, struct cli_member *member);
    /* The member has ended in TRAINING. Return whether to start it again, after *pause_ms. */
    bool (*again)(struct cli_group *group, struct cli_member *member, uint64_t *pause_ms);
    /* Pass a signal on to the member. */
    void (*pass)(struct cli_member *member, int number);
    /* Return what is said after the words on a member that has failed; "": nothing. */
    const char *(*remark)(const struct cli_group *group, const struct cli_member *member);
    /* Called when the loop exists, before members are started, and when all have ended. NULL:
     * nothing to do. */
    void (*open)(struct cli_group *group);
    void (*close)(struct cli_group *group);
    /* Return whether the members that are left are needed no more, and are asked to end in
     * TRAINING. NULL: they never are. */
    bool (*is_over)(const struct cli_group *group);
    /* Return whether the failure of @member is that of the group. NULL: always. */
    bool (*counts)(const struct cli_group *group, const struct cli_member *member);
    /* Seconds after the beginning of KILLING until processes that still run get SIGKILL themselves;
     * 0: never, because they end at once. */
    unsigned force_s;
};

struct cli_group {
    const struct cli_group_kind *kind; /* Borrowed. */
    unsigned grace_s;                  /* Time from ENDING to KILLING. */
    /* Standard input also has signals: each byte is the number of one, and the end of the input is
     * the same as SIGKILL. */
    bool follows;
    uv_loop_t loop;
    struct cli_sink out, err;   /* Standard output and standard error. */
    struct cli_member *members; /* Borrowed, zeroed by the owner; those of @n. */
    unsigned n, n_left;         /* Members, and those with is_left. */
    enum cli_group_state state;
    int status; /* 0, or the exit status of the member that failed first. */
    uv_signal_t signals[CLI_GROUP_SIGNALS];
    uv_timer_t grace; /* Time from ENDING to KILLING. */
    uv_poll_t input;  /* Standard input, if `follows`. */
    void *data;       /* For the owner. */
};

/* Print a message of this program between the lines of the members. */
void cli_group_say(struct cli_group *group, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ask the members that are left to end, if the kind says that it is over. */
void cli_group_look(struct cli_group *group);

#define CLI_GROUP_HOW 80
/* Describe how a process ended: "ended with status 1". Returns @words. */
const char *cli_group_how(const struct cli_rank *rank, char words[CLI_GROUP_HOW]);

/* Start all members, and return when all have ended and their output is written: 0, the exit status
 * of the member that failed first, or CLI_EXIT_FAILURE if output is lost. The owner has set kind,
 * grace_s, follows, members, n and data, has set all else to 0, and has called cli_rank_init for
 * each member, with @group's loop, out and err. A failure is printed. */
int cli_group_run(struct cli_group *group);

#endif
