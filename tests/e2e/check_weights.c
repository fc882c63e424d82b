/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of model files of other programs: a small model with separate query, key and value is
 * loaded into a job with a fused tensor and a transposed one, and is saved under its own names,
 * with the same bits. What is wrong with a file is named, and nothing is written then. */
#include "cistern/checkpoint.h"
#include "client/checkpoint/tensor_file.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { D = 96, KV = 32, N_FILE = 6 };

/* The tensors of the file, and the types in which they are stored. */
static const struct in_file {
    const char *name;
    int64_t rows, columns; /* columns 0: a vector */
    enum cstc_dtype dtype;
} in_file[N_FILE] = {{"model.layers.0.self_attn.q_proj.weight", D, D, CSTC_DTYPE_BF16},
                     {"model.layers.0.self_attn.k_proj.weight", KV, D, CSTC_DTYPE_F32},
                     {"model.layers.0.self_attn.v_proj.weight", KV, D, CSTC_DTYPE_F16},
                     {"model.norm.weight", D, 0, CSTC_DTYPE_F32},
                     {"model.layers.0.mlp.up_proj.weight", 3 * D, D, CSTC_DTYPE_F32},
                     {"rotary.inv_freq", 7, 0, CSTC_DTYPE_F32}};

static char path[] = "/tmp/cistern-weights.XXXXXX";
static int dirfd_ = -1;
static struct cst_client *client;
static struct cst_job *job;
static struct cst_err err;

/* A value that F16, BF16 and F32 all represent. */
static float value(uint32_t tensor, uint64_t i)
{
    return (float)((int)((i * 37 + tensor * 11) % 127) - 63) / 64;
}

static uint64_t n_elems(const struct in_file *t)
{
    return (uint64_t)t->rows * (t->columns > 0 ? (uint64_t)t->columns : 1);
}

static uint32_t bits_of(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* Store @v at @out in the type @dtype. Returns the number of bytes. */
static size_t encode(float v, enum cstc_dtype dtype, uint8_t *out)
{
    uint32_t bits = bits_of(v);
    uint16_t half = (uint16_t)(bits >> 16);

    if (dtype == CSTC_DTYPE_F32) {
        memcpy(out, &bits, 4);
        return 4;
    }
    if (dtype == CSTC_DTYPE_U8) {
        *out = 0;
        return 1;
    }
    if (dtype == CSTC_DTYPE_F16) { /* All values are normal numbers, or zero. */
        half = v == 0 ? 0
                      : (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 |
                                   (bits >> 13 & 1023));
    }
    memcpy(out, &half, 2);
    return 2;
}

/* The type in which tensor @i is stored, if the norm has the type @norm. */
static enum cstc_dtype type_of(uint32_t i, enum cstc_dtype norm)
{
    return i == 3 ? norm : in_file[i].dtype;
}

/* Write the tensors of the bits @which to the file @name, the norm as @norm. */
static void write_typed(const char *name, unsigned which, enum cstc_dtype norm)
{
    struct cstc_tensor_header header;
    int fd = openat(dirfd_, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    void *begin;
    size_t bytes;
    uint8_t *data = malloc(4 * 3 * D * D);

    ck_assert_int_eq(cstc_tensor_header_open(&header, &err), CST_OK);
    for (uint32_t i = 0; i < N_FILE; i++) {
        const int64_t shape[] = {in_file[i].rows, in_file[i].columns};

        if ((which >> i & 1) != 0) {
            ck_assert_int_eq(cstc_tensor_header_add(&header, in_file[i].name, type_of(i, norm),
                                                    shape, in_file[i].columns > 0 ? 2 : 1, &err),
                             CST_OK);
        }
    }
    ck_assert_int_eq(cstc_tensor_header_bytes(&header, &begin, &bytes, &err), CST_OK);
    ck_assert_int_eq(write(fd, begin, bytes), (ssize_t)bytes);
    for (uint32_t i = 0; i < N_FILE; i++) {
        size_t n = 0;

        for (uint64_t k = 0; (which >> i & 1) != 0 && k < n_elems(&in_file[i]); k++) {
            n += encode(value(i, k), type_of(i, norm), data + n);
        }
        ck_assert_int_eq(write(fd, data, n), (ssize_t)n);
    }
    (void)close(fd);
    free(begin);
    free(data);
    cstc_tensor_header_close(&header);
}

static void write_file(const char *name, unsigned which)
{
    write_typed(name, which, CSTC_DTYPE_F32);
}

static void setup(void)
{
    job_rig_setup();
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(path));
    dirfd_ = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void teardown(void)
{
    char command[64];

    (void)snprintf(command, sizeof command, "rm -rf %s", path);
    ck_assert_int_eq(system(command), 0);
    (void)close(dirfd_);
    settle_remove_jobs(&witness);
    job_rig_teardown();
}

static int declare(const char *name, int64_t rows, int64_t columns, enum cst_pattern_kind pattern,
                   const char *const *names, const int64_t *part_rows, uint32_t n, bool transposed)
{
    const int64_t shape[] = {rows, columns};
    int t = cst_tensor_as(job, &(struct cst_tensor_spec){.name = name,
                                                         .dtype = CST_BF16,
                                                         .n_dims = columns > 0 ? 2 : 1,
                                                         .shape = shape,
                                                         .pattern = pattern,
                                                         .lr_scale = 1,
                                                         .decay_scale = 1,
                                                         .external_names = names,
                                                         .external_rows = part_rows,
                                                         .n_external = n,
                                                         .transposed = transposed});

    return t < 0 || cst_operator(job, name, &t, 1) < 0 ? cst_job_error(job)->status : t;
}

/* Open the job @name. Tensor 0 is fused, 1 has its own name in the file, 2 is transposed, and is
 * frozen if @frozen. */
static void open_job(const char *name, const char *model_config, bool frozen)
{
    const char *const fused[] = {in_file[0].name, in_file[1].name, in_file[2].name};
    static const int64_t rows[] = {D, KV, KV};
    const char *const up = in_file[4].name;

    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&job, client,
                                  &(struct cst_job_spec){
                                      .name = name, .world = 1, .model.model_config = model_config},
                                  &err),
                     CST_OK);
    ck_assert_int_eq(declare("qkv", D + 2 * KV, D, CST_PATTERN_SHARD, fused, rows, 3, false), 0);
    ck_assert_int_eq(declare("model.norm.weight", D, 0, CST_PATTERN_SHARD, NULL, NULL, 0, false),
                     1);
    ck_assert_int_eq(declare("up", D, 3 * D, frozen ? CST_PATTERN_FROZEN : CST_PATTERN_SHARD, &up,
                             NULL, 1, true),
                     2);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_OK);
}

static void close_job(void)
{
    ck_assert_int_eq(cst_job_leave(job, &err), CST_OK);
    cst_disconnect(client);
}

static int load(const char *name, struct cst_load_model_result *result)
{
    char full[128];

    (void)snprintf(full, sizeof full, "%s/%s", path, name);
    return cst_load_model(job, &(struct cst_load_model_spec){.path = full}, result, &err);
}

/* The tensors of the job have the values of the file. */
static void check_states(bool frozen)
{
    float *master = malloc(4 * 3 * D * D);
    uint16_t *weights = malloc(2 * 3 * D * D);

    for (int t = 0; t < 3; t++) {
        const uint64_t n = t == 0 ? (D + 2 * KV) * D : t == 1 ? D : 3 * D * D;

        ck_assert_int_eq(cst_tensor_read(job, t, CST_STATE_WEIGHT, 0, n, weights, &err), CST_OK);
        if (t < 2 || !frozen) {
            ck_assert_int_eq(cst_tensor_read(job, t, CST_STATE_MASTER, 0, n, master, &err), CST_OK);
        }
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t row = i / D, up = i % (3 * D) * D + i / (3 * D);
            float want = t == 1         ? value(3, i)
                         : t == 2       ? value(4, up)
                         : row < D      ? value(0, i)
                         : row < D + KV ? value(1, i - D * D)
                                        : value(2, i - (D + KV) * D);

            ck_assert_uint_eq(weights[i], bits_of(want) >> 16);
            if (t < 2 || !frozen) {
                ck_assert_uint_eq(bits_of(master[i]), bits_of(want));
            }
        }
    }
    free(master);
    free(weights);
}

/* The saved file @name of the checkpoint has the tensors of the original one in the type @dtype. */
static void check_file(const char *name, enum cstc_dtype dtype, enum cstc_dtype up)
{
    struct cstc_tensor_file file;
    uint8_t *data = malloc(4 * 3 * D * D), elem[4];

    ck_assert_int_eq(cstc_tensor_file_open(&file, dirfd_, name, &err), CST_OK);
    for (uint32_t i = 0; i + 1 < N_FILE; i++) {
        enum cstc_dtype wanted = i == 4 ? up : dtype;
        struct cstc_tensor_entry entry;
        size_t at = 0;

        ck_assert_int_eq(cstc_tensor_file_find(&file, in_file[i].name, &entry, &err), CST_OK);
        ck_assert_int_eq(entry.dtype, wanted);
        ck_assert_int_eq(entry.shape[0], in_file[i].rows);
        ck_assert_uint_eq(entry.n_dims, in_file[i].columns > 0 ? 2 : 1);
        ck_assert_int_eq(cstc_tensor_file_read(&file, entry.begin, data, entry.bytes, &err),
                         CST_OK);
        for (uint64_t k = 0; k < n_elems(&in_file[i]); k++) {
            size_t n = encode(value(i, k), wanted, elem);

            ck_assert_mem_eq(data + at, elem, n);
            at += n;
        }
    }
    cstc_tensor_file_close(&file);
    free(data);
}

static void save(const char *dir, bool fp32)
{
    char full[128];

    (void)snprintf(full, sizeof full, "%s/%s", path, dir);
    ck_assert_int_eq(cst_save(client, "w",
                              &(struct cst_save_spec){.dir = full, .fp32_weights = fp32}, NULL,
                              &err),
                     CST_OK);
}

/* The model comes back from a job with the same bits, in both formats, and so do checkpoints, in
 * which it is also known to a job without external names. */
START_TEST(there_and_back)
{
    const bool frozen = _i == 1;
    struct cst_load_model_result result;
    char text[64] = "", full[128];
    uint64_t step;
    int fd;

    write_file("model.safetensors", 63);
    open_job("w", "{\"model_type\": \"small\"}", frozen);
    ck_assert_int_eq(load("", &result), CST_OK);
    ck_assert_uint_eq(result.n_tensors, 3);
    ck_assert_uint_eq(result.n_ignored, 1);
    ck_assert_str_eq(result.ignored, "rotary.inv_freq");
    ck_assert_int_eq(cst_sync(job, &step, &err), CST_OK);
    ck_assert_uint_eq(step, 0);
    check_states(frozen);
    ck_assert_int_eq(load("", NULL), CST_EEXIST);
    save("bf16", false);
    save("fp32", true);
    check_file("bf16/step-00000000/model.safetensors", CSTC_DTYPE_BF16, CSTC_DTYPE_BF16);
    check_file("fp32/step-00000000/model.safetensors", CSTC_DTYPE_F32,
               frozen ? CSTC_DTYPE_BF16 : CSTC_DTYPE_F32);
    fd = openat(dirfd_, "bf16/step-00000000/config.json", O_RDONLY | O_CLOEXEC);
    ck_assert_int_gt(read(fd, text, sizeof text - 1), 0);
    ck_assert_str_eq(text, "{\"model_type\": \"small\"}");
    (void)close(fd);
    close_job();
    for (int i = 0; i < 2; i++) {
        open_job(i == 0 ? "w2" : "w3", NULL, frozen);
        (void)snprintf(full, sizeof full, "%s/%s", path, i == 0 ? "bf16" : "fp32");
        ck_assert_int_eq(cst_load(job, full, NULL, &err), CST_OK);
        check_states(frozen);
        close_job();
    }
}
END_TEST

enum { ALL = 1 << 16 }; /* All values of 16 bits. */

/* Write a file with two tensors that have all values of bf16. */
static void write_all_values(void)
{
    static const int64_t shape[] = {ALL / 256, 256};
    struct cstc_tensor_header header;
    int fd = openat(dirfd_, "model.safetensors", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    uint16_t *values = malloc(ALL * sizeof *values);
    void *begin;
    size_t bytes;

    ck_assert_int_eq(cstc_tensor_header_open(&header, &err), CST_OK);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(cstc_tensor_header_add(&header, i == 0 ? "rows" : "columns",
                                                CSTC_DTYPE_BF16, shape, 2, &err),
                         CST_OK);
    }
    ck_assert_int_eq(cstc_tensor_header_bytes(&header, &begin, &bytes, &err), CST_OK);
    ck_assert_int_eq(write(fd, begin, bytes), (ssize_t)bytes);
    for (int i = 0; i < ALL; i++) {
        values[i] = (uint16_t)i;
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(write(fd, values, ALL * sizeof *values), ALL * (int)sizeof *values);
    }
    (void)close(fd);
    free(begin);
    free(values);
    cstc_tensor_header_close(&header);
}

/* Master weights have the bits of bf16 files. Weights are these, rounded: NaNs are quiet. A frozen
 * tensor has the bits of the file. */
START_TEST(all_values)
{
    const bool frozen = _i == 1;
    const enum cst_pattern_kind pattern = frozen ? CST_PATTERN_FROZEN : CST_PATTERN_SHARD;
    static const char *const columns[] = {"columns"};
    uint32_t *master = malloc(ALL * sizeof *master);
    uint16_t *weights = malloc(ALL * sizeof *weights);

    write_all_values();
    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(
        cst_job_open(&job, client, &(struct cst_job_spec){.name = "w", .world = 1}, &err), CST_OK);
    ck_assert_int_eq(declare("rows", 256, ALL / 256, pattern, NULL, NULL, 0, false), 0);
    ck_assert_int_eq(declare("t", ALL / 256, 256, pattern, columns, NULL, 1, true), 1);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_OK);
    ck_assert_int_eq(load("", NULL), CST_OK);
    for (int t = 0; t < 2; t++) {
        ck_assert_int_eq(cst_tensor_read(job, t, CST_STATE_WEIGHT, 0, ALL, weights, &err), CST_OK);
        if (!frozen) {
            ck_assert_int_eq(cst_tensor_read(job, t, CST_STATE_MASTER, 0, ALL, master, &err),
                             CST_OK);
        }
        for (uint32_t i = 0; i < ALL; i++) {
            uint32_t value = t == 0 ? i : i % 256 * 256 + i / 256;
            bool nan = (value & 0x7fff) > 0x7f80;

            ck_assert_uint_eq(weights[i], nan && !frozen ? value | 0x40 : value);
            ck_assert(frozen || master[i] == value << 16);
        }
    }
    close_job();
    free(master);
    free(weights);
}
END_TEST

/* Several files with an index, and one file by its path. */
START_TEST(indexed)
{
    int fd;

    write_file("one.safetensors", 1 + 4 + 8);
    write_file("two.safetensors", 2 + 16);
    fd = openat(dirfd_, "model.safetensors.index.json", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    (void)dprintf(fd, "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\", "
                      "\"c\": \"one.safetensors\"}}");
    (void)close(fd);
    open_job("w", NULL, false);
    ck_assert_int_eq(load("one.safetensors", NULL), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "k_proj"));
    ck_assert_int_eq(load("", NULL), CST_OK);
    check_states(false);
    close_job();
}
END_TEST

/* The master weights of a new job, to which nothing was written. */
static void check_untouched(void)
{
    float master[D];

    for (int t = 0; t < 3; t++) {
        ck_assert_int_eq(cst_tensor_read(job, t, CST_STATE_MASTER, 0, D, master, &err), CST_OK);
        for (int i = 0; i < D; i++) {
            ck_assert(master[i] == 0);
        }
    }
}

/* What is wrong is found before anything is written. */
START_TEST(refused)
{
    struct cst_load_model_result result;

    open_job("w", NULL, false);
    ck_assert_int_eq(load("", NULL), CST_ENOTFOUND);
    ck_assert_int_eq(load("none", NULL), CST_ENOTFOUND);
    write_file("model.safetensors", 63 - 8);
    ck_assert_int_eq(load("", NULL), CST_EINVAL);
    ck_assert_str_eq(err.text, "no file has the tensor 'model.norm.weight'");
    write_typed("model.safetensors", 63, CSTC_DTYPE_U8);
    ck_assert_int_eq(load("", NULL), CST_EINVAL);
    ck_assert_ptr_nonnull(
        strstr(err.text, "'model.norm.weight' has another type than F32, BF16 or F16"));
    write_file("model.safetensors", 63);
    {
        int fd = openat(dirfd_, "model.safetensors", O_WRONLY | O_CLOEXEC);

        ck_assert_int_eq(ftruncate(fd, lseek(fd, 0, SEEK_END) - 1), 0);
        (void)close(fd);
    }
    ck_assert_int_eq(load("", &result), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "has the bytes"));
    check_untouched();
    write_file("model.safetensors", 63);
    ck_assert_int_eq(load("", &result), CST_OK);
    check_states(false);
    close_job();
}
END_TEST

/* Declarations that contradict themselves are refused with the numbers. */
START_TEST(declarations)
{
    static const char *const names[] = {"a", "b"}, *const twice[] = {"a", "a"};
    static const int64_t rows[] = {3, 5}, few[] = {3, 4}, many[] = {3, 6};

    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(
        cst_job_open(&job, client, &(struct cst_job_spec){.name = "w", .world = 1}, &err), CST_OK);
    ck_assert_int_eq(declare("t", 8, 4, 0, names, few, 2, false), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(cst_job_error(job)->text, "have 7 of 8 rows"));
    ck_assert_int_eq(declare("t", 8, 4, 0, names, many, 2, false), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(cst_job_error(job)->text, "has 6 rows, 1 to 5 of 8 are left"));
    ck_assert_int_eq(declare("t", 8, 4, 0, names, NULL, 2, false), CST_EINVAL);
    ck_assert_int_eq(declare("t", 8, 4, 0, twice, rows, 2, false), CST_EINVAL);
    ck_assert_int_eq(declare("t", 8, 0, 0, names, rows, 2, true), CST_EINVAL);
    ck_assert_int_eq(declare("t", 8, 4, 0, NULL, NULL, 0, true), CST_EINVAL);
    ck_assert_int_eq(declare("t", 8, 4, 0, names, rows, 2, false), 0);
    ck_assert_int_eq(declare("u", 8, 4, 0, names, NULL, 1, false), CST_EEXIST);
    ck_assert_ptr_nonnull(strstr(cst_job_error(job)->text, "tensors 't' and 'u'"));
    ck_assert_int_eq(declare("b", 8, 4, 0, NULL, NULL, 0, false), CST_EEXIST);
    cst_disconnect(client);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("weights");
    TCase *tc = suite_case(s, "files", setup, teardown);

    tcase_add_loop_test(tc, there_and_back, 0, 2);
    tcase_add_loop_test(tc, all_values, 0, 2);
    tcase_add_test(tc, indexed);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, declarations);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
