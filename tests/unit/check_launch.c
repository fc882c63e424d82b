/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of client/lib/launch: the numbers of ranks in the variables of each launcher, variables
 * that are missing or contradict each other, and numbers that the caller gives. */
#include "cistern/launch.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN CST_LAUNCH_UNKNOWN
#define NOTHING                                                                                    \
    {                                                                                              \
        UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN                                                         \
    }

extern char **environ;

/* The environment of each test is the words "NAME=VALUE" of @words, which are divided by spaces. */
static void set_environment(const char *words)
{
    static char text[1024];
    static char *variables[32];
    size_t n = 0;

    (void)snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        ck_assert_uint_lt(n + 1, sizeof variables / sizeof *variables);
        variables[n++] = word;
    }
    variables[n] = NULL;
    environ = variables;
}

/* -- numbers that are found ------------------------------------------------------------------- */

#define TORCHRUN "LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 RANK=5 WORLD_SIZE=8"
#define STANDBY "CISTERN_STANDBY=1 CISTERN_FIRST_RANK=4 LOCAL_WORLD_SIZE=4 WORLD_SIZE=8"
#define STEP "SLURM_STEP_ID=0 SLURM_PROCID=6 SLURM_NTASKS=7 SLURM_LOCALID=0 SLURM_NODEID=3 "

/* An environment, what the caller has said, and what is known then. */
static const struct {
    const char *environment;
    struct cst_launch given, found;
} found[] = {
    {"", NOTHING, NOTHING},
    {"", {3, 4, 8, 16}, {3, 4, 8, 16}},
    {"", {UNKNOWN, 4, UNKNOWN, UNKNOWN}, {UNKNOWN, 4, UNKNOWN, UNKNOWN}},
    {"", {3, UNKNOWN, 4, UNKNOWN}, {3, UNKNOWN, 4, UNKNOWN}},
    /* torchrun. */
    {TORCHRUN, NOTHING, {1, 4, 4, 8}},
    {"LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 RANK=3 WORLD_SIZE=4", NOTHING, {3, 4, 0, 0}},
    {"LOCAL_RANK=2", NOTHING, {2, UNKNOWN, UNKNOWN, UNKNOWN}},
    {"LOCAL_RANK=2 LOCAL_WORLD_SIZE=3", NOTHING, {2, 3, UNKNOWN, UNKNOWN}},
    {"LOCAL_WORLD_SIZE=1", NOTHING, {0, 1, UNKNOWN, UNKNOWN}},
    {"WORLD_SIZE=1", NOTHING, {0, 1, 0, 0}},
    /* A standby of `cistern run`, after it got its rank. */
    {STANDBY, {1, UNKNOWN, UNKNOWN, UNKNOWN}, {1, 4, 4, 8}},
    {STANDBY, {1, 4, UNKNOWN, UNKNOWN}, {1, 4, 4, 8}},
    {STANDBY " LOCAL_RANK=2 RANK=6", NOTHING, {2, 4, 4, 8}},
    {"RANK=0 LOCAL_RANK=0 WORLD_SIZE=1", NOTHING, {0, 1, 0, 0}},
    {"LOCAL_WORLD_SIZE=1 RANK=3 WORLD_SIZE=8", NOTHING, {0, 1, 3, 8}},
    /* Open MPI, also in a job of Slurm, where mpirun inherits the variables of another process. */
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_LOCAL_RANK=1 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=3 SLURM_LOCALID=0 "
     "SLURM_NODEID=1 SLURM_TASKS_PER_NODE=1(x3)",
     NOTHING,
     {1, 2, 2, 6}},
    /* MPICH. With srun --mpi=pmi2 there are its numbers of the job, and Slurm's of the node. */
    {"PMI_RANK=3 PMI_SIZE=6 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=3", NOTHING, {0, 3, 3, 6}},
    {"PMI_RANK=6 PMI_SIZE=7 " STEP "SLURM_TASKS_PER_NODE=2(x3),1", NOTHING, {0, 1, 6, 7}},
    /* Slurm. */
    {STEP "SLURM_TASKS_PER_NODE=2(x3),1", NOTHING, {0, 1, 6, 7}},
    {STEP "SLURM_TASKS_PER_NODE=4,1,1(x1),1 SLURM_NTASKS_PER_NODE=4", NOTHING, {0, 1, 6, 7}},
    {"SLURM_STEP_ID=2 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 "
     "SLURM_TASKS_PER_NODE=2(x2)",
     NOTHING,
     {1, 2, 2, 4}},
    {"SLURM_STEP_ID=2 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 "
     "SLURM_NTASKS_PER_NODE=2",
     NOTHING,
     {1, 2, 2, 4}},
    {"SLURM_STEP_ID=2 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NTASKS_PER_NODE=2",
     NOTHING,
     {1, 2, 2, 4}},
    {"SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_NODEID=0 "
     "SLURM_TASKS_PER_NODE=2",
     NOTHING,
     {1, 2, 0, 0}},
    /* The numbers of the step, which may have fewer ranks than the job. */
    {"SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 "
     "SLURM_NODEID=0 SLURM_TASKS_PER_NODE=4(x2) SLURM_STEP_TASKS_PER_NODE=2",
     NOTHING,
     {0, 2, 0, 0}},
    /* A batch script is no rank. */
    {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=4(x2)",
     NOTHING, NOTHING},
    /* torchrun that srun has started, and a script that sets two of torchrun's variables. */
    {TORCHRUN " " STEP "SLURM_TASKS_PER_NODE=1(x7)", NOTHING, {1, 4, 4, 8}},
    {"RANK=6 WORLD_SIZE=7 " STEP "SLURM_TASKS_PER_NODE=2(x3),1", NOTHING, {0, 1, 6, 7}},
    /* The caller's numbers, which are those of the launcher, or others. */
    {TORCHRUN, {1, UNKNOWN, UNKNOWN, UNKNOWN}, {1, 4, 4, 8}},
    {TORCHRUN, {1, 4, UNKNOWN, UNKNOWN}, {1, 4, 4, 8}},
    {TORCHRUN, {UNKNOWN, UNKNOWN, 4, UNKNOWN}, {1, 4, 4, 8}},
    {TORCHRUN, {UNKNOWN, UNKNOWN, UNKNOWN, 8}, {1, 4, 4, 8}},
    {TORCHRUN, {UNKNOWN, UNKNOWN, 8, 12}, {1, 4, 8, 12}},
    {TORCHRUN, {UNKNOWN, UNKNOWN, UNKNOWN, 16}, {1, 4, UNKNOWN, 16}},
    {TORCHRUN, {2, UNKNOWN, UNKNOWN, UNKNOWN}, {2, 4, UNKNOWN, UNKNOWN}},
    {TORCHRUN, {UNKNOWN, 2, UNKNOWN, UNKNOWN}, {1, 2, UNKNOWN, UNKNOWN}},
    {TORCHRUN, {63, 64, UNKNOWN, UNKNOWN}, {63, 64, UNKNOWN, UNKNOWN}},
    {"RANK=5 WORLD_SIZE=8", {1, 4, UNKNOWN, UNKNOWN}, {1, 4, UNKNOWN, UNKNOWN}},
    {"LOCAL_RANK=1 RANK=5 WORLD_SIZE=8", {UNKNOWN, 4, UNKNOWN, UNKNOWN}, {1, 4, 4, 8}},
    {"RANK=1 WORLD_SIZE=2", {UNKNOWN, 1, UNKNOWN, 8}, {0, 1, UNKNOWN, 8}},
    {"LOCAL_WORLD_SIZE=4", {2, UNKNOWN, UNKNOWN, UNKNOWN}, {2, 4, UNKNOWN, UNKNOWN}},
    {"LOCAL_RANK=x", {0, 1, 0, 0}, {0, 1, 0, 0}},
};

START_TEST(numbers_are_found)
{
    struct cst_launch launch = found[_i].given;
    const struct cst_launch *want = &found[_i].found;
    struct cst_err err = {0};

    set_environment(found[_i].environment);
    ck_assert_msg(cst_launch_find(&launch, &err) == CST_OK, "%s: %s", found[_i].environment,
                  err.text);
    ck_assert_msg(memcmp(&launch, want, sizeof launch) == 0,
                  "%s: rank %d of %d, first %d of %d, not %d of %d, first %d of %d",
                  found[_i].environment, (int)launch.rank, (int)launch.world,
                  (int)launch.first_rank, (int)launch.all_ranks, (int)want->rank, (int)want->world,
                  (int)want->first_rank, (int)want->all_ranks);
}
END_TEST

/* -- numbers that are refused ----------------------------------------------------------------- */

static const struct {
    const char *environment;
    struct cst_launch given;
    const char *words; /* Of the error, or some of them. */
} refused[] = {
    {"LOCAL_RANK=x", NOTHING, "environment variable LOCAL_RANK: 'x' is not a number from 0 to 511"},
    {"LOCAL_RANK=0 LOCAL_WORLD_SIZE=0", NOTHING,
     "environment variable LOCAL_WORLD_SIZE: '0' is not a number from 1 to 512"},
    {"WORLD_SIZE=40000", NOTHING, "WORLD_SIZE: '40000' is not a number from 1 to 32768"},
    /* Missing halves. */
    {"RANK=1 WORLD_SIZE=2", NOTHING,
     "environment variables: WORLD_SIZE is 2, but LOCAL_RANK is not set: set it, or give this "
     "worker its rank and the number of ranks on this node"},
    {"LOCAL_RANK=0 RANK=1 WORLD_SIZE=2", NOTHING,
     "WORLD_SIZE is 2, but LOCAL_WORLD_SIZE is not set"},
    {"LOCAL_WORLD_SIZE=2", NOTHING, "LOCAL_WORLD_SIZE is 2, but LOCAL_RANK is not set"},
    {"LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 RANK=2", NOTHING, "RANK is 2, but WORLD_SIZE is not set"},
    {"LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 WORLD_SIZE=4", NOTHING,
     "WORLD_SIZE is 4, but RANK is not set"},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", NOTHING,
     "OMPI_COMM_WORLD_SIZE is 2, but OMPI_COMM_WORLD_LOCAL_RANK is not set"},
    {"PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1", NOTHING,
     "PMI_SIZE is 4, but MPI_LOCALNRANKS is not set"},
    {STEP, NOTHING, "SLURM_NTASKS is 7, but SLURM_TASKS_PER_NODE is not set"},
    {STANDBY, NOTHING, "this process is a standby (CISTERN_STANDBY), which has no rank"},
    {"CISTERN_FIRST_RANK=x", {0, UNKNOWN, UNKNOWN, UNKNOWN}, "CISTERN_FIRST_RANK"},
    /* Contradictions. */
    {"LOCAL_RANK=4 LOCAL_WORLD_SIZE=4", NOTHING,
     "environment variables: LOCAL_RANK is 4 and LOCAL_WORLD_SIZE is 4: the ranks are 0 to 3; "
     "correct or unset them"},
    {"LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 RANK=8 WORLD_SIZE=8", NOTHING,
     "RANK is 8 and WORLD_SIZE is 8: the ranks are 0 to 7"},
    {"LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 RANK=1 WORLD_SIZE=8", NOTHING,
     "RANK is 1 and LOCAL_RANK is 2: the first rank on this node would be negative; the ranks of a "
     "node must follow each other"},
    {"LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 RANK=5 WORLD_SIZE=8", NOTHING,
     "RANK is 5, LOCAL_RANK is 0 and LOCAL_WORLD_SIZE is 4: the ranks on this node would be 5 to "
     "8, but WORLD_SIZE is 8; correct or unset them"},
    {"LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 RANK=1 WORLD_SIZE=2", NOTHING,
     "the ranks on this node would be 0 to 3, but WORLD_SIZE is 2"},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=3",
     NOTHING, "OMPI_COMM_WORLD_RANK is 1 and OMPI_COMM_WORLD_LOCAL_RANK is 2"},
    {"PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2", NOTHING,
     "PMI_RANK is 3, MPI_LOCALRANKID is 0 and MPI_LOCALNRANKS is 2"},
    /* srun --distribution=cyclic, whose ranks 1 and 3 are on node 1. */
    {"SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 "
     "SLURM_TASKS_PER_NODE=2(x2)",
     NOTHING,
     "SLURM_PROCID is 1 and SLURM_LOCALID is 0, but the nodes before this one have 2 ranks "
     "(SLURM_TASKS_PER_NODE): the ranks of a node must follow each other, as with srun "
     "--distribution=block"},
    {"LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 RANK=1 WORLD_SIZE=8", {2, 4, UNKNOWN, UNKNOWN}, "negative"},
    /* Lists. */
    {STEP "SLURM_TASKS_PER_NODE=2(x3)", NOTHING,
     "SLURM_NODEID is 3, but SLURM_TASKS_PER_NODE, which is '2(x3)', has 3 nodes: correct or unset "
     "them"},
    {STEP "SLURM_TASKS_PER_NODE=2(x3,1", NOTHING,
     "SLURM_TASKS_PER_NODE: '2(x3,1' is not a list of numbers from 1 to 512, such as 2(x3),1"},
    {STEP "SLURM_TASKS_PER_NODE=", NOTHING, "'' is not a list"},
    {STEP "SLURM_TASKS_PER_NODE=2(x3),", NOTHING, "'2(x3),' is not a list"},
    {STEP "SLURM_TASKS_PER_NODE=2(x0),1", NOTHING, "is not a list"},
    {STEP "SLURM_TASKS_PER_NODE=2(x9999999)", NOTHING, "is not a list"},
    {STEP "SLURM_TASKS_PER_NODE=0(x4)", NOTHING, "is not a list"},
    {STEP "SLURM_TASKS_PER_NODE=513(x4)", NOTHING, "is not a list"},
    {STEP "SLURM_TASKS_PER_NODE=2;1", NOTHING, "is not a list"},
};

START_TEST(numbers_are_refused)
{
    struct cst_launch launch = refused[_i].given;
    struct cst_err err = {0};
    const int rc = (set_environment(refused[_i].environment), cst_launch_find(&launch, &err));

    ck_assert_msg(rc == CST_EINVAL, "%s: accepted", refused[_i].environment);
    ck_assert_msg(strstr(err.text, refused[_i].words) != NULL, "%s: '%s' does not have '%s'",
                  refused[_i].environment, err.text, refused[_i].words);
    ck_assert_msg(memcmp(&launch, &refused[_i].given, sizeof launch) == 0, "%s: outputs are set",
                  refused[_i].environment);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("launch");
    TCase *tc = suite_case(suite, "launch", NULL, NULL);

    tcase_add_loop_test(tc, numbers_are_found, 0, (int)(sizeof found / sizeof *found));
    tcase_add_loop_test(tc, numbers_are_refused, 0, (int)(sizeof refused / sizeof *refused));
    return suite_run(suite);
}
