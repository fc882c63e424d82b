/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes descriptions of models as `cistern plan` reads them, and the layouts of accepted ones. An
 * input is the JSON text. */
#include "client/cli/model_json.h"
#include "offload/layout/layout.h"

#include "tests/fuzz/fuzz.h"

#include <string.h>

const char fuzz_name[] = "model";

/* Layouts of larger models take the time of many inputs and use no other code. */
static const uint64_t max_elems = UINT64_C(1) << 36;

size_t fuzz_seed(uint8_t *out, size_t max)
{
    static const char text[] =
        "{\"name\": \"m\", \"world\": 2, \"groups\": [[0], [1]], \"tensors\": ["
        "{\"name\": \"a\", \"shape\": [100, 64]}, "
        "{\"name\": \"b\", \"shape\": [32, 64], \"group\": 0, \"pattern\": \"tensor\", "
        "\"whole\": [64, 64], \"first\": [32, 0]}, "
        "{\"name\": \"e\", \"shape\": [5000], \"group\": 1, \"pattern\": \"expert\", "
        "\"lr_scale\": 0.5, \"decay_scale\": 0}, "
        "{\"name\": \"f\", \"shape\": [70000], \"pattern\": \"frozen\"}], \"operators\": ["
        "{\"name\": \"x\", \"tensors\": [\"a\", \"b\"], \"flops\": 1e9}, "
        "{\"name\": \"y\", \"tensors\": [\"e\", \"f\"], \"activation_bytes\": 4096, "
        "\"expected_uses\": 0.25}]}";

    fuzz_must(sizeof text - 1 <= max, "room for the seed");
    memcpy(out, text, sizeof text - 1);
    return sizeof text - 1;
}

/* Check that a model that is written as JSON and read again is unchanged. */
static void write_again(const struct cli_model *model)
{
    struct cli_model second;
    struct cst_err err = {0};
    json_t *first_json = cli_model_to_json(model), *second_json;

    fuzz_must(first_json != NULL, "memory");
    fuzz_must(cli_model_from_json(&second, first_json, &err) == CST_OK, err.text);
    second_json = cli_model_to_json(&second);
    fuzz_must(second_json != NULL && json_equal(first_json, second_json),
              "a model is read as it was written");
    json_decref(first_json);
    json_decref(second_json);
    cli_model_close(&second);
}

static uint64_t count_elems(const struct cst_model *model)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        uint64_t n = model->tensors[i].n_elems;

        sum = n > max_elems - sum ? max_elems : sum + n;
    }
    return sum;
}

/* Check that every row of @chunk lies completely in its segment. */
static void check_rows(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    for (int row = 0; row < CST_ROW_COUNT; row++) {
        const struct cst_layout_row *at = &chunk->rows[row];
        uint64_t bytes = cst_layout_row_bytes(&layout->states, layout->grad_bytes, chunk->dtype,
                                              row, chunk->n_elems);

        if (at->segment != CST_LAYOUT_NO_ROW) {
            fuzz_must(at->segment < layout->n_segments &&
                          bytes <= layout->segments[at->segment].bytes &&
                          at->offset <= layout->segments[at->segment].bytes - bytes,
                      "rows lie within their segment");
        }
    }
}

/* Check that every tensor lies completely in its chunk, and does not overlap earlier tensors
 * there. */
static void check_layout(const struct cst_layout *layout, const struct cst_model *model)
{
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint64_t end = 0;

        for (uint32_t i = 0; i < chunk->n_tensors; i++) {
            const struct cst_layout_tensor *t =
                &model->tensors[layout->order[chunk->first_tensor + i]];

            fuzz_must(t->chunk == c && t->offset >= end, "tensors of a chunk lie apart");
            end = t->offset + t->n_elems;
        }
        fuzz_must(end <= chunk->n_elems, "tensors lie within their chunk");
        check_rows(layout, chunk);
    }
}

static void lay_out(struct cst_model *model, const struct cst_layout_config *config)
{
    struct cst_layout layout;
    struct cst_err err = {0};
    int rc = cst_layout_build(&layout, model, config, &err);

    if (rc == CST_OK) {
        check_layout(&layout, model);
        cst_layout_close(&layout);
    } else {
        fuzz_must(err.status == rc && err.text[0] != '\0', "a refusal has words");
    }
}

static void use(struct cli_model *model)
{
    struct cst_layout_config configs[] = {
        {.n_nodes = 1, .world = model->world},
        {.chunk_elems = 4096, .pool_bytes = 1 << 20, .n_nodes = 2, .world = model->world},
    };

    write_again(model);
    if (count_elems(&model->model) >= max_elems) {
        return;
    }
    for (unsigned i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        lay_out(&model->model, &configs[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *root = json_loadb((const char *)data, n, JSON_REJECT_DUPLICATES, NULL);
    struct cli_model model;
    struct cst_err err = {0};
    int rc;

    if (root == NULL) {
        return 0;
    }
    rc = cli_model_from_json(&model, root, &err);
    if (rc == CST_OK) {
        use(&model);
        cli_model_close(&model);
    } else {
        fuzz_must((rc == CST_EINVAL || rc == CST_EEXIST) && err.status == rc && err.text[0] != '\0',
                  "a refusal is of the model, and has words");
    }
    json_decref(root);
    return 0;
}
