/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a model: which tensor lies in which chunk at which element, how large a chunk is,
 * how many blocks a pool must have, and where each chunk's rows are in the arenas. Pure; only
 * allocates memory.
 *
 *   operators in order of declaration -> tensors in order of first use
 *     -> packed next-fit into chunks of up to C elements
 *
 * A tensor is never split. Tensors that no operator uses follow at the end, in order of
 * declaration.
 *
 * Not here: which rank holds which block at run time (residency.c), and what is done when
 * (collection.h). */
#ifndef CST_LAYOUT_H
#define CST_LAYOUT_H

#include "offload/layout/tier.h"
#include "proto/patterns.h"
#include "proto/set.h"
#include "cistern/status.h"
#include "proto/table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_LAYOUT_ALIGN_ELEMS 64 /* A tensor starts at a multiple of this: 128 bytes of bf16. */
/* Rows begin at multiples of this many bytes, and have so many. It is no page size: it is part of
 * the places of rows, which are recorded, and is the same on machines with pages of 64 KiB. */
#define CST_LAYOUT_ROW_ALIGN 4096
/* Capacities are multiples of this, so that rows need no padding. */
#define CST_LAYOUT_CAPACITY_STEP 4096
#define CST_LAYOUT_SEGMENT_BYTES                                                                   \
    (256u << 20) /* Maximum size of a segment in memory, unless it has only one row. */
/* The same of a segment in a file on a drive. The daemon has a descriptor for each segment, and the
 * states on drives are many. */
#define CST_LAYOUT_FILE_SEGMENT_BYTES (UINT64_C(4) << 30)
#define CST_LAYOUT_MAX_CHUNK_ELEMS (1u << 30)
#define CST_LAYOUT_MAX_TENSORS 65536 /* Maximum for one job. */
#define CST_LAYOUT_MAX_OPERATORS 65536
#define CST_LAYOUT_MAX_USES 262144 /* Tensors of all operators together. */
#define CST_LAYOUT_NAME_BYTES 256  /* Longest name, including the NUL. */
#define CST_LAYOUT_MAX_CLASSES 4   /* Size classes of chunks. */
#define CST_LAYOUT_MAX_DIMS 8
#define CST_LAYOUT_MAX_WORLD CST_SET_MAX
#define CST_LAYOUT_MAX_ADDENDS 64 /* Contributions that a command of an engine adds at most. */
#define CST_LAYOUT_MAX_GROUPS 256 /* Including group 0, the group of all ranks. */

#define CST_LAYOUT_MAX_PACKED 16 /* Ranges of a dimension that a box has. */

/* The box of a larger tensor that a rank of a tensor-parallel group holds. */
struct cst_layout_box {
    /* Name of the whole tensor, in the same allocation; empty: that of the tensor. It matters only
     * when the job is opened again for other ranks (reshard.h). */
    const char *name;
    int64_t whole[CST_LAYOUT_MAX_DIMS]; /* Shape of the whole tensor. */
    /* Where the box begins in the whole tensor; first + shape <= whole. */
    int64_t first[CST_LAYOUT_MAX_DIMS];
    /* Of each dimension, how many equal parts of the whole tensor, one after the other, the box has
     * a range of, such as a gate and an up projection in one tensor. `first` is that of the first
     * range. 1: the box is one range, or all of the dimension. */
    int64_t packed[CST_LAYOUT_MAX_DIMS];
};

#define CST_LAYOUT_MAX_EXTERNAL 64 /* External names of a tensor. */

/* The tensors of other programs' model files that a tensor consists of: consecutive rows of it or,
 * if transposed, consecutive columns. */
struct cst_layout_external {
    uint32_t n;
    bool transposed;
    int64_t *rows; /* n numbers of rows of the external tensors; in the same allocation. */
    char **names;  /* n names; in the same allocation. */
};

struct cst_layout_tensor {
    char *name; /* Owned by the model. */
    int64_t shape[CST_LAYOUT_MAX_DIMS];
    uint32_t n_dims;
    uint64_t n_elems;  /* Product of shape. */
    float lr_scale;    /* Factor for the learning rate. */
    float decay_scale; /* Factor for the weight decay. */
    /* Number of the parameter group, whose factors can differ from step to step. */
    uint32_t param_group;
    enum cst_tensor_update update; /* With CST_OPTIMIZER_MUON. */
    /* Number of the group of ranks that hold the tensor and sum its gradient. */
    uint32_t group;
    enum cst_pattern_kind pattern;
    enum cst_dtype dtype;
    struct cst_layout_box *box;           /* NULL: the tensor is no box. Owned by the model. */
    struct cst_layout_external *external; /* NULL: none. Owned by the model. */
    uint32_t n_uses;                      /* Number of operators that use the tensor. */
    uint32_t chunk;                       /* Set by cst_layout_build: the tensor's chunk. */
    uint64_t offset; /* Set by cst_layout_build: position in the chunk, in elements. */
    /* Set by cst_layout_build: number of tiles of all tensors with states declared before this
     * one. */
    uint64_t first_tile;
};

#define CST_LAYOUT_MIXED UINT32_MAX

struct cst_layout_operator {
    char *name;        /* Owned by the model. */
    uint32_t *tensors; /* Numbers of its tensors; owned by the model. */
    uint32_t n_tensors;
    /* Group of the ranks that run the operator: those in the groups of all its tensors, at least
     * one. CST_LAYOUT_MIXED: no group has just these; see cst_model_runners. */
    uint32_t group;
    /* Hints about costs, for plans; 0: not given. They are not compared between ranks; those of the
     * first rank are used. */
    double flops; /* Floating-point operations of the forward pass, per micro-batch and rank. */
    /* Bytes kept from the forward to the backward pass, per micro-batch and rank. */
    uint64_t activation_bytes;
    /* Forward passes per micro-batch; 1 unless given. For an expert: the share of micro-batches in
     * which it gets tokens. Values above 1 count as 1. */
    float expected_uses;
    /* For plans of pipelines and of tensor parallelism, per micro-batch and rank: bytes that later
     * operators get, all from this operator, or 0 if the model is not cut after it; and bytes that
     * ranks which divide the operator sum in the forward pass, and again in the backward pass. */
    uint64_t out_bytes, sum_bytes;
    uint32_t stage; /* Number of its stage, from 0, if the model is cut into stages. */
};

/* What the workers declared. Grows while they declare and is constant afterwards. */
struct cst_model {
    struct cst_layout_tensor *tensors;
    uint32_t n_tensors;
    struct cst_layout_operator *operators; /* In the order of the forward pass. */
    uint32_t n_operators;
    /* Ranks of the groups from 1 on. Group 0 is that of all ranks. Owned. */
    struct cst_set *groups;
    uint32_t n_groups;             /* Including group 0: at least 1. */
    struct cst_layout_edge *edges; /* Owned by the model. */
    uint32_t n_edges;
    /* Stages that are begun; 0: the model is not cut into stages. Each has an operator, except
     * perhaps the last one while operators are declared. */
    uint32_t n_stages;
    /* Limit for tensors and for operators: CST_LAYOUT_MAX_TENSORS, unless the owner of the model
     * sets more. The limit for uses is four times as high. */
    uint32_t max_entries;
    uint32_t n_uses;       /* Sum of n_tensors over all operators. */
    uint64_t n_params;     /* Sum of n_elems over all tensors. */
    uint64_t weight_bytes; /* Bytes of the weights of all tensors. */
    /* For model_bytes.h: bytes of the allocations of single tensors and operators, bytes of their
     * packed messages, and number of their names in model files. */
    uint64_t own_bytes, packed_bytes;
    uint32_t n_file_names;
    void *index;    /* Private: index from names to numbers. */
    void *external; /* Private: index of the names in model files. */
};

#define CST_LAYOUT_NO_ROW UINT32_MAX

struct cst_layout_row {
    /* Index into cst_layout.segments. CST_LAYOUT_NO_ROW: the chunk has no such row. */
    uint32_t segment;
    uint64_t offset; /* In bytes; a multiple of CST_LAYOUT_ROW_ALIGN. */
};

#define CST_LAYOUT_OWN UINT32_MAX

struct cst_layout_chunk {
    /* Used elements: a multiple of CST_LAYOUT_ALIGN_ELEMS, at most the capacity. */
    uint64_t n_elems;
    uint32_t first_tensor; /* Index into cst_layout.order. */
    uint32_t n_tensors;
    /* Number of the chunk's first span in the job table. Spans are the tensors with states, in the
     * order of cst_layout.order. */
    uint32_t first_span;
    /* NUMA node, 0..n_nodes - 1, of the rows and of the engine that works on the chunk. */
    uint32_t node;
    struct cst_layout_row rows[CST_ROW_COUNT];
    /* The second weight row or, in a durable job, the row of the weights in a file
     * (cst_layout_files_weights). Segment CST_LAYOUT_NO_ROW: there is none. */
    struct cst_layout_row other_weight;
    bool away; /* The chunk has states, and all of them are on other machines. */
    /* Number of the tier that has the rows master, exp_avg and exp_avg_sq; all other rows are in
     * host memory. */
    uint32_t tier;
    uint32_t n_uses; /* Operator uses of all its tensors, by any rank. */
    /* Ranks in the group of its tensors; none beyond the job's world. One of cst_layout.groups. */
    const struct cst_set *ranks;
    enum cst_pattern_kind pattern; /* Pattern of all its tensors. */
    enum cst_dtype dtype;          /* Type of all its tensors. */
    bool muon;                     /* Muon updates all its tensors; none of other chunks. */
    double muon_flops; /* Floating-point operations of the products of Muon in an update; else 0. */
    /* Index into cst_layout.classes: the class of the blocks that hold the chunk. */
    uint32_t size_class;
    /* Chunk of the base job's layout whose rows this chunk uses. CST_LAYOUT_OWN: the rows are this
     * job's. */
    uint32_t base_chunk;
};

/* False: the chunk is frozen, and has weights only. */
static inline bool cst_layout_has_states(const struct cst_layout_chunk *chunk)
{
    return cst_pattern(chunk->pattern)->has_states;
}

/* Bytes of the chunk's weights, and of its gradient in a block. */
static inline uint64_t cst_layout_weight_bytes(const struct cst_layout_chunk *chunk)
{
    return cst_dtype_bytes(chunk->dtype) * chunk->n_elems;
}

/* False: the rows are the base job's. */
static inline bool cst_layout_is_own(const struct cst_layout_chunk *chunk)
{
    return chunk->base_chunk == CST_LAYOUT_OWN;
}

/* A size class: chunks of one capacity, and the blocks of a pool that hold them. A huge embedding
 * has a class of its own, so that other chunks need no such large blocks. */
struct cst_layout_class {
    /* In bf16 elements; a block has 2 x capacity bytes. An fp32 element takes the memory of two. */
    uint64_t capacity;
    uint32_t n_chunks;
    /* Blocks of this class that the smallest usable pool has, in the rank that needs most. */
    uint32_t min_blocks;
    uint32_t min_operator; /* The operator that needs min_blocks. */
    /* More blocks would never be used: the weights and gradients of all chunks that a rank
     * holds. */
    uint32_t max_blocks;
};

/* Blocks of each class in the pool of one rank. cst_layout_class has the maxima of all ranks. */
struct cst_layout_need {
    uint32_t min_blocks[CST_LAYOUT_MAX_CLASSES];
    uint32_t min_operator[CST_LAYOUT_MAX_CLASSES];
    uint32_t max_blocks[CST_LAYOUT_MAX_CLASSES];
};

struct cst_layout_segment {
    /* Host memory: a multiple of CST_LAYOUT_ROW_ALIGN, at most CST_LAYOUT_SEGMENT_BYTES or the size
     * of its only row. Accelerator memory: a multiple of its grain. */
    uint64_t bytes;
    /* The second place of each row begins so many bytes behind the first one; 0: there is none, as
     * of frozen weights. */
    uint64_t twin;
    uint32_t tier; /* Number of the tier whose memory it is. */
    uint32_t node; /* NUMA node, if it is host memory; else 0. */
    /* The segment is segment base_segment of the base job's layout: another job's memory,
     * read-only. */
    bool is_base;
    uint32_t base_segment;
};

/* The engine that works on the rows of @segment. */
static inline uint32_t cst_layout_segment_engine(const struct cst_layout_segment *segment)
{
    return cst_tier_is_apart(segment->tier) ? segment->tier : segment->node;
}

/* The chunks of one operator, each once, in the order of its tensors. */
struct cst_layout_use {
    uint32_t *chunks;
    uint32_t n_chunks;
};

/* Which rows a chunk with states has, and in which format. */
struct cst_layout_states {
    /* Of a job, or of one chunk: an optimizer of matrices then updates this chunk
     * (cst_layout_states_of). */
    enum cst_optimizer optimizer;
    enum cst_masters masters; /* SPLIT: the master row has 16-bit remainders. */
    enum cst_moments moments; /* Format of the moments. */
    /* There is a second weight row, for early or delayed updates or for readers. */
    bool two_weights;
    /* The gradient of a bf16 tensor uses the weight row, which saves 2 bytes per parameter; see
     * core.h. Not possible with two_weights, fp32 grad rows or split masters. */
    bool grad_over_weight;
    /* Tensors without a gradient in a step are skipped: the job table counts the steps of each. */
    bool skips_unused;
    /* Rows of states that lie apart have two places, which take turns (offload/update/seal.c).
     * What they lack lies there, too (cst_layout_files_weights). Not possible with two_weights. */
    bool durable;
};

/* True if the files of a job with @states have the weights of a chunk of @dtype, which is @trained
 * or frozen: they last, and cannot be made of a row of states. */
static inline bool cst_layout_files_weights(const struct cst_layout_states *states,
                                            enum cst_dtype dtype, bool trained)
{
    return states->durable &&
           (!trained || dtype == CST_FP32 || states->masters == CST_MASTERS_SPLIT);
}

struct cst_job_spec;

/* The rows that a job with the options @spec requires. */
struct cst_layout_states cst_layout_job_states(const struct cst_job_spec *spec);

/* The states of the chunks of a job with @states that Muon updates (@muon), or of the others. */
static inline struct cst_layout_states cst_layout_states_of(const struct cst_layout_states *states,
                                                            bool muon)
{
    struct cst_layout_states of = *states;

    of.optimizer = cst_optimizer_of(of.optimizer, muon);
    return of;
}

/* Bytes of @n_elems elements of row @row (CST_ROW_WEIGHT_OTHER is allowed) of a chunk of @dtype. 0:
 * there is no such row, or the gradient has none of its own. MX8: the result is for whole blocks of
 * CST_MX8_BLOCK elements. It is not the position of element @n_elems: the code of that element is
 * n_elems bytes into the row. */
uint64_t cst_layout_row_bytes(const struct cst_layout_states *states, uint32_t grad_bytes,
                              enum cst_dtype dtype, int row, uint64_t n_elems);

struct cst_layout;

/* The same for a chunk of @layout, with that chunk's optimizer and type. A frozen one has weights
 * alone. */
uint64_t cst_layout_chunk_row_bytes(const struct cst_layout *layout,
                                    const struct cst_layout_chunk *chunk, int row,
                                    uint64_t n_elems);

/* Bytes that the update of one element of a chunk of @dtype reads and writes: 28 with two fp32
 * moments and a bf16 gradient, and with an fp32 tensor. */
double cst_layout_update_bytes(const struct cst_layout_states *states, uint32_t grad_bytes,
                               enum cst_dtype dtype);

/* The chunks whose gradients land (offload/gradient/landing.h). The numbers are those of the
 * ledger.
 */
enum cst_layout_landings {
    CST_LANDINGS_NONE = 0, /* None: no rank computes on an accelerator. */
    /* With fp32 grad rows, those that only one rank holds. */
    CST_LANDINGS_SINGLE = 1,
    /* In addition those of several ranks, because some accelerators of the job cannot access the
     * memory of others. */
    CST_LANDINGS_SHARED = 2,
};

/* The machines of the job. n 0 or 1: there is one. The states of chunk c are on the machines c mod
 * n, c + 1 mod n, ..., of which there are `copies`. */
struct cst_layout_machines {
    uint32_t n, self, copies;
};

/* The machine that has copy @i of the states of @chunk. */
static inline uint32_t cst_layout_keeper(const struct cst_layout_machines *machines, uint32_t chunk,
                                         uint32_t i)
{
    return (chunk % machines->n + i) % machines->n;
}

/* True if this machine has a copy of the states of @chunk. */
static inline bool cst_layout_keeps(const struct cst_layout_machines *machines, uint32_t chunk)
{
    return machines->n <= 1 ||
           (machines->self + machines->n - chunk % machines->n) % machines->n < machines->copies;
}

/* Memory for the sums of rank blocks (offload/base/machines.h) that are on this machine, or come
 * to it from others. */
struct cst_layout_partials {
    uint32_t n_here; /* Rank blocks here; 0 and 1: one. */
    uint32_t n_come; /* Rank blocks on other machines. */
};

#define CST_LAYOUT_PARTIAL_SETS 2 /* One set of landings is filled while the other one is read. */

struct cst_layout {
    uint64_t capacity; /* Capacity of classes[0]. */
    struct cst_layout_class classes[CST_LAYOUT_MAX_CLASSES];
    uint32_t n_classes;
    struct cst_layout_need *needs; /* One for each rank. */
    struct cst_set *groups;        /* Ranks of each group of the model that are in the world. */
    struct cst_layout_chunk *chunks;
    uint32_t n_chunks;
    uint32_t *order;             /* Numbers of all n_tensors tensors, chunk by chunk. */
    struct cst_layout_use *uses; /* One for each operator. */
    struct cst_layout_segment *segments;
    uint32_t n_segments;
    /* n_landings per node, each as large as the largest gradient of one of the node's chunks that
     * uses landings. Segment CST_LAYOUT_NO_ROW: no chunk of the node uses them. NULL: no chunk
     * does. */
    struct cst_layout_row *landings;
    uint32_t n_landings; /* CST_LAYOUT_LANDINGS per contribution of a sum; 0: there are none. */
    enum cst_layout_landings lands;      /* As configured. */
    struct cst_layout_machines machines; /* As configured. */
    struct cst_layout_partials partials; /* As configured. */
    /* Of chunk c, the sum of rank block b > 0 that is here at c x (partials.n_here - 1) + b - 1:
     * as large as the chunk's grad row, which has the sum of rank block 0. Segment
     * CST_LAYOUT_NO_ROW: the chunk is frozen. NULL: there is one rank block. */
    struct cst_layout_row *partial_rows;
    /* Landings of partials from other machines: of set s of node n at ((n x
     * CST_LAYOUT_PARTIAL_SETS) + s) x partials.n_come, each as large as the largest grad row of the
     * node whose chunk has states here. Segment CST_LAYOUT_NO_ROW: the node has no such chunk.
     * NULL: partials.n_come is 0. */
    struct cst_layout_row *partial_landings;
    /* Per node: scratch for updates by Muon, each in a segment of its own. Segment
     * CST_LAYOUT_NO_ROW: Muon updates no chunk of the node. NULL: it updates no chunk. */
    struct cst_layout_row *scratches;
    /* Bytes of a scratch for all chunks that Muon updates, a multiple of CST_LAYOUT_ROW_ALIGN; 0:
     * there is none. */
    uint64_t scratch_bytes;
    uint64_t arena_bytes;  /* Sum of the segments in host memory, without those of the base job. */
    uint64_t device_bytes; /* Sum of the segments on accelerators. */
    uint64_t n_tiles;      /* Tiles of all tensors with states. */
    uint32_t n_spans;      /* Number of tensors with states. */
    /* Bytes of an element of the grad rows of bf16 tensors: 2 or 4. Those of fp32 tensors: 4. */
    uint32_t grad_bytes;
    struct cst_layout_states states; /* As configured. */
};

/* True if the chunk's states may stay in a tier that is apart. The master weights of fp32 tensors
 * are the weights, which all ranks fetch from host memory: only files have them in addition. */
static inline bool cst_layout_states_may_leave(const struct cst_layout *layout,
                                               const struct cst_layout_chunk *chunk)
{
    return cst_layout_has_states(chunk) && cst_layout_is_own(chunk) &&
           (chunk->dtype != CST_FP32 || layout->states.durable);
}

/* The end of the rows that lie where the states of a chunk do. The first one is CST_ROW_MASTER. */
static inline int cst_layout_rows_apart(const struct cst_layout *layout)
{
    return layout->states.durable ? CST_ROW_WEIGHT_OTHER + 1 : CST_ROW_COUNT;
}

/* The place of row @row of @chunk; CST_ROW_WEIGHT_OTHER is allowed. */
static inline const struct cst_layout_row *cst_layout_row(const struct cst_layout_chunk *chunk,
                                                          int row)
{
    return row == CST_ROW_WEIGHT_OTHER ? &chunk->other_weight : &chunk->rows[row];
}

/* Bytes of the chunk's gradient row, also if it has none of its own. */
static inline uint64_t cst_layout_grad_bytes(const struct cst_layout *layout,
                                             const struct cst_layout_chunk *chunk)
{
    return (chunk->dtype == CST_FP32 ? 4 : layout->grad_bytes) * chunk->n_elems;
}

/* True if the gradient of the chunk uses its weight row. The weights of an fp32 tensor cannot be
 * made from master weights again. */
static inline bool cst_layout_grad_over_weight(const struct cst_layout *layout,
                                               const struct cst_layout_chunk *chunk)
{
    return layout->states.grad_over_weight && chunk->dtype != CST_FP32;
}

/* True if an update of the chunk reads the weight row, which is (a part of) the master weights. */
static inline bool cst_layout_reads_weights(const struct cst_layout *layout,
                                            const struct cst_layout_chunk *chunk)
{
    return layout->states.masters == CST_MASTERS_SPLIT || chunk->dtype == CST_FP32;
}

/* Return the bytes of an element of the grad rows of bf16 tensors in a job of @world ranks: 4,
 * fp32, if a sum is made by several commands, so that it is rounded to bf16 by none of them;
 * else 2. */
static inline uint32_t cst_layout_grad_elem_bytes(uint32_t world, uint32_t micro_batches)
{
    return micro_batches > 1 || world > CST_LAYOUT_MAX_ADDENDS ? 4 : 2;
}

#define CST_LAYOUT_LANDINGS 2 /* One landing is filled while the other is read. */
#define CST_LAYOUT_MAX_DEVICES 8
/* Values of struct cst_layout_device: as many bytes as all states need; those of the buffers of a
 * drive (cst_buffers_drives), where all devices with this value have the same `bytes`. */
#define CST_LAYOUT_ALL (UINT64_C(1) << 60)
#define CST_LAYOUT_BUFFERS UINT64_MAX

/* The part of each of @n drives in the @bytes for states on all of them; 0: all states. */
static inline uint64_t cst_layout_drive_bytes(uint64_t bytes, uint32_t n)
{
    return bytes == 0 ? CST_LAYOUT_ALL : bytes / n;
}

/* Memory of an accelerator, or a file on a drive, for states that stay there. */
struct cst_layout_device {
    uint32_t engine; /* Engine of the accelerator, n_nodes or more. */
    uint64_t bytes;  /* Maximum number of bytes to use. */
    uint64_t grain;  /* Segments are multiples of this; 0: CST_LAYOUT_ROW_ALIGN. */
    /* Size of the device reservation (cst_core_device_reservation). Chunks that do not fit its
     * buffers have their states in host memory. */
    uint64_t reservation_bytes;
    /* The buffers are in host memory, where states are converted: they can have any format. */
    bool in_host;
};

struct cst_layout_config {
    uint64_t chunk_elems; /* Capacity of the first class; 0: to be chosen. */
    uint64_t pool_bytes;  /* Size of the smallest pool among the ranks; 0: unlimited. */
    uint32_t n_nodes;     /* Number of NUMA nodes, at least 1. */
    uint32_t world;       /* Number of ranks; 0: 1. */
    /* By rank, 1 + the node that is nearest to its accelerator; 0: no node is. A chunk whose ranks
     * are all near to one node is there, if each node is near to a rank, and as long as no node has
     * more than its share of the bytes. All other chunks are dealt evenly. */
    uint32_t near_node[CST_LAYOUT_MAX_WORLD];
    /* Bytes of an element of the grad rows of bf16 tensors: 2 or 0 (bf16), or 4 (fp32, for
     * micro-batches). */
    uint32_t grad_bytes;
    /* All fields 0: AdamW, fp32 moments, 16 bytes per parameter. */
    struct cst_layout_states states;
    /* With chunk_elems: capacities of further classes, ascending, terminated by 0. All 0: to be
     * chosen. */
    uint64_t class_elems[CST_LAYOUT_MAX_CLASSES];
    /* Maximum number of classes to choose; 0 and 1: one class, which holds everything. */
    uint32_t max_classes;
    /* Accelerators for states, each engine once. The states of the last chunks go there, of as many
     * as fit. Only with fp32 moments. */
    struct cst_layout_device devices[CST_LAYOUT_MAX_DEVICES];
    enum cst_layout_landings landings;
    struct cst_layout_machines machines;
    struct cst_layout_partials partials;
    uint32_t n_devices; /* Number of devices. */
    /* Model of the base job, whose frozen tensors are shared; NULL: there is no base job. Set
     * together with `base`. Borrowed during the call. */
    const struct cst_model *base_model;
    const struct cst_layout *base;
};

/* Initialise an empty model with group 0, all ranks. cst_model_close frees all declarations. */
void cst_model_init(struct cst_model *model);
void cst_model_close(struct cst_model *model);

/* Make *out the set of the @n ranks in @ranks. CST_EINVAL: a rank is not less than @world, or
 * occurs twice; the words name @group, the number of the group. */
int cst_model_ranks(uint32_t group, const uint32_t *ranks, size_t n, uint32_t world,
                    struct cst_set *out, struct cst_err *err);

/* Declare a group of ranks. Its number is the value of n_groups before the call. CST_EINVAL: no
 * ranks, or too many groups. CST_ENOMEM. */
int cst_model_group(struct cst_model *model, struct cst_set ranks, struct cst_err *err);

/* Return the ranks of group @group, which was declared or is 0: all numbers, also beyond the
 * world. */
static inline struct cst_set cst_model_group_ranks(const struct cst_model *model, uint32_t group)
{
    return group == 0 ? cst_set_range(0, CST_SET_MAX) : model->groups[group - 1];
}

/* Return the ranks that run operator @op of @model. Can contain ranks beyond the world. */
struct cst_set cst_model_runners(const struct cst_model *model,
                                 const struct cst_layout_operator *op);

/* True if @rank runs operator @op of @model. */
bool cst_model_runs(const struct cst_model *model, const struct cst_layout_operator *op,
                    uint32_t rank);

/* Everything that a declaration says about a tensor. */
struct cst_tensor_words {
    const char *name;
    const int64_t *shape; /* n_dims numbers. */
    uint32_t n_dims;
    float lr_scale;
    float decay_scale;
    uint32_t param_group;
    uint32_t update;        /* enum cst_tensor_update. */
    uint32_t group;         /* Number of a declared group; 0: all ranks. */
    uint32_t pattern;       /* enum cst_pattern_kind. */
    uint32_t dtype;         /* enum cst_dtype; 0: CST_BF16. */
    const char *whole_name; /* Name of the whole tensor; NULL: `name`, or there is no box. */
    /* n_dims numbers: shape of the whole tensor; NULL: there is no box. */
    const int64_t *whole;
    /* n_dims numbers: where the box begins; NULL: there is no box. */
    const int64_t *first;
    /* n_dims numbers: the ranges of the box (cst_layout_box); NULL: one of each dimension. */
    const int64_t *packed;
    const char *const *external_names; /* n_external names in model files; as external_rows. */
    const int64_t *external_rows; /* NULL, if n_external is 1: the external tensor has all rows. */
    uint32_t n_external;
    bool transposed; /* The external tensors are columns of the tensor, as rows. */
};

/* Declare a tensor. Its number is the value of n_tensors before the call. The model is unchanged on
 * failure. Statuses:
 *
 *   - CST_EINVAL: a name that is empty, too long or not printable; no dimensions, or more than 8; a
 *     dimension < 1; more than 2^40 elements; a factor that is not finite; an unknown group,
 *     pattern, type or update; CST_TENSOR_UPDATE_MUON without matrices; a box that is missing, not
 *     wanted, or not within the whole tensor, or whose ranges do not divide it; too many tensors;
 * external tensors that do not have all rows; a whole_name that is no name, or without a box.
 *   - CST_EEXIST: the name, or the name in model files, is in use.
 *   - CST_ENOMEM. */
int cst_model_tensor(struct cst_model *model, const struct cst_tensor_words *words,
                     struct cst_err *err);

/* What is known about an operator's cost; the hints in cst_layout_operator. */
struct cst_operator_hints {
    double flops;
    uint64_t activation_bytes;
    float expected_uses; /* 0 means 1. */
    uint64_t out_bytes, sum_bytes;
};

#define CST_LAYOUT_MAX_STAGES 64

/* Begin a stage of @model: the operators that are declared from now on are in it. Its number is the
 * value of n_stages before the call. CST_EINVAL: operators were declared before the first stage,
 * the last stage has no operator yet, or there are too many stages. */
int cst_model_stage(struct cst_model *model, struct cst_err *err);

/* CST_EINVAL: the last stage has no operator yet. */
int cst_model_check_stage(const struct cst_model *model, struct cst_err *err);

/* Declare an operator over declared tensors. @hints may be NULL. Statuses:
 *
 *   - CST_EINVAL: an unknown tensor, a tensor named twice, no tensors, a bad name, no rank that
 *     holds all tensors, hints that are negative or not finite, too many operators or uses.
 *   - CST_EEXIST: the name is in use.
 *   - CST_ENOMEM. */
int cst_model_operator(struct cst_model *model, const char *name, const uint32_t *tensors,
                       uint32_t n_tensors, const struct cst_operator_hints *hints,
                       struct cst_err *err);

/* The declaration of tensor @i. Its pointers point into @model. */
struct cst_tensor_words cst_model_words(const struct cst_model *model, uint32_t i);

/* Number of the tensor with the name @name, or UINT32_MAX. O(1). */
uint32_t cst_model_find(const struct cst_model *model, const char *name);

/* CST_OK if tensor @i is declared like @other, which was declared into another model. Else
 * CST_EMISMATCH, with the tensor, the difference and both values in the message. @mine and @theirs
 * name the declarers of @other and of the model ("rank 1", "ranks 0, 2"). The other two functions
 * do this for operators, without hints, and for the ranks of group @i. */
int cst_model_same_tensor(const struct cst_model *model, uint32_t i,
                          const struct cst_layout_tensor *other, const char *mine,
                          const char *theirs, struct cst_err *err);
int cst_model_same_operator(const struct cst_model *model, uint32_t i,
                            const struct cst_layout_operator *other, const char *mine,
                            const char *theirs, struct cst_err *err);
int cst_model_same_group(const struct cst_model *model, uint32_t i, struct cst_set other,
                         const char *mine, const char *theirs, struct cst_err *err);

/* Numbers of groups, without the predefined group 0, of edges, of tensors and of operators. */
struct cst_model_extent {
    uint32_t n_groups, n_edges, n_tensors, n_operators;
};

/* Remove the last declarations of @model, so that those of *@much remain. No tensor that remains is
 * of a group that is removed. Takes as long as the declarations that are removed have taken.
 * CST_EINVAL: an operator that remains uses a tensor that is to be removed; only operators, or
 * none, were removed. */
int cst_model_forget(struct cst_model *model, const struct cst_model_extent *much,
                     struct cst_err *err);

/* Copy the first @n groups of @from, including group 0, to @model, which must only have group 0.
 * CST_ENOMEM. */
int cst_model_copy_groups(struct cst_model *model, const struct cst_model *from, uint32_t n);

/* Lay out @model: fill *layout, and chunk, offset and first_tile of the model's tensors. The caller
 * closes the layout with cst_layout_close.
 *
 * Packing. All tensors of a chunk have the same ranks, pattern, type and size class, and Muon
 * updates all of them or none. With a sparse pattern they are also first used by the same operator.
 * Each kind is packed next-fit in order of first use.
 *
 * Capacities, if chunk_elems is 0: they are chosen among those of cst_capacities_open. Candidates
 * for which the smallest pool holds the further classes' min_blocks and max(min_blocks, 8) blocks
 * of the first class go before candidates for which it only holds all min_blocks. Among these, if
 * any candidate loses at most 1.5 % of the parameters (a further class counts as half a percent),
 * the capacity nearest to 8 Mi elements, as a factor, is taken. If none does, the one that loses
 * least is taken, then the smaller one. With pool_bytes 0 the pool counts as large enough for all
 * weights and gradients, and is never too small.
 *
 * Capacities that are given are rounded up to CST_LAYOUT_CAPACITY_STEP. Without class_elems, but
 * with max_classes > 1, tensors that are too large for the first class get the further classes with
 * the least waste.
 *
 * Base job. Frozen tensors that @config's base also has, frozen, with the same name, shape,
 * box and type, use the rows of the base, chunk by chunk.
 *
 * min_blocks is the maximum number of blocks that are used at once in forward and backward passes
 * in declared order: the operator's weights, the open gradients (begun and not complete, including
 * the operator's own), and one more chunk of weights of each class, if there is one, to fetch
 * ahead. It is at least 1 in the first class. A gradient is complete when the operators of all
 * ranks that hold its chunk have contributed: that of an embedding which the first and the last
 * stage of a pipeline share waits in the last stage until the first one has run. Operators of
 * sparse tensors may be left out, and ranks may hold tensors that they do not use: a gradient for
 * which such an operator and another one, or such a rank, count is open until the end of the
 * micro-batch.
 *
 * Statuses:
 *
 *   - CST_EPOOL: "pool of P bytes: n blocks of B bytes, operator 'x' needs m, and i of J bytes: k
 *     bytes short; a pool of P + k bytes, q% of the job's weights, is enough". A pool of that size
 *     is accepted.
 *   - CST_EINVAL: given capacities smaller than the largest tensor, a first one smaller than the
 *     smallest tensor, too large, or not ascending; a tensor larger than the maximum of a chunk; a
 *     group with ranks beyond the world; a part of a matrix that Muon would update; a contradiction
 *     in @config.
 *   - CST_ENOMEM. */
int cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                     const struct cst_layout_config *config, struct cst_err *err);

/* @bytes of a pool as a percentage of the weights of @model, rounded up, for the option --pool of
 * the commands. The argument `pool` of Python takes a percentage of the weights of the rank alone,
 * which is another one if ranks have parts of the model. */
uint64_t cst_layout_percent(const struct cst_model *model, uint64_t bytes);

/* Bytes of host memory that a job with @layout takes in addition to its pools: arenas and job
 * table. */
uint64_t cst_layout_host_bytes(const struct cst_layout *layout);

/* The least `bytes` of @device with which @layout, which was built with more, would be the same. 0:
 * the layout has nothing on the device. */
uint64_t cst_layout_device_want(const struct cst_layout *layout,
                                const struct cst_layout_device *device);
/* The least `bytes` of @device that hold the states of the smallest chunk. 0: no chunk has
 * states. */
uint64_t cst_layout_device_least(const struct cst_layout *layout,
                                 const struct cst_layout_device *device);
/* Free the layout's arrays. A zeroed layout is allowed. */
void cst_layout_close(struct cst_layout *layout);

/* Fill in the sizes and offsets of the header of the job table of a job with @layout. */
void cst_layout_size_table(const struct cst_layout *layout, struct cst_table_header *header);

#endif
