/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a job hold a tensor. Installed; what follows from each is in proto/patterns.h.
 */
#ifndef CST_PROTO_PATTERN_H
#define CST_PROTO_PATTERN_H

enum cst_pattern_kind {
    CST_PATTERN_SHARD = 0, /* one copy on the node, fetched by every rank of the group; gradients
                              are summed over the group */
    CST_PATTERN_REPLICATE = 1, /* the same, and each rank's pool keeps the weights between uses */
    CST_PATTERN_TENSOR = 2, /* a rank, or a group, holds a box of a larger tensor: its own states,
                               no sum beyond the group */
    CST_PATTERN_EXPERT = 3, /* an expert of a mixture: as TENSOR, used when tokens come; without
                               tokens its gradient is zero */
    CST_PATTERN_FROZEN =
        4, /* weights alone: no gradient, no states, no update; jobs may share one copy */
    CST_PATTERN_COUNT
};

#endif
