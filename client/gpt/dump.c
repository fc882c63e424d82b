/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/dump.h"

#include "client/gpt/output.h"
#include "kernels/math/cast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_ELEMS 65536

/* Read one slice of a state. A frozen tensor has weights only. The slice of its master weights is
 * filled with its weights, and the slice of its gradient with zeros, so that every tensor has its
 * place in the file. */
static int read_slice(const struct gpt_model *model, struct gpt_store *store, uint32_t tensor,
                      enum cst_state state, uint64_t at, uint64_t n, void *out, struct cst_err *err)
{
    const bool frozen = model->tensors[tensor].pattern == CST_PATTERN_FROZEN;
    /* The weights are read into the upper half of the slice, and widened in place. */
    uint16_t *weights = (uint16_t *)out + n;
    int rc;

    if (frozen && state == CST_STATE_GRAD) {
        memset(out, 0, n * sizeof(uint16_t));
        return 0;
    }
    if (!frozen || state != CST_STATE_MASTER) {
        return store->ops->read(store, tensor, state, at, n, out, err);
    }
    rc = store->ops->read(store, tensor, CST_STATE_WEIGHT, at, n, weights, err);
    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        /* Element i of the result overlaps no weight after weights[i]. */
        ((float *)out)[i] = cst_bf16_to_fp32(weights[i]);
    }
    return rc;
}

static int dump_state(FILE *f, const char *path, const struct gpt_model *model,
                      struct gpt_store *store, enum cst_state state, size_t elem,
                      struct cst_err *err)
{
    void *slice = malloc(SLICE_ELEMS * elem);
    int rc = 0;

    if (slice == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; rc == 0 && i < model->n_tensors; i++) {
        const uint64_t n = model->tensors[i].n_elems;

        for (uint64_t at = 0; rc == 0 && at < n; at += SLICE_ELEMS) {
            const uint64_t now = n - at < SLICE_ELEMS ? n - at : SLICE_ELEMS;

            rc = read_slice(model, store, i, state, at, now, slice, err);
            if (rc == 0 && fwrite(slice, elem, now, f) != now) {
                rc = cst_err_errno(err, CST_EIO, errno, "'%s'", path);
            }
        }
    }
    free(slice);
    return rc;
}

static int dump_close(FILE *f, const char *path, int rc, struct cst_err *err)
{
    if (fclose(f) != 0 && rc == 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "'%s'", path);
    }
    return rc;
}

int gpt_dump_weights(const char *path, const struct gpt_model *model, struct gpt_store *store,
                     struct cst_err *err)
{
    FILE *f;
    int rc = gpt_output_open(&f, path, false, "dump", err);

    if (rc != 0) {
        return rc;
    }
    rc = dump_state(f, path, model, store, CST_STATE_MASTER, sizeof(float), err);
    if (rc == 0) {
        rc = dump_state(f, path, model, store, CST_STATE_WEIGHT, sizeof(uint16_t), err);
    }
    return dump_close(f, path, rc, err);
}

static int dump_rows(FILE *f, const char *path, struct gpt_pass *pass, struct cst_err *err)
{
    const size_t vocab = pass->model->vocab;
    float *row = malloc(vocab * sizeof *row);
    int rc = row != NULL ? 0 : cst_err_set(err, CST_ENOMEM, "out of memory");

    for (size_t r = 0; rc == 0 && r < pass->model->context; r++) {
        rc = pass->ops->logits(pass, r, row, err);
        if (rc == 0 && fwrite(row, sizeof *row, vocab, f) != vocab) {
            rc = cst_err_errno(err, CST_EIO, errno, "'%s'", path);
        }
    }
    free(row);
    return rc;
}

int gpt_dump_logits(const char *path, struct gpt_pass *pass, struct gpt_store *weights,
                    const struct gpt_data *data, struct cst_err *err)
{
    FILE *f;
    int rc = gpt_data_sequence(data, 0, pass->model->context, pass->tokens, pass->targets, err);

    if (rc == 0) {
        rc = pass->ops->forward(pass, weights, 1, false, err);
    }
    if (rc == 0) {
        rc = gpt_output_open(&f, path, false, "dump", err);
    }
    return rc == 0 ? dump_close(f, path, dump_rows(f, path, pass, err), err) : rc;
}

int gpt_dump_grads(const char *path, const struct gpt_model *model, struct gpt_store *store,
                   struct cst_err *err)
{
    FILE *f;
    int rc = gpt_output_open(&f, path, false, "dump", err);

    if (rc != 0) {
        return rc;
    }
    rc = dump_state(f, path, model, store, CST_STATE_GRAD, sizeof(uint16_t), err);
    return dump_close(f, path, rc, err);
}
