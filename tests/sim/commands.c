/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a command: the memory that it names, and the engine that receives it. */
#include "tests/sim/sim.h"

/* A sum needs a trained chunk and contributions of the chunk's group in the order of ranks. It may
 * add to its destination only if grad rows are fp32. */
static void check_reduce(const struct sim *sim, const struct cst_command *command)
{
    uint32_t last = 0;

    if (!model_is_trained(sim, command->chunk) || (command->accumulate && !sim->grad_fp32) ||
        (command->accumulate && command->n_src == 0) || !cst_table_is_mark(command->mark)) {
        sim_fail(sim, "a reduction of chunk %u that cannot be", command->chunk);
    }
    for (uint32_t i = 0; i < command->n_src; i++) {
        struct spot spot = memory_find(&sim->memory, command->src[i]);

        if (spot.kind == PLACE_BLOCK &&
            (spot.rank < last || !model_holds(sim, command->chunk, spot.rank))) {
            sim_fail(sim,
                     "chunk %u: a contribution of rank %u that is not its group's, or not in "
                     "rank order",
                     command->chunk, spot.rank);
        }
        last = spot.kind == PLACE_BLOCK ? spot.rank + 1 : last;
    }
}

/* True if a copy or a fill reads or writes states in device memory. */
static bool names_device(const struct sim *sim, const struct cst_command *command)
{
    for (uint32_t i = 0; i < command->n_src + command->n_dst; i++) {
        struct spot spot = memory_find(
            &sim->memory, i < command->n_src ? command->src[i] : command->dst[i - command->n_src]);

        if (spot.kind == PLACE_ROW && model_device(sim, &spot) != 0) {
            return command->kind == CST_COMMAND_COPY || command->kind == CST_COMMAND_FILL;
        }
    }
    return false;
}

/* Check that the command's engine can access the memory that the command names. The engine of a
 * NUMA node maps the arenas of its node; the engine of a GPU maps all arenas and the pools on GPUs
 * that its own can access. Only the engine of a GPU copies to the memory of that GPU. */
void command_check(const struct sim *sim, const struct cst_command *command)
{
    bool gpu = command->node >= sim->n_nodes;

    if (command->node >= sim->n_engines) {
        sim_fail(sim, "a command for engine %u of %u", command->node, sim->n_engines);
    }
    if (command->kind == CST_COMMAND_REDUCE) {
        check_reduce(sim, command);
    }
    if (command->kind == CST_COMMAND_UPDATE && !model_is_trained(sim, command->chunk)) {
        sim_fail(sim, "an update of chunk %u, which is frozen", command->chunk);
    }
    reservation_check(sim, command);
    if (command->node == sim->slow && command->kind != CST_COMMAND_COPY &&
        command->kind != CST_COMMAND_FILL) {
        sim_fail(sim, "a command of kind %d for an engine that only copies", (int)command->kind);
    }
    if (gpu && command->kind != CST_COMMAND_COPY && command->kind != CST_COMMAND_REDUCE &&
        !names_device(sim, command) && !reservation_has(sim, command) &&
        !over_makes(sim, command)) {
        sim_fail(sim, "a command of kind %d for a GPU", (int)command->kind);
    }
    for (uint32_t i = 0; i < command->n_src + command->n_dst; i++) {
        struct spot spot = memory_find(
            &sim->memory, i < command->n_src ? command->src[i] : command->dst[i - command->n_src]);
        uint32_t home = spot.kind == PLACE_ROW ? sim->layout.chunks[spot.chunk].node : 0;
        uint32_t engine = spot.kind == PLACE_BLOCK ? sim->memory.pools[spot.rank].tier : 0;

        if (spot.kind == PLACE_ROW && model_device(sim, &spot) != 0) {
            if (command->node != model_device(sim, &spot)) {
                sim_fail(sim, "engine %u is given states that are on the accelerator of engine %u",
                         command->node, model_device(sim, &spot));
            }
        } else if (spot.kind == PLACE_ROW && !gpu && command->node != home) {
            sim_fail(sim, "engine %u does not map the arenas of node %u", command->node, home);
        }
        if (spot.kind == PLACE_LANDING && !gpu &&
            command->node != sim->layout.segments[spot.slot].node) {
            sim_fail(sim, "engine %u does not map the landings of node %u", command->node,
                     sim->layout.segments[spot.slot].node);
        }
        if (spot.kind == PLACE_BLOCK && i >= command->n_src && !reservation_has(sim, command) &&
            sim->memory.pools[spot.rank].worker_copies) {
            sim_fail(sim, "a copy into the pool of rank %u, whose worker copies", spot.rank);
        }
        if (spot.kind == PLACE_STAGING && gpu && !names_device(sim, command)) {
            sim_fail(sim, "engine %u does not map staging segments", command->node);
        }
        if (engine != 0 && command->node != engine &&
            (!gpu || (sim_unreachable(sim, command->node) >> engine & 1) != 0 ||
             (command->kind == CST_COMMAND_COPY && i >= command->n_src))) {
            sim_fail(sim, "engine %u is given memory of the GPU of engine %u", command->node,
                     engine);
        }
    }
}
