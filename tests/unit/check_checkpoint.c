/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of client/checkpoint without a daemon: files of any size, headers of safetensors with every
 * defect, descriptions as JSON, differences between jobs. */
#include "cistern/job.h"
#include "client/checkpoint/content.h"
#include "client/checkpoint/differences.h"
#include "client/checkpoint/manifest.h"
#include "client/checkpoint/weights.h"
#include "kernels/math/cast.h"
#include "proto/message_json.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/cistern-checkpoint.XXXXXX";
static int dirfd_;

static void setup(void)
{
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(path));
    dirfd_ = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(dirfd_, 0);
}

static void teardown(void)
{
    char command[64];

    (void)close(dirfd_);
    (void)snprintf(command, sizeof command, "rm -rf %s", path);
    ck_assert_int_eq(system(command), 0);
}

/* -- io_uring ---------------------------------------------------------------------------------- */

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);

static int submits_left = -1; /* Number of calls until one fails; -1: none does. */

int __wrap_io_uring_submit(struct io_uring *ring)
{
    if (submits_left >= 0 && submits_left-- == 0) {
        return -EAGAIN;
    }
    return __real_io_uring_submit(ring);
}

/* -- short writes ------------------------------------------------------------------------------ */

ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t offset);

static bool writes_short; /* The next write is short, by a number of bytes that is not aligned. */

ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t offset)
{
    ssize_t done = __real_pwrite(fd, data, n, offset);

    if (writes_short && done > 1000) {
        writes_short = false;
        return done - 1000;
    }
    return done;
}

/* -- memory of JSON ---------------------------------------------------------------------------- */

static unsigned allocations_left = UINT_MAX; /* Number of allocations until one fails. */

static void *allocate(size_t bytes)
{
    return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

/* -- files ------------------------------------------------------------------------------------- */

/* Files have the bytes that were appended, in pieces of any size, and the checksum that a check
 * computes. A request that the kernel does not take for lack of memory changes nothing,
 * and neither does a write that is short. */
START_TEST(written)
{
    static const size_t sizes[] = {0,       1,       4095,          4096,     4097,
                                   4 << 20, 4195305, (4 << 20) - 1, 21 << 20, (32 << 20) + 5};
    size_t bytes = sizes[_i % 10];
    uint8_t *data = malloc(bytes + 1);
    struct cstc_manifest_file file = {.name = "file"};
    struct cstc_manifest manifest = {.files = &file, .n_files = 1};
    struct cstc_file_writer *writer;
    struct cst_err err;

    submits_left = _i / 10 - 1;
    writes_short = _i / 10 > 0;
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    ck_assert_int_eq(cstc_file_writer_open(&writer, dirfd_, "file", &err), CST_OK);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = 1 + (at * 7919) % 1500000;
        n = n < bytes - at ? n : bytes - at;
        ck_assert_int_eq(cstc_file_writer_append(writer, data + at, n, &err), CST_OK);
    }
    ck_assert_int_eq(cstc_file_writer_finish(writer, &file.bytes, &file.hash, &err), CST_OK);
    ck_assert_uint_eq(file.bytes, bytes);
    ck_assert_int_eq(cstc_manifest_check(&manifest, dirfd_, true, &err), CST_OK);
    if (bytes > 0) {
        int fd = openat(dirfd_, "file", O_RDWR | O_CLOEXEC);
        uint8_t byte;

        ck_assert_int_eq(pread(fd, &byte, 1, (off_t)(bytes / 2)), 1);
        ck_assert_uint_eq(byte, data[bytes / 2]);
        byte ^= 1;
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)(bytes / 2)), 1);
        (void)close(fd);
        ck_assert_int_eq(cstc_manifest_check(&manifest, dirfd_, true, &err), CST_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.text, "file was altered"));
    }
    /* A file that exists is never overwritten. */
    ck_assert_int_eq(cstc_file_writer_open(&writer, dirfd_, "file", &err), CST_EIO);
    free(data);
}
END_TEST

static void write_file(const char *name, const char *header, uint64_t length, size_t n_data)
{
    int fd = openat(dirfd_, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char zeros[64] = {0};

    ck_assert_int_eq(write(fd, &length, 8), 8);
    ck_assert_int_eq(write(fd, header, strlen(header)), (ssize_t)strlen(header));
    ck_assert_int_eq(write(fd, zeros, n_data), (ssize_t)n_data);
    (void)close(fd);
}

/* Each defect of a header is found before any tensor is read. */
START_TEST(headers)
{
#define A(shape, from, to)                                                                         \
    "\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
    static const struct {
        const char *header;
        size_t n_data;
        const char *words; /* NULL: the header is good */
    } cases[] = {
        {"{" A("[2,3]", "0", "24") "}", 24, NULL},
        {"{}", 0, NULL},
        {"{" A("[2,3]", "0",
               "24") ",\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[24,32]}}",
         32, NULL},
        {"{" A("[2,3]", "0", "20") "}", 20, "has 6 elements of type F32 and 20 bytes"},
        {"{" A("[2,3]", "0", "24") "}", 20, "the file has 20"},
        {"{" A("[2,3]", "24", "0") "}", 24, "bytes 24 to 0"},
        {"{" A("[2,3]", "-24", "0") "}", 24, "bytes -24 to 0"},
        {"{" A("[2,-3]", "0", "24") "}", 24, "shape"},
        {"{" A("[4294967296,4294967296,4]", "0", "24") "}", 24, "shape"},
        {"{" A("[1,1,1,1,1,1,1,1,6]", "0", "24") "}", 24, "shape"},
        {"{" A("[1.5]", "0", "6") "}", 6, "shape"},
        {"{" A("[6]", "0", "24") "," A("[6]", "0", "24") "}", 24, "duplicate"},
        {"{" A("[2]", "0", "8") ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, "overlap or have gaps at byte"},
        {"{" A("[2]", "0", "8") ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[12,16]}}",
         16, "overlap or have gaps at byte"},
        {"{" A("[2]", "0", "8") "}", 9, "its tensors end at"},
        {"{\"a\":3}", 0, "no dtype or no data_offsets"},
        {"{" A("[2,3]", "0", "9223372036854775808") "}", 24,
         "t: header:1:71: a.data_offsets[1]: 9223372036854775808 is not within"},
        {"[]", 0, "header is not a JSON object"},
        {"{\"a\":", 0, "t: header:1:5: unexpected token near end of file"},
    };
#undef A
    struct cstc_tensor_file file;
    struct cst_err err;
    int rc;

    write_file("t", cases[_i].header, strlen(cases[_i].header), cases[_i].n_data);
    rc = cstc_tensor_file_open(&file, dirfd_, "t", &err);
    if (cases[_i].words == NULL) {
        ck_assert_msg(rc == CST_OK, "%s", err.text);
        cstc_tensor_file_close(&file);
    } else {
        ck_assert_int_eq(rc, CST_EINVAL);
        ck_assert_msg(strstr(err.text, cases[_i].words) != NULL, "%s", err.text);
    }
}
END_TEST

/* Lengths that a header cannot have. */
START_TEST(lengths)
{
    struct cstc_tensor_file file;
    struct cst_err err;

    write_file("t", "{}", 3, 0);
    ck_assert_int_eq(cstc_tensor_file_open(&file, dirfd_, "t", &err), CST_EINVAL);
    write_file("t", "{}", UINT64_MAX, 0);
    ck_assert_int_eq(cstc_tensor_file_open(&file, dirfd_, "t", &err), CST_EINVAL);
    ck_assert_int_eq(ftruncate(openat(dirfd_, "t", O_WRONLY | O_CLOEXEC), 7), 0);
    ck_assert_int_eq(cstc_tensor_file_open(&file, dirfd_, "t", &err), CST_EINVAL);
    ck_assert_int_eq(cstc_tensor_file_open(&file, dirfd_, "none", &err), CST_ENOTFOUND);
}
END_TEST

/* A description comes back from JSON with the same bits. */
START_TEST(descriptions)
{
    Cistern__JobDescription d = CISTERN__JOB_DESCRIPTION__INIT, *back;
    Cistern__TensorDecl tensor = CISTERN__TENSOR_DECL__INIT, *tensors[] = {&tensor};
    Cistern__Hyper hyper = CISTERN__HYPER__INIT;
    ProtobufCMessage *message;
    int64_t shape[] = {1, INT64_MAX};
    uint32_t chunk[] = {UINT32_MAX};
    struct cst_err err;
    json_t *json;
    char *text;

    tensor.name = (char *)(uintptr_t) "w \"\xc3\xa4\"";
    tensor.n_shape = 2;
    tensor.shape = shape;
    tensor.has_lr_scale = 1;
    tensor.lr_scale = 1e-45f;
    hyper.lr = 0.1f;
    hyper.beta2 = nextafterf(1, 0);
    d.name = (char *)(uintptr_t) "job";
    d.seed = UINT64_MAX;
    d.step = (uint64_t)INT64_MAX;
    d.grad_over_weight = 1;
    d.n_tensors = d.n_chunk = 1;
    d.tensors = tensors;
    d.chunk = chunk;
    d.hyper = &hyper;
    d.last_loss = NAN;
    d.last_grad_norm = 0.1;
    json = cst_message_to_json(&d.base);
    text = json_dumps(json, 0);
    json_decref(json);
    json = json_loads(text, 0, NULL);
    ck_assert_int_eq(
        cst_message_from_json(&message, &cistern__job_description__descriptor, json, "job", &err),
        CST_OK);
    back = (Cistern__JobDescription *)message;
    ck_assert_uint_eq(back->seed, UINT64_MAX);
    ck_assert_uint_eq(back->step, (uint64_t)INT64_MAX);
    ck_assert(back->grad_over_weight && back->base_job == NULL);
    ck_assert_str_eq(back->tensors[0]->name, tensor.name);
    ck_assert_int_eq(back->tensors[0]->shape[1], INT64_MAX);
    ck_assert(back->tensors[0]->lr_scale == 1e-45f && back->tensors[0]->has_lr_scale);
    ck_assert(!back->tensors[0]->has_decay_scale && back->tensors[0]->decay_scale == 1);
    ck_assert(back->hyper->lr == 0.1f && back->hyper->beta2 == nextafterf(1, 0));
    ck_assert_uint_eq(back->chunk[0], UINT32_MAX);
    ck_assert(isnan(back->last_loss) && back->last_grad_norm == 0.1);
    protobuf_c_message_free_unpacked(message, NULL);

    (void)json_object_set_new(json, "world", json_string("x"));
    ck_assert_int_eq(
        cst_message_from_json(&message, &cistern__job_description__descriptor, json, "job", &err),
        CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "job.world"));
    (void)json_object_del(json, "world");
    ck_assert_int_eq(
        cst_message_from_json(&message, &cistern__job_description__descriptor, json, "job", &err),
        CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "job.world is missing"));
    json_decref(json);
    free(text);
}
END_TEST

/* Contents are in the order of names, whatever the chunks, in files of limited size. An invalid
 * description is refused. */
START_TEST(contents)
{
    Cistern__JobDescription d = CISTERN__JOB_DESCRIPTION__INIT;
    Cistern__TensorDecl tensors[3], *list[3];
    uint32_t chunk[] = {1, 0, 1};
    int64_t shape[] = {100};
    struct cstc_content content;
    struct cst_err err;

    for (int i = 0; i < 3; i++) {
        cistern__tensor_decl__init(&tensors[i]);
        tensors[i].name = (char *)(uintptr_t)(i == 0 ? "b" : i == 1 ? "c" : "a");
        tensors[i].n_shape = 1;
        tensors[i].shape = shape;
        list[i] = &tensors[i];
    }
    d.format = 1;
    d.n_tensors = d.n_chunk = 3;
    d.tensors = list;
    d.chunk = chunk;
    d.n_chunks = 2;
    d.moments = CST_MOMENTS_MX8;
    ck_assert_int_eq(cstc_content_make(&content, &d, 700, false, &err), CST_OK);
    ck_assert_uint_eq(content.n_entries, 3 * 6);
    ck_assert_str_eq(content.entries[0].name, "a.master");
    ck_assert_str_eq(content.entries[1].name, "a");
    ck_assert_str_eq(content.entries[3].name, "a.exp_avg.exponents");
    ck_assert_uint_eq(content.entries[3].bytes, 4);
    ck_assert_str_eq(content.entries[6].name, "b.master");
    /* States of a tensor: 400 + 2 x 104 bytes; weights of all: 600. */
    ck_assert_uint_eq(content.n_files, 4);
    ck_assert_str_eq(content.files[0].name, "states-00001-of-00003.safetensors");
    ck_assert_str_eq(content.files[1].name, "model.safetensors");
    ck_assert(cstc_content_ends_file(&content, 5));
    ck_assert(!cstc_content_ends_file(&content, 4));
    ck_assert(!cstc_content_ends_file(&content, 7));
    ck_assert(cstc_content_ends_file(&content, 13));
    cstc_content_close(&content);

    d.n_chunks = UINT32_MAX;
    ck_assert_int_eq(cstc_content_make(&content, &d, 700, false, &err), CST_EINVAL);
    d.n_chunks = 1;
    ck_assert_int_eq(cstc_content_make(&content, &d, 700, false, &err), CST_EINVAL);
    d.n_chunks = 2;
    shape[0] = INT64_MAX;
    ck_assert_int_eq(cstc_content_make(&content, &d, 700, false, &err), CST_EINVAL);
    shape[0] = -1;
    ck_assert_int_eq(cstc_content_make(&content, &d, 700, false, &err), CST_EINVAL);
}
END_TEST

/* Make a header with two tensors while allocation number @n fails. */
static int make_header(struct cstc_tensor_header *header, unsigned n)
{
    static const int64_t matrix[] = {3, 4}, vector[] = {7};
    struct cst_err err = {0};
    int rc;

    allocations_left = n;
    rc = cstc_tensor_header_open(header, &err);
    if (rc == CST_OK) {
        rc = cstc_tensor_header_add(header, "matrix", CSTC_DTYPE_BF16, matrix, 2, &err);
    }
    if (rc == CST_OK) {
        rc = cstc_tensor_header_add(header, "vector", CSTC_DTYPE_F32, vector, 1, &err);
    }
    return rc;
}

/* A header is complete, or CST_ENOMEM is returned, whichever allocation fails. */
START_TEST(headers_without_memory)
{
    struct cstc_tensor_header header;
    unsigned n = 0;

    json_set_alloc_funcs(allocate, free);
    for (bool has_failed = true; has_failed; n++) {
        int rc = make_header(&header, n);

        has_failed = allocations_left > n;
        if (rc == CST_OK) {
            const json_t *matrix = json_object_get(header.json, "matrix"),
                         *vector = json_object_get(header.json, "vector");

            ck_assert_uint_eq(json_array_size(json_object_get(matrix, "shape")), 2);
            ck_assert_uint_eq(json_array_size(json_object_get(vector, "shape")), 1);
            ck_assert_uint_eq(header.bytes, 3 * 4 * 2 + 7 * 4);
        } else {
            ck_assert_int_eq(rc, CST_ENOMEM);
        }
        cstc_tensor_header_close(&header);
    }
    ck_assert_uint_gt(n, 20);
}
END_TEST

/* -- transposed weights ------------------------------------------------------------------------ */

enum { HEIGHT = 2500, WIDTHS = 7 + 4 }; /* Rows of the tensor, and columns in two parts. */

/* A file with two tensors, which are the columns of one of HEIGHT rows. The first has fp32, and the
 * second bf16. Element (row, column) is row + column / 16. */
static void open_transposed(struct cstc_tensor_file *file, struct cstc_weights_part parts[2])
{
    static const int64_t widths[] = {7, WIDTHS - 7};
    uint64_t at = 12, column = 0;

    *file = (struct cstc_tensor_file){.name = "t"};
    file->fd = openat(dirfd_, "t", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(file->fd, 0);
    for (int p = 0; p < 2; p++) {
        const unsigned bytes = p == 0 ? 4 : 2;

        parts[p] = (struct cstc_weights_part){.name = p == 0 ? "a" : "b",
                                              .shape = {widths[p], HEIGHT},
                                              .n_dims = 2,
                                              .first_row = column,
                                              .file = file};
        parts[p].place =
            (struct cstc_tensor_entry){.dtype = p == 0 ? CSTC_DTYPE_F32 : CSTC_DTYPE_BF16,
                                       .begin = at,
                                       .bytes = (uint64_t)widths[p] * HEIGHT * bytes};
        for (int64_t c = 0; c < widths[p]; c++, column++) {
            for (int row = 0; row < HEIGHT; row++, at += bytes) {
                const float value = (float)row + (float)column / 16;
                const uint16_t half = cst_fp32_to_bf16(value);

                ck_assert_int_eq(
                    pwrite(file->fd, p == 0 ? (const void *)&value : &half, bytes, (off_t)at),
                    (ssize_t)bytes);
            }
        }
    }
}

/* A transposed tensor is read in its order, in pieces of any size, and also from any element. */
START_TEST(transposed)
{
    static const uint64_t sizes[] = {1, 10, 11, 999, 1024 * WIDTHS, HEIGHT * WIDTHS};
    struct cstc_tensor_file file;
    struct cstc_weights_part parts[2];
    struct cstc_weights weights = {
        .parts = parts, .n_parts = 2, .columns = WIDTHS, .transposed = true};
    const uint64_t all = HEIGHT * WIDTHS, most = sizes[_i];
    float *out = malloc(all * sizeof *out);
    struct cst_err err = {0};

    open_transposed(&file, parts);
    for (uint64_t pass = 0; pass < 2; pass++) { /* The second one begins in the middle. */
        for (uint64_t at = pass * all / 2; at < all; at += most) {
            const uint64_t n = all - at < most ? all - at : most;

            ck_assert_msg(cstc_weights_read(&weights, at, n, CSTC_DTYPE_F32, out, &err) == CST_OK,
                          "%s", err.text);
            for (uint64_t i = 0; i < n; i++) {
                const uint64_t row = (at + i) / WIDTHS, column = (at + i) % WIDTHS;
                const float value = (float)row + (float)column / 16;

                ck_assert(out[i] ==
                          (column < 7 ? value : cst_bf16_to_fp32(cst_fp32_to_bf16(value))));
            }
        }
        ck_assert_ptr_null(weights.band.elems);
    }
    ck_assert_int_eq(close(file.fd), 0);
    free(out);
}
END_TEST

/* A file that becomes shorter after it was opened is an error with numbers. Another read tries
 * again. _i: the part that is cut off. */
START_TEST(transposed_and_cut_off)
{
    struct cstc_tensor_file file;
    struct cstc_weights_part parts[2];
    struct cstc_weights weights = {.transposed = true, .n_parts = 2, .columns = WIDTHS};
    char words[80];
    float out[WIDTHS];
    struct cst_err err = {0};
    uint64_t end;

    weights.parts = calloc(2, sizeof *weights.parts);
    ck_assert_ptr_nonnull(weights.parts);
    open_transposed(&file, parts);
    memcpy(weights.parts, parts, sizeof parts);
    end = parts[_i].place.begin + 1000;
    ck_assert_int_eq(ftruncate(file.fd, (off_t)end), 0);
    (void)snprintf(words, sizeof words, "t: ends at byte %llu, ", (unsigned long long)end);
    for (int turn = 0; turn < 2; turn++) {
        ck_assert_int_eq(cstc_weights_read(&weights, 0, WIDTHS, CSTC_DTYPE_F32, out, &err),
                         CST_EIO);
        ck_assert_msg(strncmp(err.text, words, strlen(words)) == 0, "%s", err.text);
    }
    cstc_weights_close(&weights);
    ck_assert_int_eq(close(file.fd), 0);
}
END_TEST

/* -- differences ------------------------------------------------------------------------------- */

/* Options are compared if this version knows the saved ones; others are left out. */
START_TEST(unknown_options_are_not_compared)
{
    Cistern__JobDescription saved = CISTERN__JOB_DESCRIPTION__INIT;
    Cistern__JobOpen job = CISTERN__JOB_OPEN__INIT;
    char text[200] = "";

    saved.moments = job.moments = CST_MOMENTS_BF16;
    saved.rounding = CST_ROUNDING_NEAREST;
    saved.masters = CST_MASTERS_SPLIT;
    cstc_differences(&saved, &job, text, sizeof text);
    ck_assert_str_eq(text, "rounding was nearest, now stochastic; masters were split, now fp32");
    text[0] = '\0';
    saved.rounding = saved.masters = 1 << 30;
    cstc_differences(&saved, &job, text, sizeof text);
    ck_assert_str_eq(text, "");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("checkpoint");
    TCase *tc = suite_case(s, "files", setup, teardown);

    tcase_add_loop_test(tc, written, 0, 40);
    tcase_add_loop_test(tc, headers, 0, 19);
    tcase_add_test(tc, lengths);
    tcase_add_test(tc, headers_without_memory);
    tcase_add_test(tc, descriptions);
    tcase_add_test(tc, contents);
    tcase_add_loop_test(tc, transposed, 0, 6);
    tcase_add_loop_test(tc, transposed_and_cut_off, 0, 2);
    tcase_add_test(tc, unknown_options_are_not_compared);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
