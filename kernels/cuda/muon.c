/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/muon.h"

#include "kernels/cuda/flight.h"
#include "kernels/cuda/update.h"

/* Launch @n pieces of @phase from piece number @first on, all of span number @span of @batch. */
static int launch(const struct cste_gpu *gpu, unsigned thread, const struct cst_muon_batch *batch,
                  uint32_t span, unsigned phase, uint64_t first, uint64_t n, struct cst_err *err)
{
    CUstream stream = cste_gpu_stream(gpu, thread);
    struct cst_cuda_muon_norm norm;
    struct cst_cuda_product product;
    struct cst_muon_norm from;
    struct cst_muon_work work;

    if (phase < CST_MUON_ITERATE) {
        cst_muon_norm_of(batch, span, &from);
        norm = (struct cst_cuda_muon_norm){.values = from.values,
                                           .sums = from.sums,
                                           .n_elems = from.n_elems,
                                           .n_sums = from.n_sums,
                                           .first = first,
                                           .least = CST_MUON_LEAST_NORM};
        return phase == CST_MUON_SUMS ? cst_cuda_muon_sums(&gpu->kernels, stream, n, &norm, err)
                                      : cst_cuda_muon_scale(&gpu->kernels, stream, n, &norm, err);
    }
    work = cst_muon_work_of(batch, span, phase);
    product = (struct cst_cuda_product){.a = work.whole.a.at,
                                        .b = work.whole.b.at,
                                        .add = work.whole.add,
                                        .out = work.whole.out,
                                        .a_row = work.whole.a.row,
                                        .a_column = work.whole.a.column,
                                        .b_row = work.whole.b.row,
                                        .b_column = work.whole.b.column,
                                        .a_step = work.a_step,
                                        .b_step = work.b_step,
                                        .out_step = work.out_step,
                                        .rows = work.rows,
                                        .columns = work.columns,
                                        .depth = work.whole.depth,
                                        .tiles = work.tiles,
                                        .first = first,
                                        .alpha = work.whole.alpha,
                                        .beta = work.whole.beta,
                                        .symmetric = work.symmetric};
    return cst_cuda_muon_product(&gpu->kernels, stream, n, &product, err);
}

/* Launch pieces [@first, @end) of @phase, which are counted through the spans. */
static int launch_all(const struct cste_gpu *gpu, unsigned thread,
                      const struct cst_muon_batch *batch, unsigned phase, uint64_t first,
                      uint64_t end, struct cst_err *err)
{
    uint64_t at = 0; /* Number of the first piece of the span. */
    int rc = CST_OK;

    for (uint32_t i = 0; i < batch->n_spans && rc == CST_OK; i++) {
        uint64_t n = cst_muon_span_pieces(batch, i, phase);
        uint64_t from = first > at ? first - at : 0, to = end > at ? end - at : 0;

        to = to < n ? to : n;
        if (from < to) {
            rc = launch(gpu, thread, batch, i, phase, from, to - from, err);
        }
        at += n;
    }
    return rc;
}

int cste_gpu_orthogonalise(void *state, unsigned thread, const struct cste_device_update *update,
                           unsigned phase, uint64_t first, uint64_t count, struct cst_err *err)
{
    struct cste_gpu *gpu = state;
    struct cste_gpu_flight *flight;
    int rc;

    if (phase == CST_MUON_DIRECTIONS) {
        return cste_gpu_direct(gpu, thread, update, first, count, err);
    }
    rc = cste_gpu_enter(gpu, err);
    if (rc == CST_OK) {
        flight = cste_gpu_take_flight(gpu, thread);
        rc = launch_all(gpu, thread, update->work->batch, phase, first, first + count, err);
        rc = cste_gpu_depart(gpu, thread, flight, rc, err);
    }
    return cste_gpu_leave_under_way(gpu, thread, rc);
}
