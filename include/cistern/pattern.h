/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns: the ways in which the ranks of a job hold a tensor. proto/patterns.h has their
 * properties. This header is installed. The numbers are part of the wire protocol. */
#ifndef CST_PROTO_PATTERN_H
#define CST_PROTO_PATTERN_H

enum cst_pattern_kind {
    /* The node has one copy, which every rank of the group fetches. Gradients are summed over the
     * group. */
    CST_PATTERN_SHARD = 0,
    /* As CST_PATTERN_SHARD, and each rank's pool keeps the weights between their uses if it can. */
    CST_PATTERN_REPLICATE = 1,
    /* The rank (or group) holds a box of a larger tensor, with states of its own. Gradients are
     * summed over the group only. */
    CST_PATTERN_TENSOR = 2,
    /* An expert of a mixture, with states of its own. Gradients are summed over the group only. Its
     * operators run only in micro-batches that send it tokens; without tokens its gradient is 0. */
    CST_PATTERN_EXPERT = 3,
    /* The tensor has only weights: no gradient, no other states, no update. It can be a box of a
     * larger tensor. Jobs can share one copy (cst_job_spec.base). */
    CST_PATTERN_FROZEN = 4,
    CST_PATTERN_COUNT
};

#endif
