/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the ledger of a job. The first byte of an input says what the rest is: 0: the file; 1: the
 * message, to which a file with right checksums is made; 2: the record, the same. A message or a
 * record then is what a daemon of another version, or one with a fault, would have left. */
#include "daemon/ledger/kept_job.h"
#include "daemon/memory/memory.h"
#include "offload/core/core.h"

#include "tests/fuzz/file.h"

#include <fcntl.h>
#include <xxhash.h>

const char fuzz_name[] = "ledger";

enum { CHECKSUM_AT = 24 }; /* Of the message, in the header of the file. */

size_t fuzz_seed(uint8_t *out, size_t max)
{
    Cistern__JobDescription description = CISTERN__JOB_DESCRIPTION__INIT;
    Cistern__TensorDecl tensor = CISTERN__TENSOR_DECL__INIT, *tensors = &tensor;
    Cistern__OperatorDecl op = CISTERN__OPERATOR_DECL__INIT, *ops = &op;
    Ledger__Job job = LEDGER__JOB__INIT;
    Ledger__Segment segment = LEDGER__SEGMENT__INIT, *segments = &segment;
    int64_t shape[] = {4096};
    uint32_t zero = 0;
    uint8_t packed[512];

    tensor.name = (char *)(uintptr_t) "t";
    tensor.shape = shape;
    tensor.n_shape = 1;
    op.name = (char *)(uintptr_t) "o";
    op.tensors = &zero;
    op.n_tensors = 1;
    description.format = description.world = description.micro_batches = 1;
    description.name = (char *)(uintptr_t) "j";
    description.tensors = &tensors;
    description.operators = &ops;
    description.chunk = &zero;
    description.n_tensors = description.n_operators = description.n_chunk = 1;
    job.description.data = packed;
    job.description.len = cistern__job_description__pack(&description, packed);
    job.plan_words = (char *)(uintptr_t) "a plan";
    job.segments = &segments;
    job.n_segments = 1;
    fuzz_must(1 + ledger__job__get_packed_size(&job) <= max, "room for the seed");
    out[0] = 1;
    return 1 + ledger__job__pack(&job, out + 1);
}

/* Make a ledger with the @n bytes of @message, and a record with those of @record. Returns its
 * descriptor. */
static int make(const uint8_t *message, size_t n, const struct cstd_ledger_record *record)
{
    Ledger__Job job = LEDGER__JOB__INIT;
    struct cstd_ledger_file file;
    struct cst_err err = {0};
    uint64_t checksum;
    size_t other;
    int fd;

    /* The description has the length that makes the message as long as @n, or a little longer. */
    job.plan_words = (char *)(uintptr_t) "";
    other = ledger__job__get_packed_size(&job);
    job.description.data = (uint8_t *)(uintptr_t)message;
    job.description.len = n > other ? n - other : 0;
    while (ledger__job__get_packed_size(&job) > n && job.description.len > 0) {
        job.description.len--;
    }
    fuzz_must(cstd_ledger_file_make(&file, &job, &err) == CST_OK, err.text);
    cstd_ledger_file_write(&file, record);
    n = n < ledger__job__get_packed_size(&job) ? n : ledger__job__get_packed_size(&job);
    memcpy((uint8_t *)file.head + file.bytes - ledger__job__get_packed_size(&job), message, n);
    checksum = XXH3_64bits((uint8_t *)file.head + file.bytes - ledger__job__get_packed_size(&job),
                           ledger__job__get_packed_size(&job));
    memcpy((uint8_t *)file.head + CHECKSUM_AT, &checksum, sizeof checksum);
    fd = fcntl(file.fd, F_DUPFD_CLOEXEC, 0);
    cstd_ledger_file_close(&file);
    return fd;
}

/* Feed @event to @core, and complete the commands that follow, at most a few hundred. */
static void feed(struct cst_core *core, struct cst_event event)
{
    struct cst_command queue[256];
    size_t n = 0, n_done = 0;
    struct cst_actions actions;

    cst_actions_init(&actions);
    for (;;) {
        const char *broken;

        cst_core_step(core, &event, &actions);
        broken = cst_core_check(core);
        fuzz_must(broken == NULL, broken);
        for (size_t i = 0; i < actions.n && n < sizeof queue / sizeof *queue; i++) {
            if (actions.v[i].kind == CST_ACT_COMMAND) {
                queue[n++] = actions.v[i].command;
            }
        }
        if (n_done == n) {
            break;
        }
        event = (struct cst_event){.kind = CST_EV_DONE, .ticket = queue[n_done++].ticket};
    }
    cst_actions_close(&actions);
}

/* Give the code the record @record of a core with one chunk, which goes on from a record that is
 * taken. */
static void revive(const struct cst_core_record *record)
{
    struct cst_model model;
    struct cst_layout layout;
    struct cst_layout_config layout_config = {.chunk_elems = 4096, .n_nodes = 1, .world = 1};
    const int64_t shape[] = {4096};
    const uint32_t tensor = 0, segments[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct cst_tensor_words words = {.name = "t", .dtype = CST_BF16, .shape = shape, .n_dims = 1};
    union {
        struct cst_table_header header;
        uint64_t words[8192];
    } table = {.words = {0}};
    struct cst_core_pool pool = {.parts[0] = {.n_blocks = 4, .blocks_per_slab = 4},
                                 .segments = segments};
    struct cst_core_config config = {.model = &model,
                                     .layout = &layout,
                                     .world = 1,
                                     .arena_segments = segments,
                                     .table = &table.header,
                                     .pools = &pool,
                                     .first_ticket = 1,
                                     .micro_batches = 1};
    struct cst_core *core = NULL;
    struct cst_err err = {0};
    int rc;

    words.lr_scale = words.decay_scale = 1;
    cst_model_init(&model);
    fuzz_must(cst_model_tensor(&model, &words, &err) == CST_OK, err.text);
    fuzz_must(cst_model_operator(&model, "o", &tensor, 1, NULL, &err) == CST_OK, err.text);
    fuzz_must(cst_layout_build(&layout, &model, &layout_config, &err) == CST_OK, err.text);
    fuzz_must(cst_core_open(&core, &config, &err) == CST_OK, err.text);
    cstd_memory_size_table(&layout, &table.header);
    cst_core_write_table(&config, &table.header);
    rc = cst_core_may_revive(core, record, &table.header, &err);
    fuzz_must(rc == CST_OK || (rc == CST_ELOST && err.text[0] != '\0'),
              "a record is taken, or the states are lost for a reason");
    if (rc == CST_OK) {
        feed(core,
             (struct cst_event){.kind = CST_EV_REVIVE, .record = record, .table = &table.header});
        feed(core, (struct cst_event){.kind = CST_EV_ATTACH, .rank = 0});
    }
    cst_core_close(core);
    cst_layout_close(&layout);
    cst_model_close(&model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cstd_kept_job kept = {.file.fd = -1};
    struct cstd_ledger_record record;
    struct cst_err err = {0};
    int fd, rc;

    if (n == 0) {
        return 0;
    }
    memset(&record, 0, sizeof record);
    record.core.initialised = 1;
    if (data[0] % 3 == 0) {
        fd = memfd_create("ledger", MFD_CLOEXEC);
        fuzz_must(fd >= 0 && write(fd, data + 1, n - 1) == (ssize_t)(n - 1), "a file in memory");
    } else if (data[0] % 3 == 1) {
        fd = make(data + 1, n - 1, &record);
    } else {
        memcpy(&record, data + 1, n - 1 < sizeof record ? n - 1 : sizeof record);
        fd = make(data + 1, n - 1, &record);
    }
    fuzz_must(fd >= 0, "a descriptor");
    rc = cstd_kept_job_open(&kept, fd, &err);
    fuzz_must(rc == CST_OK || ((rc == CST_ELOST || rc == CST_EVERSION) && err.status == rc &&
                               err.text[0] != '\0'),
              "a ledger is taken, or refused in words");
    if (data[0] % 3 == 2) {
        revive(&record.core);
    }
    cstd_kept_job_close(&kept);
    return 0;
}
