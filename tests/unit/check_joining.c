/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of client/checkpoint/wholes and joining without a daemon: the tensors of files are the
 * wholes of those that ranks declare, parts that do not make a whole are refused, and the bands of
 * a whole are made of the right elements whatever the pieces are. */
#include "client/checkpoint/joining.h"
#include "offload/layout/wholes.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 9, IN_FLIGHT = 4 };

static struct cst_err err;

/* A description of the parts of one matrix "w", in fp32. */
struct described {
    Cistern__JobDescription d;
    Cistern__TensorDecl decls[MAX_PARTS], *list[MAX_PARTS];
    char names[MAX_PARTS][32];
    int64_t shapes[MAX_PARTS][2], firsts[MAX_PARTS][2], whole[2];
    uint32_t chunks[MAX_PARTS];
};

static void begin(struct described *out, int64_t rows, int64_t columns)
{
    memset(out, 0, sizeof *out);
    cistern__job_description__init(&out->d);
    out->d.format = 1;
    out->d.name = (char *)(uintptr_t) "job";
    out->d.tensors = out->list;
    out->d.chunk = out->chunks;
    out->d.n_chunks = 1;
    out->whole[0] = rows;
    out->whole[1] = columns;
}

/* Add the part of the rows and columns [from, to). */
static Cistern__TensorDecl *add(struct described *out, int64_t row, int64_t to_row, int64_t column,
                                int64_t to_column)
{
    const size_t i = out->d.n_tensors++;
    Cistern__TensorDecl *decl = out->list[i] = &out->decls[i];

    out->d.n_chunk = out->d.n_tensors;
    cistern__tensor_decl__init(decl);
    (void)snprintf(out->names[i], sizeof out->names[i], "w.%zu", i);
    decl->name = out->names[i];
    decl->dtype = CST_FP32;
    decl->pattern = CST_PATTERN_TENSOR;
    decl->n_shape = decl->n_whole_shape = decl->n_box_first = 2;
    decl->shape = out->shapes[i];
    decl->whole_shape = out->whole;
    decl->box_first = out->firsts[i];
    decl->whole_name = (char *)(uintptr_t) "w";
    out->shapes[i][0] = to_row - row;
    out->shapes[i][1] = to_column - column;
    out->firsts[i][0] = row;
    out->firsts[i][1] = column;
    return decl;
}

static void refused(const struct described *d, const char *words)
{
    struct cstc_wholes wholes;

    ck_assert_int_eq(cstc_wholes_open(&wholes, &d->d, true, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
}

/* -- what the files have ----------------------------------------------------------------------- */

/* Four parts and a copy of one of them are one tensor of the files. Without joining, as in
 * checkpoints of earlier versions, each is a tensor of its own. */
START_TEST(parts_are_a_whole)
{
    struct described d;
    struct cstc_wholes wholes;

    begin(&d, 4, 6);
    (void)add(&d, 0, 2, 0, 3);
    (void)add(&d, 0, 2, 3, 6);
    (void)add(&d, 2, 4, 0, 3);
    (void)add(&d, 2, 4, 3, 6);
    (void)add(&d, 2, 4, 3, 6);
    ck_assert(cstc_wholes_has_parts(&d.d));
    ck_assert_msg(cstc_wholes_open(&wholes, &d.d, true, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(wholes.description.n_tensors, 1);
    ck_assert_str_eq(wholes.list[0]->name, "w");
    ck_assert(wholes.list[0]->n_shape == 2 && wholes.list[0]->shape[0] == 4 &&
              wholes.list[0]->shape[1] == 6);
    ck_assert(wholes.list[0]->whole_name == NULL && wholes.list[0]->n_whole_shape == 0);
    ck_assert(wholes.list[0]->pattern == CST_PATTERN_SHARD && wholes.of[4] == 0);
    cstc_wholes_close(&wholes);

    ck_assert_msg(cstc_wholes_open(&wholes, &d.d, false, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(wholes.description.n_tensors, 5);
    ck_assert_str_eq(wholes.list[3]->name, "w.3");
    ck_assert(wholes.list[3]->shape[0] == 2 && wholes.list[3]->shape[1] == 3);
    cstc_wholes_close(&wholes);
}
END_TEST

/* Parts can have ranges of several tensors that are packed in one. What they leave out is told. */
START_TEST(ranges_are_joined)
{
    int64_t packed[2] = {2, 1};
    struct described d;
    struct cstc_wholes wholes;

    begin(&d, 8, 3);
    for (int64_t i = 0; i < 2; i++) {
        Cistern__TensorDecl *decl = add(&d, 2 * i, 2 * i + 4, 0, 3);

        decl->n_box_packed = 2;
        decl->box_packed = packed;
    }
    ck_assert_msg(cstc_wholes_open(&wholes, &d.d, true, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(wholes.description.n_tensors, 1);
    ck_assert(wholes.list[0]->shape[0] == 8 && wholes.list[0]->n_box_packed == 0);
    cstc_wholes_close(&wholes);
    d.firsts[1][0] = 1;
    refused(&d, "'w.0' and 'w.1', parts of 'w', meet without being equal");
    d.d.n_tensors = d.d.n_chunk = 1;
    refused(&d, "no tensor of the job has the elements [2:4, 0:3] of 'w'");
    d.shapes[0][0] = 128;
    d.whole[0] = 256;
    packed[0] = 128;
    ck_assert_int_eq(cstc_wholes_open(&wholes, &d.d, true, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(
        strstr(err.text, "in 128 ranges: their number divides both, and is 1 to 16"));
    d.shapes[0][0] = 3;
    d.whole[0] = 8;
    packed[0] = 2;
    ck_assert_int_eq(cstc_wholes_open(&wholes, &d.d, true, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(
        strstr(err.text, "3 of 8 elements in 2 ranges: their number divides both"));
}
END_TEST

/* What parts leave out is told, and so are parts that meet or differ. */
START_TEST(no_whole)
{
    struct described d;

    begin(&d, 4, 6);
    (void)add(&d, 0, 2, 0, 6);
    refused(&d, "no tensor of the job has the elements [2:4, 0:6] of 'w', whose shape is 4x6");
    (void)add(&d, 2, 4, 0, 2);
    (void)add(&d, 3, 4, 2, 6);
    refused(&d, "no tensor of the job has the elements [2:3, 2:6] of 'w'");
    (void)add(&d, 2, 4, 2, 6);
    refused(&d, "'w.2' and 'w.3', parts of 'w', meet without being equal");

    begin(&d, 4, 6);
    (void)add(&d, 0, 2, 0, 6);
    add(&d, 2, 4, 0, 6)->dtype = CST_BF16;
    refused(&d, "'w.0' and 'w.1', parts of 'w', are fp32 and bf16");

    begin(&d, 4, 6);
    (void)add(&d, 0, 2, 0, 6);
    add(&d, 2, 4, 0, 6)->muon = true;
    refused(&d, "Muon updates some parts of 'w', but not 'w.1'");
}
END_TEST

static void declare(struct cst_model *model, const struct described *d, size_t i,
                    const char *const *names, const int64_t *rows, int expected)
{
    const struct cst_tensor_words words = {.name = d->names[i],
                                           .shape = d->shapes[i],
                                           .n_dims = 2,
                                           .pattern = CST_PATTERN_TENSOR,
                                           .whole_name = "w",
                                           .whole = d->whole,
                                           .first = d->firsts[i],
                                           .external_names = names,
                                           .external_rows = rows,
                                           .n_external = 2};

    ck_assert_msg(cst_model_tensor(model, &words, &err) == expected, "%s", err.text);
}

/* Parts declare the names that files have for their whole, and all its rows. */
START_TEST(names_in_files)
{
    static const char *const names[] = {"q", "k"}, *const others[] = {"v", "o"};
    static const int64_t rows[] = {3, 1}, too_few[] = {1, 1}, swapped[] = {1, 3};
    const int64_t shape = 1;
    struct described d;
    struct cst_model model, out;
    uint32_t of[3];

    begin(&d, 4, 6);
    (void)add(&d, 0, 2, 0, 6);
    (void)add(&d, 2, 4, 0, 6);
    cst_model_init(&model);
    declare(&model, &d, 0, names, too_few, CST_EINVAL);
    declare(&model, &d, 0, names, rows, CST_OK);
    ck_assert_int_eq(
        cst_model_tensor(
            &model, &(struct cst_tensor_words){.name = "k", .shape = &shape, .n_dims = 1}, &err),
        CST_EEXIST);
    declare(&model, &d, 1, names, rows, CST_OK);
    ck_assert_int_eq(
        cst_model_tensor(
            &model, &(struct cst_tensor_words){.name = "b", .shape = &shape, .n_dims = 1}, &err),
        CST_OK);
    ck_assert_msg(cst_wholes_open(&out, &model, of, &err) == CST_OK, "%s", err.text);
    ck_assert(out.n_tensors == 2 && of[0] == 0 && of[1] == 0 && of[2] == 1);
    ck_assert(out.tensors[0].external->n == 2 && out.tensors[0].external->rows[0] == 3);
    ck_assert_str_eq(out.tensors[0].external->names[1], "k");
    cst_model_close(&out);
    cst_model_close(&model);

    for (int i = 0; i < 2; i++) {
        cst_model_init(&model);
        declare(&model, &d, 0, names, rows, CST_OK);
        declare(&model, &d, 1, i == 0 ? others : names, i == 0 ? rows : swapped, CST_OK);
        ck_assert_int_eq(cst_wholes_open(&out, &model, NULL, &err), CST_EMISMATCH);
        ck_assert_msg(strstr(err.text, "external name 0") != NULL, "%s", err.text);
        cst_model_close(&model);
    }
}
END_TEST

/* -- bands ------------------------------------------------------------------------------------- */

/* The value of the element of row @row and column @column, in entry @e. */
static float value(const struct described *d, uint32_t e, int64_t row, int64_t column)
{
    return (float)(row * d->whole[1] + column) + (float)e * 0x1p22f;
}

/* The data of @piece of entry @e, as a daemon would give it. */
static float *fetch(const struct described *d, uint32_t e, const struct cstc_state_piece *piece)
{
    const int64_t *shape = d->shapes[piece->tensor], *first = d->firsts[piece->tensor];
    float *data = malloc(piece->bytes);

    ck_assert_ptr_nonnull(data);
    suite_must(piece->bytes == piece->n_elems * sizeof *data && piece->of_save, "bytes");
    suite_must(piece->first + piece->n_elems <= (uint64_t)(shape[0] * shape[1]), "range");
    for (uint64_t i = 0; i < piece->n_elems; i++) {
        const int64_t at = (int64_t)(piece->first + i);

        data[i] = value(d, e, first[0] + at / shape[1], first[1] + at % shape[1]);
    }
    return data;
}

/* Check complete data, which follows element *next of entry *entry. */
static void check_data(const struct described *d, const struct cstc_joining_data *data,
                       uint32_t *entry, uint64_t *next)
{
    const float *values = data->data;

    suite_must(data->entry == *entry && data->first == *next, "in order");
    suite_must(data->bytes == data->n_elems * sizeof *values, "bytes");
    for (uint64_t i = 0; i < data->n_elems; i++) {
        const int64_t at = (int64_t)(*next + i);

        suite_must(values[i] == value(d, *entry, at / d->whole[1], at % d->whole[1]),
                   "element %lld of entry %u", (long long)at, *entry);
    }
    *next += data->n_elems;
    if (*next == (uint64_t)(d->whole[0] * d->whole[1])) {
        *next = 0;
        (*entry)++;
    }
}

/* Join @d with pieces of at most @most bytes, several of which are in flight. */
static void join(const struct described *d, uint64_t most)
{
    struct cstc_state_piece pieces[IN_FLIGHT];
    uint32_t entry_of[IN_FLIGHT], begun = 0, ended = 0, entry = 0;
    struct cstc_joining joining = {.most = most};
    struct cstc_content content;
    struct cstc_wholes wholes;
    uint64_t next = 0;
    bool more = true;

    ck_assert_msg(cstc_wholes_open(&wholes, &d->d, true, &err) == CST_OK, "%s", err.text);
    ck_assert_int_eq(cstc_content_make(&content, &wholes.description, UINT64_MAX, false, &err),
                     CST_OK);
    ck_assert_int_eq(cstc_joining_open(&joining, &content, &wholes, &err), CST_OK);
    joining.most = most;
    while (more || ended < begun) {
        const uint32_t i = ended % IN_FLIGHT;
        struct cstc_joining_data done;
        float *data;

        if (more && begun - ended < IN_FLIGHT) {
            entry_of[begun % IN_FLIGHT] = joining.next.entry;
            more = cstc_joining_next(&joining, &pieces[begun % IN_FLIGHT]);
            begun += more;
            continue;
        }
        data = fetch(d, entry_of[i], &pieces[i]);
        cstc_joining_take(&joining, &pieces[i], data, &done);
        if (done.n_elems > 0) {
            check_data(d, &done, &entry, &next);
        }
        free(data);
        ended++;
    }
    ck_assert_uint_eq(entry, content.n_entries);
    cstc_joining_close(&joining);
    cstc_content_close(&content);
    cstc_wholes_close(&wholes);
}

/* A whole of several bands, in parts at random places, of which one ends in the middle of a band.
 */
START_TEST(several_bands)
{
    const int64_t rows = 1301, columns = 2003;
    struct described d;

    srandom((unsigned)suite_seed());
    for (int i = 0; i < 3; i++) {
        const int64_t row = 1 + random() % (rows - 1), column = 1 + random() % (columns - 1),
                      other = 1 + random() % (columns - 1);

        begin(&d, rows, columns);
        (void)add(&d, row, rows, 0, other);
        (void)add(&d, 0, row, column, columns);
        (void)add(&d, 0, row, 0, column);
        (void)add(&d, row, rows, other, columns);
        join(&d, UINT64_C(4096) << random() % 9);
    }
}
END_TEST

/* A part that is a whole is passed on as it is. */
START_TEST(one_part)
{
    struct described d;

    begin(&d, 300, 70);
    (void)add(&d, 0, 300, 0, 70);
    join(&d, 4096);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("joining");
    TCase *tcase = suite_case(suite, "joining", NULL, NULL);

    tcase_add_test(tcase, parts_are_a_whole);
    tcase_add_test(tcase, ranges_are_joined);
    tcase_add_test(tcase, no_whole);
    tcase_add_test(tcase, names_in_files);
    tcase_add_test(tcase, several_bands);
    tcase_add_test(tcase, one_part);
    return suite_run(suite);
}
