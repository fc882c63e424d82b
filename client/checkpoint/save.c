/* SPDX-License-Identifier: Apache-2.0 */
/* cst_save: the states of a job, as of one step, are read in the order of the files' contents,
 * joined (joining.h) and appended to the files.
 *
 *   BEGUN --description--> MAPPED --segment--> COPIED --all states--> ENDED --> files are completed
 *     \_____________________\____________________\_________on a failure____/ */
#include "client/checkpoint/save.h"

#include "client/checkpoint/directory.h"
#include "client/checkpoint/joining.h"
#include "client/checkpoint/manifest.h"
#include "client/checkpoint/transpose.h"
#include "client/lib/state_io.h"
#include "client/lib/task.h"
#include "proto/cistern.pb-c.h"
#include "proto/clock.h"
#include "proto/table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Most bytes of data in a file. */
#define FILE_BYTES (UINT64_C(4) << 30)

#define INDEX_NAME "model.safetensors.index.json"

enum { MAX_LISTS = 4 }; /* The index, the configurations and the buffers. */

/* What the save waits for. */
enum phase { BEGUN, MAPPED, COPIED, ENDED };

struct save {
    struct cstc_task task;
    struct cst_client *client;
    struct cst_save_spec spec; /* The directory's path is owned. */
    double began, read_began;
    struct cst_save_result done;
    enum phase phase;
    struct cstc_call call; /* Of this phase. */
    struct cstc_state_run run;
    struct cst_err failed; /* The first failure until the end of the save in the daemon. */
    bool has_directory;
    Cistern__JobDescription *description;
    struct cstc_wholes wholes;
    struct cstc_content content; /* Of the wholes. */
    struct cstc_joining joining;
    struct cstc_directory directory;
    struct cstc_file_writer **writers; /* One for each file of the content; NULL: not open. */
    struct cstc_manifest manifest;     /* Owns nothing. */
    struct cstc_manifest_file *files;  /* The files that are complete. */
    uint32_t n_files;
    uint64_t bytes;
    struct cstc_transpose transpose; /* Weights that are transposed in the file. */
};

/* -- the save in the daemon ----------------------------------------------------------------- */

/* Read the description, of @bytes, from the memfd @fd. */
static int read_description(struct save *save, int fd, uint64_t bytes, struct cst_err *err)
{
    void *map = bytes > 0 && bytes <= SIZE_MAX
                    ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0)
                    : MAP_FAILED;

    if (map == MAP_FAILED) {
        return cst_err_set(err, CST_EPROTO, "a description of %llu bytes cannot be read",
                           (unsigned long long)bytes);
    }
    save->description = cistern__job_description__unpack(NULL, (size_t)bytes, map);
    (void)munmap(map, (size_t)bytes);
    return save->description != NULL
               ? CST_OK
               : cst_err_set(err, CST_EPROTO, "the description of the job does not parse");
}

static int ask(struct save *save, const char *name, const uint32_t *uid, struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;

    msg.name = (char *)(uintptr_t)name;
    msg.has_uid = uid != NULL;
    msg.uid = uid != NULL ? *uid : 0;
    save->call.max_fds = 1;
    return cstc_call_start(save->client, &save->call, CISTERN__MSG_TYPE__MSG_SAVE, &msg.base,
                           CISTERN__MSG_TYPE__MSG_SAVE_BEGUN, &cistern__save_begun__descriptor,
                           err);
}

/* Take the answer: the description of the job. */
static int take_description(struct save *save, struct cst_err *err)
{
    const Cistern__SaveBegun *begun = (const Cistern__SaveBegun *)save->call.reply;

    return save->call.n_fds == 1
               ? read_description(save, save->call.fds[0], begun->description_bytes, err)
               : cst_err_set(err, CST_EPROTO, "a save without a description");
}

/* -- files ---------------------------------------------------------------------------------- */

/* Add @entry to the header of its file, as its external tensors. */
static int add_to_header(struct cstc_tensor_header *header, const struct cstc_content_entry *entry,
                         struct cst_err *err)
{
    struct cst_tensor_words words;
    struct cstc_weights_part part;
    int rc = CST_OK;

    if (entry->weights == NULL) {
        return cstc_tensor_header_add(header, entry->name, entry->dtype, entry->shape,
                                      entry->n_dims, err);
    }
    words = cstc_content_words(entry->weights);
    for (uint32_t i = 0; rc == CST_OK && i < cstc_weights_count(&words); i++) {
        cstc_weights_part(&words, i, &part);
        rc = cstc_tensor_header_add(header, part.name, entry->dtype, part.shape, part.n_dims, err);
    }
    return rc;
}

/* Make the header of file @f. */
static int write_header(struct save *save, uint32_t f, struct cst_err *err)
{
    struct cstc_tensor_header header;
    void *data;
    size_t bytes;
    int rc = cstc_tensor_header_open(&header, err);

    for (uint32_t i = 0; rc == CST_OK && i < save->content.n_entries; i++) {
        const struct cstc_content_entry *entry = &save->content.entries[i];

        if (entry->file == f) {
            rc = add_to_header(&header, entry, err);
        }
    }
    if (rc == CST_OK) {
        rc = cstc_tensor_header_bytes(&header, &data, &bytes, err);
    }
    if (rc == CST_OK) {
        rc = cstc_file_writer_append(save->writers[f], data, bytes, err);
        free(data);
    }
    cstc_tensor_header_close(&header);
    return rc;
}

static struct cstc_manifest_file *new_file(struct save *save, const char *name)
{
    struct cstc_manifest_file *file = &save->files[save->n_files++];

    (void)snprintf(file->name, sizeof file->name, "%s", name);
    return file;
}

static int finish_file(struct save *save, uint32_t f, struct cst_err *err)
{
    struct cstc_manifest_file *file = new_file(save, save->content.files[f].name);
    struct cstc_file_writer *writer = save->writers[f];
    int rc;

    save->writers[f] = NULL;
    rc = cstc_file_writer_finish(writer, &file->bytes, &file->hash, err);
    save->bytes += rc == CST_OK ? file->bytes : 0;
    return rc;
}

/* List the external tensors of @entry in the index's map, and sum their bytes. False: no memory. */
static bool add_to_index(const struct save *save, const struct cstc_content_entry *entry,
                         json_t *map, json_int_t *total)
{
    struct cst_tensor_words words = cstc_content_words(entry->weights);
    struct cstc_weights_part part;

    *total += (json_int_t)entry->bytes;
    for (uint32_t i = 0; i < cstc_weights_count(&words); i++) {
        cstc_weights_part(&words, i, &part);
        if (json_object_set_new(map, part.name,
                                json_string(save->content.files[entry->file].name)) != 0) {
            return false;
        }
    }
    return true;
}

/* Write the index of the files with weights, if there are several. */
static int write_index(struct save *save, struct cst_err *err)
{
    json_t *map, *all = NULL;
    json_int_t total = 0;
    struct cstc_manifest_file *file;
    uint32_t n_models = 0;
    bool good;
    int rc;

    for (uint32_t f = 0; f < save->content.n_files; f++) {
        n_models += save->content.files[f].kind == CSTC_CONTENT_MODEL;
    }
    if (n_models < 2) {
        return CST_OK;
    }
    map = json_object();
    good = map != NULL;
    for (uint32_t i = 0; good && i < save->content.n_entries; i++) {
        const struct cstc_content_entry *entry = &save->content.entries[i];

        if (save->content.files[entry->file].kind == CSTC_CONTENT_MODEL) {
            good = add_to_index(save, entry, map, &total);
        }
    }
    if (good) {
        all = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", total, "weight_map", map);
    }
    json_decref(map);
    if (all == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory", INDEX_NAME);
    }
    file = new_file(save, INDEX_NAME);
    rc = cstc_json_write(all, save->directory.fd, INDEX_NAME, &file->bytes, &file->hash, err);
    json_decref(all);
    save->bytes += rc == CST_OK ? file->bytes : 0;
    return rc;
}

/* Write the file @name with @bytes of @data. */
static int write_file(struct save *save, const char *name, const void *data, size_t bytes,
                      struct cst_err *err)
{
    struct cstc_manifest_file *file = new_file(save, name);
    struct cstc_file_writer *writer;
    int rc = cstc_file_writer_open(&writer, save->directory.fd, name, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = cstc_file_writer_append(writer, data, bytes, err);
    if (rc != CST_OK) {
        cstc_file_writer_abandon(writer);
        return rc;
    }
    rc = cstc_file_writer_finish(writer, &file->bytes, &file->hash, err);
    save->bytes += rc == CST_OK ? file->bytes : 0;
    return rc;
}

static int write_text(struct save *save, const char *name, const char *text, struct cst_err *err)
{
    return write_file(save, name, text, strlen(text), err);
}

/* -- the stream of states ------------------------------------------------------------------- */

static bool next_piece(void *arg, struct cstc_state_piece *out)
{
    struct save *save = arg;

    return cstc_joining_next(&save->joining, out);
}

/* Open the file @f and write its header. */
static int begin_file(struct save *save, uint32_t f, struct cst_err *err)
{
    int rc = cstc_file_writer_open(&save->writers[f], save->directory.fd,
                                   save->content.files[f].name, err);

    return rc == CST_OK ? write_header(save, f, err) : rc;
}

/* Collect weights that are transposed in the file, and append all after the last ones. */
static int append_transposed(struct save *save, const struct cstc_content_entry *entry,
                             const struct cstc_joining_data *data, struct cst_err *err)
{
    int rc = CST_OK;

    if (data->first == 0) {
        rc = cstc_transpose_open(&save->transpose, save->directory.fd, (uint64_t)entry->shape[0],
                                 (uint64_t)entry->shape[1], cstc_dtype_bytes(entry->dtype), err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    cstc_transpose_put(&save->transpose, data->first, data->n_elems, data->data);
    if (data->first + data->n_elems == entry->n_elems) {
        rc = cstc_file_writer_append(save->writers[entry->file], save->transpose.data,
                                     save->transpose.bytes, err);
        cstc_transpose_close(&save->transpose);
    }
    return rc;
}

/* A file is finished with its last entry, so that few are open at a time. */
static int write_data(struct save *save, const struct cstc_joining_data *data, struct cst_err *err)
{
    const struct cstc_content_entry *entry = &save->content.entries[data->entry];
    int rc = save->writers[entry->file] == NULL ? begin_file(save, entry->file, err) : CST_OK;

    if (rc == CST_OK && entry->weights != NULL && entry->weights->transposed) {
        rc = append_transposed(save, entry, data, err);
    } else if (rc == CST_OK) {
        rc = cstc_file_writer_append(save->writers[entry->file], data->data, data->bytes, err);
    }
    if (rc == CST_OK && data->first + data->n_elems == entry->n_elems &&
        cstc_content_ends_file(&save->content, data->entry)) {
        rc = finish_file(save, entry->file, err);
    }
    return rc;
}

static int write_piece(void *arg, const struct cstc_state_piece *piece, void *data,
                       struct cst_err *err)
{
    struct save *save = arg;
    struct cstc_joining_data joined;

    cstc_joining_take(&save->joining, piece, data, &joined);
    return joined.n_elems > 0 ? write_data(save, &joined, err) : CST_OK;
}

/* Write what is about all files. */
static int write_lists(struct save *save, struct cst_err *err)
{
    const Cistern__JobDescription *d = save->description;
    uint64_t bytes;
    int rc = write_index(save, err);

    if (rc == CST_OK && d->model_config != NULL) {
        rc = write_text(save, CSTC_MODEL_CONFIG_NAME, d->model_config, err);
    }
    if (rc == CST_OK && d->adapter_config != NULL) {
        rc = write_text(save, CSTC_ADAPTER_CONFIG_NAME, d->adapter_config, err);
    }
    if (rc == CST_OK && save->spec.buffers != NULL) {
        rc = write_file(save, CSTC_BUFFERS_NAME, save->spec.buffers,
                        (size_t)save->spec.buffers_bytes, err);
    }
    if (rc == CST_OK) {
        save->manifest = (struct cstc_manifest){.description = save->description,
                                                .files = save->files,
                                                .n_files = save->n_files,
                                                .joined = cstc_wholes_has_parts(save->description)};
        rc = cstc_manifest_write(&save->manifest, save->directory.fd, &bytes, err);
        save->bytes += rc == CST_OK ? bytes : 0;
    }
    return rc;
}

/* Prepare the list of contents and the directory. */
static int prepare(struct save *save, struct cst_err *err)
{
    int rc = cstc_content_check(save->description, err);

    rc = rc == CST_OK ? cstc_wholes_open(&save->wholes, save->description, true, err) : rc;
    if (rc == CST_OK) {
        rc = cstc_content_make(&save->content, &save->wholes.description, FILE_BYTES,
                               save->spec.fp32_weights, err);
    }
    if (rc == CST_OK) {
        rc = cstc_joining_open(&save->joining, &save->content, &save->wholes, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    save->writers = calloc(save->content.n_files, sizeof *save->writers);
    save->files = calloc((size_t)save->content.n_files + MAX_LISTS, sizeof *save->files);
    if (save->writers == NULL || save->files == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %u files", save->content.n_files);
    }
    rc = cstc_directory_begin(&save->directory, save->spec.dir, save->description->name,
                              save->description->step, err);
    save->has_directory = rc == CST_OK;
    return rc;
}

/* -- phases --------------------------------------------------------------------------------- */

/* The save has begun in the daemon: get a staging segment. */
static int on_begun(struct save *save, struct cst_err *err)
{
    int rc = take_description(save, err);

    save->read_began = cst_clock_s();
    cstc_call_reset(&save->call);
    if (rc == CST_OK) {
        rc = prepare(save, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (save->spec.on_begun != NULL) {
        save->spec.on_begun(save->spec.arg, save->description->step);
    }
    /* A segment of an earlier save may not be mapped by the engines of this job. */
    cstc_segment_unmap(&save->client->staging);
    return cstc_state_ask(save->client, &save->call, err);
}

/* The staging segment has come: read all states into the files. */
static int on_mapped(struct save *save, struct cst_err *err)
{
    int rc;

    save->run = (struct cstc_state_run){
        .client = save->client,
        .stream = {.next = next_piece, .data = write_piece, .arg = save},
    };
    rc = cstc_state_take(save->client, &save->call, err);
    save->joining.most = rc == CST_OK ? cstc_state_most(save->client) : 0;
    return rc;
}

/* End the save in the daemon. Its answer says whether all was read in time. It is ended also if it
 * failed, because it may have begun although its description could not be had. */
static int on_copied(struct save *save, struct cst_err *err)
{
    save->phase = ENDED;
    cstc_call_reset(&save->call);
    return cstc_call_start(save->client, &save->call, CISTERN__MSG_TYPE__MSG_SAVE_END, NULL,
                           CISTERN__MSG_TYPE__MSG_OK, NULL, err);
}

/* Complete the files, unless the save has failed. */
static int on_ended(struct save *save, struct cst_err *err)
{
    int rc = save->failed.status;

    save->done.read_seconds = cst_clock_s() - save->read_began;
    if (rc != CST_OK && err != NULL) {
        *err = save->failed;
    }
    if (rc == CST_OK) {
        rc = write_lists(save, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    save->has_directory = false;
    rc = cstc_directory_commit(&save->directory, err);
    if (rc != CST_OK) {
        return rc;
    }
    save->done.step = save->description->step;
    save->done.bytes = save->bytes;
    if (save->spec.keep > 0) {
        rc = cstc_directory_keep(save->spec.dir, save->description->name, save->spec.keep,
                                 save->description->step, err);
    }
    save->done.seconds = cst_clock_s() - save->began;
    return rc;
}

static int advance(struct cstc_task *task, struct cst_err *err)
{
    static int (*const next[])(struct save *, struct cst_err *) = {
        [BEGUN] = on_begun, [MAPPED] = on_mapped, [COPIED] = on_copied};
    struct save *save = (struct save *)task;

    while (save->phase < ENDED || save->call.state != CSTC_CALL_IDLE) {
        enum phase phase = save->phase;
        struct cst_err why = {0};
        int rc = phase == COPIED ? cstc_states_advance(&save->run, &why)
                                 : cstc_call_result(&save->call, &why);

        if (rc == CST_EAGAIN) {
            return rc;
        }
        if (phase == ENDED) {
            cstc_call_reset(&save->call);
        } else if (rc == CST_OK) {
            save->phase++;
            rc = next[phase](save, &why);
        }
        if (rc != CST_OK && save->failed.status == CST_OK) {
            save->failed = why;
            save->failed.status = rc;
        }
        if (rc != CST_OK && save->phase < ENDED) {
            (void)on_copied(save, NULL);
        }
    }
    return on_ended(save, err);
}

static void close_save(struct cstc_task *task)
{
    struct save *save = (struct save *)task;

    for (uint32_t f = 0; save->writers != NULL && f < save->content.n_files; f++) {
        cstc_file_writer_abandon(save->writers[f]);
    }
    cstc_transpose_close(&save->transpose);
    if (save->has_directory) {
        cstc_directory_abandon(&save->directory);
    }
    for (int i = 0; i < CSTC_STATE_SLOTS; i++) {
        cstc_call_reset(&save->run.slots[i].call);
    }
    cstc_call_reset(&save->call);
    free(save->writers);
    free(save->files);
    cstc_joining_close(&save->joining);
    cstc_content_close(&save->content);
    cstc_wholes_close(&save->wholes);
    if (save->description != NULL) {
        cistern__job_description__free_unpacked(save->description, NULL);
    }
    free((char *)(uintptr_t)save->spec.dir);
    free(save);
}

/* Make the task and ask the daemon. */
static int open_save(struct cst_client *client, const char *name, const uint32_t *uid,
                     const struct cst_save_spec *spec, struct cst_err *err)
{
    struct save *save = calloc(1, sizeof *save);
    char *dir = strdup(spec->dir);
    int rc;

    if (save == NULL || dir == NULL) {
        free(save);
        free(dir);
        return cst_err_set(err, CST_ENOMEM, "no memory to save job '%.63s'", name);
    }
    save->task = (struct cstc_task){.advance = advance, .close = close_save};
    save->client = client;
    save->spec = *spec;
    save->spec.dir = dir;
    save->began = cst_clock_s();
    rc = ask(save, name, uid, err);
    if (rc != CST_OK) {
        close_save(&save->task);
        return rc;
    }
    client->task = &save->task;
    return CST_OK;
}

/* @uid: the owner of the job; NULL: the name alone says which job. */
static int save_job(struct cst_client *client, const char *name, const uint32_t *uid,
                    const struct cst_save_spec *spec, struct cst_save_result *result, bool block,
                    struct cst_err *err)
{
    struct cstc_task *task;
    int rc;

    if (name == NULL || spec == NULL || spec->dir == NULL || *spec->dir == '\0') {
        return cst_err_set(err, CST_EINVAL, "cst_save needs the name of a job and a directory");
    }
    rc = cstc_task_find(client, advance, &task, err);
    if (rc == CST_OK && task == NULL) {
        rc = open_save(client, name, uid, spec, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = cstc_task_drive(client, block, err);
    if (rc != CST_EAGAIN && result != NULL) {
        *result = ((struct save *)client->task)->done;
    }
    if (rc != CST_EAGAIN) {
        cstc_task_close(client);
    }
    return rc;
}

int cst_save(struct cst_client *client, const char *name, const struct cst_save_spec *spec,
             struct cst_save_result *result, struct cst_err *err)
{
    return save_job(client, name, NULL, spec, result, true, err);
}

int cst_try_save(struct cst_client *client, const char *name, const struct cst_save_spec *spec,
                 struct cst_save_result *result, struct cst_err *err)
{
    return save_job(client, name, NULL, spec, result, false, err);
}

int cstc_try_save_of(struct cst_client *client, const char *name, uint32_t uid,
                     const struct cst_save_spec *spec, struct cst_save_result *result,
                     struct cst_err *err)
{
    return save_job(client, name, &uid, spec, result, false, err);
}
