#include "daemon/balance.h"

#include "daemon/daemon.h"
#include "daemon/job.h"
#include "daemon/log.h"
#include "daemon/planner.h"
#include "offload/plan/rooms.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    MIN_PHASES = 5, /* with one k, until it counts how long they took */
    REST = 64,      /* steps without, after a k that was slower than none */
};

static double rate_of(const struct cst_balance_rate *rate)
{
    double seen = cst_rates_median_get(&rate->seen);

    return seen > 0 ? seen : rate->known;
}

/* -- the machine ------------------------------------------------------------------------------ */

/* The accelerator of room @i. */
static const struct cst_gpu *gpu_of(const struct cst_job *job, uint32_t i)
{
    for (uint32_t r = 0; r < job->world; r++) {
        const struct cst_gpu *gpu = job->workers[r].accelerator;

        if (gpu != NULL && gpu->engine == job->memory.rooms[i].engine) {
            return gpu;
        }
    }
    return NULL;
}

static bool is_room_engine(const struct cst_job *job, uint32_t engine)
{
    for (uint32_t i = 0; i < job->memory.n_rooms; i++) {
        if (job->memory.rooms[i].engine == engine) {
            return true;
        }
    }
    return false;
}

/* The slowest accelerator stands for all. */
static void know(struct cst_job *job)
{
    struct cst_balance *b = &job->balance;

    b->node.known = cst_planner_node_update(job->daemon);
    for (uint32_t i = 0; i < job->memory.n_rooms; i++) {
        struct cst_rates_device d = cst_planner_device(job->daemon, gpu_of(job, i));
        double up = d.up_both > 0 ? d.up_both : d.up;
        double down = d.down_both > 0 ? d.down_both : d.down;

        b->up.known = i == 0 || up < b->up.known ? up : b->up.known;
        b->down.known = i == 0 || down < b->down.known ? down : b->down.known;
        b->device.known = i == 0 || d.update < b->device.known ? d.update : b->device.known;
    }
}

static struct cst_interleave machine_of(const struct cst_job *job)
{
    const struct cst_memory *memory = &job->memory;
    const struct cst_balance *b = &job->balance;
    struct cst_interleave m = {.node_elems = rate_of(&b->node),
                               .device_elems = rate_of(&b->device),
                               .up = rate_of(&b->up),
                               .down = rate_of(&b->down)};

    cst_rooms_describe(&m, &job->layout, memory->rooms, memory->n_rooms, memory->pools, job->world);
    return m;
}

/* -- what was seen ---------------------------------------------------------------------------- */

/* What one engine did of one kind, and how long it was at it: several at a time count once. */
struct busy {
    uint64_t amount;
    uint64_t ns;
    uint64_t until;
};

struct window {
    struct busy updates[CST_ARENA_MAX_ENGINES];
    struct busy up[CST_ARENA_MAX_ENGINES], down[CST_ARENA_MAX_ENGINES];
};

/* Intervals come in the order of their ends. */
static void add(struct busy *busy, uint64_t amount, const struct cst_record_interval *i)
{
    uint64_t from = i->began > busy->until ? i->began : busy->until;

    busy->amount += amount;
    busy->ns += i->ended > from ? i->ended - from : 0;
    busy->until = i->ended > busy->until ? i->ended : busy->until;
}

static void look(struct cst_job *job, struct window *w)
{
    uint64_t first, end;

    cst_record_range(job->record, &first, &end);
    first = job->balance.looked > first ? job->balance.looked : first;
    for (uint64_t n = first; n < end; n++) {
        const struct cst_record_interval *i = cst_record_get(job->record, n);

        if (i->chunk >= job->layout.n_chunks || i->number >= CST_ARENA_MAX_ENGINES ||
            job->layout.chunks[i->chunk].device != 0) {
            continue; /* states that stay on an accelerator are no choice */
        }
        if (i->kind == CST_RECORD_UPDATE) {
            add(&w->updates[i->number], job->layout.chunks[i->chunk].n_elems, i);
        } else if (i->kind == CST_RECORD_STATES_UP) {
            add(&w->up[i->number], i->bytes, i);
        } else if (i->kind == CST_RECORD_STATES_DOWN) {
            add(&w->down[i->number], i->bytes, i);
        }
    }
    job->balance.looked = end;
}

/* Of the engines of the nodes the sum, since they work side by side; of accelerators each. */
static void see(struct cst_job *job)
{
    struct cst_balance *b = &job->balance;
    struct window w = {0};
    double nodes = 0;

    look(job, &w);
    for (uint32_t e = 0; e < job->daemon->engines.n; e++) {
        if (e < job->daemon->engines.n_nodes) {
            nodes += w.updates[e].ns > 0
                         ? (double)w.updates[e].amount / (double)w.updates[e].ns * 1e9
                         : 0;
        } else if (is_room_engine(job, e)) {
            cst_rates_median_add(&b->device.seen, w.updates[e].amount, w.updates[e].ns);
            cst_rates_median_add(&b->up.seen, w.up[e].amount, w.up[e].ns);
            cst_rates_median_add(&b->down.seen, w.down[e].amount, w.down[e].ns);
        }
    }
    cst_rates_median_add(&b->node.seen, (uint64_t)nodes, nodes > 0 ? 1000000000 : 0);
}

/* -- the choice ------------------------------------------------------------------------------- */

static void set(struct cst_job *job, uint32_t k, const char *why)
{
    struct cst_balance *b = &job->balance;
    struct cst_interleave m = machine_of(job);
    char text[64];

    if (k == CST_INTERLEAVE_NEVER) {
        (void)snprintf(text, sizeof text, "no chunk is updated on an accelerator");
    } else {
        (void)snprintf(text, sizeof text, "one of each %" PRIu32 " chunks is updated there", k);
    }
    cst_log(CST_LOG_NOTICE,
            "job '%s': %s (%s): nodes %.3g elements/s, accelerators %.3g, up %.3g bytes/s, down "
            "%.3g; updates predicted to take %.3g s, %.3g s without",
            job->name, text, why, m.node_elems, m.device_elems, m.up, m.down,
            cst_interleave_seconds(&m, k), cst_interleave_seconds(&m, CST_INTERLEAVE_NEVER));
    b->k = k;
    b->phase = (struct cst_rates_median){0};
    if (job->core != NULL) {
        cst_core_set_interleave(job->core, k);
    }
}

/* Whole phases with this k were slower than what the nodes reach. */
static bool is_disappointing(struct cst_job *job, const struct cst_interleave *m)
{
    struct cst_balance *b = &job->balance;
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    if (b->k == CST_INTERLEAVE_NEVER || stats.interleave != b->k) {
        return false;
    }
    cst_rates_median_add(&b->phase, (uint64_t)(m->n_chunks * m->chunk_elems), stats.last_update_ns);
    return b->phase.n >= MIN_PHASES && cst_rates_median_get(&b->phase) < m->node_elems;
}

static bool is_fixed(const struct cst_job *job)
{
    return job->daemon->config->interleave != CST_CONFIG_INTERLEAVE_AUTO;
}

uint32_t cst_balance_open(struct cst_job *job)
{
    struct cst_interleave m;

    job->balance = (struct cst_balance){0};
    if (job->memory.n_rooms == 0) {
        return CST_INTERLEAVE_NEVER;
    }
    know(job);
    m = machine_of(job);
    if (is_fixed(job)) {
        set(job, job->daemon->config->interleave, "as configured");
    } else {
        set(job, cst_interleave_choose(&m), "at first");
    }
    return job->balance.k;
}

void cst_balance_step(struct cst_job *job)
{
    struct cst_balance *b = &job->balance;
    struct cst_interleave m;
    uint32_t k;

    if (job->memory.n_rooms == 0 || is_fixed(job)) {
        return;
    }
    see(job);
    m = machine_of(job);
    if (is_disappointing(job, &m)) {
        b->n_rest = REST;
        set(job, CST_INTERLEAVE_NEVER, "it was slower than the nodes alone");
        return;
    }
    if (b->n_rest > 0) {
        b->n_rest--;
        return;
    }
    k = cst_interleave_choose(&m);
    if (k != b->k && (k == CST_INTERLEAVE_NEVER || b->k == CST_INTERLEAVE_NEVER ||
                      cst_interleave_seconds(&m, k) <
                          (1 - CST_INTERLEAVE_MARGIN) * cst_interleave_seconds(&m, b->k))) {
        set(job, k, "as measured");
    }
}
