/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of the engine have under way on a GPU. Each thread has a stream and
 * CSTE_GPU_WINDOW flights. A flight is one call of the device table: its operations on the stream,
 * an event behind them, the buffers that they use, and what the processor does after the event.
 * Flights of a thread end in the order in which they began.
 *
 *   free --take, operations enqueued, depart--> departed --land: event reached, end called--> free
 *
 * A flight departs once for each batch of its call. All batches but the last one land before the
 * call returns; cste_gpu_finish lands the last one. Only the thread itself uses its flights. */
#ifndef CST_CUDA_FLIGHT_H
#define CST_CUDA_FLIGHT_H

#include "kernels/cuda/gpu.h"

/* Number of flights of a thread. While one is waited for, the next ones are enqueued. */
#define CSTE_GPU_WINDOW 4
/* Bytes of a copy that are one flight. The pieces that a thread enqueues ahead delay a copy that is
 * more urgent; a window of them takes about 0.3 ms on a link of 50 GB/s. */
#define CSTE_GPU_PIECE_BYTES (4u << 20)
/* Number of fp32 values that are cast at a time. */
#define CSTE_GPU_CAST_ELEMS (1u << 18)
/* Number of tiles that are summed or updated in one flight. */
#define CSTE_GPU_STAGING_TILES 512
#define CSTE_GPU_STAGING_ELEMS ((uint64_t)CSTE_GPU_STAGING_TILES * CST_TILE_ELEMS)

/* Staging buffers of a reduction or an update, with one layout on the device and on the host
 * (pinned):
 *
 *   +---------------------------+-------------------------+----------------------+
 *   | rows[STAGING_ELEMS], bf16 | tiles[STAGING_TILES]    | sums[STAGING_TILES]  |
 *   +---------------------------+-------------------------+----------------------+ */
struct cste_gpu_staging {
    struct cste_mem device; /* Buffer on the GPU. */
    struct cste_mem host;   /* Pinned host buffer. */
    struct cst_tile *batch; /* The tiles in the buffer; room for CSTE_GPU_STAGING_TILES. */
};

#define CSTE_GPU_STAGING_TILES_AT (CSTE_GPU_STAGING_ELEMS * sizeof(uint16_t))
#define CSTE_GPU_STAGING_SUMS_AT                                                                   \
    (CSTE_GPU_STAGING_TILES_AT + CSTE_GPU_STAGING_TILES * sizeof(struct cst_cuda_tile))
#define CSTE_GPU_STAGING_BYTES (CSTE_GPU_STAGING_SUMS_AT + CSTE_GPU_STAGING_TILES * sizeof(double))

/* Tiles of a reduction that are staged together. Elements [base, end) of the chunk's rows contain
 * them. */
struct cste_gpu_batch {
    uint32_t n;    /* Number of tiles in the list of the staging buffers. */
    uint64_t base; /* First element, a multiple of 64. */
    uint64_t end;
};

/* A copy to host memory that is not registered: from the pinned buffer of its flight. */
struct cste_gpu_store {
    void *to;
    uint64_t bytes;
};

struct cste_gpu_flight;

/* The part of a flight that the processor does after the event. Work done is added to @done. */
typedef void (*cste_gpu_end_fn)(struct cste_gpu *gpu, struct cste_gpu_flight *flight,
                                struct cst_tile_done *done);

/* A reduction in a flight, for reduction.c. All pointers are borrowed from the call. */
struct cste_gpu_reduction {
    const struct cst_tile_work *work;
    uint32_t n_src;             /* Number of sources. */
    uint64_t max_elems;         /* Largest number of elements of each row in a batch. */
    struct cst_undo_slot *undo; /* Slot of the thread. */
    struct cste_mem row_mem;    /* Memory of the grad row, up to the end of what is written. */
    uint64_t row_offset;        /* Offset of the grad row in row_mem, in bytes. */
    bool staged; /* The gradients reach the row through the staging buffers, and not by the GPU's
                    copy. */
    struct cste_gpu_batch batch;      /* Batch that is under way. */
    const void *at[CST_TILE_MAX_SRC]; /* Starts of the source rows for the processor. */
};

/* A flight. */
struct cste_gpu_flight {
    CUevent event;              /* Reached when all operations of the flight are done. */
    bool departed;              /* The event is recorded and the flight has not landed. */
    cste_gpu_end_fn end;        /* Called when the flight lands. NULL: nothing is left to do. */
    struct cst_tile_done tally; /* What the GPU does; added when the flight lands. */
    struct cste_gpu_staging staging; /* Buffers. Only threads of the team have them. */
    /* Pinned host buffer of at least CSTE_GPU_PIECE_BYTES. Threads of the team use that of
     * `staging`; others allocate it when cste_gpu_pin is called. */
    struct cste_mem pinned;
    struct cste_gpu_store store;         /* Set by copies to memory that is not registered. */
    struct cste_gpu_reduction reduction; /* Set by reductions. */
};

/* A thread of the engine. */
struct cste_gpu_thread {
    CUstream stream;     /* Stream of its operations. NULL: not created yet. */
    CUdeviceptr staging; /* Device memory of the staging buffers of all flights. 0: none. */
    void *pinned;        /* Pinned host memory of all flights. NULL: none. */
    bool cannot_pin;     /* The driver refused that memory. */
    /* Buffer for fp32 values that are cast. All flights use it in turn, because the stream orders
     * their operations. 0: not allocated yet. */
    CUdeviceptr values;
    struct cste_gpu_flight flights[CSTE_GPU_WINDOW];
    unsigned oldest;      /* Index of the oldest call that is under way. */
    unsigned n_under_way; /* Number of calls that are under way. */
    bool lost;            /* A wait failed. What later flights have done is not known either. */
};

/* Open and close the threads of @gpu. The context is current. CST_ENOMEM, CST_EGPU. */
int cste_gpu_open_threads(struct cste_gpu *gpu, struct cst_err *err);
void cste_gpu_close_threads(struct cste_gpu *gpu);

/* Returns the stream of thread @thread. */
CUstream cste_gpu_stream(const struct cste_gpu *gpu, unsigned thread);

/* Allocate the pinned buffers of the flights of @thread, unless it has them. Returns false if the
 * driver refuses, now or before. The context is current. */
bool cste_gpu_pin(struct cste_gpu *gpu, unsigned thread);

/* Returns the next free flight of @thread, for a call that begins. The caller of the device sees to
 * it that there is one. */
struct cste_gpu_flight *cste_gpu_take_flight(struct cste_gpu *gpu, unsigned thread);

/* Record the event of @flight behind the operations that were enqueued. @rc and @err are the result
 * of enqueuing. On failure of this or of that, wait until nothing of the thread is on the stream
 * any more, and return the status. */
int cste_gpu_depart(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight, int rc,
                    struct cst_err *err);

/* If @flight has departed, wait for its event and let the processor do the rest. Work done is added
 * to @done. CST_EGPU: waiting failed, for whatever reason; the GPU may still access memory that the
 * owner would take back. */
int cste_gpu_land(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight,
                  struct cst_tile_done *done, struct cst_err *err);

/* End a call that took a flight, with the result @rc. If it is CST_OK, the call counts as under way
 * until cste_gpu_finish. Returns @rc. */
int cste_gpu_leave_under_way(struct cste_gpu *gpu, unsigned thread, int rc);

/* The function `finish` of the device table. */
int cste_gpu_finish(void *state, unsigned thread, struct cst_tile_done *done, struct cst_err *err);

/* Wait for all work on the stream of thread @thread. @rc and @err are the result of enqueuing the
 * work. If the wait succeeds, nothing is on the stream any more and @rc is returned with @err
 * unchanged. CST_EGPU as for cste_gpu_land. */
int cste_gpu_settle(struct cste_gpu *gpu, unsigned thread, int rc, struct cst_err *err);

#endif
