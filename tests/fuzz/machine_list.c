/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the file with the machines that a machine trusts. An input is the file. */
#include "daemon/links/machine_list.h"

#include "tests/fuzz/file.h"

const char fuzz_name[] = "machine_list";

size_t fuzz_seed(uint8_t *out, size_t max)
{
    return fuzz_seed_text(
        "# ours\nb 10.0.0.2:7433 "
        "sha256:1111111111111111111111111111111111111111111111111111111111111111\n"
        "c [fd00::3]:99 ca drained\n",
        out, max);
}

/* Check that each entry of an accepted list would be accepted again. */
static void check_entries(const struct cstd_machine_list *list)
{
    struct cstd_machine_entry entry;
    struct cst_err err = {0};

    fuzz_must(list->n <= CSTD_MACHINES_MAX, "a list keeps its limit");
    for (unsigned i = 0; i < list->n; i++) {
        fuzz_must(cstd_machine_entry_make(&entry, list->v[i].name, list->v[i].address,
                                          list->v[i].identity, &err) == CST_OK,
                  err.text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct cstd_machine_list list;
    struct cst_err err = {0};
    const int rc = cstd_machine_list_read(&list, fuzz_file(data, n), &err);

    if (rc == CST_OK) {
        check_entries(&list);
    } else {
        fuzz_must(rc == CST_EINVAL && err.status == rc && err.text[0] != '\0',
                  "a refusal is of the file, and has words");
    }
    return 0;
}
