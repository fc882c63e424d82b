/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the norms and products of Muon: matrices of several shapes and values go through all
 * phases on the device, and through kernels/math/muon.c. */
#include "tests/lib/cuda_rows.h"

#include "kernels/math/muon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Matrices in a scratch on the device, and in another one on the host. */
struct stack {
    struct cst_table_span span;
    struct cst_muon_batch device, host;
    struct cases_row scratch;
};

static void open_stack(struct cases *c, struct stack *s, uint64_t n, uint32_t rows,
                       uint32_t columns, enum cases_fill fill)
{
    uint64_t elems = n * rows * columns;
    struct cst_muon_sizes sizes = cst_muon_sizes(elems, rows, columns);
    uint16_t *values;

    s->span = (struct cst_table_span){.n_elems = elems, .rows = rows, .columns = columns};
    s->scratch =
        cases_row(c, "scratch", sizeof(struct cst_muon_header) + sizes.total_bytes, 1, 0, HOSTILE);
    s->device = (struct cst_muon_batch){.spans = &s->span, .n_spans = 1};
    s->host = s->device;
    s->device.scratch = s->scratch.at;
    s->host.scratch = s->scratch.want;
    values = cst_muon_values(&s->host, 0, false);
    for (uint64_t i = 0; i < elems; i++) {
        values[i] =
            fill == HOSTILE ? (uint16_t)cases_next(c) : cst_fp32_to_bf16(cases_float(c, fill));
    }
    c->device->put(c->device, s->scratch.at, s->scratch.want, s->scratch.bytes);
}

static void launch_product(struct cases *c, const struct cst_muon_work *w, uint64_t first,
                           uint64_t n)
{
    const struct cst_cuda_product product = {.a = w->whole.a.at,
                                             .b = w->whole.b.at,
                                             .add = w->whole.add,
                                             .out = w->whole.out,
                                             .a_row = w->whole.a.row,
                                             .a_column = w->whole.a.column,
                                             .b_row = w->whole.b.row,
                                             .b_column = w->whole.b.column,
                                             .a_step = w->a_step,
                                             .b_step = w->b_step,
                                             .out_step = w->out_step,
                                             .rows = w->rows,
                                             .columns = w->columns,
                                             .depth = w->whole.depth,
                                             .tiles = w->tiles,
                                             .first = first,
                                             .alpha = w->whole.alpha,
                                             .beta = w->whole.beta,
                                             .symmetric = w->symmetric};

    c->device->muon_product(c->device, n, &product);
}

/* Make @phase on the device, in two launches. */
static void make_phase(struct cases *c, const struct stack *s, unsigned phase)
{
    uint64_t all = cst_muon_pieces(&s->device, phase), half = all / 2;

    for (int part = 0; part < 2; part++) {
        uint64_t first = part == 0 ? 0 : half, n = part == 0 ? half : all - half;
        struct cst_cuda_muon_norm norm;
        struct cst_muon_norm from;
        struct cst_muon_work work;

        if (n == 0) {
            continue;
        }
        if (phase >= CST_MUON_ITERATE) {
            work = cst_muon_work_of(&s->device, 0, phase);
            launch_product(c, &work, first, n);
            continue;
        }
        cst_muon_norm_of(&s->device, 0, &from);
        norm = (struct cst_cuda_muon_norm){.values = from.values,
                                           .sums = from.sums,
                                           .n_elems = from.n_elems,
                                           .n_sums = from.n_sums,
                                           .first = first,
                                           .least = CST_MUON_LEAST_NORM};
        (phase == CST_MUON_SUMS ? c->device->muon_sums : c->device->muon_scale)(c->device, n,
                                                                                &norm);
    }
}

/* Go through the phases before phase number @end. */
static void phases_case(struct cases *c, const uint32_t shape[3], unsigned end,
                        enum cases_fill fill)
{
    struct cst_product_space *space = cases_need(aligned_alloc(64, sizeof *space));
    struct stack s;

    open_stack(c, &s, shape[0], shape[1], shape[2], fill);
    snprintf(c->what, sizeof c->what, "%u matrices, %u x %u, fill %d", shape[0], shape[1], shape[2],
             (int)fill);
    for (unsigned phase = CST_MUON_SUMS; phase < end; phase++) {
        for (uint64_t i = 0; i < cst_muon_pieces(&s.host, phase); i++) {
            cst_muon_piece(&s.host, cst_kernels_get("ref"), phase, i, space);
        }
        make_phase(c, &s, phase);
    }
    cases_compare(c, &s.scratch);
    cases_end(c);
    free(space);
}

void cases_muon_phases(struct cases *c)
{
    /* Number of matrices, rows, columns. */
    static const uint32_t shapes[][3] = {{3, 17, 5}, {2, 5, 33}, {1, 64, 64}, {1, 37, 140}};
    static const uint32_t large[3] = {1, 260, 129}, two_sums[3] = {1, 2, 33000};

    for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        phases_case(c, shapes[i], CST_MUON_ITERATE + 2 * CST_MUON_PRODUCTS, (enum cases_fill)i);
    }
    phases_case(c, large, CST_MUON_ITERATE + CST_MUON_PRODUCTS, ORDINARY);
    phases_case(c, two_sums, CST_MUON_ITERATE, WIDE);
}
