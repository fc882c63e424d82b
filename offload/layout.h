/* SPDX-License-Identifier: Apache-2.0 */
/* From a model's declaration to chunks: which tensor lies in which chunk at which element, how
 * large a chunk is, how many blocks a pool must have, and where in the arenas each chunk's rows
 * are. Pure; allocates with malloc only.
 *
 *   declaration order of operators  -> order of first use -> tensors packed next-fit into chunks of
 * up to C elements a tensor is never split; tensors that no operator uses follow at the end, in
 * order of declaration
 *
 * Not here: who holds what at run time (residency.h), what is done when (schedule.h). */
#ifndef CST_LAYOUT_H
#define CST_LAYOUT_H

#include "proto/patterns.h"
#include "cistern/status.h"
#include "proto/table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_LAYOUT_ALIGN_ELEMS 64     /* a tensor starts at a multiple of it: 128 bytes of bf16 */
#define CST_LAYOUT_CAPACITY_STEP 4096 /* C is a multiple of it, so rows are pages */
#define CST_LAYOUT_SEGMENT_BYTES                                                                   \
    (256u << 20) /* most that an arena segment has, but for one with a single row; no row          \
                    straddles two */
#define CST_LAYOUT_MAX_CHUNK_ELEMS (1u << 30)
#define CST_LAYOUT_MAX_TENSORS 65536 /* of a job */
#define CST_LAYOUT_MAX_OPERATORS 65536
#define CST_LAYOUT_MAX_USES 262144 /* tensors of all operators together */
#define CST_LAYOUT_NAME_BYTES 64   /* with the NUL */
#define CST_LAYOUT_MAX_CLASSES 4   /* size classes of chunks */
#define CST_LAYOUT_MAX_DIMS 8
#define CST_LAYOUT_MAX_WORLD 64
#define CST_LAYOUT_MAX_GROUPS 256 /* the group of all ranks, number 0, included */

/* A tensor of which this one is a box: what a rank of a tensor-parallel group holds. */
struct cst_layout_box {
    int64_t whole[CST_LAYOUT_MAX_DIMS]; /* shape of the whole tensor */
    int64_t first[CST_LAYOUT_MAX_DIMS]; /* where the box begins in it; first + shape <= whole */
};

struct cst_layout_tensor {
    char name[CST_LAYOUT_NAME_BYTES];
    int64_t shape[CST_LAYOUT_MAX_DIMS];
    uint32_t n_dims;
    uint64_t n_elems;  /* product of shape */
    float lr_scale;    /* multiplies lr */
    float decay_scale; /* multiplies weight decay */
    uint32_t group; /* index into cst_model.groups: the ranks that hold it and whose gradients are
                       summed */
    enum cst_pattern_kind pattern;
    struct cst_layout_box *box; /* CST_PATTERN_TENSOR: else NULL; owned by the model */
    uint32_t n_uses;            /* how many operators use it */
    uint32_t chunk;             /* out: its chunk */
    uint64_t offset;            /* out: elements from the start of the chunk */
    uint64_t first_tile; /* out: sum of tiles of all tensors with states declared before it */
};

struct cst_layout_operator {
    char name[CST_LAYOUT_NAME_BYTES];
    uint32_t *tensors; /* numbers of its tensors; owned by the model */
    uint32_t n_tensors;
    uint64_t ranks; /* that run it: those in the groups of all its tensors, a bit each; not 0; cut
                       to the world by nobody */
    /* Hints of what it costs, for plans; 0: not told. Not compared between ranks: the first rank's
     * count. */
    double flops; /* of its forward pass, per micro-batch and rank */
    uint64_t
        activation_bytes; /* kept from its forward to its backward pass, per micro-batch and rank */
    float expected_uses;  /* forward passes per micro-batch; 1 unless told. An expert: the share of
                             micro-batches in which tokens come. More than 1 counts as 1 */
};

/* What the workers declared. Grows while declaring; then constant. */
struct cst_model {
    struct cst_layout_tensor *tensors;
    uint32_t n_tensors;
    struct cst_layout_operator *operators; /* in the order of the forward pass */
    uint32_t n_operators;
    uint64_t groups[CST_LAYOUT_MAX_GROUPS]; /* ranks of each, a bit each; groups[0] is all bits:
                                               every rank of the job */
    uint32_t n_groups;                      /* at least 1 */
    uint32_t max_entries; /* tensors, and operators: CST_LAYOUT_MAX_TENSORS, unless who keeps the
                             model sets more; uses are four times as many */
    uint32_t n_uses;      /* sum of n_tensors of the operators */
    uint64_t n_params;    /* sum of n_elems */
    void *index;          /* name lookup, private */
};

#define CST_LAYOUT_NO_ROW UINT32_MAX

struct cst_layout_row {
    uint32_t segment; /* index into cst_layout.segments; CST_LAYOUT_NO_ROW: the chunk's pattern has
                         no such row */
    uint64_t offset;  /* bytes, multiple of 4096 */
};

#define CST_LAYOUT_OWN UINT32_MAX

struct cst_layout_chunk {
    uint64_t n_elems;      /* used, a multiple of CST_LAYOUT_ALIGN_ELEMS; <= capacity */
    uint32_t first_tensor; /* index into cst_layout.order */
    uint32_t n_tensors;
    uint32_t first_span; /* its first tensor among those that have states, in this order: the job
                            table's spans */
    uint32_t
        node; /* NUMA node (index 0..n_nodes-1) of its rows and of the engine that works on it */
    struct cst_layout_row rows[CST_ROW_COUNT];
    struct cst_layout_row other_weight; /* second weight row; segment CST_LAYOUT_NO_ROW: none */
    uint32_t device; /* engine of the accelerator whose memory has its rows master, exp_avg and
                        exp_avg_sq; 0: they are with the others */
    uint32_t n_uses; /* operator uses of all its tensors, by any rank */
    uint64_t ranks;  /* of its tensors' group, a bit each; none beyond the job's world */
    enum cst_pattern_kind pattern; /* of all its tensors */
    uint32_t size_class;           /* index into cst_layout.classes: of the blocks that hold it */
    uint32_t base_chunk;           /* chunk of the base's layout that it is: rows are the base's;
                                      CST_LAYOUT_OWN: it is this job's own */
};

/* Chunks of one size, and the blocks of a pool that hold them. A huge embedding has a class of its
 * own and forces nobody. */
struct cst_layout_class {
    uint64_t capacity; /* elements; a block has 2 x capacity bytes */
    uint32_t n_chunks;
    uint32_t min_blocks;   /* the smallest pool that can run has so many of this class, in the rank
                              that needs most */
    uint32_t min_operator; /* the operator that needs them */
    uint32_t
        max_blocks; /* more would never be used: weights and gradients of all that a rank holds */
};

/* Blocks of each class in the pool of one rank. The classes' are the most of all ranks. */
struct cst_layout_need {
    uint32_t min_blocks[CST_LAYOUT_MAX_CLASSES];
    uint32_t min_operator[CST_LAYOUT_MAX_CLASSES];
    uint32_t max_blocks[CST_LAYOUT_MAX_CLASSES];
};

struct cst_layout_segment {
    uint64_t bytes; /* multiple of 4096, <= CST_LAYOUT_SEGMENT_BYTES, or as long as its one row; of
                       an accelerator's: of its grain */
    uint32_t node;  /* n_nodes of the config and more: number of the accelerator's engine whose
                       memory it is */
    bool is_base;   /* it is segment base_segment of the base job's layout: not this job's memory,
                       read only */
    uint32_t base_segment;
};

/* One operator's chunks, without repeats, in order of its tensors. */
struct cst_layout_use {
    uint32_t *chunks;
    uint32_t n_chunks;
};

/* Which rows a chunk with states has, and in which format. */
struct cst_layout_states {
    enum cst_optimizer optimizer; /* LION, SGD: no exp_avg_sq */
    enum cst_moments moments;     /* of exp_avg and exp_avg_sq */
    bool two_weights;             /* a second weight row: updates are early or delayed */
    bool grad_over_weight;        /* the grad row is the weight row: 2 bytes less per parameter, see
                                     core.h. Not with two_weights, fp32 grad rows */
};

/* Bytes of row @row (CST_ROW_WEIGHT_OTHER too) of @n_elems elements; 0: there is no such row, or,
 * the grad row, none of its own. MX8: of a multiple of CST_MX8_BLOCK elements, and not where
 * element @n_elems is: its code is n_elems bytes into the row. */
uint64_t cst_layout_row_bytes(const struct cst_layout_states *states, uint32_t grad_bytes, int row,
                              uint64_t n_elems);

/* Bytes that the update of an element reads and writes: 28 with fp32 moments, two of them, and a
 * bf16 gradient. */
double cst_layout_update_bytes(const struct cst_layout_states *states, uint32_t grad_bytes);

struct cst_layout {
    uint64_t capacity; /* of classes[0] */
    struct cst_layout_class classes[CST_LAYOUT_MAX_CLASSES];
    uint32_t n_classes;
    struct cst_layout_need needs[CST_LAYOUT_MAX_WORLD]; /* per rank */
    struct cst_layout_chunk *chunks;
    uint32_t n_chunks;
    uint32_t *order;             /* tensor numbers, chunk by chunk; n_tensors of them */
    struct cst_layout_use *uses; /* per operator */
    struct cst_layout_segment *segments;
    uint32_t n_segments;
    struct cst_layout_row
        *landings; /* CST_LAYOUT_LANDINGS of each node, each of the weights' bytes of its largest
                    * chunk that uses them; segment CST_LAYOUT_NO_ROW: no chunk of the node does.
                    * NULL: no chunk does */
    uint64_t arena_bytes;            /* sum of segments, the base's and accelerators' not counted */
    uint64_t device_bytes;           /* sum of accelerators' segments */
    uint64_t n_tiles;                /* of tensors that have states */
    uint32_t n_spans;                /* tensors that have states */
    uint32_t grad_bytes;             /* of an element of the grad rows: 2 or 4 */
    struct cst_layout_states states; /* as configured */
    uint32_t min_blocks;             /* of classes[0], as are the next two */
    uint32_t min_operator;
    uint32_t max_blocks;
};

#define CST_LAYOUT_LANDINGS 2 /* of each node; one is filled while the other is read */
#define CST_LAYOUT_MAX_DEVICES 8

/* Memory of an accelerator for states that stay there. */
struct cst_layout_device {
    uint32_t engine;     /* of the accelerator: n_nodes and more */
    uint64_t bytes;      /* to be used at most */
    uint64_t grain;      /* segments are multiples of it; 0: 4096 */
    uint64_t room_bytes; /* of the accelerator's room (cst_core_room): what does not fit in its
                            buffers has its states in host memory */
};

struct cst_layout_config {
    uint64_t chunk_elems; /* capacity; 0: choose */
    uint64_t pool_bytes;  /* the smallest pool among the ranks; 0: any */
    uint32_t n_nodes;     /* NUMA nodes, at least 1 */
    uint32_t world;       /* ranks; 0: 1 */
    uint32_t
        grad_bytes; /* of an element of the grad row: 2 (bf16; 0 too) or 4 (fp32, micro-batches) */
    struct cst_layout_states states; /* zeroed: AdamW, fp32 moments, 16 bytes per parameter */
    uint64_t
        class_elems[CST_LAYOUT_MAX_CLASSES]; /* with chunk_elems: capacities of further classes,
                                                ascending, ended by 0; all 0: chosen */
    uint32_t max_classes;                    /* to choose: 0 and 1: one class, which holds all */
    struct cst_layout_device devices[CST_LAYOUT_MAX_DEVICES]; /* each engine once */
    bool landings;      /* ranks compute on accelerators: with fp32 grad rows, nodes have landings
                           (offload/landing.h) for chunks that one rank holds */
    uint32_t n_devices; /* states of as many chunks as fit are there: the last ones. With fp32
                           moments alone */
    const struct cst_model *base_model; /* with base: whose frozen tensors are shared; NULL:
                                           nobody's. Borrowed during the call */
    const struct cst_layout *base;
};

void cst_model_init(struct cst_model *model);
void cst_model_close(struct cst_model *model);

/* Declare a group of ranks, a bit each; its number is n_groups before the call. CST_EINVAL: no
 * ranks, too many groups. */
int cst_model_group(struct cst_model *model, uint64_t ranks, struct cst_err *err);

/* All that can be said of a tensor. */
struct cst_tensor_words {
    const char *name;
    const int64_t *shape; /* n_dims */
    uint32_t n_dims;
    float lr_scale;
    float decay_scale;
    uint32_t group;       /* number of a group declared before; 0: all ranks */
    uint32_t pattern;     /* enum cst_pattern_kind */
    const int64_t *whole; /* n_dims, where the pattern wants a box; else NULL */
    const int64_t *first; /* same */
};

/* Declare a tensor; its number is n_tensors before the call. CST_EINVAL: a name that is empty, too
 * long or not printable; no dimensions or more than 8, a dimension < 1, a product over 2^40; a
 * factor that is not finite; a group or pattern that there is not; a box that is missing, not
 * wanted, or not within the whole; too many tensors. CST_EEXIST: the name is taken. The model is
 * unchanged on failure. */
int cst_model_tensor_as(struct cst_model *model, const struct cst_tensor_words *words,
                        struct cst_err *err);

/* The same, of all ranks, sharded. */
int cst_model_tensor(struct cst_model *model, const char *name, const int64_t *shape,
                     uint32_t n_dims, float lr_scale, float decay_scale, struct cst_err *err);

/* What is known of an operator's cost: cst_layout_operator's hints. */
struct cst_operator_hints {
    double flops;
    uint64_t activation_bytes;
    float expected_uses; /* 0: 1 */
};

/* Declare an operator over tensors declared before. CST_EINVAL: unknown number, the same tensor
 * twice, no tensors, bad name, no rank that holds them all, hints that are negative or not finite,
 * too many operators or uses. CST_EEXIST: the name is taken.
 * @hints may be NULL. */
int cst_model_operator_as(struct cst_model *model, const char *name, const uint32_t *tensors,
                          uint32_t n_tensors, const struct cst_operator_hints *hints,
                          struct cst_err *err);
int cst_model_operator(struct cst_model *model, const char *name, const uint32_t *tensors,
                       uint32_t n_tensors, struct cst_err *err);

/* Tensor @i in the words that declare it again; they point into @model. */
struct cst_tensor_words cst_model_words(const struct cst_model *model, uint32_t i);

/* Number of the tensor called @name, or UINT32_MAX. O(1). */
uint32_t cst_model_find(const struct cst_model *model, const char *name);

/* CST_OK if tensor @i is declared as @other is; else CST_EMISMATCH, naming the tensor, what differs
 * and both values. @other is one freshly declared into another model; @mine and @theirs say in
 * whose name @other and the model speak ("rank 1", "ranks 0, 2"). Same for operators, whose hints
 * are not compared, and for the ranks of group @i. */
int cst_model_same_tensor(const struct cst_model *model, uint32_t i,
                          const struct cst_layout_tensor *other, const char *mine,
                          const char *theirs, struct cst_err *err);
int cst_model_same_operator(const struct cst_model *model, uint32_t i,
                            const struct cst_layout_operator *other, const char *mine,
                            const char *theirs, struct cst_err *err);
int cst_model_same_group(const struct cst_model *model, uint32_t i, uint64_t other,
                         const char *mine, const char *theirs, struct cst_err *err);

/* The first @n groups of @from, group 0 included, are @model's, which has none but group 0. */
void cst_model_copy_groups(struct cst_model *model, const struct cst_model *from, uint32_t n);

/* Lay @model out; writes chunk, offset, first_tile of its tensors.
 *
 * A chunk's tensors are of one kind: the same ranks, the same pattern, the same size class; and
 * where the pattern is sparse, first used by the same operator. Each kind is packed next-fit in
 * order of first use.
 *
 * With chunk_elems 0 the capacities are chosen among cst_layout_candidates: of those of which the
 * smallest pool holds what further classes need and max(min_blocks, 8) blocks of the first, if
 * there are any, else of those of which it holds all min_blocks: if any loses at most 1.5 % of the
 * parameters (a further class counting as half a percent), the nearest to 8 Mi elements, as a
 * factor; if none does, the one that loses least, then the smaller. Given capacities are rounded up
 * to CST_LAYOUT_CAPACITY_STEP; without class_elems, but max_classes > 1, tensors that are too large
 * get classes with the least waste. Pool 0 counts as all weights and gradients, and is never too
 * small.
 *
 * Frozen tensors that @config's base has too, frozen, with the same name and shape, are where they
 * are there, chunk by chunk.
 *
 * min_blocks: the most blocks that any moment of forward and backward in declared order holds at
 * once: the operator's weights, the gradients that are open (begun and not complete, the operator's
 * own included), and one chunk of weights ahead, of any class, where there is another one; at least
 * 1 of the first class. Operators of sparse tensors may be left out, any of them: a gradient that
 * one of them shares with another operator is taken to be open until the step.
 *
 * CST_EPOOL: "pool of P bytes: n blocks of B bytes, operator 'x' needs m, and i of J bytes: k bytes
 * short (--pool q%)"; a pool of P + k bytes, or of q % of the weights, is accepted. CST_EINVAL:
 * given capacities smaller than a tensor, the first one smaller than all, too large, or not
 * growing; a tensor larger than a chunk may be; a group with ranks beyond the world. CST_ENOMEM. */
int cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                     const struct cst_layout_config *config, struct cst_err *err);

/* @bytes of a pool as a percentage of the bf16 weights of @model, rounded up: what a person types
 * who wants no fewer. */
uint64_t cst_layout_percent(const struct cst_model *model, uint64_t bytes);

/* Bytes of the host that a job with @layout takes beside its pools: arenas and the job's table. */
uint64_t cst_layout_host_bytes(const struct cst_layout *layout);

/* The least `bytes` of @device with which @layout, built with more of them, is the same. 0: it has
 * nothing there. */
uint64_t cst_layout_device_want(const struct cst_layout *layout,
                                const struct cst_layout_device *device);
/* The least `bytes` of @device that hold the states of one chunk, the smallest. 0: no chunk has
 * states. */
uint64_t cst_layout_device_least(const struct cst_layout *layout,
                                 const struct cst_layout_device *device);
void cst_layout_close(struct cst_layout *layout);

#define CST_LAYOUT_MAX_CANDIDATES 200

/* Capacities to choose from. */
struct cst_layout_candidate {
    uint64_t capacity[CST_LAYOUT_MAX_CLASSES]; /* per class; to be given as chunk_elems and
                                                  class_elems */
    uint32_t n_classes;
    uint64_t waste;     /* elements of full chunks less those of tensors */
    uint64_t min_bytes; /* of a pool with min_blocks of each class */
};

/* Capacities that may be good for @model, whatever the pool: at most CST_LAYOUT_MAX_CANDIDATES
 * (fewer for models of more than 80000 tensors and uses), of growing first class, from the largest
 * tensor up to 64 Mi elements or twice that tensor, cut down to what their fullest chunks need.
 * With @config's max_classes > 1 they begin below outliers: where the tensors that fit the first
 * class have a tenth of all elements; those that do not fit get further classes, as many as save
 * half a percent of the parameters each. CST_EINVAL, CST_ENOMEM as cst_layout_build. */
int cst_layout_candidates(const struct cst_model *model, const struct cst_layout_config *config,
                          struct cst_layout_candidate list[CST_LAYOUT_MAX_CANDIDATES],
                          uint32_t *n_out, struct cst_err *err);

#endif
