/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/job_options.h"

#include "proto/optimizers.h"

#include <inttypes.h>
#include <stdio.h>

/* -- reading -------------------------------------------------------------------------------- */

static int check_number(const char *what, uint32_t number, uint32_t count, struct cst_err *err)
{
    return number < count ? CST_OK
                          : cst_err_set(err, CST_EINVAL,
                                        "%s %" PRIu32 " is unknown, this version knows 0 to %u",
                                        what, number, count - 1);
}

static int check_numbers(const Cistern__JobOpen *message, struct cst_err *err)
{
    int rc = check_number("optimizer", message->optimizer, CST_OPTIMIZER_COUNT, err);

    if (rc == CST_OK) {
        rc = check_number("masters", message->masters, CST_MASTERS_COUNT, err);
    }
    if (rc == CST_OK) {
        rc = check_number("moments", message->moments, CST_MOMENTS_COUNT, err);
    }
    if (rc == CST_OK) {
        rc = check_number("rounding", message->rounding, CST_ROUNDING_COUNT, err);
    }
    if (rc == CST_OK) {
        rc = check_number("overlap", message->overlap, CST_OVERLAP_COUNT, err);
    }
    if (rc == CST_OK) {
        rc = check_number("unused", message->unused, CST_UNUSED_COUNT, err);
    }
    return rc;
}

static int check_together(const Cistern__JobOpen *message, struct cst_err *err)
{
    if (message->grad_over_weight && message->micro_batches > 1) {
        return cst_err_set(err, CST_EINVAL,
                           "grad_over_weight cannot be combined with %" PRIu32
                           " micro-batches: their sum in fp32 is larger than the weights",
                           message->micro_batches);
    }
    if (message->grad_over_weight && message->overlap != CST_OVERLAP_COMMIT) {
        return cst_err_set(
            err, CST_EINVAL,
            "grad_over_weight cannot be combined with overlap %s, which needs two rows of weights",
            cst_overlap_names[message->overlap]);
    }
    if (message->grad_over_weight && message->masters == CST_MASTERS_SPLIT) {
        return cst_err_set(
            err, CST_EINVAL,
            "grad_over_weight cannot be combined with masters split: the weights are "
            "a part of the master weights");
    }
    if (message->delay_from > 0 && message->overlap != CST_OVERLAP_DELAYED) {
        return cst_err_set(err, CST_EINVAL, "delay_from %" PRIu64 " needs overlap delayed, not %s",
                           message->delay_from, cst_overlap_names[message->overlap]);
    }
    if (message->unused == CST_UNUSED_SKIP && message->overlap == CST_OVERLAP_EARLY) {
        return cst_err_set(
            err, CST_EINVAL,
            "unused skip cannot be combined with overlap early: updates begin before "
            "it is known which tensors have no gradient");
    }
    return CST_OK;
}

int cstd_job_options_read(const Cistern__JobOpen *message, struct cstd_job_options *out,
                          struct cst_err *err)
{
    int rc = check_numbers(message, err);

    if (rc == CST_OK) {
        rc = check_together(message, err);
    }
    if (rc == CST_OK) {
        *out = (struct cstd_job_options){
            .optimizer = (enum cst_optimizer)message->optimizer,
            .masters = (enum cst_masters)message->masters,
            .moments = (enum cst_moments)message->moments,
            .rounding = (enum cst_rounding)message->rounding,
            .seed = message->seed,
            .overlap = (enum cst_overlap)message->overlap,
            .delay_from = message->delay_from,
            .grad_over_weight = message->grad_over_weight,
            .unused = (enum cst_unused)message->unused,
        };
    }
    return rc;
}

/* -- comparison ----------------------------------------------------------------------------- */

/* The job and the rank whose values are compared, for messages. */
struct side {
    const char *job;
    uint32_t rank;
};

static int differ(const struct side *side, const char *what, const char *theirs, const char *mine,
                  struct cst_err *err)
{
    return cst_err_set(err, CST_EMISMATCH,
                       "job '%s' was opened with %s %s, not %s as rank %" PRIu32 " wants",
                       side->job, what, theirs, mine, side->rank);
}

static int same_number(const struct side *side, const char *what, uint64_t theirs, uint64_t mine,
                       struct cst_err *err)
{
    char a[24], b[24];

    if (theirs == mine) {
        return CST_OK;
    }
    (void)snprintf(a, sizeof a, "%" PRIu64, theirs);
    (void)snprintf(b, sizeof b, "%" PRIu64, mine);
    return differ(side, what, a, b, err);
}

static int same_name(const struct side *side, const char *what, const char *theirs,
                     const char *mine, struct cst_err *err)
{
    return theirs == mine ? CST_OK : differ(side, what, theirs, mine, err);
}

int cstd_job_options_same(const struct cstd_job_options *options,
                          const struct cstd_job_options *request, const char *name, uint32_t rank,
                          struct cst_err *err)
{
    const struct side side = {.job = name, .rank = rank};
    int rc = same_name(&side, "optimizer", cst_optimizer_names[options->optimizer],
                       cst_optimizer_names[request->optimizer], err);

    if (rc == CST_OK) {
        rc = same_name(&side, "masters", cst_masters_names[options->masters],
                       cst_masters_names[request->masters], err);
    }
    if (rc == CST_OK) {
        rc = same_name(&side, "moments", cst_moments_names[options->moments],
                       cst_moments_names[request->moments], err);
    }
    if (rc == CST_OK) {
        rc = same_name(&side, "rounding", cst_rounding_names[options->rounding],
                       cst_rounding_names[request->rounding], err);
    }
    if (rc == CST_OK) {
        rc = same_number(&side, "seed", options->seed, request->seed, err);
    }
    if (rc == CST_OK) {
        rc = same_name(&side, "overlap", cst_overlap_names[options->overlap],
                       cst_overlap_names[request->overlap], err);
    }
    if (rc == CST_OK) {
        rc = same_number(&side, "delay_from", options->delay_from, request->delay_from, err);
    }
    if (rc == CST_OK) {
        rc = same_number(&side, "grad_over_weight", options->grad_over_weight,
                         request->grad_over_weight, err);
    }
    if (rc == CST_OK) {
        rc = same_name(&side, "unused", cst_unused_names[options->unused],
                       cst_unused_names[request->unused], err);
    }
    return rc;
}

struct cst_layout_states cstd_job_options_states(const struct cstd_job_options *options)
{
    return (struct cst_layout_states){
        .optimizer = options->optimizer,
        .masters = options->masters,
        .moments = options->moments,
        .two_weights = options->overlap != CST_OVERLAP_COMMIT,
        .grad_over_weight = options->grad_over_weight,
        .skips_unused = options->unused == CST_UNUSED_SKIP,
    };
}
