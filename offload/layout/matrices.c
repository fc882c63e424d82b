/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/matrices.h"

#include "proto/muon.h"

#include <inttypes.h>
#include <string.h>

/* True if the tensor has matrices of at least two rows and columns. */
static bool has_matrices(const struct cst_layout_tensor *tensor)
{
    uint32_t rows, columns;

    return cst_muon_shape(tensor->shape, tensor->n_dims, &rows, &columns) && rows > 1 &&
           columns > 1;
}

/* The first operator takes the input, and the last one makes the output: their tensors are not
 * hidden. */
static void leave_out_ends(const struct cst_model *model, bool *muon)
{
    for (uint32_t end = 0; end < 2 && model->n_operators > 0; end++) {
        const struct cst_layout_operator *op =
            &model->operators[end == 0 ? 0 : model->n_operators - 1];

        for (uint32_t k = 0; k < op->n_tensors; k++) {
            uint32_t t = op->tensors[k];

            muon[t] = muon[t] && model->tensors[t].update != CST_TENSOR_UPDATE_AUTO;
        }
    }
}

static int check_whole(const struct cst_layout_tensor *tensor, struct cst_err *err)
{
    for (uint32_t d = 0; tensor->box != NULL && d < tensor->n_dims; d++) {
        if (tensor->box->whole[d] != tensor->shape[d]) {
            return cst_err_set(
                err, CST_EINVAL,
                "tensor '%s' has %" PRId64 " of %" PRId64 " elements in dimension %" PRIu32
                ": Muon needs whole matrices. Declare its update as adamw, or choose "
                "another optimizer",
                tensor->name, tensor->shape[d], tensor->box->whole[d], d);
        }
    }
    return CST_OK;
}

int cst_matrices_choose(const struct cst_model *model, enum cst_optimizer optimizer, bool *muon,
                        struct cst_err *err)
{
    int rc = CST_OK;

    memset(muon, 0, model->n_tensors * sizeof *muon);
    if (!cst_optimizer_of_matrices(optimizer)) {
        return CST_OK;
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const struct cst_layout_tensor *tensor = &model->tensors[t];

        muon[t] = cst_pattern(tensor->pattern)->has_states &&
                  (tensor->update == CST_TENSOR_UPDATE_MUON ||
                   (tensor->update == CST_TENSOR_UPDATE_AUTO && has_matrices(tensor)));
    }
    leave_out_ends(model, muon);
    for (uint32_t t = 0; t < model->n_tensors && rc == CST_OK; t++) {
        rc = muon[t] ? check_whole(&model->tensors[t], err) : CST_OK;
    }
    return rc;
}

/* Bytes that tensor @tensor takes in a scratch. */
static uint64_t tensor_bytes(const struct cst_layout_tensor *tensor)
{
    uint32_t rows = 1, columns = 1;

    (void)cst_muon_shape(tensor->shape, tensor->n_dims, &rows, &columns);
    return cst_muon_sizes(tensor->n_elems, rows, columns).total_bytes;
}

double cst_matrices_flops(const struct cst_layout_tensor *tensor)
{
    uint32_t rows = 1, columns = 1;

    (void)cst_muon_shape(tensor->shape, tensor->n_dims, &rows, &columns);
    return cst_muon_flops(tensor->n_elems, rows, columns);
}

/* The tiles of one product of several tensors. */
struct tiles {
    uint64_t n;
    double flops;   /* Of all tiles. */
    double largest; /* Operations of a tile of the tensor that has the largest ones, on average. */
};

static void add_product(struct tiles *tiles, const struct cst_layout_tensor *tensor,
                        enum cst_muon_product product)
{
    uint32_t rows = 1, columns = 1;
    double flops, each;
    uint64_t n, of_one;

    (void)cst_muon_shape(tensor->shape, tensor->n_dims, &rows, &columns);
    n = tensor->n_elems / ((uint64_t)rows * columns);
    of_one = cst_muon_product_tiles(product, rows, columns);
    flops = cst_muon_product_flops(product, rows, columns);
    each = flops / (double)of_one;
    tiles->n += n * of_one;
    tiles->flops += (double)n * flops;
    tiles->largest = each > tiles->largest ? each : tiles->largest;
}

/* Operations of the busiest core. It has as many tiles as any, or a single large one. */
static double busiest(const struct tiles *tiles, uint32_t cores)
{
    double even = (double)((tiles->n + cores - 1) / cores) * tiles->flops / (double)tiles->n;

    return even > tiles->largest ? even : tiles->largest;
}

/* Operations of the busiest core for tensors [@first, @end) of layout->order. */
static double batch_flops(const struct cst_layout *layout, const struct cst_model *model,
                          uint32_t first, uint32_t end, uint32_t cores)
{
    double sum = 0;

    for (int product = 0; product < CST_MUON_PRODUCTS; product++) {
        struct tiles tiles = {0};

        for (uint32_t i = first; i < end; i++) {
            add_product(&tiles, &model->tensors[layout->order[i]], (enum cst_muon_product)product);
        }
        sum += busiest(&tiles, cores);
    }
    return CST_MUON_ITERATIONS * sum;
}

double cst_matrices_core_flops(const struct cst_layout *layout, const struct cst_model *model,
                               const struct cst_layout_chunk *chunk, uint32_t cores)
{
    uint64_t bytes = layout->segments[layout->scratches[chunk->node].segment].bytes, left = 0;
    uint32_t first = chunk->first_tensor, end = chunk->first_tensor + chunk->n_tensors;
    double sum = 0;

    /* Batches as in cst_muon_batch_at. */
    for (uint32_t i = first; i < end; i++) {
        uint64_t takes = tensor_bytes(&model->tensors[layout->order[i]]);

        if (takes > left && i > first) {
            sum += batch_flops(layout, model, first, i, cores);
            first = i;
        }
        left = (i == first ? bytes - sizeof(struct cst_muon_header) : left) - takes;
    }
    return sum + batch_flops(layout, model, first, end, cores);
}

uint64_t cst_matrices_scratch_bytes(const struct cst_layout *layout, const struct cst_model *model,
                                    uint32_t node)
{
    uint64_t tensor = 0, chunk = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *from = &layout->chunks[c];
        uint64_t sum = 0;

        bool counts = from->muon && (node == CST_MATRICES_ANY_NODE || from->node == node);

        for (uint32_t i = 0; i < from->n_tensors && counts; i++) {
            uint64_t bytes = tensor_bytes(&model->tensors[layout->order[from->first_tensor + i]]);

            tensor = bytes > tensor ? bytes : tensor;
            sum += bytes;
        }
        chunk = sum > chunk ? sum : chunk;
    }
    if (chunk == 0) {
        return 0;
    }
    /* All tensors of a chunk at a time, unless that takes much. */
    chunk = chunk < CST_MUON_SCRATCH_BYTES ? chunk : CST_MUON_SCRATCH_BYTES;
    return sizeof(struct cst_muon_header) + (chunk > tensor ? chunk : tensor);
}
