/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern load`: makes a job from a checkpoint, without workers. This process opens
 * all ranks of the job, declares what the description says, commits, loads the states, and leaves.
 *
 * With --frozen, the job has one rank and the weights alone, as the base of other jobs. */
#include "cistern/checkpoint.h"
#include "client/checkpoint/listing.h"
#include "client/checkpoint/manifest.h"
#include "client/checkpoint/wholes.h"
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "proto/job_options.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The ranks of the job, each with a connection. */
struct ranks {
    struct cst_client **clients;
    struct cst_job **jobs;
    bool *committed;
    uint32_t n;
    /* All tensors are frozen, and are these wholes, which the files have. NULL: they are declared
     * as they were. */
    const struct cstc_wholes *frozen;
};

static int declare_tensor(struct cst_job *job, const Cistern__TensorDecl *tensor, bool frozen)
{
    const struct cst_tensor_spec spec = {
        .name = tensor->name,
        .dtype = (enum cst_dtype)tensor->dtype,
        .n_dims = (uint32_t)tensor->n_shape,
        .shape = tensor->shape,
        .group = frozen ? 0 : (int)tensor->group,
        .pattern = frozen ? CST_PATTERN_FROZEN : (enum cst_pattern_kind)tensor->pattern,
        .lr_scale = tensor->lr_scale,
        .decay_scale = tensor->decay_scale,
        .param_group = tensor->param_group,
        .update = (enum cst_tensor_update)tensor->update,
        .whole_name = frozen ? NULL : tensor->whole_name,
        .whole_shape = !frozen && tensor->n_whole_shape > 0 ? tensor->whole_shape : NULL,
        .first = !frozen && tensor->n_box_first > 0 ? tensor->box_first : NULL,
        .packed = !frozen && tensor->n_box_packed > 0 ? tensor->box_packed : NULL,
        .external_names = (const char *const *)tensor->external_name,
        .external_rows = tensor->n_external_rows > 0 ? tensor->external_rows : NULL,
        .n_external = (uint32_t)tensor->n_external_name,
        .transposed = tensor->transposed,
    };

    return cst_tensor_as(job, &spec);
}

/* Put the numbers of the wholes of the @n tensors @tensors into @out. Returns how many they are. */
static uint32_t wholes_of(const struct cstc_wholes *wholes, const uint32_t *tensors, size_t n,
                          int *out)
{
    uint32_t n_out = 0;

    for (size_t i = 0; i < n; i++) {
        /* The file may name tensors that do not exist. Their operator is refused. */
        const int whole =
            tensors[i] < wholes->parts.n_tensors ? (int)wholes->of[tensors[i]] : INT_MAX;
        uint32_t k = 0;

        while (k < n_out && out[k] != whole) {
            k++;
        }
        out[k] = whole;
        n_out += k == n_out;
    }
    return n_out;
}

/* @wholes: those of the tensors, which are declared instead; NULL: the tensors are. */
static int declare_operator(struct cst_job *job, const Cistern__OperatorDecl *op,
                            const struct cstc_wholes *wholes)
{
    const struct cst_operator_cost cost = {.flops = op->flops,
                                           .activation_bytes = op->activation_bytes,
                                           .expected_uses = op->expected_uses};
    int *tensors, rc;
    uint32_t n;

    if (wholes == NULL) {
        /* The numbers of tensors are below 2^31. */
        return cst_operator_as(job, op->name, (const int *)(const void *)op->tensors,
                               (uint32_t)op->n_tensors, &cost);
    }
    tensors = calloc(op->n_tensors + 1, sizeof *tensors);
    if (tensors == NULL) {
        return CST_ENOMEM;
    }
    n = wholes_of(wholes, op->tensors, op->n_tensors, tensors);
    rc = cst_operator_as(job, op->name, tensors, n, &cost);
    free(tensors);
    return rc;
}

static int declare(struct cst_job *job, const Cistern__JobDescription *d,
                   const struct cstc_wholes *frozen, struct cst_err *err)
{
    const Cistern__JobDescription *tensors = frozen != NULL ? &frozen->description : d;
    int rc = CST_OK;

    for (size_t i = 0; rc >= 0 && frozen == NULL && i < d->n_groups; i++) {
        rc = cst_group(job, d->groups[i]->ranks, (uint32_t)d->groups[i]->n_ranks);
    }
    for (size_t i = 0; rc >= 0 && i < tensors->n_tensors; i++) {
        rc = declare_tensor(job, tensors->tensors[i], frozen != NULL);
    }
    for (size_t i = 0; rc >= 0 && i < d->n_operators; i++) {
        rc = declare_operator(job, d->operators[i], frozen);
    }
    if (rc < 0) {
        *err = *cst_job_error(job);
        err->status = rc;
    }
    return rc < 0 ? rc : CST_OK;
}

/* Open rank @rank of the job @name and declare its model. */
static int open_rank(struct cli *cli, struct ranks *ranks, uint32_t rank, const char *name,
                     const Cistern__JobDescription *d, struct cst_err *err)
{
    const struct cst_job_spec weights = {
        .name = name, .world = 1, .model.model_config = d->model_config};
    struct cst_job_spec all = {.rank = rank};
    int rc = cst_connect(&ranks->clients[rank], cli->client->path, err);

    if (rc == CST_OK) {
        rc = cst_job_options_take(&all, &d->base, err);
        all.name = name;
        if (rank == 0 && all.states.durable && ranks->frozen == NULL) {
            (void)fprintf(stderr,
                          "cistern: job '%s' was durable, and is not: its states are in "
                          "memory now. Workers make a durable job of the checkpoint "
                          "themselves (cistern-gpt --resume, resume= of attach)\n",
                          name);
        }
        all.states.durable = false;
    }
    if (rc == CST_OK) {
        rc = cst_job_open(&ranks->jobs[rank], ranks->clients[rank],
                          ranks->frozen != NULL ? &weights : &all, err);
    }
    if (rc == CST_OK && cst_job_initialised(ranks->jobs[rank])) {
        rc =
            cst_err_set(err, CST_EEXIST,
                        "there is a job '%1$s' with states already, of step %2$llu: load the "
                        "checkpoint under another name (cistern load DIR NAME), or remove that job "
                        "first (cistern rm %1$s)",
                        name, (unsigned long long)cst_job_steps(ranks->jobs[rank]));
        (void)cst_job_leave(ranks->jobs[rank], NULL); /* So that the job is done as before. */
    }
    return rc == CST_OK ? declare(ranks->jobs[rank], d, ranks->frozen, err) : rc;
}

/* Commit all ranks. Each commit waits for the others, so they are made side by side. */
static int commit(struct ranks *ranks, struct cst_err *err)
{
    uint32_t n_left = ranks->n;

    for (uint32_t r = 0; n_left > 0; r = (r + 1) % ranks->n) {
        int rc;

        if (ranks->committed[r]) {
            continue;
        }
        rc = cst_try_commit(ranks->jobs[r], NULL, err);
        if (rc == CST_EAGAIN) {
            struct pollfd fd = {.fd = cst_client_fd(ranks->clients[r]), .events = POLLIN};

            /* Only the last one that is left may wait long. */
            (void)poll(&fd, 1, n_left == 1 ? -1 : 1);
            continue;
        }
        if (rc != CST_OK) {
            return rc;
        }
        ranks->committed[r] = true;
        n_left--;
    }
    return CST_OK;
}

static int leave(struct ranks *ranks, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t r = 0; rc == CST_OK && r < ranks->n; r++) {
        rc = cst_job_leave(ranks->jobs[r], err);
    }
    return rc;
}

/* Load the weights alone, from a checkpoint whose files are whole. The first sync makes them those
 * of the job. */
static int load_weights(struct cst_job *job, const char *path, struct cst_err *err)
{
    struct cstc_manifest manifest;
    char directory[32], warning[CSTC_LISTING_WARNING_BYTES];
    int dirfd, rc = cstc_listing_open(path, &dirfd, warning, err);

    if (rc != CST_OK) {
        return rc;
    }
    (void)snprintf(directory, sizeof directory, "/proc/self/fd/%d", dirfd);
    rc = cstc_manifest_read(&manifest, dirfd, err);
    if (rc == CST_OK) {
        rc = cstc_manifest_check(&manifest, dirfd, true, err);
        cstc_manifest_close(&manifest);
    }
    if (rc == CST_OK) {
        rc = cst_load_model(job, &(struct cst_load_model_spec){.path = directory}, NULL, err);
    }
    (void)close(dirfd);
    return rc == CST_OK ? cst_sync(job, NULL, err) : rc;
}

/* Make the job @name from the checkpoint @path, whose description is @d. @frozen: see ranks. */
static int make_job(struct cli *cli, const char *name, const char *path,
                    const Cistern__JobDescription *d, const struct cstc_wholes *frozen,
                    struct cst_load_result *result, struct cst_err *err)
{
    struct ranks ranks = {.n = frozen != NULL ? 1 : d->world, .frozen = frozen};
    bool ours = false;
    int rc = CST_OK;

    if (cli->frozen && d->base_job != NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "--frozen: the checkpoint has no frozen weights, because they are those "
                           "of the base job '%s'",
                           d->base_job);
    }
    if (d->world < 1 || d->world > CST_LAYOUT_MAX_WORLD) {
        return cst_err_set(err, CST_EINVAL, "a checkpoint of %u ranks: 1 to %d are possible",
                           d->world, CST_LAYOUT_MAX_WORLD);
    }
    ranks.clients = calloc(d->world, sizeof *ranks.clients);
    ranks.jobs = calloc(d->world, sizeof *ranks.jobs);
    ranks.committed = calloc(d->world, sizeof *ranks.committed);
    if (ranks.clients == NULL || ranks.jobs == NULL || ranks.committed == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for %u ranks", d->world);
    }
    for (uint32_t r = 0; rc == CST_OK && r < ranks.n; r++) {
        rc = open_rank(cli, &ranks, r, name, d, err);
    }
    ours = rc == CST_OK; /* Nobody else has a rank of the job, and it has no states. */
    if (rc == CST_OK) {
        rc = commit(&ranks, err);
    }
    if (rc == CST_OK) {
        rc = cli->frozen ? load_weights(ranks.jobs[0], path, err)
                         : cst_load(ranks.jobs[0], path, result, err);
    }
    if (rc == CST_OK) {
        rc = leave(&ranks, err);
    }
    for (uint32_t r = 0; ranks.clients != NULL && r < ranks.n; r++) {
        cst_disconnect(ranks.clients[r]);
    }
    if (rc != CST_OK && ours) {
        /* The job has no states, because they could not be loaded. */
        (void)cst_job_remove(cli->client, name, NULL);
    }
    free(ranks.clients);
    free(ranks.jobs);
    free(ranks.committed);
    return rc;
}

/* Make the job @name from the checkpoint @path, which has @manifest. */
static int load_job(struct cli *cli, const char *name, const char *path,
                    const struct cstc_manifest *manifest, struct cst_load_result *result,
                    struct cst_err *err)
{
    const Cistern__JobDescription *d = manifest->description;
    struct cstc_wholes wholes;
    int rc;

    if (!cli->frozen) {
        return make_job(cli, name, path, d, NULL, result, err);
    }
    rc = cstc_wholes_open(&wholes, d, manifest->joined, err);
    if (rc == CST_OK) {
        rc = make_job(cli, name, path, d, &wholes, result, err);
        cstc_wholes_close(&wholes);
    }
    return rc;
}

/* Print an error about the checkpoint @path. Errors name the file alone. */
static int fail_at(const char *path, const struct cst_err *err)
{
    (void)fprintf(stderr, "cistern: %s: %s\n", path, err->text);
    return CLI_EXIT_FAILURE;
}

static bool print_json(const struct cli *cli, const char *name, const Cistern__JobDescription *d)
{
    return cli_json_print(
        json_pack("{s:s, s:I, s:I, s:b}", "job", name, "step", (json_int_t)d->step, "ranks",
                  (json_int_t)(cli->frozen ? 1 : d->world), "frozen", cli->frozen));
}

int cli_load(struct cli *cli)
{
    struct cstc_manifest manifest;
    struct cst_err err = {0};
    const char *name;
    struct cst_load_result result = {0};
    char warning[CSTC_LISTING_WARNING_BYTES];
    bool good = true;
    int dirfd, rc = cstc_listing_open(cli->args[0], &dirfd, warning, &err);

    if (rc != CST_OK) {
        return cli_fail(&err);
    }
    rc = cstc_manifest_read(&manifest, dirfd, &err);
    (void)close(dirfd);
    if (rc != CST_OK) {
        return fail_at(cli->args[0], &err);
    }
    rc = cstc_content_check(manifest.description, &err);
    if (rc != CST_OK) {
        cstc_manifest_close(&manifest);
        return fail_at(cli->args[0], &err);
    }
    name = cli->n_args > 1 ? cli->args[1] : manifest.description->name;
    if (warning[0] != '\0') {
        (void)fprintf(stderr, "cistern: warning: %s\n", warning);
    }
    rc = load_job(cli, name, cli->args[0], &manifest, &result, &err);
    if (rc == CST_OK && cli->json) {
        good = print_json(cli, name, manifest.description);
    } else if (rc == CST_OK && cli->frozen) {
        (void)printf("loaded the weights of step %llu as job %s, frozen\n",
                     (unsigned long long)manifest.description->step, name);
    } else if (rc == CST_OK) {
        (void)printf("loaded step %llu as job %s of %u rank%s\n", (unsigned long long)result.step,
                     name, manifest.description->world,
                     manifest.description->world == 1 ? "" : "s");
    }
    cstc_manifest_close(&manifest);
    if (rc != CST_OK) {
        return cli_fail(&err);
    }
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
