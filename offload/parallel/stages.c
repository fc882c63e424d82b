/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/parallel/stages.h"

#include "proto/size.h"

#include <inttypes.h>
#include <stdlib.h>

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
    int64_t *ticks;     /* Of each stage with each range of units; NO_FIT: it does not fit. */
    struct best *bests; /* For each number of stages and of units. */
};

static size_t range(const struct search *search, uint32_t stage, uint32_t first, uint32_t end)
{
    const size_t n = search->input->n_units + 1U;

    return (stage * n + first) * n + end;
}

static struct best *best_of(const struct search *search, uint32_t n_stages, uint32_t n_units)
{
    return &search->bests[(size_t)n_stages * (search->input->n_units + 1U) + n_units];
}

static double seconds_of(const struct cst_stage_cut *stage)
{
    return stage->forward + stage->backward + stage->recompute;
}

/* A longer range needs as many repeated passes as its beginning, or more. */
static void count_ticks(const struct search *search)
{
    const struct cst_stages_input *input = search->input;

    for (uint32_t s = 0; s < input->n_stages; s++) {
        for (uint32_t first = 0; first < input->n_units; first++) {
            struct cst_stage_cut stage = {.first = first};

            for (uint32_t end = first + 1; end <= input->n_units; end++) {
                extend(&stage, input);
                search->ticks[range(search, s, first, end)] =
                    fit(&stage, input, s) ? (int64_t)(seconds_of(&stage) / search->tick) : NO_FIT;
            }
        }
    }
}

/* Find the least sum of stages that each take at most @cap ticks; of equal sums that with the least
 * maximum. */
static struct best find_best(const struct search *search, int64_t cap)
{
    const struct cst_stages_input *input = search->input;

    for (uint32_t n = 0; n <= input->n_units; n++) {
        *best_of(search, 0, n) = (struct best){.sum = n == 0 ? 0 : NO_FIT};
    }
    for (uint32_t s = 0; s < input->n_stages; s++) {
        for (uint32_t end = 0; end <= input->n_units; end++) {
            struct best *best = best_of(search, s + 1, end);

            best->sum = NO_FIT;
            for (uint32_t first = s; first < end; first++) {
                const struct best *before = best_of(search, s, first);
                const int64_t ticks = search->ticks[range(search, s, first, end)];
                int64_t sum, max;

                if (before->sum == NO_FIT || ticks == NO_FIT || ticks > cap) {
                    continue;
                }
                sum = before->sum + ticks;
                max = before->max > ticks ? before->max : ticks;
                if (sum < best->sum || (sum == best->sum && max < best->max)) {
                    *best = (struct best){.sum = sum, .max = max, .first = first};
                }
            }
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

/* Go through the cuts for which a longer maximum would not lessen the sum, from the longest maximum
 * to the shortest. */
static int find_cuts(struct cst_stage_cut *out, double *seconds, const struct search *search,
                     struct cst_err *err)
{
    const double others = (double)search->input->n_micro - 1;
    struct best best = find_best(search, NO_FIT - 1);
    double least = 0, longest = 0;

    if (best.sum == NO_FIT) {
        return cst_err_set(err, CST_EBUDGET, "no cuts fit");
    }
    for (bool is_first = true; best.sum != NO_FIT; is_first = false) {
        const double value = (double)best.sum + others * (double)best.max;

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
    return CST_OK;
}

/* -- refusals --------------------------------------------------------------------------------- */

/* Count the bytes of each range, if all its units recompute, instead of its ticks. */
static void count_bytes(const struct search *search)
{
    const struct cst_stages_input *input = search->input;

    for (uint32_t s = 0; s < input->n_stages; s++) {
        for (uint32_t first = 0; first < input->n_units; first++) {
            struct cst_stage_cut stage = {.first = first};

            for (uint32_t end = first + 1; end <= input->n_units; end++) {
                extend(&stage, input);
                recompute_one(&stage, input->units);
                search->ticks[range(search, s, first, end)] = (int64_t)bytes_of(&stage, input, s);
            }
        }
    }
}

/* Say how much memory the stages of the best cuts need at least. */
static int refuse(const struct search *search, struct cst_err *err)
{
    const struct cst_stages_input *input = search->input;
    char needs[CST_SIZE_EXACT], has[CST_SIZE_EXACT];
    int64_t enough, too_little = (int64_t)input->stage_bytes;

    count_bytes(search);
    enough = find_best(search, NO_FIT - 1).max;
    while (too_little + 1 < enough) {
        const int64_t middle = too_little + (enough - too_little) / 2;

        if (find_best(search, middle).sum == NO_FIT) {
            too_little = middle;
        } else {
            enough = middle;
        }
    }
    return cst_err_set(err, CST_EBUDGET,
                       "each of %" PRIu32
                       " stages needs %s, even if all its units recompute, and has %s",
                       input->n_stages, cst_size_exact((uint64_t)enough, needs),
                       cst_size_exact(input->stage_bytes, has));
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

    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < input->n_units; i++) {
        all += 2 * input->units[i].forward + input->units[i].backward;
    }
    search.tick = all > 0 ? all / ALL_TICKS : 1;
    search.ticks = calloc(range(&search, input->n_stages, 0, 0), sizeof *search.ticks);
    search.bests =
        calloc((size_t)(input->n_stages + 1) * (input->n_units + 1), sizeof *search.bests);
    if (search.ticks == NULL || search.bests == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "the cuts of %" PRIu32 " units", input->n_units);
    } else {
        count_ticks(&search);
        rc = find_cuts(out, seconds, &search, err);
        rc = rc == CST_EBUDGET ? refuse(&search, err) : rc;
    }
    free(search.ticks);
    free(search.bests);
    return rc;
}
