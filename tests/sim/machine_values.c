/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/machines.h"

uint64_t values_add(uint64_t sum, uint64_t next)
{
    return memory_mix(sum, next);
}

uint64_t values_initial(const struct machines *sim, uint32_t chunk)
{
    return memory_mix(sim->options.seed, 1000 + chunk);
}

uint64_t values_state(uint64_t state, uint64_t sum, uint64_t number)
{
    return memory_mix(memory_mix(state + 1, sum), number);
}

uint64_t values_weight(uint64_t state)
{
    return memory_mix(state, 77);
}

bool values_trained(const struct machines *sim, uint32_t chunk)
{
    return sim->model.tensors[chunk].pattern != CST_PATTERN_FROZEN;
}

bool values_has_weights(const struct machines *sim, uint32_t m, uint32_t chunk, uint64_t step)
{
    const struct machine *at = &sim->machines[m];
    const uint64_t weights = sim->weights[step][chunk];

    return at->weights[chunk].value == weights ||
           (sim->two_weights && at->others[chunk].value == weights);
}

/* The number in the job of item @i of machine @m, of those of which each rank block has @each. */
static uint32_t number_of(const struct machines *sim, uint32_t m, uint32_t i, uint32_t each)
{
    uint64_t blocks = sim->machines[m].rank_blocks;

    for (uint32_t b = i / each; b > 0; b--) {
        blocks &= blocks - 1;
    }
    return (uint32_t)__builtin_ctzll(blocks) * each + i % each;
}

uint32_t values_rank(const struct machines *sim, uint32_t m, uint32_t rank)
{
    return number_of(sim, m, rank, sim->block_ranks);
}

uint32_t values_micro(const struct machines *sim, uint32_t m, uint32_t micro)
{
    return number_of(sim, m, micro, sim->micro_batches);
}

/* A lot of @chunk in @step, below 10000; @salt tells lots apart. */
static uint64_t lot(const struct machines *sim, uint64_t step, uint32_t chunk, uint32_t salt)
{
    return memory_mix(memory_mix(sim->options.seed, step), salt + chunk) % 10000;
}

static bool skips(const struct machines *sim, uint64_t step, uint32_t chunk)
{
    return lot(sim, step, chunk, 5000) < sim->p_skip;
}

/* True if one rank of the job alone has a gradient of @chunk, which is not @rank. */
static bool is_left_out(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk)
{
    return lot(sim, step, chunk, 6000) < sim->p_lone &&
           lot(sim, step, chunk, 6100) % sim->n_ranks != rank;
}

bool values_uses(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk)
{
    return (!sim->single[chunk] || rank == 0) && !skips(sim, step, chunk);
}

uint64_t values_bytes(const struct machines *sim, uint32_t chunk, bool weights)
{
    bool wide = sim->model.tensors[chunk].dtype == CST_FP32;

    return wide || (!weights && sim->grad_fp32) ? 4 : 2;
}

/* True if rank @rank of the job is the first one of its machine. */
static bool is_first(const struct machines *sim, uint32_t rank)
{
    uint64_t bit = UINT64_C(1) << rank / sim->block_ranks;
    bool first = false;

    for (uint32_t m = 0; m < sim->n; m++) {
        uint64_t blocks = sim->machines[m].rank_blocks;

        first = first || (blocks & (0 - blocks)) == bit;
    }
    return first && rank % sim->block_ranks == 0;
}

bool values_hands_in(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t micro,
                     uint32_t chunk)
{
    uint64_t salt = memory_mix(sim->options.seed * 64 + rank, step * 256 + micro * 16 + chunk);

    return values_trained(sim, chunk) && salt % 10000 >= sim->p_leave_out &&
           !skips(sim, step, chunk) && !is_left_out(sim, step, rank, chunk) &&
           (!sim->single[chunk] || is_first(sim, rank));
}

bool values_is_without(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk)
{
    bool any = false;

    for (uint32_t micro = 0; micro < sim->micro_batches; micro++) {
        any = any || values_hands_in(sim, step, rank, micro, chunk);
    }
    return !any || lot(sim, step, chunk, 7000 + 100 * rank) < sim->p_zeros;
}

bool values_discards(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk)
{
    return lot(sim, step, chunk, 6200) < sim->p_discard &&
           !values_is_without(sim, step, rank, chunk);
}

/* The number of ranks with a gradient of @chunk that is not discarded; *first is the first one. */
static uint32_t count_contributors(const struct machines *sim, uint64_t step, uint32_t chunk,
                                   uint32_t *first)
{
    uint32_t n = 0;

    for (uint32_t rank = sim->n_ranks; rank-- > 0;) {
        if (!values_is_without(sim, step, rank, chunk) &&
            !values_discards(sim, step, rank, chunk)) {
            *first = rank;
            n++;
        }
    }
    return n;
}

bool values_can_lie(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk)
{
    uint32_t first = 0;

    return count_contributors(sim, step, chunk, &first) > 1 && first == rank;
}

bool values_is_idle(const struct machines *sim, uint64_t step, uint32_t chunk)
{
    uint32_t first;

    return sim->skips && count_contributors(sim, step, chunk, &first) == 0;
}

uint64_t values_contribution(const struct machines *sim, uint64_t step, uint32_t rank,
                             uint32_t micro, uint32_t chunk, uint64_t weights)
{
    return memory_mix(memory_mix(sim->options.seed * 64 + rank, step * 256 + micro * 16 + chunk),
                      weights);
}

double values_loss(uint64_t step, uint32_t rank)
{
    return (double)(memory_mix(step, rank) % 1000) / 7;
}

/* The mean of the means of the rank blocks' micro-batches. */
static double mean_of_blocks(const struct machines *sim, uint64_t step)
{
    double sum = 0;

    for (uint32_t b = 0; b < sim->n_blocks; b++) {
        double of_block = 0;

        for (uint32_t i = 0; i < sim->micro_batches; i++) {
            of_block += values_loss(step, b * sim->micro_batches + i);
        }
        sum += of_block / sim->micro_batches;
    }
    return sum / sim->n_blocks;
}

double values_mean_loss(const struct machines *sim, uint64_t step)
{
    double sum = 0;
    uint32_t n = 0;

    if (sim->n_stages > 0) {
        return mean_of_blocks(sim, step);
    }
    for (uint32_t rank = 0; rank < sim->n_ranks; rank++) {
        double loss = values_loss(step, rank);

        sum += loss;
        n += loss != 0;
    }
    return n > 0 ? sum / n : 0;
}

double values_square(uint64_t sum, uint32_t tile)
{
    return (double)(memory_mix(sum, tile + 1) % 100003);
}

/* One of 16 norms is not finite, so that the step is skipped. */
double values_norm(double squares)
{
    uint64_t whole = (uint64_t)squares;

    return whole % 16 == 3 ? __builtin_inf() : squares + 1;
}

/* The sum of the contributions of rank block @b to a chunk of stages: stage by stage from the last
 * one on, by micro-batch. Returns false if there are none. */
static bool add_units(const struct machines *sim, uint64_t step, uint32_t chunk, uint32_t b,
                      uint64_t *sum)
{
    bool any = false;

    for (uint32_t stage = sim->n_stages; stage-- > 0;) {
        for (uint32_t i = 0; (sim->stages[chunk] >> stage & 1) != 0 && i < sim->micro_batches;
             i++) {
            uint32_t micro = b * sim->micro_batches + i;
            uint64_t value;

            if (!values_hands_in(sim, step, micro, stage, chunk)) {
                continue;
            }
            value = values_contribution(sim, step, micro, stage, chunk, sim->weights[step][chunk]);
            *sum = any ? values_add(*sum, value) : value;
            any = true;
        }
    }
    return any;
}

/* The sum of the contributions of rank block @b. Returns false if there are none. */
static bool add_block(const struct machines *sim, uint64_t step, uint32_t chunk, uint32_t b,
                      uint64_t *sum)
{
    bool any = false;

    for (uint32_t micro = 0; micro < sim->micro_batches; micro++) {
        for (uint32_t i = 0; i < sim->block_ranks; i++) {
            uint32_t rank = b * sim->block_ranks + i;
            uint64_t value;

            if (!values_hands_in(sim, step, rank, micro, chunk)) {
                continue;
            }
            value = values_contribution(sim, step, rank, micro, chunk, sim->weights[step][chunk]);
            *sum = any ? values_add(*sum, value) : value;
            any = true;
        }
    }
    return any;
}

static uint64_t sum_of(const struct machines *sim, uint64_t step, uint32_t chunk)
{
    uint64_t sum = MEMORY_ZERO_SUM;
    bool any = false;

    for (uint32_t b = 0; b < sim->n_blocks; b++) {
        uint64_t block = 0;

        if ((sim->n_stages > 0 ? add_units : add_block)(sim, step, chunk, b, &block)) {
            sum = any ? values_add(sum, block) : block;
            any = true;
        }
    }
    return sum;
}

static uint32_t tiles_of(const struct machines *sim, uint32_t chunk)
{
    return (uint32_t)cst_table_n_tiles(sim->model.tensors[chunk].n_elems);
}

/* What step @s makes of @chunk; @skipped: nothing. */
static void step_chunk(struct machines *sim, uint64_t s, uint32_t c, bool skipped)
{
    struct cst_table_steps *steps = &sim->steps[s + 1][c];
    bool trained = values_trained(sim, c), idle = trained && values_is_idle(sim, s, c);

    sim->states[s + 1][c] = sim->states[s][c];
    sim->weights[s + 1][c] = sim->weights[s][c];
    *steps = sim->steps[s][c];
    if (skipped || !trained) {
        return;
    }
    steps->missed += idle;
    if (!idle) {
        steps->last = sim->adam[s + 1];
        sim->states[s + 1][c] =
            values_state(sim->states[s][c], sim->sums[s][c], sim->adam[s + 1] - steps->missed);
        sim->weights[s + 1][c] = values_weight(sim->states[s + 1][c]);
    }
}

/* The norm of step @s, whose sums are made. An idle chunk adds nothing to it. */
static double norm_of(struct machines *sim, uint64_t s)
{
    double squares = 0;

    for (uint32_t c = 0; c < sim->n_chunks; c++) {
        if (!values_trained(sim, c)) {
            continue;
        }
        sim->sums[s][c] = sum_of(sim, s, c);
        for (uint32_t i = 0; i < tiles_of(sim, c) && !values_is_idle(sim, s, c); i++) {
            squares += values_square(sim->sums[s][c], i);
        }
    }
    return values_norm(squares);
}

void values_open(struct machines *sim)
{
    for (uint32_t c = 0; c < sim->n_chunks; c++) {
        sim->states[0][c] = values_initial(sim, c);
        sim->weights[0][c] = values_weight(sim->states[0][c]);
    }
    for (uint64_t s = 0; s < sim->options.n_steps; s++) {
        bool skipped;

        sim->squares[s] = norm_of(sim, s);
        skipped = sim->squares[s] > 1e300;
        sim->adam[s + 1] = sim->adam[s] + !skipped;
        for (uint32_t c = 0; c < sim->n_chunks; c++) {
            step_chunk(sim, s, c, skipped);
        }
    }
}
