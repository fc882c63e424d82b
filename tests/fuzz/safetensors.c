/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the header of a safetensors file. An input is the file. */
#include "client/checkpoint/tensor_file.h"

#include "tests/fuzz/file.h"

#include <fcntl.h>

const char fuzz_name[] = "safetensors";

/* Begin with the length of the header. */
size_t fuzz_seed(uint8_t *out, size_t max)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
        "\"c\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[16,16]}}";
    const size_t n = sizeof header - 1;

    fuzz_must(8 + n + 16 <= max, "room for the seed");
    memset(out, 0, 8 + n + 16);
    out[0] = (uint8_t)n;
    out[1] = (uint8_t)(n >> 8);
    memcpy(out + 8, header, n);
    return 8 + n + 16;
}

static void check_entry(const struct cstc_tensor_file *file, const struct cstc_tensor_entry *entry)
{
    uint64_t n_elems = 1;
    uint8_t byte;
    struct cst_err err = {0};

    fuzz_must(entry->n_dims <= CSTC_TENSOR_MAX_DIMS, "dimensions keep their limit");
    fuzz_must(entry->begin >= file->data && entry->begin <= file->bytes &&
                  entry->bytes <= file->bytes - entry->begin,
              "a tensor lies in its file");
    for (uint32_t d = 0; d < entry->n_dims; d++) {
        fuzz_must(entry->shape[d] >= 0, "sizes are not negative");
        n_elems *= (uint64_t)entry->shape[d];
    }
    if (entry->dtype != CSTC_DTYPE_OTHER) {
        fuzz_must(n_elems * cstc_dtype_bytes(entry->dtype) == entry->bytes,
                  "a tensor has the bytes of its shape");
    }
    if (entry->bytes > 0) {
        fuzz_must(cstc_tensor_file_read(file, entry->begin + entry->bytes - 1, &byte, 1, &err) ==
                      CST_OK,
                  "a tensor's last byte can be read");
    }
}

/* Check that the tensors are found by their names, and that no two of them have a common byte. */
static void check(const struct cstc_tensor_file *file)
{
    struct cstc_tensor_entry entries[64];
    unsigned n = 0;
    const char *name;
    json_t *value;

    json_object_foreach(file->header, name, value)
    {
        struct cst_err err = {0};

        if (strcmp(name, "__metadata__") == 0 || n == 64) {
            continue;
        }
        fuzz_must(cstc_tensor_file_find(file, name, &entries[n], &err) == CST_OK, err.text);
        check_entry(file, &entries[n]);
        for (unsigned i = 0; i < n; i++) {
            fuzz_must(entries[i].bytes == 0 || entries[n].bytes == 0 ||
                          entries[i].begin + entries[i].bytes <= entries[n].begin ||
                          entries[n].begin + entries[n].bytes <= entries[i].begin,
                      "tensors lie apart");
        }
        n++;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cstc_tensor_file file;
    struct cst_err err = {0};
    int rc = cstc_tensor_file_open(&file, AT_FDCWD, fuzz_file(data, n), &err);

    if (rc == CST_OK) {
        check(&file);
        cstc_tensor_file_close(&file);
    } else {
        fuzz_must((rc == CST_EINVAL || rc == CST_EIO) && err.status == rc && err.text[0] != '\0',
                  "a refusal is of the file, and has words");
    }
    return 0;
}
