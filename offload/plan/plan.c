/* The order of things: capacities, tries, replays of the promising ones, neighbours of the best,
 * the answer. */
#include "offload/plan/search.h"

#include "offload/packing.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define DEFAULT_EVENTS 600000
#define MAX_SITES 40         /* capacities of the first class that are tried at first */
#define MAX_WORK (16u << 20) /* tensors and uses looked at, over all of them */
#define MAX_CLIMBS 24        /* rounds of neighbours */
#define MIB_ELEMS (1u << 19) /* of weights */
#define MAX_PADDING 0.02     /* of the weights */
#define HAIR 400             /* a step that is longer by one part in so many is as good */
#define LOCK 50              /* same, as a place to look for better ones */

static const uint32_t known_mib[] = {16, 32, 64};
#define N_KNOWN (sizeof known_mib / sizeof known_mib[0])

/* -- opening -------------------------------------------------------------------------------- */

static uint64_t count_activations(const struct cst_plan_config *config)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < config->model->n_operators; i++) {
        bytes += config->model->operators[i].activation_bytes;
    }
    return config->budget->activation_bytes > 0 ? config->budget->activation_bytes : bytes;
}

/* All ranks do the same if every tensor is everybody's. */
static bool all_alike(const struct cst_model *model, uint32_t world)
{
    uint64_t all = world >= 64 ? UINT64_MAX : (UINT64_C(1) << world) - 1;

    for (uint32_t t = 0; t < model->n_tensors; t++) {
        if ((model->groups[model->tensors[t].group] & all) != all) {
            return false;
        }
    }
    return true;
}

/* The busiest rank's, if nothing holds it up. */
static double count_compute(const struct cst_search *s)
{
    const struct cst_plan_config *c = s->config;
    double share = c->flops_share > 0 ? c->flops_share : 1, most = 0;
    double rate = s->rates.devices[0].flops * share / (s->host ? s->world : 1);

    for (uint32_t rank = 0; rank < s->world; rank++) {
        double flops = 0;

        for (uint32_t i = 0; i < c->model->n_operators; i++) {
            const struct cst_layout_operator *o = &c->model->operators[i];
            double uses =
                o->expected_uses > 0 && o->expected_uses < 1 ? (double)o->expected_uses : 1;

            flops += (o->ranks >> rank & 1) != 0 ? uses * o->flops : 0;
        }
        most = flops > most ? flops : most;
    }
    return most * (c->recompute ? 4 : 3) * c->micro_batches / rate * 1e9;
}

static int check_config(const struct cst_plan_config *c, struct cst_err *err)
{
    int rc = cst_rates_check(c->rates, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (c->world == 0 || c->world > CST_CORE_MAX_WORLD || c->micro_batches == 0 ||
        c->model->n_tensors == 0 || c->device >= c->rates->n_devices) {
        return cst_err_set(err, CST_EINVAL,
                           "a plan for %" PRIu32 " ranks, %" PRIu32 " micro-batches, %" PRIu32
                           " tensors, device %" PRIu32 " of %" PRIu32,
                           c->world, c->micro_batches, c->model->n_tensors, c->device,
                           c->rates->n_devices);
    }
    if (c->rates->devices[c->device].flops <= 0) {
        return cst_err_set(err, CST_EINVAL, "rates: device '%s': flops is not known",
                           c->rates->devices[c->device].name);
    }
    return CST_OK;
}

int cst_search_open(struct cst_search *s, const struct cst_plan_config *config, struct cst_err *err)
{
    uint64_t limit = config->budget->device_bytes;
    int rc = check_config(config, err);

    if (rc != CST_OK) {
        return rc;
    }
    *s = (struct cst_search){.config = config,
                             .rates = *config->rates,
                             .world = config->world,
                             .stands_for = 1,
                             .best = NONE,
                             .room = UINT64_MAX / 4};
    s->rates.devices[0] = config->rates->devices[config->device];
    s->rates.n_devices = 1;
    s->host = strcmp(s->rates.devices[0].name, "host") == 0;
    s->stands_for = all_alike(config->model, config->world) ? config->world : 1;
    s->activation_bytes = s->host ? 0 : count_activations(config);
    if (limit > 0) {
        s->room = limit > s->activation_bytes ? limit - s->activation_bytes : 0;
    }
    s->compute_ns = count_compute(s);
    s->events_left = config->max_events == 0 ? DEFAULT_EVENTS : config->max_events;
    return CST_OK;
}

/* -- tries ---------------------------------------------------------------------------------- */

static bool same_knobs(const struct cst_plan_try *a, const struct cst_plan_try *b)
{
    return memcmp(a->sizes, b->sizes, sizeof a->sizes) == 0 && a->wide == b->wide &&
           a->once == b->once && a->depth == b->depth && a->eviction == b->eviction &&
           memcmp(a->n_blocks, b->n_blocks, sizeof a->n_blocks) == 0 && a->n_device == b->n_device;
}

/* Add @try, which @layout belongs to, if it fits and is new. *number: its own, or that of the same
 * one; NONE: it does not fit. */
static int add_try(struct cst_search *s, struct cst_plan_try try, const struct cst_layout *layout,
                   uint32_t *number)
{
    *number = NONE;
    if (!cst_search_fit(s, &try, layout)) {
        return CST_OK;
    }
    for (uint32_t i = 0; i < s->n_tries; i++) {
        if (same_knobs(&s->tries[i], &try)) {
            s->tries[i].known = s->tries[i].known || try.known;
            *number = i;
            return CST_OK;
        }
    }
    if (s->n_tries == s->capacity) {
        uint32_t grown = s->capacity == 0 ? 64 : 2 * s->capacity;
        struct cst_plan_try *tries = realloc(s->tries, grown * sizeof *tries);

        if (tries == NULL) {
            return CST_ENOMEM;
        }
        s->tries = tries;
        s->capacity = grown;
    }
    cst_search_bound(s, &try, layout);
    *number = s->n_tries;
    s->tries[s->n_tries++] = try;
    return CST_OK;
}

/* The same packing in the smallest chunks: the fullest one says how large they must be. */
static void tighten(const struct cst_layout *layout, struct cst_plan_try *try)
{
    uint64_t fullest = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        uint64_t n = layout->chunks[c].n_elems;

        fullest = layout->chunks[c].size_class == 0 && n > fullest ? n : fullest;
    }
    memset(try->sizes, 0, sizeof try->sizes);
    try->n_sizes = layout->n_classes;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        try->sizes[i] = layout->classes[i].capacity;
    }
    if (fullest > 0) {
        try->sizes[0] = cst_align_up(fullest, CST_LAYOUT_CAPACITY_STEP);
    }
}

/* A layout of first-class chunks of about @elems: CST_OK and *found, unless there is none of that
 * size. */
static int find_site(struct cst_search *s, uint64_t elems, struct cst_plan_try *try,
                     struct cst_layout *layout, bool *found)
{
    struct cst_err err;
    int rc;

    *try = (struct cst_plan_try){.sizes = {elems}, .n_sizes = 1, .block_room = UINT64_MAX};
    for (uint32_t i = 0; i < N_KNOWN; i++) {
        try->known = try->known || elems == known_mib[i] * (uint64_t)MIB_ELEMS;
    }
    *found = false;
    rc = cst_search_layout(s, try, layout, &err);
    if (rc != CST_OK) {
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    if (elems == 0 || s->config->chunk_elems == 0) {
        tighten(layout, try);
        cst_layout_close(layout);
        rc = cst_search_layout(s, try, layout, &err);
    } else {
        try->n_sizes = layout->n_classes;
        for (uint32_t i = 0; i < layout->n_classes; i++) {
            try->sizes[i] = layout->classes[i].capacity;
        }
    }
    *found = rc == CST_OK;
    return rc == CST_ENOMEM ? rc : CST_OK;
}

/* How much of a device states may take: parts of what the smallest pool leaves. */
static uint64_t part_for_states(const struct cst_search *s, const struct cst_layout *layout,
                                uint32_t eighths)
{
    uint64_t least = 0;

    for (uint32_t i = 0; i < layout->n_classes; i++) {
        least += (uint64_t)layout->classes[i].min_blocks * 2 * layout->classes[i].capacity;
    }
    return least < s->room ? (s->room - least) / 8 * eighths : 0;
}

static bool states_may_stay(const struct cst_search *s)
{
    return !s->config->runtime_only && !s->host && s->rates.devices[0].update > 0 &&
           s->config->budget->device_bytes > 0;
}

/* All tries of one layout. */
static int add_site(struct cst_search *s, const struct cst_plan_try *site,
                    const struct cst_layout *layout)
{
    static const uint32_t eighths[] = {0, 1, 2, 4, 6, 7, 8};
    uint32_t n_states = states_may_stay(s) ? 7 : 1, number;
    bool once = s->config->micro_batches > 1 && !s->config->runtime_only;
    int rc = CST_OK;

    for (uint32_t i = 0; i < n_states * 4 && rc == CST_OK; i++) {
        struct cst_plan_try try = *site;

        try.state_room = part_for_states(s, layout, eighths[i / 4]);
        try.wide = (i & 1) != 0;
        try.once = (i & 2) != 0;
        if ((try.wide && layout->n_classes == 1) || (try.once && !once)) {
            continue;
        }
        rc = add_try(s, try, layout, &number);
    }
    return rc;
}

static int try_capacity(struct cst_search *s, uint64_t elems)
{
    struct cst_plan_try try;
    struct cst_layout layout;
    bool found;
    int rc = find_site(s, elems, &try, &layout, &found);

    if (rc == CST_OK && found) {
        rc = add_site(s, &try, &layout);
        cst_layout_close(&layout);
    }
    return rc;
}

static uint32_t count_sites(const struct cst_model *model)
{
    uint64_t n = MAX_WORK / (model->n_tensors + model->n_uses + 1ull);

    return n < 6 ? 6 : n < MAX_SITES ? (uint32_t)n : MAX_SITES;
}

/* Geometric steps from the smallest chunks that make sense to one chunk for all, and well-known
 * sizes. */
static int list_tries(struct cst_search *s)
{
    const struct cst_model *model = s->config->model;
    uint32_t n = count_sites(model);
    uint64_t low = cst_align_up(model->n_params / 2048 + 1, CST_LAYOUT_CAPACITY_STEP);
    uint64_t high = cst_align_up(model->n_params, CST_LAYOUT_CAPACITY_STEP);
    double ratio;
    int rc;

    if (s->config->chunk_elems != 0) {
        return try_capacity(s, s->config->chunk_elems);
    }
    high = high < CST_LAYOUT_MAX_CHUNK_ELEMS ? high : CST_LAYOUT_MAX_CHUNK_ELEMS;
    rc = try_capacity(s, 0);
    for (uint32_t i = 0; i < N_KNOWN && rc == CST_OK; i++) {
        rc = try_capacity(s, known_mib[i] * (uint64_t)MIB_ELEMS);
    }
    ratio = low < high ? pow((double)high / (double)low, 1.0 / n) : 1;
    for (uint32_t i = 0; i <= n && rc == CST_OK; i++) {
        double at = (double)low * pow(ratio, i);

        rc = try_capacity(s, cst_align_up((uint64_t)at, CST_LAYOUT_CAPACITY_STEP));
    }
    return rc;
}

/* -- replays -------------------------------------------------------------------------------- */

static bool is_better(const struct cst_plan_try *a, const struct cst_plan_try *b)
{
    uint64_t memory_a = a->pool_bytes + a->state_bytes, memory_b = b->pool_bytes + b->state_bytes;

    if (a->result.step_ns != b->result.step_ns) {
        return a->result.step_ns < b->result.step_ns;
    }
    return memory_a != memory_b ? memory_a < memory_b : a->n_chunks < b->n_chunks;
}

/* Replay try @i if there are events left, or at any price. CST_OK also where the try turns out not
 * to run. */
static int replay(struct cst_search *s, uint32_t i, bool any_price)
{
    struct cst_plan_try *try = &s->tries[i];
    struct cst_replay_config config = {.n_steps = 3,
                                       .deadline_events = any_price ? 0 : s->events_left};
    struct cst_layout layout;
    struct cst_err err;
    int rc;

    if (try->replayed || (s->events_left == 0 && !any_price)) {
        return CST_OK;
    }
    try->replayed = true;
    try->result.step_ns = UINT64_MAX;
    rc = cst_search_layout(s, try, &layout, &err);
    if (rc != CST_OK) {
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    rc = cst_search_play(s, try, &layout, &config, &try->result, &err);
    cst_layout_close(&layout);
    if (rc == CST_ETIMEDOUT) {
        s->events_left = 0;
        return CST_OK;
    }
    if (rc != CST_OK) {
        s->lack.err = s->lack.bytes == 0 ? err : s->lack.err;
        try->result.step_ns = UINT64_MAX;
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    s->n_replayed++;
    s->n_events += try->result.n_events;
    s->events_left -= try->result.n_events < s->events_left ? try->result.n_events : s->events_left;
    if (s->best == NONE || is_better(try, &s->tries[s->best])) {
        s->best = i;
    }
    return CST_OK;
}

static int by_estimate(const void *a, const void *b)
{
    const struct cst_plan_try *x = a, *y = b;

    if (x->estimate_ns != y->estimate_ns) {
        return x->estimate_ns < y->estimate_ns ? -1 : 1;
    }
    return (x->n_chunks > y->n_chunks) - (x->n_chunks < y->n_chunks);
}

static bool can_win(const struct cst_search *s, const struct cst_plan_try *try)
{
    return s->best == NONE || try->bound_ns < s->tries[s->best].result.step_ns;
}

/* The promising ones, until half of the events are used up; those of well-known capacities at any
 * price. */
static int replay_promising(struct cst_search *s)
{
    uint64_t keep = s->events_left / 2;
    int rc = CST_OK;

    if (s->n_tries > 0) {
        qsort(s->tries, s->n_tries, sizeof *s->tries, by_estimate);
    }
    for (uint32_t i = 0; i < s->n_tries && rc == CST_OK; i++) {
        rc = s->tries[i].known && s->tries[i].state_room == 0 ? replay(s, i, false) : CST_OK;
    }
    for (uint32_t i = 0; i < s->n_tries && rc == CST_OK; i++) {
        if (s->best != NONE && s->events_left < keep) {
            break;
        }
        if (can_win(s, &s->tries[i])) {
            rc = replay(s, i, false);
        }
    }
    for (uint32_t i = 0; i < s->n_tries && rc == CST_OK && s->best == NONE; i++) {
        s->tries[i].replayed = false;
        rc = replay(s, i, true);
    }
    return rc;
}

static bool is_thrifty(const struct cst_search *s, const struct cst_plan_try *try)
{
    double most = s->config->max_padding > 0 ? s->config->max_padding : MAX_PADDING;

    return (double)try->padding_bytes <= most * 2 * (double)s->config->model->n_params;
}

/* A plan that wastes little is taken before one that is a hair faster. */
static uint32_t thriftiest(const struct cst_search *s, uint64_t hair)
{
    const struct cst_plan_try *best = &s->tries[s->best];
    uint64_t limit = best->result.step_ns + best->result.step_ns / hair;
    uint32_t found = NONE;

    for (uint32_t i = 0; i < s->n_tries; i++) {
        const struct cst_plan_try *try = &s->tries[i];

        if (try->replayed && try->result.step_ns <= limit && is_thrifty(s, try) &&
            (found == NONE || is_better(try, &s->tries[found]))) {
            found = i;
        }
    }
    return found == NONE ? s->best : found;
}

/* -- neighbours ----------------------------------------------------------------------------- */

static int visit(struct cst_search *s, const struct cst_plan_try *try,
                 const struct cst_layout *layout)
{
    uint32_t number;
    int rc = add_try(s, *try, layout, &number);

    return rc == CST_OK && number != NONE && can_win(s, &s->tries[number])
               ? replay(s, number, false)
               : rc;
}

/* Same layout, the other order of eviction, other depths, other shares of states, fewer blocks. */
static int climb_knobs(struct cst_search *s, const struct cst_plan_try *from)
{
    static const uint32_t depths[] = {0, 1, 2, 3, 4, 8};
    static const double shares[] = {0.5, 0.8, 0.95, 1.05, 1.25, 2};
    struct cst_layout layout;
    struct cst_err err;
    int rc = cst_search_layout(s, from, &layout, &err);

    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < 2 && rc == CST_OK; i++) {
        struct cst_plan_try try = *from;

        try.replayed = false;
        try.eviction = i == 0 ? CST_EVICT_LRU : CST_EVICT_NEXT_USE;
        rc = visit(s, &try, &layout);
    }
    for (uint32_t i = 0; i < 6 && rc == CST_OK; i++) {
        struct cst_plan_try try = *from;

        try.replayed = false;
        try.depth = depths[i];
        rc = visit(s, &try, &layout);
        try.depth = from->depth;
        if (rc == CST_OK && from->state_room > 0) {
            try.state_room = (uint64_t)((double)from->state_room * shares[i]);
            try.state_room = try.state_room < s->room ? try.state_room : s->room;
            rc = visit(s, &try, &layout);
            try.state_room = from->state_room;
        }
        if (rc == CST_OK && shares[i] < 1) {
            try.block_room = (uint64_t)((double)from->pool_bytes * shares[i]);
            rc = visit(s, &try, &layout);
        }
    }
    cst_layout_close(&layout);
    return rc;
}

/* Other capacities, the same shares. */
static int climb_capacity(struct cst_search *s, const struct cst_plan_try *from)
{
    static const double factors[] = {0.5, 0.7, 0.85, 0.93, 1.08, 1.2, 1.5, 2};
    int rc = CST_OK;

    for (uint32_t i = 0; i < 8 && rc == CST_OK && s->config->chunk_elems == 0; i++) {
        uint64_t elems =
            cst_align_up((uint64_t)((double)from->sizes[0] * factors[i]), CST_LAYOUT_CAPACITY_STEP);
        struct cst_plan_try try;
        struct cst_layout layout;
        bool found;

        rc = find_site(s, elems, &try, &layout, &found);
        if (rc != CST_OK || !found) {
            continue;
        }
        try.state_room = from->state_room;
        try.wide = from->wide;
        try.once = from->once;
        try.depth = from->depth;
        try.eviction = from->eviction;
        rc = visit(s, &try, &layout);
        cst_layout_close(&layout);
    }
    return rc;
}

static int climb(struct cst_search *s)
{
    int rc = CST_OK;

    for (uint32_t round = 0; round < MAX_CLIMBS && rc == CST_OK && s->best != NONE; round++) {
        uint32_t before = s->best;
        struct cst_plan_try from = s->tries[before]; /* tries may move */

        rc = climb_knobs(s, &from);
        if (rc == CST_OK) {
            from = s->tries[s->best];
            rc = climb_capacity(s, &from);
        }
        if (s->best == before || s->events_left == 0) {
            break;
        }
    }
    if (rc == CST_OK && s->best != NONE && s->events_left > 0) {
        struct cst_plan_try from = s->tries[thriftiest(s, LOCK)];

        rc = climb_knobs(s, &from);
        rc = rc == CST_OK ? climb_capacity(s, &from) : rc;
    }
    return rc;
}

/* -- the answer ----------------------------------------------------------------------------- */

static int make_choice(struct cst_search *s, const struct cst_plan_try *try,
                       struct cst_plan_choice *out, struct cst_err *err)
{
    struct cst_plan_choice choice = {
        .layout = cst_search_layout_config(s, try),
        .n_classes = try->n_sizes,
        .prefetch_depth = try->depth,
        .eviction = try->eviction,
        .grad = try->over ? CST_PLAN_GRAD_OVER : CST_PLAN_GRAD_BESIDE,
        .reduce_each = s->config->micro_batches > 1 && !try->once,
        .n_chunks = try->n_chunks,
        .pool_bytes = try->pool_bytes,
        .state_bytes = try->state_bytes,
        .activation_bytes = s->activation_bytes,
        .host_bytes = try->host_bytes,
        .disk_bytes = try->disk_bytes,
        .padding_bytes = try->padding_bytes,
        .bound_ns = try->bound_ns,
        .predicted = try->result,
    };
    struct cst_layout layout;
    int rc = cst_search_layout(s, try, &layout, err);

    if (rc != CST_OK) {
        return rc;
    }
    memcpy(choice.n_blocks, try->n_blocks, sizeof choice.n_blocks);
    choice.device_rows = malloc(try->n_chunks);
    choice.disk_rows = malloc(try->n_chunks);
    if (choice.device_rows == NULL || choice.disk_rows == NULL) {
        free(choice.device_rows);
        free(choice.disk_rows);
        cst_layout_close(&layout);
        return cst_err_set(err, CST_ENOMEM, "no memory for a plan");
    }
    for (uint32_t c = 0; c < try->n_chunks; c++) {
        choice.device_rows[c] = cst_search_device_rows(try, &layout, c);
        choice.disk_rows[c] = cst_search_disk_rows(try, &layout, c);
    }
    choice.binds = try == &s->tries[s->best] ? cst_search_binds(s, try, &layout) : "";
    cst_layout_close(&layout);
    *out = choice;
    return CST_OK;
}

static void close_choice(struct cst_plan_choice *choice)
{
    free(choice->device_rows);
    free(choice->disk_rows);
    *choice = (struct cst_plan_choice){0};
}

void cst_plans_close(struct cst_plans *plans)
{
    close_choice(&plans->best);
    for (uint32_t i = 0; i < CST_PLAN_RUNNERS_UP; i++) {
        close_choice(&plans->runners_up[i].plan);
    }
    plans->n_runners_up = 0;
}

/* Another plan, not the same with another depth. */
static bool is_other(const struct cst_plan_try *a, const struct cst_plan_try *b)
{
    return a->sizes[0] != b->sizes[0] || a->n_device != b->n_device || a->once != b->once;
}

static int pick_runners_up(struct cst_search *s, struct cst_plans *plans, struct cst_err *err)
{
    uint32_t picked[CST_PLAN_RUNNERS_UP + 1] = {s->best}, n = 1;
    int rc = CST_OK;

    while (n <= CST_PLAN_RUNNERS_UP && rc == CST_OK) {
        struct cst_plan_loser *loser = &plans->runners_up[n - 1];
        uint32_t next = NONE;

        for (uint32_t i = 0; i < s->n_tries; i++) {
            const struct cst_plan_try *try = &s->tries[i];
            bool other = try->replayed && try->result.step_ns != UINT64_MAX;

            for (uint32_t k = 0; k < n; k++) {
                other = other && is_other(try, &s->tries[picked[k]]);
            }
            if (other && (next == NONE || is_better(try, &s->tries[next]))) {
                next = i;
            }
        }
        if (next == NONE) {
            break;
        }
        rc = make_choice(s, &s->tries[next], &loser->plan, err);
        if (rc == CST_OK) {
            cst_search_why(&s->tries[next], &s->tries[s->best], loser->why);
            picked[n++] = next;
            plans->n_runners_up++;
        }
    }
    return rc;
}

static int cannot_fit(const struct cst_search *s, struct cst_err *err)
{
    if (s->lack.err.status != 0) {
        if (err != NULL) {
            *err = s->lack.err;
        }
        return s->lack.err.status;
    }
    return cst_err_set(err, CST_EINVAL,
                       "chunks of %" PRIu64 " elements: no layout of the model has them",
                       s->config->chunk_elems);
}

static int answer(struct cst_search *s, struct cst_plans *out, struct cst_err *err)
{
    struct cst_plans plans = {
        .n_candidates = s->n_tries, .n_replayed = s->n_replayed, .n_events = s->n_events};
    int rc;

    if (s->best == NONE) {
        return cannot_fit(s, err);
    }
    s->best = thriftiest(s, HAIR);
    rc = pick_runners_up(s, &plans, err);
    if (rc == CST_OK) { /* last of all: the model's layout is its */
        rc = make_choice(s, &s->tries[s->best], &plans.best, err);
    }
    if (rc != CST_OK) {
        cst_plans_close(&plans);
        return rc;
    }
    *out = plans;
    return CST_OK;
}

int cst_plan_search(struct cst_plans *out, const struct cst_plan_config *config,
                    struct cst_err *err)
{
    struct cst_search s;
    int rc = cst_search_open(&s, config, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = list_tries(&s);
    rc = rc == CST_OK ? replay_promising(&s) : rc;
    rc = rc == CST_OK ? climb(&s) : rc;
    rc = rc == CST_OK ? answer(&s, out, err)
                      : cst_err_set(err, rc, "no memory to search for a plan");
    free(s.tries);
    return rc;
}
