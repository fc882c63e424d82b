/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes files of options, cistern-job.json(5). An input is the file. */
#include "client/gpt/options.h"
#include "proto/options_file.h"

#include "tests/fuzz/file.h"

const char fuzz_name[] = "job_file";

/* The options as a file; the caller frees it. NULL: a text is not UTF-8. */
static char *save(const struct gpt_options *options)
{
    struct cst_err err = {0};
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    int rc;

    fuzz_must(out != NULL, "memory");
    rc = cst_options_save(gpt_options_table, options, out, &err);
    (void)fclose(out);
    fuzz_must(rc == CST_OK, err.text);
    return text;
}

size_t fuzz_seed(uint8_t *out, size_t max)
{
    const struct gpt_options options = {.layers = 6,
                                        .heads = 4,
                                        .width = 128,
                                        .context = 64,
                                        .vocab = 256,
                                        .batch = 8,
                                        .steps = 10,
                                        .lr = 1e-3,
                                        .clip = 1,
                                        .beta1 = 0.9,
                                        .beta2 = 0.95,
                                        .data = "text",
                                        .job.world = 2,
                                        .save_dir = "d"};
    char *text = save(&options);
    const size_t n = fuzz_seed_text(text, out, max);

    free(text);
    return n;
}

/* Read the file, and return it as it is written again; NULL: it was refused. */
static char *read_and_write(const void *data, size_t n)
{
    struct gpt_options options = {0};
    struct cst_options_given given = {.first = 0};
    struct cst_err err = {0};
    json_t *file = NULL;
    char *text = NULL;
    int rc = cst_options_load(gpt_options_table, &options, fuzz_file(data, n), &given, &file, &err);

    if (rc == CST_OK) {
        text = save(&options);
    } else {
        fuzz_must(rc == CST_EINVAL && err.status == rc && err.text[0] != '\0' && file == NULL,
                  "a refusal is of the file, and has words");
    }
    json_decref(file);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *first = read_and_write(data, n), *second = NULL;

    if (first != NULL) {
        second = read_and_write(first, strlen(first));
        fuzz_must(second != NULL && strcmp(first, second) == 0,
                  "options are read as they were written");
    }
    free(first);
    free(second);
    return 0;
}
