#include "client/gpt/dump.h"

#include "client/gpt/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define SLICE_ELEMS 65536

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

            rc = store->ops->read(store, i, state, at, now, slice, err);
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
