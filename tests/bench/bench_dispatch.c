/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch_8 and dispatch_8_head: the predicted speed-up of eight accelerators, without links
 * between them, over one, in a model that is cut into stages which any rank runs (cistern/unit.h).
 * Nothing is measured: the table of the daemon decides which unit runs when, under a virtual clock,
 * with rates that are assumed and printed.
 *
 * A rank computes a unit when the weights of its stage are there, which are loaded when the pass
 * begins and not before; what stages pass to each other is copied before and after it. The gradient
 * of a unit leaves the accelerator while the next unit runs. Sums and updates, which the host does
 * meanwhile, are assumed to hide. dispatch_8 has equal stages; dispatch_8_head has the embedding in
 * the first one and the head in the last one, which takes 2.6 times as long as the others.
 *
 * Usage: bench_dispatch --json FILE */
#include "offload/schedule/dispatch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Qwen3-32B: 64 layers, a stage each. Embedding and head have a table each. */
enum { STAGES = 64, MICRO = 16, TOKENS = 16384, WIDTH = 5120, MAX_RANKS = 8 };
#define LAYER_PARAMS 487.6e6
#define TABLE_PARAMS 777.9e6

/* Of a GeForce RTX 4090: 60 % of the 165 Tflop/s that NVIDIA states for dense bf16 products with
 * fp32 sums, and PCIe 4.0 x16, each way. */
#define FLOPS 99e12
#define LINK 25e9

/* Measured by RoundPipe (arXiv 2604.27085) on eight RTX 4090 with this model: with fp16 sums, and
 * with weights that are a step old. */
#define ROUNDPIPE 7.45

struct rank {
    double end;      /* Of its unit. */
    double down_end; /* When the gradients of its units before have left. */
};

static double copy_seconds(double elems)
{
    return 2 * elems / LINK; /* bf16 */
}

/* Let @rank begin @unit at @now, in a model whose embedding and head have @table parameters. */
static void begin(struct rank *rank, const struct cst_work_unit *unit, double table, double now)
{
    const bool has_table = unit->stage == 0 || unit->stage == STAGES - 1;
    const double params = LAYER_PARAMS + (has_table ? table : 0);
    const double multiplied = unit->stage == 0 ? LAYER_PARAMS : params;
    const double hidden = copy_seconds((double)TOKENS * WIDTH);
    const double forward = 2 * multiplied * TOKENS / FLOPS;

    now += unit->begins ? copy_seconds(params) : 0;
    if (!unit->backward) {
        rank->end = now + forward + 2 * hidden;
        return;
    }
    now += 3 * forward + 3 * hidden;
    rank->end = now > rank->down_end ? now : rank->down_end;
    rank->down_end = rank->end + copy_seconds(params);
}

/* The rank whose unit ends first, after each rank without one has taken one, if there is one. */
static uint32_t give_units(struct cst_dispatch *d, struct rank *ranks, double table, double now)
{
    struct cst_work_unit unit;
    uint32_t first = CST_DISPATCH_NONE;

    for (uint32_t r = 0; r < d->n_ranks; r++) {
        if (!cst_dispatch_unit(d, r, &unit) && cst_dispatch_take(d, r, &unit)) {
            begin(&ranks[r], &unit, table, now);
        }
        if (cst_dispatch_unit(d, r, &unit) &&
            (first == CST_DISPATCH_NONE || ranks[r].end < ranks[first].end)) {
            first = r;
        }
    }
    return first;
}

/* Seconds of a step with @n_ranks ranks. */
static double run_step(uint32_t n_ranks, double table)
{
    const uint64_t after[STAGES] = {0};
    struct rank ranks[MAX_RANKS] = {{0}};
    struct cst_dispatch d;
    double now = 0, end = 0;

    if (cst_dispatch_init(&d, STAGES, MICRO, n_ranks, after) != CST_OK) {
        (void)fprintf(stderr, "bench_dispatch: no memory\n");
        exit(1);
    }
    while (!cst_dispatch_is_complete(&d)) {
        const uint32_t first = give_units(&d, ranks, table, now);

        now = ranks[first].end;
        cst_dispatch_done(&d, first, 0);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        end = ranks[r].down_end > end ? ranks[r].down_end : end;
    }
    cst_dispatch_close(&d);
    return end > now ? end : now;
}

static void report(FILE *out, const char *name, double table)
{
    const double one = run_step(1, table), eight = run_step(MAX_RANKS, table);

    (void)fprintf(stderr, "bench_dispatch: %s: one takes %.1f s, eight take %.1f s\n", name, one,
                  eight);
    (void)fprintf(out,
                  "{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"x\", \"yardstick\": %.2f, "
                  "\"ratio\": %.3f, \"runs\": 1}\n",
                  name, one / eight, ROUNDPIPE, one / eight / ROUNDPIPE);
}

int main(int argc, char **argv)
{
    FILE *out = argc == 3 && strcmp(argv[1], "--json") == 0 ? fopen(argv[2], "ae") : NULL;

    if (out == NULL) {
        (void)fprintf(stderr, "usage: bench_dispatch --json FILE\n");
        return 2;
    }
    (void)fprintf(stderr,
                  "bench_dispatch: assumed are %d layers of %.1f million parameters in bf16, %d "
                  "micro-batches of %d tokens, %.0f Tflop/s, and %.0f GB/s each way between each "
                  "accelerator and the host\n",
                  STAGES, LAYER_PARAMS / 1e6, MICRO, TOKENS, FLOPS / 1e12, LINK / 1e9);
    report(out, "dispatch_8", 0);
    report(out, "dispatch_8_head", TABLE_PARAMS);
    return fclose(out) == 0 ? 0 : 1;
}
