/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/wholes.h"

#include "offload/layout/wholes.h"

#include <stdlib.h>
#include <string.h>

bool cstc_wholes_has_parts(const Cistern__JobDescription *d)
{
    bool any = false;

    for (size_t i = 0; i < d->n_tensors; i++) {
        any = any || d->tensors[i]->whole_name != NULL;
    }
    return any;
}

/* Declare the tensors of @d. Their names in files matter only if they are @joined. */
static int declare_parts(struct cst_model *model, const Cistern__JobDescription *d, bool joined,
                         struct cst_err *err)
{
    int rc = CST_OK;

    cst_model_init(model);
    for (size_t i = 0; rc == CST_OK && i < d->n_tensors; i++) {
        const Cistern__TensorDecl *decl = d->tensors[i];
        struct cst_tensor_words words = {.name = decl->name,
                                         .shape = decl->shape,
                                         .n_dims = (uint32_t)decl->n_shape,
                                         .lr_scale = decl->lr_scale,
                                         .decay_scale = decl->decay_scale,
                                         .param_group = decl->param_group,
                                         .update = decl->update,
                                         .pattern = decl->pattern,
                                         .dtype = decl->dtype};

        if (decl->n_whole_shape > 0) {
            words.whole_name = joined ? decl->whole_name : NULL;
            words.whole = decl->whole_shape;
            words.first = decl->box_first;
            words.packed = decl->n_box_packed > 0 ? decl->box_packed : NULL;
        }
        if (joined && decl->n_external_name > 0) {
            words.external_names = (const char *const *)decl->external_name;
            words.external_rows = decl->external_rows;
            words.n_external = (uint32_t)decl->n_external_name;
            words.transposed = decl->transposed;
        }
        rc = cst_model_tensor(model, &words, err);
    }
    return rc;
}

/* Describe tensor @t of the files, whose first part is @part. */
static void describe(Cistern__TensorDecl *out, const struct cst_layout_tensor *t,
                     const Cistern__TensorDecl *part)
{
    *out = *part;
    out->name = t->name;
    out->n_shape = t->n_dims;
    out->shape = (int64_t *)(uintptr_t)t->shape;
    out->pattern = t->pattern;
    if (t->box == NULL) {
        out->whole_name = NULL;
        out->n_whole_shape = out->n_box_first = out->n_box_packed = 0;
    }
}

/* Make the description of the files. */
static int describe_files(struct cstc_wholes *wholes, const Cistern__JobDescription *d,
                          struct cst_err *err)
{
    const uint32_t n = wholes->files.n_tensors;

    wholes->decls = calloc((size_t)n + 1, sizeof *wholes->decls);
    wholes->list = calloc((size_t)n + 1, sizeof(void *));
    wholes->chunks = calloc((size_t)n + 1, sizeof *wholes->chunks);
    if (wholes->decls == NULL || wholes->list == NULL || wholes->chunks == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to describe %u tensors", n);
    }
    for (uint32_t i = 0; i < d->n_tensors; i++) {
        const uint32_t w = wholes->of[i];

        if (wholes->list[w] == NULL) {
            describe(&wholes->decls[w], &wholes->files.tensors[w], d->tensors[i]);
            wholes->list[w] = &wholes->decls[w];
        } else if (wholes->decls[w].muon != d->tensors[i]->muon) {
            return cst_err_set(err, CST_EMISMATCH, "Muon updates some parts of '%s', but not '%s'",
                               wholes->files.tensors[w].name, d->tensors[i]->name);
        }
    }
    wholes->description = *d;
    wholes->description.n_tensors = wholes->description.n_chunk = n;
    wholes->description.tensors = wholes->list;
    wholes->description.chunk = wholes->chunks;
    wholes->description.n_chunks = 1;
    wholes->description.n_operators = 0;
    return CST_OK;
}

int cstc_wholes_open(struct cstc_wholes *wholes, const Cistern__JobDescription *d, bool joined,
                     struct cst_err *err)
{
    int rc;

    *wholes = (struct cstc_wholes){.of = calloc(d->n_tensors + 1, sizeof *wholes->of)};
    rc = declare_parts(&wholes->parts, d, joined, err);
    if (rc == CST_OK && wholes->of == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for %zu tensors", d->n_tensors);
    }
    if (rc == CST_OK) {
        rc = cst_wholes_open(&wholes->files, &wholes->parts, wholes->of, err);
    }
    if (rc == CST_OK) {
        rc = cst_reshard_open(&wholes->way, &wholes->parts, &wholes->files, err);
    }
    if (rc == CST_OK) {
        rc = describe_files(wholes, d, err);
    }
    if (rc != CST_OK) {
        cstc_wholes_close(wholes);
    }
    return rc;
}

void cstc_wholes_close(struct cstc_wholes *wholes)
{
    cst_reshard_close(&wholes->way);
    cst_model_close(&wholes->files);
    cst_model_close(&wholes->parts);
    free(wholes->of);
    free(wholes->decls);
    free(wholes->list);
    free(wholes->chunks);
    *wholes = (struct cstc_wholes){0};
}
