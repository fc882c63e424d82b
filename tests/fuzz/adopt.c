/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the file of a durable job, of which a checkpoint is made. An input is
 *
 *   2 bytes: length of the description    2 bytes: length of the layout    4 bytes: numbers of the
 * head the description, the layout, two seals of 64 bytes and their checksums of rows, then rows
 *
 * The heads, and all checksums of parts, are made right, so that mutations get behind them. */
#include "cistern/checkpoint.h"
#include "client/checkpoint/manifest.h"
#include "proto/cistern.pb-c.h"
#include "proto/durable.h"
#include "proto/table.h"

#include "tests/fuzz/file.h"

#include <dirent.h>
#include <xxhash.h>

const char fuzz_name[] = "adopt";

enum { FILE_BYTES = 1 << 17, HEAD = 8, N_ROWS = CST_DURABLE_ROWS, N_ELEMS = 64 };

size_t fuzz_seed(uint8_t *out, size_t max)
{
    Cistern__JobDescription job = CISTERN__JOB_DESCRIPTION__INIT;
    Cistern__TensorDecl tensor = CISTERN__TENSOR_DECL__INIT, *tensors = &tensor;
    Cistern__OperatorDecl op = CISTERN__OPERATOR_DECL__INIT, *ops = &op;
    Cistern__DurableLayout layout = CISTERN__DURABLE_LAYOUT__INIT;
    Cistern__DurableChunk chunk = CISTERN__DURABLE_CHUNK__INIT, *chunks = &chunk;
    Cistern__DurableRow rows[N_ROWS], *list[N_ROWS];
    int64_t shape[] = {N_ELEMS};
    uint64_t offset = 0;
    uint32_t zero = 0;
    size_t n_job, n_layout;

    tensor.name = (char *)(uintptr_t) "t";
    tensor.shape = shape;
    tensor.n_shape = 1;
    op.name = (char *)(uintptr_t) "o";
    op.tensors = &zero;
    op.n_tensors = 1;
    job.format = job.world = job.micro_batches = 1;
    job.n_chunks = 1;
    job.name = (char *)(uintptr_t) "j";
    job.tensors = &tensors;
    job.operators = &ops;
    job.chunk = &zero;
    job.n_tensors = job.n_operators = job.n_chunk = 1;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        cistern__durable_row__init(&rows[r]);
        list[r] = &rows[r];
        rows[r].row = CST_ROW_MASTER + r;
        rows[r].offset = 65536 + 8192 * r;
        rows[r].twin = 4096;
        rows[r].bytes = (r == N_ROWS - 1 ? 2 : 4) * N_ELEMS;
    }
    chunk.n_elems = N_ELEMS;
    chunk.rows = list;
    chunk.n_rows = N_ROWS;
    layout.chunks = &chunks;
    layout.offset = &offset;
    layout.n_chunks = layout.n_offset = 1;
    n_job = cistern__job_description__get_packed_size(&job);
    n_layout = cistern__durable_layout__get_packed_size(&layout);
    fuzz_must(HEAD + n_job + n_layout + 256 <= max, "room for the seed");
    memset(out, 0, HEAD + n_job + n_layout + 256);
    out[0] = (uint8_t)n_job;
    out[1] = (uint8_t)(n_job >> 8);
    out[2] = (uint8_t)n_layout;
    out[3] = (uint8_t)(n_layout >> 8);
    out[4] = 1; /* Chunks. */
    (void)cistern__job_description__pack(&job, out + HEAD);
    (void)cistern__durable_layout__pack(&layout, out + HEAD + n_job);
    return HEAD + n_job + n_layout + 256;
}

/* Take up to @n bytes of the input. */
static size_t take(const uint8_t **data, size_t *left, void *to, size_t n)
{
    n = n < *left ? n : *left;
    memcpy(to, *data, n);
    *data += n;
    *left -= n;
    return n;
}

static void write_seal(char *file, const struct cst_durable_head *head, uint32_t place,
                       const uint8_t **data, size_t *left)
{
    const uint64_t bytes = cst_durable_sealed_bytes(head->n_chunks);
    struct cst_durable_seal *seal =
        (struct cst_durable_seal *)(void *)(file + CST_DURABLE_SEALS + place * head->seal_bytes);

    (void)take(data, left, seal, 64 + head->n_chunks * 8);
    seal->magic = CST_DURABLE_SEAL_MAGIC;
    memcpy(seal->id, head->id, sizeof seal->id);
    seal->step = seal->step % 1000 + place;
    seal->place %= 2;
    seal->sum = 0;
    seal->sum = XXH3_64bits(seal, bytes);
}

/* Remove what was made in the directory @path, with it. */
static void empty(const char *path, int depth)
{
    DIR *dir = opendir(path);

    for (struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        char name[512];

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%.200s/%.255s", path, e->d_name);
        if (depth < 1) {
            empty(name, depth + 1);
        }
        (void)unlink(name);
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    (void)rmdir(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char file[FILE_BYTES], out[64];
    struct cst_durable_head *head = (struct cst_durable_head *)(void *)file;
    struct cst_adopt_result result = {.step = 0};
    const char *path;
    struct cst_err err = {0};
    size_t n_job, n_layout;
    int rc;

    if (n < HEAD) {
        return 0;
    }
    memset(file, 0, sizeof file);
    n_job = data[0] + 256u * data[1];
    n_layout = data[2] + 256u * data[3];
    *head = (struct cst_durable_head){.magic = CST_DURABLE_MAGIC,
                                      .order = CST_DURABLE_ORDER,
                                      .format = CST_DURABLE_FORMAT,
                                      .n_files = 1u + data[5] / 128,
                                      .n_chunks = data[4] % 64,
                                      .n_rows = N_ROWS,
                                      .description = 98304,
                                      .job_bytes = n_job % 16384,
                                      .layout_bytes = n_layout % 16384};
    head->seal_bytes = cst_durable_seal_bytes(head->n_chunks);
    data += HEAD;
    n -= HEAD;
    (void)take(&data, &n, file + head->description, head->job_bytes + head->layout_bytes);
    head->description_sum =
        XXH3_64bits(file + head->description, head->job_bytes + head->layout_bytes);
    head->sum = XXH3_64bits(head, offsetof(struct cst_durable_head, sum));
    write_seal(file, head, 0, &data, &n);
    write_seal(file, head, 1, &data, &n);
    (void)take(&data, &n, file + 65536, 32768);
    path = fuzz_file(file, sizeof file);
    (void)snprintf(out, sizeof out, "/dev/shm/cistern-fuzz-adopt.%d", (int)getpid());
    rc = cst_adopt(&path, 1, out, &result, &err);
    fuzz_must(rc == CST_OK || err.text[0] != '\0', "a failure without a text");
    fuzz_must(rc != CST_OK || result.bytes > 0, "a checkpoint without files");
    empty(out, 0);
    return 0;
}
