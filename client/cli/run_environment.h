/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of the ranks of `cistern run`. The names are those of torchrun, which
 * cistern-gpt, cistern.torch and PyTorch read:
 *
 *   RANK, LOCAL_RANK                the number of the rank
 *   WORLD_SIZE, LOCAL_WORLD_SIZE    the number of ranks
 *   MASTER_ADDR, MASTER_PORT        an address of this machine for rank 0; unless MASTER_ADDR is
 * set OMP_NUM_THREADS                 the rank's share of the cores; unless it is set
 *   OMP_WAIT_POLICY                 passive, because threads that spin take processors from the
 *                                   daemon's engines; unless it is set
 *   CISTERN_SOCKET                  --socket, if it is given
 *   CISTERN_RESTARTS                how many times the rank was started again
 *   CISTERN_STEPPED                 a file to which libcistern writes after a step
 */
#ifndef CLI_RUN_ENVIRONMENT_H
#define CLI_RUN_ENVIRONMENT_H

#include "cistern/status.h"

#include <stdbool.h>

struct cli_run_environment {
    bool sets_threads; /* OMP_NUM_THREADS was not set by the user. */
    int stepped_fd;    /* The file of CISTERN_STEPPED, which is open until this process ends. */
};

/* Set what all @n ranks have in the environment of this process. @socket: see above; NULL: not
 * given. CST_EINTERNAL: no port is free, or there is no file for CISTERN_STEPPED. */
int cli_run_environment_init(struct cli_run_environment *environment, unsigned n,
                             const char *socket, struct cst_err *err);

/* Set what rank @rank has in addition. @threads is its share of the cores. */
void cli_run_environment_set(const struct cli_run_environment *environment, unsigned rank,
                             unsigned restarts, unsigned threads);

/* Return whether a rank has made a step of a job since cli_run_environment_init. */
bool cli_run_environment_has_stepped(const struct cli_run_environment *environment);

#endif
