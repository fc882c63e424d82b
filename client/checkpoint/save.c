/* SPDX-License-Identifier: Apache-2.0 */
/* cst_save: the states of a job, as of one step, are read in the order of the files' contents,
 * joined (joining.h) and appended to the files.
 *
 *   BEGUN --description--> MAPPED --segment--> COPIED --all states--> ENDED --files are whole-->
 * TOLD
 *     \_____________________\____________________\_________on a failure____/
 *
 * The daemon is told of files that are whole, and its answer is not waited for. */
#include "client/checkpoint/save.h"

#include "client/checkpoint/writing.h"
#include "client/lib/state_io.h"
#include "client/lib/task.h"
#include "proto/cistern.pb-c.h"
#include "proto/clock.h"
#include "proto/table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
    uint32_t uid;          /* Owner of the job, if has_uid. */
    bool has_uid;
    Cistern__JobDescription *description;
    struct cstc_writing writing;
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

static int ask(struct save *save, const char *name, struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;

    msg.name = (char *)(uintptr_t)name;
    msg.has_uid = save->has_uid;
    msg.uid = save->uid;
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

/* -- the stream of states ------------------------------------------------------------------- */

static bool next_piece(void *arg, struct cstc_state_piece *out)
{
    struct save *save = arg;

    return cstc_joining_next(&save->writing.joining, out);
}

static int write_piece(void *arg, const struct cstc_state_piece *piece, void *data,
                       struct cst_err *err)
{
    struct save *save = arg;

    return cstc_writing_take(&save->writing, piece, data, err);
}

/* -- phases --------------------------------------------------------------------------------- */

/* The save has begun in the daemon: get a staging segment. */
static int on_begun(struct save *save, struct cst_err *err)
{
    int rc = take_description(save, err);

    save->read_began = cst_clock_s();
    cstc_call_reset(&save->call);
    if (rc == CST_OK) {
        save->writing = (struct cstc_writing){.dir = save->spec.dir,
                                              .keep = save->spec.keep,
                                              .fp32 = save->spec.fp32_weights,
                                              .buffers = save->spec.buffers,
                                              .buffers_bytes = save->spec.buffers_bytes,
                                              .description = save->description};
        rc = cstc_writing_open(&save->writing, err);
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
    save->writing.joining.most = rc == CST_OK ? cstc_state_most(save->client) : 0;
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

/* The answer to a Saved, or the end of the connection. */
static void on_told(struct cstc_call *call)
{
    cstc_call_reset(call);
    free(call);
}

/* Tell the daemon of the checkpoint, which is whole whatever comes of this. */
static void tell(struct save *save)
{
    struct cstc_call *call = calloc(1, sizeof *call);
    Cistern__Saved msg = CISTERN__SAVED__INIT;

    if (call == NULL) {
        return;
    }
    call->done = on_told;
    msg.name = save->description->name;
    msg.has_uid = save->has_uid;
    msg.uid = save->uid;
    msg.step = save->description->step;
    if (cstc_call_start(save->client, call, CISTERN__MSG_TYPE__MSG_SAVED, &msg.base,
                        CISTERN__MSG_TYPE__MSG_OK, NULL, NULL) != CST_OK) {
        free(call);
    }
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
        rc = cstc_writing_end(&save->writing, err);
    }
    if (!save->writing.whole) {
        return rc;
    }
    save->done.step = save->description->step;
    save->done.bytes = save->writing.bytes;
    save->done.seconds = cst_clock_s() - save->began;
    tell(save);
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

    cstc_writing_close(&save->writing);
    for (int i = 0; i < CSTC_STATE_SLOTS; i++) {
        cstc_call_reset(&save->run.slots[i].call);
    }
    cstc_call_reset(&save->call);
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
    save->has_uid = uid != NULL;
    save->uid = uid != NULL ? *uid : 0;
    rc = ask(save, name, err);
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
        return cst_err_set(err, CST_EINVAL, "save needs the name of a job and a directory");
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
