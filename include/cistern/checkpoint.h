/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: a job's states in files, from which a job can go on with the same bits, unless its
 * updates are delayed (cst_save).
 *
 * A checkpoint is a directory step-00000042 with
 *   - model.safetensors, or model-00001-of-00003.safetensors ... and
 *     model.safetensors.index.json: the weights (BF16, or F32 if wanted) under the external names
 *     of the tensors, in the layout of the external tensors (cst_tensor_spec),
 *   - adapter_model.safetensors: if the job has an adapter_config, the weights that are trained;
 *     model.safetensors then has only the frozen ones, and those of a base job are not saved,
 *   - config.json and adapter_config.json, if the job has them (cst_job_spec),
 *   - buffers.safetensors, if the program that saved has given it: buffers of its model, which are
 *     no tensors of the job,
 *   - states-00001-of-00003.safetensors ...: NAME.master (F32), NAME.exp_avg and NAME.exp_avg_sq in
 *     the format of the job's moments: F32, BF16, or U8 codes with NAME.exp_avg.exponents,
 *   - cistern.json: what was declared, the options, the counters, and the size and checksum (XXH3,
 *     128 bits) of each file.
 * All files of safetensors can be opened with other libraries.
 *
 * Files have whole tensors. If the ranks declare parts of a larger tensor (whole_name of struct
 * cst_tensor_spec), the parts are joined, and files have the larger tensor under its name: they are
 * those of a job of one rank with the same states, byte for byte. A job of other ranks loads its
 * parts of the larger tensors. A part without a whole_name is saved as it is, under its own name.
 *
 * Moments in mx8 have an exponent for 32 elements. If parts divide the blocks of 32 elements of the
 * larger tensor, its moments are encoded in other blocks, rounded to nearest, when they are saved
 * and again when they are loaded. All other states keep their bits.
 *
 * A checkpoint is written under another name and renamed when all its files are on the disk. If the
 * writing process dies, or the disk is full, the earlier checkpoints are as they were.
 *
 * The process that calls cst_save or cst_load opens the files, with its own rights. The daemon
 * never sees them. */
#ifndef CISTERN_CHECKPOINT_H
#define CISTERN_CHECKPOINT_H

#include "cistern/cistern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How to save. Zero every field that is not set. */
struct cst_save_spec {
    /* Directory of the checkpoints. It is made if it does not exist. Each job needs one of its own;
     * jobs are told apart by their names. */
    const char *dir;
    /* Number of checkpoints that remain in the directory, this one included: when this one is
     * whole, of the others those with the fewest steps are removed. Meanwhile there is one more. 0:
     * all remain. */
    uint32_t keep;
    /* Called by cst_save, in the calling thread, when it is decided that the states of step @step
     * are saved. Later steps do not change this. NULL: not called. */
    void (*on_begun)(void *arg, uint64_t step);
    void *arg; /* For on_begun. */
    /* Model files have the fp32 master weights instead of the weights. Frozen tensors, which have
     * no master weights, remain BF16. */
    bool fp32_weights;
    /* The contents of buffers.safetensors, of @buffers_bytes. They are borrowed until the save has
     * ended, also by cst_try_save. NULL: the checkpoint has no such file. */
    const void *buffers;
    uint64_t buffers_bytes;
};

struct cst_save_result {
    uint64_t step;       /* Number of committed steps in the checkpoint. */
    uint64_t bytes;      /* Size of all files; 0: the save has failed. */
    double seconds;      /* Duration of the whole call. */
    double read_seconds; /* Time for which a commit of the job had to wait, at most. */
};

/* Save the job @name of this user, as of one committed step. @client may be the client of one of
 * its workers, or have no job. The other ranks go on training. Only the commit of a step waits, if
 * it would come while states are still being read. The call waits until the checkpoint is whole.
 * @result may be NULL.
 *
 * A job with early updates, in a step that has begun to update, is saved after the commit of that
 * step. The only worker of such a job must not call this function in such a step, because it would
 * wait for itself (CST_ETIMEDOUT).
 *
 * With delayed updates, the checkpoint has the results of all updates, not the older weights that
 * the next step would read. The first step after loading it is therefore not delayed, and from
 * there on the bits differ from those of a run without interruption.
 *
 * A failed save changes neither the job nor the earlier checkpoints. Statuses:
 *   - CST_ENOTFOUND: there is no such job.
 *   - CST_EINVAL: the job is not committed or has no weights yet.
 *   - CST_EINVAL: the directory has checkpoints of another job. The error names it.
 *   - CST_EMISMATCH: the parts of a larger tensor leave out elements of it, or meet without being
 *     equal. The error names the range or the parts.
 *   - CST_EBUSY: the job is being saved already, or a cst_try_... call is pending.
 *   - CST_EEXIST: a checkpoint of this step exists already, and is whole.
 *   - CST_EIO: a file cannot be written. The error names the file, the byte and the cause.
 *   - CST_EIO: an older checkpoint that `keep` excludes cannot be removed. In this case alone, the
 *     new one is whole, and *result is set.
 *   - CST_ETIMEDOUT: the save was too slow: it read nothing for the job's timeout while a step
 *     waited for it.
 *   - CST_ELOST, CST_EENGINE: states are lost.
 *   - CST_ENOMEM. */
int cst_save(struct cst_client *client, const char *name, const struct cst_save_spec *spec,
             struct cst_save_result *result, struct cst_err *err);

/* cst_save that does not wait for the daemon: CST_EAGAIN, as for the other cst_try_... calls. It
 * waits for the disk, above all when it completes a file. A worker that trains in the same thread
 * meanwhile needs another client for the save, because this call is pending. cst_disconnect ends a
 * save that is pending and removes its files. */
int cst_try_save(struct cst_client *client, const char *name, const struct cst_save_spec *spec,
                 struct cst_save_result *result, struct cst_err *err);

struct cst_adopt_result {
    char job[64];   /* Name of the job that was adopted. */
    uint64_t step;  /* Number of committed steps in the checkpoint. */
    uint64_t bytes; /* Size of all files of the checkpoint. */
    double seconds; /* Duration of the call. */
    /* Rows of states whose checksums are not known, because the daemon was started again after they
     * had been written and before that step was recorded. They are in the checkpoint unchecked. */
    uint32_t n_unchecked;
    uint32_t n_rows; /* Rows of states in all. */
    /* For a person to read: the states of the last step are damaged, at which place, and the
     * checkpoint is of the step before. "": they are not. */
    char warning[256];
};

/* Make a checkpoint of the last step of a durable job (struct cst_job_states) in the directory
 * @dir, as cst_save does, from the job's @n files @files, in any order. For jobs that ended without
 * a save: the machine has stopped, or the daemon was killed with all its jobs. Needs no daemon. All
 * states are read and compared with their checksums first. If those of the last step are damaged,
 * and those of the one before are not, that one is taken. The files stay as they are. Thread-safe.
 * Statuses:
 *
 *   - CST_EIO: a file cannot be read or written.
 *   - CST_EINVAL: a file is no file of a durable job, is that of another job or a newer version, or
 *     is missing or named twice; no step was committed; states of both steps are damaged. The words
 *     name the file.
 *   - CST_EBUSY: a daemon uses a file.
 *   - CST_EEXIST, CST_EINVAL: as for cst_save, because of @dir.
 *   - CST_ENOMEM. */
int cst_adopt(const char *const *files, uint32_t n, const char *dir,
              struct cst_adopt_result *result, struct cst_err *err);

struct cst_load_result {
    uint64_t step; /* Number of committed steps. */
    /* The moments were converted to the format of the job, or in mx8 to other blocks because of
     * parts of the saved job or of this one, rounded to nearest: the next steps have other bits
     * than those of the saved job. */
    bool converted;
    /* The hyper-parameters of the last step before the checkpoint, without the loss. All 0: no step
     * was made, or they are unknown. */
    struct cst_hyper_params params;
    /* What differs from the saved job and may not be intended, for a person to read: the seed, the
     * rounding of moments, split or whole master weights, delayed updates, and keys of model_config
     * and adapter_config. Also a newer checkpoint of the directory that is not whole. "": nothing.
     */
    char warning[512];
};

/* Write the states of the checkpoint at @path to @job, which is committed, and set its counters.
 * The next step is then the one after the checkpoint, with the same bits as without interruption,
 * unless the job has another format of moments (@result->converted) or delayed updates (cst_save).
 * One rank calls this function, after cst_commit and before cst_sync. Tensors are found by their
 * names, and parts of larger tensors by the name of the larger tensor, so that the number of ranks,
 * the parts, chunks, pools and plans may differ.
 *
 * A checkpoint of an earlier version has parts under their own names. It is loaded by a job with
 * the same parts, and by any other one if the saved job had declared the names of the larger
 * tensors.
 *
 * @path is a checkpoint, or a directory of checkpoints, of which the newest whole one is taken. All
 * files are read and compared with their checksums before anything is written. @result may be NULL.
 * Statuses:
 *   - CST_ENOTFOUND: there is no checkpoint at @path.
 *   - CST_EINVAL: a file is torn, altered or not of a checkpoint. The error names it.
 *   - CST_EINVAL: the directory has checkpoints of several jobs.
 *   - CST_EUNSUPPORTED: the checkpoint, or a newer one in the directory, has a later format, which
 *     this version cannot read.
 *   - CST_EMISMATCH: the job has other tensors or another optimizer, or only one of the two has the
 *     frozen tensors of a base job.
 *   - CST_EMISMATCH: the job's parts of a larger tensor leave out elements of it, or meet without
 *     being equal.
 *   - CST_EBUSY: a step is running, or a cst_try_... call is pending.
 *   - CST_EIO, CST_ENOMEM.
 * After a failure that comes later than the checks, the job's states are undefined. */
int cst_load(struct cst_job *job, const char *path, struct cst_load_result *result,
             struct cst_err *err);

/* cst_load that does not wait for the daemon: CST_EAGAIN, as for the other cst_try_... calls. It
 * waits for the disk: the first call reads all files to check them. */
int cst_try_load(struct cst_job *job, const char *path, struct cst_load_result *result,
                 struct cst_err *err);

/* Which model files to load. Zero every field that is not set. */
struct cst_load_model_spec {
    /* A file in the format of safetensors, or a directory with model.safetensors, or one with
     * model.safetensors.index.json and the files that it names. */
    const char *path;
    /* Beginning of external names that a file may leave out, for example "transformer.". NULL:
     * files have the whole names. */
    const char *prefix;
    /* Returns whether the tensor @name of the job is to be loaded. NULL: all are. */
    bool (*wants)(void *arg, const char *name);
    void *arg; /* For wants. */
};

struct cst_load_model_result {
    uint32_t n_tensors; /* Tensors of the job that were loaded. */
    uint32_t n_ignored; /* Tensors of the files that the job does not have. */
    char ignored[256];  /* Names of the first ones of these. */
};

/* Write the weights of model files, from other programs for example, to @job, which is committed
 * and new. The weights become the master weights: F32 as they are, BF16 and F16 exactly, in fp32.
 * Frozen tensors, which have no master weights, are rounded to bf16. The moments are zero, and no
 * step is made. One rank calls this function, after cst_commit and before cst_sync. It can write
 * the tensors that it left out (`wants`) with cst_tensor_write.
 *
 * Tensors are found under their external names, or under their own names if they have none, and
 * have the layout of the external tensors (cst_tensor_spec). Parts are cut out of the larger
 * tensor, which is found under its external names or its own name. Further tensors of the files are
 * ignored: *result, which may be NULL, counts and names them. The files are not changed meanwhile.
 * Memory is bounded by the size of a message. Statuses:
 *   - CST_ENOTFOUND: there is no model file at the path.
 *   - CST_EINVAL: a file is cut off or is not in the format of safetensors.
 *   - CST_EINVAL: a tensor is missing, has another shape, or is not F32, BF16 or F16. The error
 *     names it.
 *   - CST_EMISMATCH: the job's parts of a larger tensor leave out elements of it, or meet without
 *     being equal.
 *   - CST_EEXIST: the job has states already.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EIO, CST_ENOMEM.
 * All headers are checked before anything is written. After a failure of reading that comes later,
 * the job's states are undefined. */
int cst_load_model(struct cst_job *job, const struct cst_load_model_spec *spec,
                   struct cst_load_model_result *result, struct cst_err *err);

/* A checkpoint of a directory. */
struct cst_checkpoint {
    uint64_t step;
    uint64_t bytes; /* Size of all files; 0: unknown. */
    bool whole;     /* All files are there, with their sizes. */
    /* CST_OK: it is whole. CST_EINVAL: a file is missing, torn or altered. CST_EUNSUPPORTED: it has
     * a later format, which this version cannot read. Others: it cannot be read now. */
    int status;
    char name[64]; /* Name in the directory. */
    char job[64];  /* Name of the job that was saved; "": unknown. */
    char why[256]; /* If it is not whole: the reason. */
};

/* List the checkpoints of the directory @dir by step. The caller frees *out with free(). With
 * @check, the checksums of all files are compared, which reads them. CST_ENOTFOUND, CST_EIO,
 * CST_ENOMEM. */
int cst_checkpoints(const char *dir, bool check, struct cst_checkpoint **out, uint32_t *n_out,
                    struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
