/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a rank, as the program has set them in the environment that has started the rank.
 * cistern.h has the terms, and what holds for all calls. */
#ifndef CISTERN_LAUNCH_H
#define CISTERN_LAUNCH_H

#include "cistern/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CST_LAUNCH_UNKNOWN UINT32_MAX /* A number that nobody has said. */

/* The numbers that struct cst_job_spec (cistern/job.h) has under these names. */
struct cst_launch {
    uint32_t rank;       /* Number of this process among the ranks on this node. */
    uint32_t world;      /* Number of ranks on this node. */
    uint32_t first_rank; /* Number in the whole job of this node's rank 0. */
    uint32_t all_ranks;  /* Number of ranks on all nodes; 0: all ranks are on this node. */
};

/* Complete @launch from the environment of the process. The caller sets what its user has said, and
 * CST_LAUNCH_UNKNOWN in all other fields, before the call. What nobody says stays unknown: the
 * caller then has its own defaults. Each number is that of the first of these who says it:
 *   1. the caller,
 *   2. torchrun, `cistern run` and accelerate: LOCAL_RANK, LOCAL_WORLD_SIZE, RANK, WORLD_SIZE,
 *   3. mpirun of Open MPI: OMPI_COMM_WORLD_LOCAL_RANK, _LOCAL_SIZE, _RANK, _SIZE,
 *   4. mpiexec of MPICH and of Intel MPI: MPI_LOCALRANKID, MPI_LOCALNRANKS, PMI_RANK, PMI_SIZE,
 *   5. srun of Slurm: SLURM_LOCALID, SLURM_TASKS_PER_NODE, SLURM_PROCID, SLURM_NTASKS.
 * A standby of `cistern run` (CISTERN_FIRST_RANK) has neither RANK nor LOCAL_RANK: the caller sets
 * `rank` to what cst_standby has returned, and RANK is CISTERN_FIRST_RANK + rank.
 * first_rank is RANK - LOCAL_RANK. If the caller sets a number that differs from the one of the
 * environment, the environment is about other ranks, and first_rank and all_ranks are not taken
 * from it. If the caller sets all numbers, the environment is not read. Never waits.
 *   - CST_EINVAL: a variable is not a number of its range.
 *   - CST_EINVAL: some variables are set, and others that are needed then are not.
 *   - CST_EINVAL: the variables contradict each other. */
int cst_launch_find(struct cst_launch *launch, struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
