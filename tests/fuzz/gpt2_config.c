/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the config.json of a GPT-2 whose weights a job begins with. An input is the file. */
#include "client/gpt/gpt2.h"

#include "tests/fuzz/file.h"

const char fuzz_name[] = "gpt2_config";

size_t fuzz_seed(uint8_t *out, size_t max)
{
    return fuzz_seed_text("{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_head\": 12, "
                          "\"n_embd\": 768, \"n_positions\": 1024, \"vocab_size\": 50257, "
                          "\"n_inner\": null, \"activation_function\": \"gelu_new\", "
                          "\"layer_norm_epsilon\": 1e-05, \"tie_word_embeddings\": true}",
                          out, max);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct gpt_gpt2_sizes sizes = {0};
    struct cst_err err = {0};
    int rc = gpt_gpt2_read(fuzz_dir("config.json", data, n), &sizes, &err);

    if (rc == CST_OK) {
        fuzz_must(sizes.layers > 0 && sizes.heads > 0 && sizes.width > 0 && sizes.context > 0 &&
                      sizes.vocab > 0,
                  "sizes are not 0");
    } else {
        fuzz_must(rc == CST_EINVAL && err.status == rc && err.text[0] != '\0',
                  "a refusal is of the file, and has words");
    }
    return 0;
}
