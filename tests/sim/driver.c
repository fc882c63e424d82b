/* SPDX-License-Identifier: Apache-2.0 */
/* The driver between the core and the engines. It gives commands to engines, and keeps a command
 * until it was told the end of the commands that the kept command waits for. */
#include "tests/sim/sim.h"

#include <inttypes.h>

const struct job *driver_find(const struct sim *sim, uint64_t ticket)
{
    for (unsigned i = 0; i < sim->n_jobs; i++) {
        if (sim->jobs[i].command.ticket == ticket) {
            return &sim->jobs[i];
        }
    }
    return NULL;
}

/* True if the command waits for a command of another engine. */
static bool crosses(const struct sim *sim, const struct cst_command *command)
{
    for (uint32_t i = 0; i < command->n_after; i++) {
        const struct job *first = driver_find(sim, command->after[i]);

        if (first != NULL && first->command.node != command->node) {
            return true;
        }
    }
    return false;
}

bool driver_holds(const struct sim *sim, const struct job *job)
{
    bool waits = false;

    for (uint32_t i = 0; i < job->command.n_after; i++) {
        waits = waits || driver_find(sim, job->command.after[i]) != NULL;
    }
    return job->held && waits;
}

/* True if the driver must keep the command until it was told the end of all commands before it. The
 * driver then remembers which of these failed. If the driver need not keep the command, the engine
 * remembers failures, but only as long as the engine lives. */
static bool must_hold(const struct sim *sim, const struct cst_command *command)
{
    for (uint32_t i = 0; i < command->n_after; i++) {
        const struct job *first = driver_find(sim, command->after[i]);

        if (first != NULL && (first->command.node != command->node || command->after_ack ||
                              first->command.may_fail || driver_holds(sim, first))) {
            return true;
        }
    }
    return false;
}

/* The micro-batch to which the contribution in @rank's block belongs. */
static uint32_t micro_of(const struct sim *sim, uint32_t chunk, uint32_t rank, uint32_t block)
{
    uint64_t value = memory_read(&sim->memory.blocks[rank][block]);
    uint32_t m = 0;

    while (m + 1 < sim->micro_batches && sim->handed[chunk][rank][m] != value) {
        m++;
    }
    return m;
}

/* True if a running rank of the group has not yet handed in its contribution to the micro-batch of
 * the last source. */
static bool is_early(const struct sim *sim, const struct cst_command *command)
{
    struct spot last;
    uint32_t m;

    if (command->kind != CST_COMMAND_REDUCE || command->n_src == 0) {
        return false;
    }
    last = memory_find(&sim->memory, command->src[command->n_src - 1]);
    m = last.kind == PLACE_BLOCK ? micro_of(sim, command->chunk, last.rank, last.block) : 0;
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        if (model_holds(sim, command->chunk, rank) && sim->handed[command->chunk][rank][m] == 0 &&
            sim->workers[rank].state == WORKER_RUN && sim->workers[rank].micro <= m) {
            return true;
        }
    }
    return false;
}

/* Let all commands that wait for ticket @from wait for ticket @to. */
static void rename_ticket(struct sim *sim, uint64_t from, uint64_t to)
{
    for (unsigned i = 0; i < sim->n_jobs; i++) {
        struct cst_command *command = &sim->jobs[i].command;

        for (uint32_t k = 0; k < command->n_after; k++) {
            command->after[k] = command->after[k] == from ? to : command->after[k];
        }
    }
}

void driver_submit(struct sim *sim, const struct cst_command *command)
{
    command_check(sim, command);
    if (sim->n_jobs == SIM_MAX_JOBS) {
        sim_fail(sim, "more than %d commands under way", SIM_MAX_JOBS);
    }
    sim->n_crossing += crosses(sim, command);
    sim->n_early += is_early(sim, command);
    for (uint32_t i = 0; i < command->n_after; i++) {
        if (command->after[i] >= command->ticket) {
            sim_fail(sim, "command %" PRIu64 " waits for a later one", command->ticket);
        }
    }
    for (uint32_t i = 0; i < command->n_replaces; i++) {
        rename_ticket(sim, command->replaces[i], command->ticket);
    }
    sim->n_replaces += command->n_replaces > 0;
    sim->jobs[sim->n_jobs] = (struct job){.command = *command, .held = must_hold(sim, command)};
    update_submit(sim, &sim->jobs[sim->n_jobs++]);
}

void driver_recall(struct sim *sim, uint64_t ticket)
{
    for (unsigned i = 0; i < sim->n_jobs; i++) {
        struct job *job = &sim->jobs[i];

        if (job->command.ticket == ticket && driver_holds(sim, job)) {
            job->cancelled = true;
            job->command.n_after = 0;
            sim->n_recalled++;
        }
    }
}

void driver_failed(struct sim *sim, uint64_t ticket)
{
    for (unsigned i = 0; i < sim->n_jobs; i++) {
        struct job *job = &sim->jobs[i];

        for (uint32_t k = 0; k < job->command.n_after; k++) {
            job->cancelled = job->cancelled || job->command.after[k] == ticket;
        }
    }
}
