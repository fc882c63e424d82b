/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the worker's kernels and whole steps of a small model on a GPU, compared with the host: the
 * cases of tests/gpt/cuda, with cuBLASLt and with the plain product. Prints a line per case. Exit
 * status 77: no GPU. */
#include "tests/gpt/cuda_cases.h"
#include "tests/gpt/cuda_model.h"

#include <stdio.h>

static unsigned failures;

static void tell(const char *how, const char *name, bool ok, const char *why)
{
    (void)printf("%-9s %-16s %s%s\n", how, name, ok ? "ok" : "FAILED: ", ok ? "" : why);
    failures += !ok;
}

static void run_cases(const struct gpt_gpu *gpu, const char *how)
{
    unsigned n;
    const struct cuda_case_row *rows = cuda_cases_all(&n);

    for (unsigned i = 0; i < n; i++) {
        struct cuda_case c = {.gpu = gpu, .ok = true};

        rows[i].run(&c);
        tell(how, rows[i].name, c.ok && c.n_compared > 0, c.why);
    }
}

static void run_models(bool plain, const char *how)
{
    unsigned n;
    const struct cuda_model_row *rows = cuda_models_all(&n);

    for (unsigned i = 0; i < n; i++) {
        char why[640] = "";
        const bool ok = rows[i].run(plain, why, sizeof why);

        tell(how, rows[i].name, ok, why);
    }
}

int main(void)
{
    struct cst_err err = {0};
    struct gpt_gpu gpu;
    int rc;

    for (int plain = 0; plain < 2; plain++) {
        const char *how = plain != 0 ? "plain" : "cuBLASLt";

        rc = gpt_gpu_open(&gpu, "cuda", plain == 0, &err);
        if (rc != 0) {
            (void)printf("check_worker: %s\n", err.text);
            return rc == CST_EUNSUPPORTED ? 77 : 1;
        }
        if (plain == 0 && gpu.cublas == NULL) {
            tell(how, "library", false, gpu.no_cublas.text);
        } else {
            run_cases(&gpu, how);
        }
        gpt_gpu_close(&gpu);
        run_models(plain != 0, how);
    }
    return failures == 0 ? 0 : 1;
}
