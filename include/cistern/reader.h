/* SPDX-License-Identifier: Apache-2.0 */
/* Readers: processes that read the weights of a job while it trains, such as an inference engine or
 * an evaluation. A reader maps the memory in which the weights lie. Nothing is copied, and the job
 * has no more work because of it. cistern.h has the terms.
 *
 *     cst_reader_open(&reader, NULL, "run7", &err);
 *     for (;;) {
 *         cst_reader_next(reader, &wish, -1, &version, &err);
 *         use(cst_reader_weights(reader, &version, cst_reader_find(reader, "wte")));
 *         if (cst_reader_check(reader, &version, &err) != CST_OK) {
 *             continue;          // what was computed is of no use
 *         }
 *         cst_reader_release(reader, &version, &err);
 *         wish = (struct cst_reader_wish){.after = version.step};
 *     }
 *
 * A version is the weights after a committed step. It can be read when the updates of the step are
 * done, which run during the next forward pass, and until the job needs its memory again. A job
 * with one version (`versions` of struct cst_job_states) needs it when the next step is committed;
 * a job with two, when the step after the next one is, or begins to be updated. The job does not
 * wait for a reader that is slower than that, unless the reader keeps the version: the reader loses
 * the version. It may then have read weights of two steps. So it calls cst_reader_check after it
 * has read, and before it uses what it has computed.
 *
 * Weights that are written between steps, as cst_tensor_write does, are part of the version of the
 * next step. When a checkpoint is loaded into the job, its step is the next version, which can be
 * an earlier step than that of the last one: a reader that waits for a step `after` waits until the
 * job is there again, and can ask for `any`.
 *
 * Only processes of the job's user can read it, on the node where the job is; of a job on several
 * nodes, on each of them. They cannot write: the memory is mapped for reading only. Readers take no
 * memory that is charged to anyone; the second version is charged with the job. Weights that are on
 * their way to or from a GPU do not matter here: all of them are in host memory.
 *
 * A reader belongs to one thread at a time. After fork() it can only be used by the parent. */
#ifndef CISTERN_READER_H
#define CISTERN_READER_H

#include "cistern/dtype.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cst_reader; /* A connection that reads the weights of a job. */

/* A tensor of the job. Everything belongs to the reader. */
struct cst_reader_tensor {
    const char *name; /* As the job has declared it. */
    /* What model files of other programs call it, such as adapter_model.safetensors. NULL: they do
     * not have it as it is: it is a part of a larger tensor, it has parts of several, or they have
     * it transposed. */
    const char *file_name;
    const int64_t *shape;
    uint32_t n_dims;
    enum cst_dtype dtype; /* Type of its weights. */
    bool frozen;          /* All versions have the same weights. */
    uint64_t bytes;       /* Of its weights. */
};

/* A version that a reader holds. */
struct cst_reader_version {
    uint64_t step;   /* The number of steps that are committed in it. */
    uint64_t number; /* Of the library; not 0. */
    uint32_t row;    /* Of the library. */
    uint32_t pad;    /* Padding, 0. */
};

/* Which version a reader asks for. */
struct cst_reader_wish {
    bool any;       /* The newest one, whatever its step is. */
    uint64_t after; /* Without `any`: the newest one of a step after this one. */
    /* The job waits: no step overwrites the version until it is released, at most for the time
     * limit of the job (timeout_ms of struct cst_job_limits), after which the version is lost. It
     * is lost at once if a worker, or the load of a checkpoint, writes weights. */
    bool keep;
};

/* Connect to the daemon as cst_connect does and map the weights of @job, which is committed. *out
 * belongs to the caller, who closes it with cst_reader_close. Statuses, besides those of
 * cst_connect:
 *   - CST_ENOTFOUND: the user has no such job.
 *   - CST_EBUSY: the job is not committed yet, or is being reshaped.
 *   - CST_EUNSUPPORTED: gradients take the place of the job's weights (grad_over_weight).
 *   - CST_ENOMEM. */
int cst_reader_open(struct cst_reader **out, const char *path, const char *job,
                    struct cst_err *err);

/* Release what @reader holds, unmap the weights and close the connection. @reader may be NULL. */
void cst_reader_close(struct cst_reader *reader);

/* Return the number of tensors, and the number of the tensor @name; -1: there is none. */
uint32_t cst_reader_count(const struct cst_reader *reader);
int cst_reader_find(const struct cst_reader *reader, const char *name);

/* Return tensor @tensor, which is less than cst_reader_count. */
const struct cst_reader_tensor *cst_reader_tensor(const struct cst_reader *reader, uint32_t tensor);

/* Return the contents of config.json or of adapter_config.json, as the job was opened with (struct
 * cst_job_model). NULL: the job has none. */
const char *cst_reader_model_config(const struct cst_reader *reader);
const char *cst_reader_adapter_config(const struct cst_reader *reader);

/* Return the number of versions that can be read at once, 1 or 2. */
uint32_t cst_reader_versions(const struct cst_reader *reader);

/* Wait for the version that *@wish describes, hold it, and describe it in *@version. Versions that
 * are held already stay so; a reader can hold four. Waits at most @timeout_ms milliseconds (-1: no
 * limit). Steps that are committed while the reader does not wait can be missed. Statuses:
 *   - CST_ETIMEDOUT: there is no such version yet.
 *   - CST_EBUSY: the reader holds four versions.
 *   - CST_ESTALE, CST_ECANCELLED, CST_ENOTFOUND: the job has ended, or is being reshaped.
 *   - CST_ELOST: the job has failed.
 *   - CST_ECONN, CST_EDRAINING: the daemon has ended, or is ending. Close the reader and open it
 *     again. */
int cst_reader_next(struct cst_reader *reader, const struct cst_reader_wish *wish, int timeout_ms,
                    struct cst_reader_version *version, struct cst_err *err);

/* Return the weights of tensor @tensor in *@version, which the reader holds. They are in row-major
 * order, and can be read until the version is released or lost. */
const void *cst_reader_weights(const struct cst_reader *reader,
                               const struct cst_reader_version *version, uint32_t tensor);

/* Return CST_OK if everything that was read of *@version up to now was of its step. Takes a round
 * trip to the daemon.
 *   - CST_ESTALE: the version is lost: what was read since the last check can be of a later step.
 *     It is held until it is released.
 *   - CST_ENOTFOUND: the job was removed.
 *   - CST_ECONN, CST_EDRAINING: the daemon has ended, so that nobody says when the weights change.
 *   - CST_EINVAL: the reader does not hold this version. */
int cst_reader_check(struct cst_reader *reader, const struct cst_reader_version *version,
                     struct cst_err *err);

/* Hold *@version no more. CST_EINVAL: the reader does not hold it. */
int cst_reader_release(struct cst_reader *reader, const struct cst_reader_version *version,
                       struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
