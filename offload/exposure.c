/* How long updates take, and how much of that ranks stand still for.
 *
 * A rank stands still from when a fetch that its worker waits for has its block and lacks nothing
 * but the chunk's update, until that update is done; several such fetches of a rank count once.
 * What is asked ahead does not count until a WANT says that the worker waits for it. The copy
 * behind the update, the wait for a block, and a STEP's wait for sums and the norm are no exposure.
 *
 *   first update issued                     committed        last update done
 *        |<------------------- a round ----------|----------------->|
 *        | ==== time in which updates are under way ============    |   update_ns
 *        |                        == stands still ==                |   exposed_ns
 *
 * A round is the updates of one step. If the next one begins before all of them have been told, it
 * ends there. */
#include "offload/updates.h"

/* -- rounds ----------------------------------------------------------------------------------- */

static void open_round(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    e->open = true;
    e->all_issued = false;
    e->round_from_ns = e->update_ns;
    for (uint32_t rank = 0; rank < core->world; rank++) {
        core->ranks[rank].exposed_from_ns = core->ranks[rank].exposed_ns;
    }
}

/* Time up to now that has not been added yet. */
static void settle(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    if (e->n_updates > 0) {
        e->update_ns += core->now - e->since;
        e->since = core->now;
    }
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_rank *r = &core->ranks[rank];

        if (r->n_exposed > 0) {
            r->exposed_ns += core->now - r->exposed_since;
            r->exposed_since = core->now;
        }
    }
}

static void close_round(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;
    uint64_t most = 0;

    settle(core);
    for (uint32_t rank = 0; rank < core->world; rank++) {
        uint64_t ns = core->ranks[rank].exposed_ns - core->ranks[rank].exposed_from_ns;

        most = ns > most ? ns : most;
    }
    e->open = false;
    e->n_rounds++;
    e->last_interleave = e->interleave;
    e->last_update_ns = e->update_ns - e->round_from_ns;
    e->last_exposed_ns = most;
    e->total_update_ns += e->last_update_ns;
    e->total_exposed_ns += most;
}

void cst_exposure_issued(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    if (e->open && e->all_issued) {
        close_round(core);
    }
    if (!e->open) {
        open_round(core);
    }
    e->interleave = core->interleave_now;
    if (e->n_updates++ == 0) {
        e->since = core->now;
    }
}

void cst_exposure_replaced(struct cst_core *core, uint32_t n)
{
    core->exposure.n_updates += 1 - n;
}

void cst_exposure_all_issued(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    e->all_issued = e->open;
    if (e->open && e->n_updates == 0) {
        close_round(core);
    }
}

/* -- who stands still ------------------------------------------------------------------------- */

void cst_exposure_begin(struct cst_core *core, uint32_t i)
{
    struct cst_request *request = &core->requests.v[i];
    struct cst_rank *rank = &core->ranks[request->rank];

    if (request->ahead || request->exposed || core->chunks[request->chunk].weight_ticket == 0) {
        return;
    }
    request->exposed = true;
    if (rank->n_exposed++ == 0) {
        rank->exposed_since = core->now;
    }
}

void cst_exposure_end(struct cst_core *core, uint32_t i)
{
    struct cst_request *request = &core->requests.v[i];
    struct cst_rank *rank = &core->ranks[request->rank];

    if (!request->exposed) {
        return;
    }
    request->exposed = false;
    if (--rank->n_exposed == 0) {
        rank->exposed_ns += core->now - rank->exposed_since;
    }
}

/* Nobody waits for the update of @chunk any more. */
static void end_waits(struct cst_core *core, uint32_t chunk)
{
    for (uint64_t rest = core->chunks[chunk].ranks; rest != 0; rest &= rest - 1) {
        const struct cst_pool *pool = &core->ranks[__builtin_ctzll(rest)].pool;
        uint32_t b = pool->weight_of[chunk];

        for (uint32_t i = b == CST_NONE ? CST_NO_REQUEST : pool->blocks[b].waiters.head;
             i != CST_NO_REQUEST; i = core->requests.v[i].next) {
            cst_exposure_end(core, i);
        }
    }
}

void cst_exposure_done(struct cst_core *core, uint32_t chunk)
{
    struct cst_exposure *e = &core->exposure;

    if (core->chunks[chunk].weight_ticket == 0) {
        end_waits(core, chunk);
    }
    if (--e->n_updates == 0) {
        e->update_ns += core->now - e->since;
        if (e->open && e->all_issued) {
            close_round(core);
        }
    }
}

/* -- numbers ---------------------------------------------------------------------------------- */

void cst_exposure_stats(const struct cst_core *core, struct cst_core_stats *out)
{
    out->n_rounds = core->exposure.n_rounds;
    out->last_interleave = core->exposure.last_interleave;
    out->last_update_ns = core->exposure.last_update_ns;
    out->last_exposed_ns = core->exposure.last_exposed_ns;
    out->update_ns = core->exposure.total_update_ns;
    out->exposed_ns = core->exposure.total_exposed_ns;
}

const char *cst_exposure_check(const struct cst_core *core)
{
    uint32_t n[CST_CORE_MAX_WORLD] = {0};
    uint32_t n_updates = 0;

    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        const struct cst_request *request = &core->requests.v[i];

        if (request->where == CST_REQUEST_UNUSED || !request->exposed) {
            continue;
        }
        n[request->rank]++;
        if (request->where != CST_REQUEST_JOINED || request->ahead ||
            core->chunks[request->chunk].weight_ticket == 0) {
            return "who stands still for an update waits for one";
        }
    }
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (n[rank] != core->ranks[rank].n_exposed) {
            return "fetches that wait for an update are counted";
        }
    }
    for (uint32_t i = 0; i < core->flights.n_slots; i++) {
        const struct cst_flight *f = &core->flights.slots[i];

        n_updates +=
            f->ticket != 0 && (f->kind == CST_FLIGHT_UPDATE || f->kind == CST_FLIGHT_STATES);
    }
    return n_updates != core->exposure.n_updates ? "updates under way are counted" : NULL;
}
