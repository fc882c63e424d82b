/* SPDX-License-Identifier: Apache-2.0 */
/* cst_load_model: model files of other programs. All headers are checked against the wholes of the
 * declared tensors, then the weights of each tensor are cut out and written as master weights. */
#include "cistern/checkpoint.h"

#include "client/checkpoint/weights.h"
#include "client/lib/job.h"
#include "client/lib/state_io.h"
#include "offload/layout/reshard.h"
#include "offload/layout/wholes.h"
#include "proto/json_fields.h"
#include "proto/patterns.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME "model.safetensors.index.json"
#define MODEL_NAME "model.safetensors"

enum { MAX_FILES = 10000 };

/* A tensor of the job that is loaded. */
struct tensor {
    uint32_t number, whole; /* In the job, and of its whole. */
};

struct load {
    struct cst_job *job;
    const struct cst_load_model_spec *spec;
    struct cst_model wholes;        /* Of the job: the tensors of the files. */
    uint32_t *of;                   /* Number of the whole of each tensor of the job. */
    struct cst_reshard way;         /* From the wholes to the tensors of the job. */
    struct cstc_tensor_file *files; /* The first n_files are open. */
    uint32_t n_files;
    struct cstc_weights *weights; /* Of each whole; without parts: it is not loaded. */
    struct tensor *tensors;
    uint32_t n_tensors;
    uint32_t tensor; /* The stream: number in `tensors` and element of the next piece. */
    uint64_t first;
    uint32_t given; /* Number in `tensors` of the next piece to fill in. */
};

/* -- files ---------------------------------------------------------------------------------- */

static int reserve_files(struct load *load, size_t n, struct cst_err *err)
{
    load->files = calloc(n + 1, sizeof *load->files);
    return load->files != NULL ? CST_OK
                               : cst_err_set(err, CST_ENOMEM, "no memory for %zu files", n);
}

static int open_file(struct load *load, int dirfd, const char *name, struct cst_err *err)
{
    int rc = cstc_tensor_file_open(&load->files[load->n_files], dirfd, name, err);

    load->n_files += rc == CST_OK;
    return rc;
}

static bool is_open(const struct load *load, const char *name)
{
    for (uint32_t f = 0; f < load->n_files; f++) {
        if (strcmp(load->files[f].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Open each file that the map of an index names. */
static int open_mapped(struct load *load, int dirfd, const json_t *map, struct cst_err *err)
{
    const char *tensor;
    json_t *value;
    int rc = reserve_files(load, MAX_FILES, err);

    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *name = json_string_value(value);

        if (rc != CST_OK) {
            break;
        }
        if (name == NULL || *name == '\0' || *name == '.' || strchr(name, '/') != NULL ||
            load->n_files == MAX_FILES) {
            rc = cst_err_set(err, CST_EINVAL,
                             "%s: tensor '%.64s' is not in a file of the same directory, or there "
                             "are more than %d files",
                             INDEX_NAME, tensor, MAX_FILES);
        } else if (!is_open(load, name)) {
            rc = open_file(load, dirfd, name, err);
            if (rc == CST_ENOTFOUND) {
                rc = cst_err_set(err, CST_EINVAL, "%s names the file %.128s, which is missing",
                                 INDEX_NAME, name);
            }
        }
    }
    return rc;
}

/* Open the files that the index, which @fd has open, names. Closes @fd. */
static int open_index(struct load *load, int dirfd, int fd, struct cst_err *err)
{
    json_t *index = NULL;
    int rc = cst_json_load_fd(&index, fd, INDEX_NAME, err);
    const json_t *map = json_object_get(index, "weight_map");

    if (rc == CST_OK && (!json_is_object(map) || json_object_size(map) == 0)) {
        rc = cst_err_set(err, CST_EINVAL, "%s: it has no weight_map", INDEX_NAME);
    } else if (rc == CST_OK) {
        rc = open_mapped(load, dirfd, map, err);
    }
    json_decref(index);
    return rc;
}

/* Open the files of the directory @dirfd. */
static int open_directory(struct load *load, int dirfd, struct cst_err *err)
{
    int fd = openat(dirfd, INDEX_NAME, O_RDONLY | O_NONBLOCK | O_CLOEXEC), rc;

    if (fd >= 0) {
        return open_index(load, dirfd, fd, err);
    }
    rc = reserve_files(load, 1, err);
    return rc == CST_OK ? open_file(load, dirfd, MODEL_NAME, err) : rc;
}

static int open_files(struct load *load, const char *path, struct cst_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

    if (fd >= 0) {
        rc = open_directory(load, fd, err);
        (void)close(fd);
    } else {
        rc = reserve_files(load, 1, err);
        rc = rc == CST_OK ? open_file(load, AT_FDCWD, path, err) : rc;
    }
    return rc;
}

/* -- tensors -------------------------------------------------------------------------------- */

/* True if tensor @t of the job has rows of its own, and the caller wants it. */
static bool is_wanted(const struct load *load, uint32_t t)
{
    const struct cst_layout_tensor *tensor = &load->job->model.tensors[t];

    return (load->spec->wants == NULL || load->spec->wants(load->spec->arg, tensor->name)) &&
           (!load->job->has_base || cst_pattern(tensor->pattern)->has_states);
}

/* Where the data of a tensor of a file begins. */
struct place {
    const struct cstc_tensor_file *file;
    uint64_t begin;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return x->file != y->file ? (x->file > y->file) - (x->file < y->file)
                              : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Compare where the wholes of two tensors begin, which have the weights @arg. */
static int compare_tensors(const void *a, const void *b, void *arg)
{
    const struct tensor *s = a, *t = b;
    const struct cstc_weights *weights = arg;
    const struct cstc_weights_part *x = weights[s->whole].parts, *y = weights[t->whole].parts;
    const int order = compare_places(&(struct place){x->file, x->place.begin},
                                     &(struct place){y->file, y->place.begin});

    return order != 0 ? order : (s->number > t->number) - (s->number < t->number);
}

/* Find the tensors of the files that the job could have. */
static int find_wholes(struct load *load, struct cst_err *err)
{
    const struct cst_model *model = &load->job->model;
    int rc = CST_OK;

    load->of = calloc((size_t)model->n_tensors + 1, sizeof *load->of);
    load->weights = calloc((size_t)model->n_tensors + 1, sizeof *load->weights);
    load->tensors = calloc((size_t)model->n_tensors + 1, sizeof *load->tensors);
    if (load->of == NULL || load->weights == NULL || load->tensors == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu32 " tensors", model->n_tensors);
    }
    rc = cst_wholes_open(&load->wholes, model, load->of, err);
    return rc == CST_OK ? cst_reshard_open(&load->way, &load->wholes, model, err) : rc;
}

/* Find the whole of tensor @t of the job in the files, if it was not found before. */
static int find_tensor(struct load *load, uint32_t t, struct cst_err *err)
{
    const uint32_t whole = load->of[t];
    const struct cst_tensor_words words = cst_model_words(&load->wholes, whole);
    int rc = CST_OK;

    if (load->weights[whole].parts == NULL) {
        rc = cstc_weights_find(&load->weights[whole], &words, load->files, load->n_files,
                               load->spec->prefix, err);
    }
    if (rc == CST_OK) {
        load->tensors[load->n_tensors++] = (struct tensor){.number = t, .whole = whole};
    }
    return rc;
}

/* Find the wanted tensors in the files. Their order is that of the files, which are read fastest
 * from the beginning to the end. */
static int find_tensors(struct load *load, struct cst_err *err)
{
    int rc = find_wholes(load, err);

    for (uint32_t t = 0; rc == CST_OK && t < load->job->model.n_tensors; t++) {
        rc = is_wanted(load, t) ? find_tensor(load, t, err) : CST_OK;
    }
    if (rc == CST_OK) {
        qsort_r(load->tensors, load->n_tensors, sizeof *load->tensors, compare_tensors,
                load->weights);
    }
    return rc;
}

/* Make the sorted list of the places from which tensors are loaded. NULL: out of memory. */
static struct place *used_places(const struct load *load, size_t *n_out)
{
    struct place *places;
    size_t n = 0;

    for (uint32_t w = 0; w < load->wholes.n_tensors; w++) {
        n += load->weights[w].n_parts;
    }
    places = calloc(n + 1, sizeof *places);
    *n_out = n;
    for (uint32_t w = load->wholes.n_tensors; places != NULL && w-- > 0;) {
        const struct cstc_weights *weights = &load->weights[w];

        for (uint32_t p = 0; p < weights->n_parts; p++) {
            places[--n] = (struct place){weights->parts[p].file, weights->parts[p].place.begin};
        }
    }
    if (places != NULL) {
        qsort(places, *n_out, sizeof *places, compare_places);
    }
    return places;
}

/* Count the tensors of the files that are not loaded, and list the names of the first ones. */
static int count_ignored(const struct load *load, struct cst_load_model_result *result,
                         struct cst_err *err)
{
    size_t used = 0, n_places;
    struct place *places = used_places(load, &n_places);

    if (places == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of tensors");
    }
    for (uint32_t f = 0; f < load->n_files; f++) {
        const struct cstc_tensor_file *file = &load->files[f];
        struct cstc_tensor_entry entry;
        const char *name;
        json_t *value;

        json_object_foreach(file->header, name, value)
        {
            if (cstc_tensor_file_find(file, name, &entry, NULL) != CST_OK ||
                bsearch(&(struct place){file, entry.begin}, places, n_places, sizeof *places,
                        compare_places) != NULL) {
                continue;
            }
            if (used + strlen(name) + 3 < sizeof result->ignored) {
                used += (size_t)snprintf(result->ignored + used, sizeof result->ignored - used,
                                         "%s%s", result->n_ignored > 0 ? ", " : "", name);
            }
            result->n_ignored++;
        }
    }
    free(places);
    return CST_OK;
}

/* -- the stream of weights ------------------------------------------------------------------ */

static struct cstc_weights *weights_of(const struct load *load, uint32_t i)
{
    return &load->weights[load->tensors[i].whole];
}

static const struct cst_layout_tensor *declared(const struct load *load, uint32_t i)
{
    return &load->job->model.tensors[load->tensors[i].number];
}

/* The type in which tensor @i is sent: that of its file, if it is one that the daemon takes. A
 * frozen tensor has weights alone, in its own type. */
static enum cstc_dtype sent_dtype(const struct load *load, uint32_t i)
{
    const struct cst_layout_tensor *tensor = declared(load, i);

    if (!cst_pattern(tensor->pattern)->has_states) {
        return tensor->dtype == CST_FP32 ? CSTC_DTYPE_F32 : CSTC_DTYPE_BF16;
    }
    return !load->job->device_states && cstc_weights_are_bf16(weights_of(load, i)) ? CSTC_DTYPE_BF16
                                                                                   : CSTC_DTYPE_F32;
}

static bool next_piece(void *arg, struct cstc_state_piece *out)
{
    struct load *load = arg;
    const struct cst_layout_tensor *tensor;
    enum cstc_dtype dtype;
    uint64_t n, most;
    bool master;

    if (load->tensor == load->n_tensors) {
        return false;
    }
    tensor = declared(load, load->tensor);
    dtype = sent_dtype(load, load->tensor);
    master = cst_pattern(tensor->pattern)->has_states;
    most = cstc_state_most(load->job->client) / cstc_dtype_bytes(dtype);
    n = tensor->n_elems - load->first < most ? tensor->n_elems - load->first : most;
    *out = (struct cstc_state_piece){.tensor = load->tensors[load->tensor].number,
                                     .row = master ? CST_ROW_MASTER : CST_ROW_WEIGHT,
                                     .bf16 = master && dtype == CSTC_DTYPE_BF16,
                                     .first = load->first,
                                     .n_elems = n,
                                     .bytes = n * cstc_dtype_bytes(dtype)};
    load->given = load->tensor;
    load->first += n;
    if (load->first == tensor->n_elems) {
        load->first = 0;
        load->tensor++;
    }
    return true;
}

/* Called right after next_piece. */
static int read_piece(void *arg, const struct cstc_state_piece *piece, void *data,
                      struct cst_err *err)
{
    struct load *load = arg;
    const enum cstc_dtype dtype = sent_dtype(load, load->given);
    struct cstc_weights *weights = weights_of(load, load->given);
    uint64_t n = 0;
    int rc = CST_OK;

    while (rc == CST_OK && n < piece->n_elems) {
        struct cst_reshard_run run =
            cst_reshard_run(&load->way, piece->tensor, piece->first + n, piece->n_elems - n);

        rc = cstc_weights_read(weights, run.first, run.n_elems, dtype,
                               (char *)data + n * cstc_dtype_bytes(dtype), err);
        n += run.n_elems;
    }
    if (load->first == 0) {
        cstc_weights_rest(weights); /* A part may end before its whole. */
    }
    return rc;
}

static int write_weights(struct load *load, struct cst_err *err)
{
    struct cstc_state_stream stream = {.next = next_piece, .data = read_piece, .arg = load};
    int rc = cstc_state_open(load->job->client, err);

    return rc == CST_OK ? cstc_states_write(load->job->client, &stream, err) : rc;
}

static int check(const struct cst_job *job, const struct cst_load_model_spec *spec,
                 struct cst_err *err)
{
    int rc = cstc_job_check_committed(job, err);

    if (rc == CST_OK && (spec == NULL || spec->path == NULL)) {
        rc = cst_err_set(err, CST_EINVAL, "load_model needs a path");
    }
    if (rc == CST_OK && job->initialised) {
        rc = cst_err_set(err, CST_EEXIST, "job '%s' has states already", job->name);
    }
    return rc;
}

static void close_load(struct load *load)
{
    for (uint32_t w = 0; w < load->wholes.n_tensors; w++) {
        cstc_weights_close(&load->weights[w]);
    }
    cst_reshard_close(&load->way);
    cst_model_close(&load->wholes);
    free(load->of);
    free(load->weights);
    for (uint32_t f = 0; f < load->n_files; f++) {
        cstc_tensor_file_close(&load->files[f]);
    }
    free(load->tensors);
    free(load->files);
}

int cst_load_model(struct cst_job *job, const struct cst_load_model_spec *spec,
                   struct cst_load_model_result *result, struct cst_err *err)
{
    struct load load = {.job = job, .spec = spec};
    struct cst_load_model_result found = {0};
    int rc = check(job, spec, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = open_files(&load, spec->path, err);
    if (rc == CST_OK) {
        rc = find_tensors(&load, err);
    }
    if (rc == CST_OK) {
        rc = count_ignored(&load, &found, err);
    }
    if (rc == CST_OK) {
        rc = write_weights(&load, err);
    }
    if (rc == CST_OK && result != NULL) {
        found.n_tensors = load.n_tensors;
        *result = found;
    }
    close_load(&load);
    return rc;
}
