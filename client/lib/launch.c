/* SPDX-License-Identifier: Apache-2.0 */
#include "cistern/launch.h"

#include "proto/job_options.h"
#include "proto/value.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The numbers that a launcher gives to a process. */
enum number { LOCAL_RANK, LOCAL_SIZE, RANK, SIZE, N_NUMBERS };

static const struct cst_value ranges[] = {
    [LOCAL_RANK] = CST_U32(0, 0, CST_JOB_MAX_WORLD - 1),
    [LOCAL_SIZE] = CST_U32(0, 1, CST_JOB_MAX_WORLD),
    [RANK] = CST_U32(0, 0, CST_JOB_MAX_ALL_RANKS - 1),
    [SIZE] = CST_U32(0, 1, CST_JOB_MAX_ALL_RANKS),
};

/* A launcher, by the names of its variables. */
struct launcher {
    const char *only_with; /* The others count only if this variable is set; NULL: always. */
    const char
        *names[N_NUMBERS][2]; /* Variables of each number; the first one that is set counts. */
    /* Lists of the numbers of ranks on all nodes, such as "2(x3),1", of which the first one that is
     * set comes before the variables of LOCAL_SIZE; and the number of this node in them. */
    const char *lists[2], *node;
};

/* Slurm sets SLURM_PROCID in a batch script, too, which is no rank. Only srun sets SLURM_STEP_ID.
 * SLURM_NTASKS_PER_NODE is what the user has asked for, and can be more than a node has. */
static const struct launcher launchers[] = {
    {.names = {{"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}, {"RANK"}, {"WORLD_SIZE"}}},
    {.names = {{"OMPI_COMM_WORLD_LOCAL_RANK"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE"},
               {"OMPI_COMM_WORLD_RANK"},
               {"OMPI_COMM_WORLD_SIZE"}}},
    {.names = {{"MPI_LOCALRANKID"}, {"MPI_LOCALNRANKS"}, {"PMI_RANK"}, {"PMI_SIZE"}}},
    {.only_with = "SLURM_STEP_ID",
     .names = {{"SLURM_LOCALID"},
               {"SLURM_NTASKS_PER_NODE"},
               {"SLURM_PROCID"},
               {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
     .lists = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"},
     .node = "SLURM_NODEID"},
};
enum { N_LAUNCHERS = sizeof launchers / sizeof *launchers };

/* What the environment says. */
struct said {
    uint32_t n[N_NUMBERS];           /* The numbers; CST_LAUNCH_UNKNOWN: not said. */
    const char *names[N_NUMBERS];    /* The variable of each number, for messages. */
    const struct launcher *launcher; /* The first one that says a number; NULL: none does. */
    uint32_t before;                 /* Ranks on earlier nodes by a list; CST_LAUNCH_UNKNOWN. */
};

static bool is_known(uint32_t number)
{
    return number != CST_LAUNCH_UNKNOWN;
}

/* Return whether two numbers can be the same one. */
static bool can_be(uint32_t a, uint32_t b)
{
    return !is_known(a) || !is_known(b) || a == b;
}

/* -- variables -------------------------------------------------------------------------------- */

static int read_number(const char *name, const struct cst_value *range, uint32_t *out,
                       struct cst_err *err)
{
    const int rc = cst_value_read(range, out, getenv(name), err);

    return rc == CST_OK ? CST_OK : cst_err_prefix(err, "environment variable %s", name);
}

/* Return the first of two variables that is set, or NULL. */
static const char *which(const char *const names[2])
{
    for (int i = 0; i < 2; i++) {
        if (names[i] != NULL && getenv(names[i]) != NULL) {
            return names[i];
        }
    }
    return NULL;
}

/* Read a decimal number of at most 6 digits at *at, and go on after it. False: there is none. */
static bool read_digits(const char **at, uint32_t *out)
{
    const size_t n = strspn(*at, "0123456789");

    *out = (uint32_t)strtoul(*at, NULL, 10);
    *at += n;
    return n > 0 && n <= 6;
}

/* Read an entry of a list, "N" or "N(xTIMES)", and the comma after it. False: it is not one. */
static bool read_entry(const char **at, uint32_t *n, uint32_t *times)
{
    *times = 1;
    if (!read_digits(at, n)) {
        return false;
    }
    if (strncmp(*at, "(x", 2) == 0) {
        *at += 2;
        if (!read_digits(at, times) || *times == 0 || **at != ')') {
            return false;
        }
        *at += 1;
    }
    if (**at == ',' && (*at)[1] != '\0') {
        *at += 1;
        return true;
    }
    return **at == '\0';
}

/* Read the entry of node @node in the list @name. */
static int read_list(const char *name, const char *node_name, uint32_t node, struct said *said,
                     struct cst_err *err)
{
    const char *const text = getenv(name), *at = text;
    uint32_t n_nodes = 0, before = 0, n, times;

    while (*at != '\0' || at == text) {
        if (!read_entry(&at, &n, &times) || n == 0 || n > CST_JOB_MAX_WORLD) {
            return cst_err_set(err, CST_EINVAL,
                               "environment variable %s: '%.60s' is not a list of numbers from 1 "
                               "to %d, such as 2(x3),1",
                               name, text, CST_JOB_MAX_WORLD);
        }
        if (node >= n_nodes && node - n_nodes < times) {
            said->n[LOCAL_SIZE] = n;
            said->names[LOCAL_SIZE] = name;
            said->before = before + (node - n_nodes) * n;
        }
        n_nodes += times;
        before += n * times;
    }
    return node < n_nodes ? CST_OK
                          : cst_err_set(err, CST_EINVAL,
                                        "%s is %u, but %s, which is '%.60s', has %u nodes: correct "
                                        "or unset them",
                                        node_name, node, name, text, n_nodes);
}

/* Add to @said what it does not have yet and @launcher says. */
static int add(const struct launcher *launcher, struct said *said, struct cst_err *err)
{
    static const struct cst_value nodes = CST_U32(0, 0, CST_JOB_MAX_ALL_RANKS - 1);
    const char *const list = which(launcher->lists);
    uint32_t node;
    int rc = CST_OK;

    if (launcher->only_with != NULL && getenv(launcher->only_with) == NULL) {
        return CST_OK;
    }
    if (!is_known(said->n[LOCAL_SIZE]) && list != NULL && getenv(launcher->node) != NULL) {
        rc = read_number(launcher->node, &nodes, &node, err);
        rc = rc == CST_OK ? read_list(list, launcher->node, node, said, err) : rc;
    }
    for (int i = 0; i < N_NUMBERS && rc == CST_OK; i++) {
        const char *const name = which(launcher->names[i]);

        if (!is_known(said->n[i]) && name != NULL) {
            said->names[i] = name;
            said->launcher = said->launcher != NULL ? said->launcher : launcher;
            rc = read_number(name, &ranges[i], &said->n[i], err);
        }
    }
    return rc;
}

/* A standby has no rank before cst_standby, and its caller then says which one it has got.
 * `cistern run` says where the ranks of this node begin. */
static int add_standby(const struct cst_launch *launch, struct said *said, struct cst_err *err)
{
    static const struct cst_value numbers = CST_U32(0, 0, CST_JOB_MAX_ALL_RANKS - 1);
    uint32_t first;
    int rc;

    if (getenv("CISTERN_FIRST_RANK") == NULL || is_known(said->n[LOCAL_RANK]) ||
        is_known(said->n[RANK])) {
        return CST_OK;
    }
    if (!is_known(launch->rank)) {
        return cst_err_set(err, CST_EINVAL,
                           "environment variables: this process is a standby (CISTERN_STANDBY), "
                           "which has no rank before it takes the place of one: call cst_standby, "
                           "or cistern.standby in Python, before the rank is needed");
    }
    rc = read_number("CISTERN_FIRST_RANK", &numbers, &first, err);
    if (rc == CST_OK) {
        said->n[LOCAL_RANK] = launch->rank;
        said->n[RANK] = first + launch->rank;
    }
    return rc;
}

/* -- consistency ------------------------------------------------------------------------------ */

/* One rank alone has the number 0. */
static void complete(struct said *said)
{
    if (said->n[SIZE] == 1 && !is_known(said->n[LOCAL_SIZE])) {
        said->n[LOCAL_SIZE] = 1;
    }
    if (said->n[SIZE] == 1 && !is_known(said->n[RANK])) {
        said->n[RANK] = 0;
    }
    if (said->n[LOCAL_SIZE] == 1 && !is_known(said->n[LOCAL_RANK])) {
        said->n[LOCAL_RANK] = 0;
    }
}

/* Return the name of a number for messages: its variable, or else the one that the launcher would
 * have set. */
static const char *name_of(const struct said *said, enum number number)
{
    const struct launcher *launcher = said->launcher != NULL ? said->launcher : launchers;

    if (said->names[number] != NULL) {
        return said->names[number];
    }
    return number == LOCAL_SIZE && launcher->lists[1] != NULL ? launcher->lists[1]
                                                              : launcher->names[number][0];
}

/* Refuse variables without those that are needed with them. LOCAL_RANK may be alone, because files
 * of options can have the number of ranks. */
static int check_whole(const struct said *said, struct cst_err *err)
{
    const bool has_nodes = is_known(said->n[RANK]) || is_known(said->n[SIZE]);
    const bool needed[] = {[LOCAL_RANK] = has_nodes || said->names[LOCAL_SIZE] != NULL,
                           [LOCAL_SIZE] = has_nodes,
                           [RANK] = has_nodes,
                           [SIZE] = has_nodes};
    int set = -1;

    for (int i = 0; i < N_NUMBERS; i++) {
        set = is_known(said->n[i]) && said->names[i] != NULL ? i : set;
    }
    for (int i = 0; i < N_NUMBERS; i++) {
        if (needed[i] && !is_known(said->n[i])) {
            return cst_err_set(err, CST_EINVAL,
                               "environment variables: %s is %u, but %s is not set: set it, or "
                               "give this worker its rank and the number of ranks on this node",
                               name_of(said, (enum number)set), said->n[set],
                               name_of(said, (enum number)i));
        }
    }
    return CST_OK;
}

/* Refuse numbers that are not below their limits, and ranks of this node that do not follow each
 * other. */
static int check_order(const struct said *said, struct cst_err *err)
{
    const uint32_t *const n = said->n;
    const uint32_t first = n[RANK] - n[LOCAL_RANK];

    for (int i = LOCAL_RANK; i <= RANK; i += RANK - LOCAL_RANK) {
        if (is_known(n[i]) && is_known(n[i + 1]) && n[i] >= n[i + 1]) {
            return cst_err_set(err, CST_EINVAL,
                               "environment variables: %s is %u and %s is %u: the ranks are 0 to "
                               "%u; correct or unset them",
                               name_of(said, (enum number)i), n[i],
                               name_of(said, (enum number)(i + 1)), n[i + 1], n[i + 1] - 1);
        }
    }
    if (!is_known(n[RANK])) {
        return CST_OK;
    }
    if (n[RANK] < n[LOCAL_RANK]) {
        return cst_err_set(err, CST_EINVAL,
                           "environment variables: %s is %u and %s is %u: the first rank on this "
                           "node would be negative; the ranks of a node must follow each other",
                           name_of(said, RANK), n[RANK], name_of(said, LOCAL_RANK), n[LOCAL_RANK]);
    }
    if (n[SIZE] - first < n[LOCAL_SIZE]) {
        return cst_err_set(err, CST_EINVAL,
                           "environment variables: %s is %u, %s is %u and %s is %u: the ranks on "
                           "this node would be %u to %u, but %s is %u; correct or unset them",
                           name_of(said, RANK), n[RANK], name_of(said, LOCAL_RANK), n[LOCAL_RANK],
                           name_of(said, LOCAL_SIZE), n[LOCAL_SIZE], first,
                           first + n[LOCAL_SIZE] - 1, name_of(said, SIZE), n[SIZE]);
    }
    if (!can_be(said->before, first)) {
        return cst_err_set(err, CST_EINVAL,
                           "environment variables: %s is %u and %s is %u, but the nodes before "
                           "this one have %u ranks (%s): the ranks of a node must follow each "
                           "other, as with srun --distribution=block",
                           name_of(said, RANK), n[RANK], name_of(said, LOCAL_RANK), n[LOCAL_RANK],
                           said->before, name_of(said, LOCAL_SIZE));
    }
    return CST_OK;
}

/* -- the caller's numbers --------------------------------------------------------------------- */

/* Return whether the caller's numbers and those of the environment can be about the same ranks. */
static bool agrees(const struct said *said, const struct cst_launch *launch)
{
    const uint32_t *const n = said->n;
    const bool has_first = is_known(n[RANK]) && is_known(n[LOCAL_RANK]);

    return can_be(launch->rank, n[LOCAL_RANK]) && can_be(launch->world, n[LOCAL_SIZE]) &&
           can_be(launch->all_ranks, n[SIZE]) &&
           can_be(launch->first_rank, has_first ? n[RANK] - n[LOCAL_RANK] : CST_LAUNCH_UNKNOWN);
}

static void take(uint32_t *number, uint32_t said)
{
    *number = is_known(*number) ? *number : said;
}

/* Let the caller's numbers of this node stand for those of the environment. */
static void override(struct said *said, const struct cst_launch *launch)
{
    if (is_known(launch->rank)) {
        said->n[LOCAL_RANK] = launch->rank;
    }
    if (is_known(launch->world)) {
        said->n[LOCAL_SIZE] = launch->world;
    }
}

int cst_launch_find(struct cst_launch *launch, struct cst_err *err)
{
    struct said said = {.before = CST_LAUNCH_UNKNOWN};
    bool is_whole = true, is_same;
    int rc = CST_OK;

    if (is_known(launch->rank) && is_known(launch->world) && is_known(launch->first_rank) &&
        is_known(launch->all_ranks)) {
        return CST_OK;
    }
    memset(said.n, 0xff, sizeof said.n); /* CST_LAUNCH_UNKNOWN */
    for (int i = 0; i < N_LAUNCHERS && rc == CST_OK; i++) {
        rc = add(&launchers[i], &said, err);
    }
    rc = rc == CST_OK ? add_standby(launch, &said, err) : rc;
    complete(&said);
    for (int i = 0; i < N_NUMBERS; i++) {
        is_whole = is_whole && is_known(said.n[i]);
    }
    is_same = agrees(&said, launch);
    if (rc != CST_OK ||
        (is_known(launch->rank) && is_known(launch->world) && !(is_whole && is_same))) {
        return rc; /* The caller has said everything about this node. */
    }
    override(&said, launch);
    if (!is_same) {
        said.n[RANK] = said.n[SIZE] = CST_LAUNCH_UNKNOWN;
    }
    complete(&said);
    rc = check_whole(&said, err);
    if (rc == CST_OK && is_same) {
        rc = check_order(&said, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    take(&launch->rank, said.n[LOCAL_RANK]);
    take(&launch->world, said.n[LOCAL_SIZE]);
    if (is_known(said.n[SIZE])) {
        const bool is_here = said.n[SIZE] == said.n[LOCAL_SIZE];

        take(&launch->first_rank, said.n[RANK] - said.n[LOCAL_RANK]);
        take(&launch->all_ranks, is_here ? 0 : said.n[SIZE]);
    }
    return CST_OK;
}
