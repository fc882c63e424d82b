/* SPDX-License-Identifier: Apache-2.0 */
/* Division of a device reservation, an accelerator's memory for updates. Pure.
 *
 *   buffer 0                                       buffer 1   buffer 2   kept gradients
 *   | in:  grad, master, exp_avg, exp_avg_sq    |  | ...      | ...      | 0 | 1 | ...
 *   | out: weight, master, exp_avg, exp_avg_sq  |
 *   | scratch                                   |
 *
 * A buffer serves the update of one chunk at a time: the chunk's states are copied to `in`, updated
 * from there into `out`, and copied back. Each row has space for that of the largest chunk of any
 * type that fits. fp32 tensors have no master row; the weights are read instead. If Muon updates
 * chunks, each buffer has a scratch for its products, as large as that of a node. With three
 * buffers one chunk is copied up while another one is updated and a third one is copied down. The
 * rest of the device reservation holds gradients, which then need not be copied up again. */
#ifndef CST_BUFFERS_H
#define CST_BUFFERS_H

#include "offload/layout/layout.h"

#define CST_BUFFERS_MAX 3

struct cst_buffers {
    /* Offset in a buffer of each row that is read, in bytes. WEIGHT is used only if the weights are
     * (a part of) the master weights. */
    uint64_t in[CST_ROW_COUNT];
    /* Offset in a buffer of each row that is written, in bytes; GRAD is not used. */
    uint64_t out[CST_ROW_COUNT];
    uint64_t scratch; /* Offset in a buffer of the scratch, in bytes. */
    /* Size of the scratch. 0: a buffer has none, and takes no chunk that Muon updates. */
    uint64_t scratch_bytes;
    uint64_t bytes; /* Size of a buffer. */
    /* Number of buffers, 0..CST_BUFFERS_MAX; 0: the device reservation is too small for any
     * chunk. */
    uint32_t n;
    /* Bytes of the weights of the largest chunk that fits a buffer, or more. */
    uint64_t max_weight_bytes;
    /* Offset in the device reservation of the first kept gradient, in bytes. */
    uint64_t kept_first;
    uint64_t kept_bytes; /* Size of the place of a kept gradient. */
    /* Number of gradients that can be kept. */
    uint32_t n_kept;
};

/* True if @chunk is updated, there are buffers, and one holds its rows. */
bool cst_buffers_hold(const struct cst_buffers *buffers, const struct cst_layout_chunk *chunk);

/* Divide @reservation_bytes into one, two or three buffers of one size for the chunks of @layout
 * with states. More buffers overlap more copies and updates. Larger buffers take larger chunks; a
 * chunk that is larger than a buffer is never updated in the device reservation. The number is
 * chosen that takes the most elements per time: three buffers only if they fit chunks with two
 * thirds of the elements that fit two. The rest keeps gradients. *buffers has n = 0 if no chunk
 * fits. */
void cst_buffers_divide(struct cst_buffers *buffers, const struct cst_layout *layout,
                        uint64_t reservation_bytes);

/* Lay out a buffer that consists of blocks of @block_bytes, for all chunks whose weights fit a
 * block. Each row begins at a block, and takes one or two of them; a row of two begins at an even
 * block. The offsets count the blocks of the buffer in order, and `bytes` is a multiple of two
 * blocks. The buffer has no scratch, which would need more adjacent blocks than a pool has; chunks
 * that Muon updates do not fit. The caller sets `n`. `bytes` is 0 if there is no chunk that fits.
 * No gradients are kept. */
void cst_buffers_of_blocks(struct cst_buffers *buffers, const struct cst_layout *layout,
                           uint64_t block_bytes);

/* Bytes of three buffers for the largest chunk with states of the first @n_classes size classes. 0:
 * they have no chunk with states. */
uint64_t cst_buffers_want(const struct cst_layout *layout, uint32_t n_classes);
/* Buffers of host memory in which states on drives are updated. */
struct cst_buffers_drives {
    uint64_t bytes;      /* Of the buffers of one drive. */
    uint64_t fit_bytes;  /* Of the states that may leave and fit the buffers. */
    uint64_t stay_bytes; /* Of those that may leave and do not fit: they stay in host memory. */
    uint32_t n_stay;     /* Number of their chunks. */
};

/* Choose the buffers of each of @n drives, which have at most @bytes of states each: three for the
 * largest chunk of the first size classes. How many classes is chosen so that host memory is
 * smallest: the states of a large tensor stay there if buffers of its size for each drive would
 * take more than they do. If host memory is smallest without drives, or if the job is durable, the
 * buffers hold all chunks. Pure. */
void cst_buffers_drives(struct cst_buffers_drives *out, const struct cst_layout *layout, uint32_t n,
                        uint64_t bytes);
/* Bytes of one buffer for the smallest chunk: the smallest useful device reservation. 0: no chunk
 * has states. */
uint64_t cst_buffers_least(const struct cst_layout *layout);

#endif
