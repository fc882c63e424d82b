/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of `cistern run`: the process that runs its program (client/cli/cistern_rank.c), and the
 * program's output, whose lines get the prefix "[RANK] ". In `cistern run --nodes` it is the
 * process that is connected to a node, and the prefix is "[NODE] ".
 *
 *   IDLE --start--> RUNNING --its process has ended and its output was read--> IDLE, `ended` is
 * called
 *
 * A rank can be started again in `ended` or later. Used by the thread of the loop. */
#ifndef CLI_RANK_H
#define CLI_RANK_H

#include "cistern/status.h"
#include "client/cli/lines.h"
#include "client/cli/sink.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/* Exit status if the program cannot be started, as in shells. */
#define CLI_RANK_CANNOT_START 126

#define CLI_RANK_NAME 96 /* Size of a name and of a prefix. */

/* Standard output or standard error of the program. */
struct cli_rank_stream {
    struct cli_rank *rank;    /* The rank whose output it is. */
    struct cli_sink *sink;    /* Where its lines are written. Borrowed. */
    struct cli_lines lines;   /* The line so far. */
    char line[CLI_LINES_MAX]; /* Memory of lines. */
    uv_pipe_t pipe;           /* From the program. */
    bool is_open;             /* The pipe can be read. */
};

struct cli_rank {
    unsigned number;                      /* For the owner: its place in a list. */
    char name[CLI_RANK_NAME];             /* For messages: "rank 3". */
    uv_loop_t *loop;                      /* Borrowed. */
    char prefix[CLI_RANK_NAME];           /* "[3] " */
    uv_process_t process;                 /* cistern-rank. */
    uv_pipe_t control;                    /* Its standard input; its end kills the rank. */
    struct cli_rank_stream streams[2];    /* Standard output, standard error. */
    unsigned n_handles;                   /* Handles above that are not closed yet; 0: IDLE. */
    int64_t status;                       /* Exit status of the last process. */
    int signal;                           /* Signal that ended the last process; 0: none. */
    void (*ended)(struct cli_rank *rank); /* Called when the rank has ended. Set by the owner. */
    void *data;                           /* For the owner. */
};

/* Initialise a rank with the name @name, whose output goes to @out and @err with the prefix
 * @prefix. The loop and the sinks are borrowed. */
void cli_rank_init(struct cli_rank *rank, unsigned number, const char *name, const char *prefix,
                   uv_loop_t *loop, struct cli_sink *out, struct cli_sink *err);

/* Change the name and the prefix, also while the rank runs: lines that end later have the new one.
 */
void cli_rank_name(struct cli_rank *rank, const char *name, const char *prefix);

/* Start the rank with the arguments @argv, which end with NULL; argv[0] is the path of
 * cistern-rank, or the name of another program. The environment is that of this process.
 * CST_EINTERNAL: the process cannot be started; `ended` is called all the same, with the status
 * CLI_RANK_CANNOT_START. */
int cli_rank_start(struct cli_rank *rank, char **argv, struct cst_err *err);

/* Return whether the rank is RUNNING. */
bool cli_rank_is_running(const struct cli_rank *rank);

/* Send the program a signal, if it is running. */
void cli_rank_signal(struct cli_rank *rank, int number);

/* Write the byte @byte to the standard input of the process, if it is running. */
void cli_rank_tell(struct cli_rank *rank, unsigned char byte);

/* End the standard input of the process, if it is running: cistern-rank then kills all processes of
 * the rank. */
void cli_rank_kill(struct cli_rank *rank);

/* Go on to read output for @sink, which was full. */
void cli_rank_resume(struct cli_rank *rank, const struct cli_sink *sink);

#endif
