/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes files of rates, as `cistern probe` writes them. An input is the file. */
#include "proto/rates_json.h"

#include "tests/fuzz/file.h"

const char fuzz_name[] = "rates";

size_t fuzz_seed(uint8_t *out, size_t max)
{
    return fuzz_seed_text(
        "{\"fingerprint\": \"9f\", \"devices\": [{\"name\": \"host\", \"up\": 9e9, \"down\": 8e9, "
        "\"flops\": 1e12, \"memory_bytes\": 1000}], \"nodes\": [{\"cores\": 2, \"pass\": 1.5e10}], "
        "\"disk_read\": 2e9, \"disk_write\": 1e9, \"request_s\": 1.1e-5}",
        out, max);
}

/* Check that accepted rates are written again, and read as they were. */
static void write_again(const struct cst_rates *rates)
{
    static struct cst_rates second;
    struct cst_err err = {0};
    json_t *first_json = cst_rates_to_json(rates), *second_json;

    fuzz_must(first_json != NULL, "memory");
    memset(&second, 0, sizeof second);
    fuzz_must(cst_rates_add_json(&second, first_json, &err) == CST_OK, err.text);
    second_json = cst_rates_to_json(&second);
    fuzz_must(second_json != NULL && json_equal(first_json, second_json),
              "rates are read as they were written");
    json_decref(first_json);
    json_decref(second_json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct cst_rates rates;
    struct cst_err err = {0};
    int rc;

    memset(&rates, 0, sizeof rates);
    rc = cst_rates_read(&rates, fuzz_file(data, n), &err);
    if (rc == CST_OK) {
        write_again(&rates);
    } else {
        fuzz_must(rc == CST_EINVAL && err.status == rc && err.text[0] != '\0',
                  "a refusal is of the file, and has words");
    }
    return 0;
}
