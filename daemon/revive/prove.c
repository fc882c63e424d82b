/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/revive/prove.h"

#include "daemon/base/daemon_state.h"
#include "daemon/ledger/kept_job.h"
#include "daemon/revive/revive_job.h"
#include "proto/size.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/gpus.h"
#include "daemon/memory/memory.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/memory/tiers/tier.h"

#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { VERSION_MS = 10000 }; /* Longest wait for the version of a program. */

/* -- one job ---------------------------------------------------------------------------------- */

int cstd_prove_job(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                   const struct cstd_kept_job *base, struct cst_err *err)
{
    int rc = cstd_revive_job_prepare(daemon, kept, err);

    rc = rc == CST_OK ? cstd_revive_job_build(kept, err) : rc;
    if (rc == CST_OK && base != NULL) {
        rc = cstd_revive_job_build_on(kept, base->draft, err);
    }
    if (rc == CST_OK) {
        rc = cstd_kept_job_check_segments(daemon, kept, &kept->draft->layout, err);
    }
    return rc == CST_OK ? CST_OK : cst_err_prefix(err, "job '%s' cannot go on", kept->name);
}

/* -- budgets ---------------------------------------------------------------------------------- */

/* True if workers of the job will want its pools at once: not if a pause releases them. */
static bool is_at_work(const struct cstd_kept_job *kept)
{
    const struct cst_set all = cst_set_range(0, kept->world);

    return kept->file.last.pause != 2 && !cst_set_within(&all, &kept->file.last.left);
}

static struct cstd_budget *budget_of(struct cstd_daemon *daemon, const Ledger__Rank *rank)
{
    const struct cstd_tier *tier = cstd_tiers_of_uuid(daemon, rank->device);

    return cstd_tier_budget(tier != NULL ? tier : cstd_tiers_host(daemon));
}

/* Charge the pools of the first *n ranks of @kept. CST_EBUDGET: *n of them are charged. */
static int charge(struct cstd_daemon *daemon, const struct cstd_kept_job *kept, uint32_t *n,
                  struct cst_err *err)
{
    const uint32_t most = *n;
    char what[96];

    (void)snprintf(what, sizeof what, "job '%s'", kept->name);
    for (*n = 0; *n < most; (*n)++) {
        const Ledger__Rank *rank = kept->ledger->ranks[*n];

        if (cstd_budget_take(budget_of(daemon, rank), kept->account, rank->pool_bytes, what, err) !=
            CST_OK) {
            return err->status;
        }
    }
    return CST_OK;
}

static void discharge(struct cstd_daemon *daemon, const struct cstd_kept_job *kept, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        const Ledger__Rank *rank = kept->ledger->ranks[r];

        cstd_budget_give(budget_of(daemon, rank), kept->account, rank->pool_bytes);
    }
}

/* Check that what is charged for memory that the jobs have is not more than there is. */
static int check_used(const struct cstd_budget *budget, struct cst_err *err)
{
    char words[CSTD_BUDGET_WORDS];

    if (budget->used <= cstd_budget_size(budget)) {
        return CST_OK;
    }
    cstd_budget_words(budget, words, sizeof words);
    return cst_err_set(err, CST_EBUDGET, "%s: with the jobs that are taken over, %s%s%s%s",
                       budget->name, words, budget->key != NULL ? " (" : "",
                       budget->key != NULL ? budget->key : "", budget->key != NULL ? ")" : "");
}

static int check_memory(struct cstd_daemon *daemon, struct cst_err *err)
{
    struct cstd_gpu_list *const lists[] = {&daemon->gpus->paced, &daemon->gpus->list};
    int rc = check_used(daemon->host, err);

    for (unsigned k = 0; k < 2; k++) {
        for (unsigned i = 0; i < lists[k]->n && rc == CST_OK; i++) {
            rc = check_used(cstd_tier_budget(cstd_tiers_of_gpu(daemon, &lists[k]->v[i])), err);
        }
    }
    return rc;
}

int cstd_prove_budgets(struct cstd_daemon *daemon, const struct cstd_kept_job *jobs, uint32_t n,
                       struct cst_err *err)
{
    uint32_t *charged = calloc(n + 1, sizeof *charged);
    int rc = charged != NULL ? check_memory(daemon, err)
                             : cst_err_set(err, CST_ENOMEM, "no memory for a list of jobs");

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        if (is_at_work(&jobs[i])) {
            charged[i] = jobs[i].world;
            rc = charge(daemon, &jobs[i], &charged[i], err);
        }
    }
    for (uint32_t i = 0; charged != NULL && i < n; i++) {
        discharge(daemon, &jobs[i], charged[i]);
    }
    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        uint32_t n_charged = jobs[i].world;

        if (!is_at_work(&jobs[i])) {
            rc = charge(daemon, &jobs[i], &n_charged, err);
            discharge(daemon, &jobs[i], n_charged);
        }
    }
    free(charged);
    return rc;
}

/* -- programs --------------------------------------------------------------------------------- */

/* Read what @pid writes to @fd, and wait for its end. Returns its status, as of wait(2); -1: it
 * does not end. */
static int await(pid_t pid, int fd, char *out, size_t size)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    size_t n = 0;
    ssize_t got = 1;
    int status = -1;

    while (got > 0 && n < size - 1 && poll(&ready, 1, VERSION_MS) == 1) {
        got = read(fd, out + n, size - 1 - n);
        n += got > 0 ? (size_t)got : 0;
    }
    out[n] = '\0';
    if (got != 0) {
        (void)kill(pid, SIGKILL);
    }
    return waitpid(pid, &status, 0) == pid && got == 0 ? status : -1;
}

/* Check that @program prints the version of the program @name. */
static int check_program(char *program, const char *name, struct cst_err *err)
{
    char *argv[] = {program, (char *)(uintptr_t) "--version", NULL}, text[256];
    posix_spawn_file_actions_t actions;
    int pipes[2], rc, status = -1;
    pid_t pid;

    if (pipe2(pipes, O_CLOEXEC) != 0 || posix_spawn_file_actions_init(&actions) != 0) {
        return cst_err_set(err, CST_ENOMEM, "no descriptors to run %.200s", program);
    }
    (void)posix_spawn_file_actions_adddup2(&actions, pipes[1], STDOUT_FILENO);
    rc = posix_spawn(&pid, program, &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(pipes[1]);
    if (rc == 0) {
        status = await(pid, pipes[0], text, sizeof text);
    }
    (void)close(pipes[0]);
    if (rc != 0) {
        return cst_err_errno(err, CST_ENOTFOUND, rc, "the engine %.200s", program);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 && strncmp(text, name, strlen(name)) == 0
               ? CST_OK
               : cst_err_set(err, CST_ENOTFOUND, "%.200s is no %s: --version does not say so",
                             program, name);
}

int cstd_prove_programs(struct cstd_daemon *daemon, struct cst_err *err)
{
    struct cstd_engines *engines = daemon->engines;
    int rc = check_program(engines->program, "cistern-engine-host", err);

    for (unsigned i = 0; i < daemon->gpus->list.n && rc == CST_OK; i++) {
        if (engines->v[daemon->gpus->list.v[i].engine].n_users > 0) {
            return check_program(engines->gpu_program, "cistern-engine-cuda", err);
        }
    }
    return rc;
}
