/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of the ranks of `cistern run`. The names are those of torchrun, which
 * cistern-gpt, cistern.torch and PyTorch read:
 *
 *   RANK, LOCAL_RANK                the number of the rank: in the job, and on this node
 *   WORLD_SIZE, LOCAL_WORLD_SIZE    the number of ranks: in the job, and on this node
 *   MASTER_ADDR, MASTER_PORT        an address of this machine for rank 0, if all ranks are on it;
 *                                   unless MASTER_ADDR is set
 *   OMP_NUM_THREADS                 the rank's share of the cores; unless it is set
 *   OMP_WAIT_POLICY                 passive, because threads that spin take processors from the
 *                                   daemon's engines; unless it is set
 *   CISTERN_SOCKET                  --socket, if it is given
 *   CISTERN_RESTARTS                how many times the rank was started again
 *   CISTERN_STEPPED                 a file to which libcistern writes after a step
 *
 * A standby (--standby) has none of the numbers of a rank, and in addition:
 *
 *   CISTERN_STANDBY                 1
 *   CISTERN_FIRST_RANK              the number in the job of the first rank on this node
 */
#ifndef CLI_RUN_ENVIRONMENT_H
#define CLI_RUN_ENVIRONMENT_H

#include "cistern/status.h"

#include <stdbool.h>

/* The ranks on this node. */
struct cli_run_ranks {
    unsigned n;     /* Their number. */
    unsigned first; /* The number in the job of the first one. */
    unsigned all;   /* Ranks on all nodes; 0: those on this node. */
};

struct cli_run_environment {
    unsigned first;    /* The number in the job of the first rank on this node. */
    bool sets_threads; /* OMP_NUM_THREADS was not set by the user. */
    int stepped_fd;    /* The file of CISTERN_STEPPED, which is open until this process ends. */
};

/* Set what all ranks have in the environment of this process. @socket: see above; NULL: not given.
 * CST_EINTERNAL: no port is free, or there is no file for CISTERN_STEPPED. */
int cli_run_environment_init(struct cli_run_environment *environment,
                             const struct cli_run_ranks *ranks, const char *socket,
                             struct cst_err *err);

/* Set what the rank with the number @rank on this node has in addition. @threads is its share of
 * the cores. */
void cli_run_environment_set(const struct cli_run_environment *environment, unsigned rank,
                             unsigned restarts, unsigned threads);

/* Set what a standby has in addition. @threads is the share of a rank. */
void cli_run_environment_set_standby(const struct cli_run_environment *environment,
                                     unsigned threads);

/* Return whether a rank has made a step of a job since cli_run_environment_init. */
bool cli_run_environment_has_stepped(const struct cli_run_environment *environment);

#endif
