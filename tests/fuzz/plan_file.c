/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes saved plans (proto/saved_plan.h). An input is the file. */
#include "proto/saved_plan.h"

#include "tests/fuzz/file.h"

#include <jansson.h>

const char fuzz_name[] = "plan_file";

size_t fuzz_seed(uint8_t *out, size_t max)
{
    const struct cst_saved_plan plan = {.fingerprint = 0x123456789abcdef,
                                        .n_params = 1000,
                                        .n_tensors = 2,
                                        .n_operators = 2,
                                        .world = 2,
                                        .micro_batches = 1,
                                        .n_classes = 2,
                                        .chunk_elems = {4096, 8192},
                                        .n_blocks = {12, 3},
                                        .n_chunks = 3,
                                        .pool_bytes = 65536,
                                        .prefetch_depth = 2,
                                        .step_s = 0.5};
    char path[PATH_MAX];
    struct cst_err err = {0};
    FILE *file;
    size_t n;

    (void)snprintf(path, sizeof path, "%s/plan", fuzz_dir("plan", "", 0));
    fuzz_must(cst_saved_plan_write(&plan, json_object(), path, &err) == CST_OK, err.text);
    file = fopen(path, "re");
    fuzz_must(file != NULL, "the file of the plan");
    n = fread(out, 1, max, file);
    (void)fclose(file);
    return n;
}

static void check(const struct cst_saved_plan *plan)
{
    static const struct cst_saved_plan none;
    struct cst_err err = {0};

    fuzz_must(cst_saved_plan_check(plan, &err) == CST_OK, err.text);
    fuzz_must(plan->n_classes >= 1 && plan->n_classes <= CST_SAVED_PLAN_CLASSES,
              "size classes keep their limit");
    fuzz_must(cst_saved_plan_same(plan, plan, 1, &err) == CST_OK &&
                  cst_saved_plan_is_for(plan, plan, &err) == CST_OK,
              "a plan is equal to itself");
    fuzz_must(cst_saved_plan_is_for(plan, &none, &err) == CST_EMISMATCH && err.text[0] != '\0',
              "a difference has words");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cst_saved_plan plan = {0};
    struct cst_err err = {0};
    int rc = cst_saved_plan_read(&plan, fuzz_file(data, n), &err);

    if (rc == CST_OK) {
        check(&plan);
    } else {
        fuzz_must(rc == CST_EINVAL && err.status == rc && err.text[0] != '\0',
                  "a refusal is of the file, and has words");
    }
    return 0;
}
