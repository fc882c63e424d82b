/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/parallel/stages.h"

#include "proto/size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Times are compared as whole numbers, of which all units together have this many: sums of the same
 * units are then equal, in whatever order they were added. */
#define ALL_TICKS 1e15
#define NO_FIT INT64_MAX

/* -- one stage -------------------------------------------------------------------------------- */

uint64_t cst_stage_bytes(const struct cst_stage_cut *stage, uint32_t in_flight, uint32_t restored)
{
    return stage->fixed_bytes + (in_flight - restored) * stage->reduced_bytes +
           restored * stage->kept_bytes;
}

static uint64_t input_of(const struct cst_unit_cost *unit)
{
    return unit->input_bytes < unit->kept_bytes ? unit->input_bytes : unit->kept_bytes;
}

/* Let the first unit of the stage that does not recompute yet do so. */
static void recompute_one(struct cst_stage_cut *stage, const struct cst_unit_cost *units)
{
    const struct cst_unit_cost *unit = &units[stage->first + stage->n_recomputed++];

    stage->recompute += unit->forward;
    stage->reduced_bytes -= unit->kept_bytes - input_of(unit);
}

static uint64_t bytes_of(const struct cst_stage_cut *stage, const struct cst_stages_input *input,
                         uint32_t number)
{
    return cst_stage_bytes(stage, input->in_flight[number], input->restored[number]);
}

static bool fits(const struct cst_stage_cut *stage, const struct cst_stages_input *input,
                 uint32_t number)
{
    return bytes_of(stage, input, number) <= input->stage_bytes;
}

/* Add the next unit to the stage. It does not recompute. */
static void extend(struct cst_stage_cut *stage, const struct cst_stages_input *input)
{
    const uint32_t next = stage->first + stage->n_units++;
    const struct cst_unit_cost *unit = &input->units[next];

    stage->forward += unit->forward;
    stage->backward += unit->backward;
    stage->kept_bytes += unit->kept_bytes;
    stage->reduced_bytes += unit->kept_bytes;
    stage->fixed_bytes += unit->fixed_bytes;
    stage->send = next + 1 < input->n_units ? unit->send : 0;
    for (uint32_t i = 0; i < input->n_ties; i++) {
        if (input->ties[i].last == next && input->ties[i].first >= stage->first) {
            stage->fixed_bytes -= input->ties[i].bytes;
        }
    }
}

/* Let as many units recompute as the memory or the caller demands. False: it does not fit, even if
 * all do. */
static bool fit(struct cst_stage_cut *stage, const struct cst_stages_input *input, uint32_t number)
{
    const bool all = input->recomputes != NULL && input->recomputes[number];

    while ((all || !fits(stage, input, number)) && stage->n_recomputed < stage->n_units) {
        recompute_one(stage, input->units);
    }
    return fits(stage, input, number);
}

/* -- all stages ------------------------------------------------------------------------------- */

/* The best cuts of the first units into the first stages. */
struct best {
    int64_t sum, max; /* Ticks of the stages together and of the longest; NO_FIT: there are none. */
    uint32_t first;   /* The first unit of the last of these stages. */
};

struct search {
    const struct cst_stages_input *input;
    double tick;        /* Seconds. */
    int64_t *ticks;     /* Of each stage with each range of units that is shorter than `ends`. */
    uint32_t *ends;     /* For each stage and first unit: the first end without ticks. */
    bool is_cut_short;  /* Some range has no ticks because it would take too many. */
    struct best *bests; /* For each number of stages and of units. */
};

static size_t range(const struct search *search, uint32_t stage, uint32_t first, uint32_t end)
{
    const size_t n = search->input->n_units + 1U;

    return (stage * n + first) * n + end;
}

static uint32_t *end_of(const struct search *search, uint32_t stage, uint32_t first)
{
    return &search->ends[(size_t)stage * search->input->n_units + first];
}

static struct best *best_of(const struct search *search, uint32_t n_stages, uint32_t n_units)
{
    return &search->bests[(size_t)n_stages * (search->input->n_units + 1U) + n_units];
}

static double seconds_of(const struct cst_stage_cut *stage)
{
    return stage->forward + stage->backward + stage->recompute;
}

/* Count the ticks of ranges that fit and take at most @cap. A longer range needs more bytes, more
 * ticks, and as many repeated passes or more, whether it is longer before or after. */
static void count_ticks(struct search *search, int64_t cap)
{
    const struct cst_stages_input *input = search->input;

    search->is_cut_short = false;
    for (uint32_t s = 0; s < input->n_stages; s++) {
        for (uint32_t first = 0; first < input->n_units; first++) {
            struct cst_stage_cut stage = {.first = first};
            uint32_t end = first + 1;

            for (; end <= input->n_units; end++) {
                int64_t ticks;

                extend(&stage, input);
                if (!fit(&stage, input, s)) {
                    break;
                }
                ticks = (int64_t)(seconds_of(&stage) / search->tick);
                if (ticks > cap) {
                    search->is_cut_short = true;
                    break;
                }
                search->ticks[range(search, s, first, end)] = ticks;
            }
            *end_of(search, s, first) = end;
        }
    }
}

/* Find the best last stage of the first @n_stages with the first @end units. */
static struct best find_last(const struct search *search, uint32_t n_stages, uint32_t end,
                             int64_t cap)
{
    const uint32_t s = n_stages - 1;
    struct best best = {.sum = NO_FIT};

    for (uint32_t first = end; first-- > s;) {
        const struct best *before = best_of(search, s, first);
        int64_t ticks, sum, max;

        if (end >= *end_of(search, s, first)) {
            break;
        }
        ticks = search->ticks[range(search, s, first, end)];
        if (ticks > cap) {
            break;
        }
        if (before->sum == NO_FIT) {
            continue;
        }
        sum = before->sum + ticks;
        max = before->max > ticks ? before->max : ticks;
        if (sum < best.sum || (sum == best.sum && max <= best.max)) {
            best = (struct best){.sum = sum, .max = max, .first = first};
        }
    }
    return best;
}

/* Find the least sum of stages that each take at most @cap ticks; of equal sums that with the least
 * maximum. */
static struct best find_best(const struct search *search, int64_t cap)
{
    const struct cst_stages_input *input = search->input;

    for (uint32_t n = 0; n <= input->n_units; n++) {
        *best_of(search, 0, n) = (struct best){.sum = n == 0 ? 0 : NO_FIT};
    }
    for (uint32_t s = 1; s <= input->n_stages; s++) {
        for (uint32_t end = s; end <= input->n_units - (input->n_stages - s); end++) {
            *best_of(search, s, end) = find_last(search, s, end, cap);
        }
    }
    return *best_of(search, input->n_stages, input->n_units);
}

/* Write the stages of the last find_best to @out. */
static void write_stages(struct cst_stage_cut *out, const struct search *search)
{
    uint32_t end = search->input->n_units;

    for (uint32_t s = search->input->n_stages; s-- > 0;) {
        const uint32_t first = best_of(search, s + 1, end)->first;

        out[s] = (struct cst_stage_cut){.first = first};
        while (first + out[s].n_units < end) {
            extend(&out[s], search->input);
        }
        (void)fit(&out[s], search->input, s);
        end = first;
    }
}

static double value_of(const struct search *search, const struct best *best)
{
    return (double)best->sum + ((double)search->input->n_micro - 1) * (double)best->max;
}

/* Return a maximum of ticks that the best cuts do not exceed, and count the ticks of ranges up to
 * it. There are cuts that fit. Cuts with a longer stage than it are no better than some that exist,
 * because no sum is less than that of all units. */
static int64_t bound(struct search *search)
{
    const struct cst_stages_input *input = search->input;
    const double others = (double)input->n_micro - 1;
    struct best best;
    double all = 0, most;
    int64_t cap;

    for (uint32_t i = 0; i < input->n_units; i++) {
        all += input->units[i].forward + input->units[i].backward;
    }
    all /= search->tick;
    cap = (int64_t)(2 * all / input->n_stages) + 1;
    count_ticks(search, cap);
    while ((best = find_best(search, cap)).sum == NO_FIT) {
        cap *= 2;
        count_ticks(search, cap);
    }
    /* Each of the stages may have lost less than a tick. */
    most = value_of(search, &best) - (all - input->n_stages);
    most = others > 0 && most / others < 2 * ALL_TICKS ? most / others : 2 * ALL_TICKS;
    if (search->is_cut_short && most > (double)cap) {
        count_ticks(search, (int64_t)most + 1);
    }
    return (int64_t)most + 1;
}

/* Go through the cuts for which a longer maximum would not lessen the sum, from the longest maximum
 * to the shortest. */
static void find_cuts(struct cst_stage_cut *out, double *seconds, struct search *search)
{
    const double others = (double)search->input->n_micro - 1;
    const int64_t cap = bound(search);
    double least = 0, longest = 0;
    struct best best;

    best = find_best(search, cap);
    for (bool is_first = true; best.sum != NO_FIT; is_first = false) {
        const double value = value_of(search, &best);

        if (is_first || value < least) {
            least = value;
            write_stages(out, search);
        }
        /* The longest stage is at least as long as the mean, and later sums are not smaller. */
        if ((double)best.sum * (1 + others / search->input->n_stages) >= least) {
            break;
        }
        best = find_best(search, best.max - 1);
    }
    *seconds = 0;
    for (uint32_t s = 0; s < search->input->n_stages; s++) {
        const double t = seconds_of(&out[s]);

        *seconds += t;
        longest = t > longest ? t : longest;
    }
    *seconds += others * longest;
}

/* -- refusals --------------------------------------------------------------------------------- */

/* Mark the units where stage @number can end, in @bytes and with all its units recomputing, if it
 * begins at one of the marked units @begins. A stage that begins later ends as late or later, thus
 * only ends up to the last beginning are new. */
static void mark_ends(bool *ends, const bool *begins, const struct cst_stages_input *input,
                      uint32_t number, uint64_t bytes)
{
    uint32_t last = input->n_units;

    for (uint32_t first = input->n_units; first-- > 0;) {
        struct cst_stage_cut stage = {.first = first};

        if (!begins[first]) {
            continue;
        }
        while (first + stage.n_units < last) {
            extend(&stage, input);
            recompute_one(&stage, input->units);
            if (bytes_of(&stage, input, number) > bytes) {
                break;
            }
            ends[first + stage.n_units] = true;
        }
        last = first;
    }
}

/* Return whether there are stages that fit in @bytes each, if all their units recompute. */
static bool fit_in(const struct cst_stages_input *input, uint64_t bytes)
{
    bool ends[2][CST_STAGES_MAX_UNITS + 1] = {{true}};

    for (uint32_t s = 0; s < input->n_stages; s++) {
        memset(ends[(s + 1) % 2], 0, sizeof *ends);
        mark_ends(ends[(s + 1) % 2], ends[s % 2], input, s, bytes);
    }
    return ends[input->n_stages % 2][input->n_units];
}

/* Say how much memory the stages of the best cuts need at least. */
static int refuse(const struct cst_stages_input *input, struct cst_err *err)
{
    char needs[CST_SIZE_EXACT], has[CST_SIZE_EXACT];
    uint64_t too_little = input->stage_bytes, enough = input->stage_bytes + 1;

    while (!fit_in(input, enough)) {
        too_little = enough;
        enough *= 2;
    }
    while (too_little + 1 < enough) {
        const uint64_t middle = too_little + (enough - too_little) / 2;

        if (fit_in(input, middle)) {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    return cst_err_set(
        err, CST_EBUDGET,
        "each of %" PRIu32 " stages needs %s, even if all its units recompute, and has %s",
        input->n_stages, cst_size_exact(enough, needs), cst_size_exact(input->stage_bytes, has));
}

static int check_input(const struct cst_stages_input *input, struct cst_err *err)
{
    const uint32_t most = input->n_units < CST_STAGES_MAX ? input->n_units : CST_STAGES_MAX;

    if (input->n_units == 0 || input->n_units > CST_STAGES_MAX_UNITS) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu32 " units: there can be 1 to %d",
                           input->n_units, CST_STAGES_MAX_UNITS);
    }
    if (input->n_stages == 0 || input->n_micro == 0 || input->n_stages > most) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " stages: a model of %" PRIu32
                           " units can be cut into 1 to %" PRIu32,
                           input->n_stages, input->n_units, most);
    }
    return CST_OK;
}

int cst_stages_cut(struct cst_stage_cut *out, double *seconds, const struct cst_stages_input *input,
                   struct cst_err *err)
{
    struct search search = {.input = input};
    double all = 0;
    int rc = check_input(input, err);

    if (rc == CST_OK && !fit_in(input, input->stage_bytes)) {
        rc = refuse(input, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < input->n_units; i++) {
        all += 2 * input->units[i].forward + input->units[i].backward;
    }
    search.tick = all > 0 ? all / ALL_TICKS : 1;
    search.ticks = calloc(range(&search, input->n_stages, 0, 0), sizeof *search.ticks);
    search.ends = calloc((size_t)input->n_stages * input->n_units, sizeof *search.ends);
    search.bests =
        calloc((size_t)(input->n_stages + 1) * (input->n_units + 1), sizeof *search.bests);
    if (search.ticks == NULL || search.ends == NULL || search.bests == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "the cuts of %" PRIu32 " units", input->n_units);
    } else {
        find_cuts(out, seconds, &search);
    }
    free(search.ticks);
    free(search.ends);
    free(search.bests);
    return rc;
}
