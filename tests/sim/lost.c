/* SPDX-License-Identifier: Apache-2.0 */
/* Accelerators' engines that are lost because they die too often or their device is gone. Until
 * they return, all their commands end with CST_EENGINE, in any order, whether or not a part of the
 * command was done. The job fails only if it cannot continue without a lost command. */
#include "tests/sim/sim.h"
#include "tests/lib/bits.h"

/* True if the job fails when the command is lost. The job survives the loss of copies to blocks,
 * grad rows and staging, of sums, and of the commands of a device update before its copies down. */
static bool is_vital(struct sim *sim, const struct job *job)
{
    const struct cst_command *command = &job->command;
    struct spot dst;

    if (reservation_has(sim, command)) {
        return sim->layout.chunks[command->chunk].tier != 0 ||
               (command->kind != CST_COMMAND_UPDATE && !reservation_goes_up(sim, command));
    }
    if (!engines_copies(job)) {
        return command->kind != CST_COMMAND_REDUCE;
    }
    dst = engines_find(sim, job, command->dst[0]);
    return dst.kind == PLACE_ROW && dst.row != CST_ROW_GRAD;
}

static bool is_lost(const struct sim *sim, const struct job *job)
{
    return (sim->lost >> job->command.node & 1) != 0 && !driver_holds(sim, job);
}

/* Choose an accelerator's engine, preferably one with a device update under way. */
static uint32_t choose(struct sim *sim)
{
    uint32_t first = sim->n_jobs > 0 ? sim_below(sim, sim->n_jobs) : 0;

    for (uint32_t k = 0; k < sim->n_jobs; k++) {
        const struct job *job = &sim->jobs[(first + k) % sim->n_jobs];

        if (reservation_has(sim, &job->command) && !is_vital(sim, job)) {
            return job->command.node;
        }
    }
    return sim->n_nodes + sim_below(sim, sim->n_engines - sim->n_nodes);
}

void lost_begin(struct sim *sim)
{
    sim->lost |= 1u << choose(sim);
    for (unsigned i = 0; i < sim->n_jobs; i++) {
        struct job *job = &sim->jobs[i];

        if (is_lost(sim, job) && job->state == JOB_RUNNING) {
            engines_tear(sim, job);
            job->state = JOB_WAITING;
        }
    }
}

void lost_end(struct sim *sim)
{
    sim->lost = 0;
}

void lost_node(struct sim *sim)
{
    engines_restart(sim);
    sim->ever_down = true;
    for (unsigned i = 0; i < sim->n_jobs; i++) {
        sim->jobs[i].is_void = true;
    }
    sim_event(sim, (struct cst_event){.kind = CST_EV_NODE_DOWN, .text = "engine 0: given up"});
}

/* After a failed write of the tool the content is undefined; the next number is accepted. */
static void end_write(struct sim *sim, const struct job *job)
{
    if (!reservation_has(sim, &job->command) && engines_copies(job) && is_vital(sim, job)) {
        struct spot dst = engines_find(sim, job, job->command.dst[0]);
        struct cell *cell = engines_cell(sim, &dst);

        memory_begin(cell);
        memory_end(cell, cell->value + 1);
    }
}

bool lost_refuses(struct sim *sim, struct job *job)
{
    if (!is_lost(sim, job) || (job->state == JOB_FINISHED && job->status != CST_OK)) {
        return false;
    }
    sim->ever_lost |= 1u << job->command.node;
    sim->excused = sim->excused || is_vital(sim, job);
    sim->n_lost += job->command.kind == CST_COMMAND_UPDATE && !is_vital(sim, job);
    sim->n_lost_sums += job->command.kind == CST_COMMAND_REDUCE;
    if (job->state == JOB_WAITING) {
        end_write(sim, job);
    }
    job->state = JOB_FINISHED;
    job->status = CST_EENGINE;
    return true;
}

void lost_check(struct sim *sim, uint32_t rank, int status)
{
    uint32_t engine = sim->memory.pools[rank].tier;

    if (status == CST_EENGINE && !sim->failed && !sim->ever_down &&
        (sim->ever_lost >> engine & 1) == 0) {
        sim_fail(sim, "rank %u heard of a lost engine; its pool is at engine %u, which never was",
                 rank, engine);
    }
}

void lost_move(struct sim *sim, uint32_t rank)
{
    struct cst_core_pool *pool = &sim->memory.pools[rank];
    struct cst_err err;

    if (sim->p_lost == 0 || !sim_chance(sim, 2000) ||
        cst_core_may_move(sim->core, rank, sim_chance(sim, 5000), &err) != CST_OK) {
        return;
    }
    pool->tier = sim_chance(sim, 3000) ? 0 : sim->n_nodes + sim_below(sim, 2);
    pool->unreachable = bits(sim_unreachable(sim, pool->tier));
    cst_core_move_pool(sim->core, rank, pool);
    sim->n_moved++;
}
