/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of an engine's device: a table of functions that move bytes, and one of functions
 * that compute, which a device that only copies does not have. The tables are called through the
 * functions below, which check bounds and alignment first. There are such tables for each kind of
 * device (kernels/host/, kernels/cuda/), and a program is linked with one kind. The code above this
 * interface does not know which device it drives. This module does not decide which thread runs
 * what and when. A device may leave copies, fills, conversions, sums, updates and products under
 * way when it returns (cste_device_finish); all other work is done at return.
 *
 * A device works on host memory, which is mapped from a memfd. A device may also have memory of its
 * own, which only the device's copies, fills, sums, updates, products and weight conversions reach.
 */
#ifndef CST_DEVICE_H
#define CST_DEVICE_H

#include "kernels/engine/cpus.h"
#include "kernels/engine/network.h"
#include "kernels/engine/rate_limit.h"
#include "kernels/math/tile.h"
#include "cistern/status.h"

struct cste_device;

/* The memory of a segment as a device sees it. */
struct cste_mem {
    /* Host memory: its page-aligned address. NULL: the segment is no host memory, or is not
     * mapped. */
    void *base;
    /* Memory of a device: its address on the device. 0: the segment is no device memory, or is not
     * mapped. */
    uint64_t device;
    uint64_t bytes; /* Length in bytes. */
    /* Memory that is a range of a file (in_files): the first byte of the range. */
    uint64_t file_offset;
    /* Memory that is a range of a file: the range is new, and has not been populated. */
    bool fresh;
    bool locked; /* Host memory: cste_device_lock has succeeded. */
    bool sparse; /* Host memory: pages are missing, and are locked when they are first used. */
    bool served; /* Host memory: other machines may read it. */
    uint32_t id; /* Id of the segment, by which other machines name it. */
    /* Memory of another machine: its number, and the segment's id there, which is never 0. */
    uint32_t machine, id_there;
};

/* An address in the memory of a segment. Bounds must be checked before the address is used. */
struct cste_addr {
    const struct cste_mem *mem; /* The memory; borrowed. NULL where a row is not needed. */
    uint64_t offset;            /* Bytes from the start of the memory. */
};

/* Kinds of conversions. */
enum cste_device_conversion {
    /* fp32 or bf16 values to master weights, bf16 weights (not of fp32 tensors), and zeroed
     * moments, if there are any */
    CSTE_CONVERT_STATES,
    CSTE_CONVERT_WEIGHT, /* fp32 values to bf16, or to weights of split masters */
    CSTE_CONVERT_ENCODE, /* fp32 values to elements of a moments row */
    CSTE_CONVERT_DECODE, /* elements of a moments row to fp32 values */
    CSTE_CONVERT_JOIN,   /* split master weights to fp32 values */
};

#define CSTE_CONVERT_MAX_DST (2 + CST_MAX_MOMENTS)

/* A conversion or a part of one. All memory is host memory, except that the destination of
 * CSTE_CONVERT_WEIGHT may be device memory. The addresses of values, master weights and weights are
 * those of the first converted element. The address of a moments row is the start of the whole row,
 * of which elements [first, first + n_elems) are converted. */
struct cste_device_convert {
    enum cste_device_conversion what;
    /* fp32 values. CSTE_CONVERT_DECODE: the moments row. JOIN: the weights. */
    struct cste_addr src;
    struct cste_addr remainder; /* JOIN: the remainders. Otherwise without memory. */
    bool from_bf16;             /* STATES, WEIGHT with `split`: the values are bf16. */
    /* STATES: the master weights are split; the row has remainders. WEIGHT: the same weights,
     * without remainders, in host memory. */
    bool split;
    bool fp32; /* STATES of fp32 tensors: there are no weights besides. */
    /* Destinations. STATES: master, weight (not with fp32), and rows of moments. WEIGHT:
     * bf16 weights. ENCODE: the moments row. DECODE and JOIN: fp32 values. */
    struct cste_addr dst[CSTE_CONVERT_MAX_DST];
    /* Number of destinations: for STATES as many as that, otherwise 1. */
    uint32_t n_dst;
    uint64_t n_elems;         /* Number of elements to convert. */
    enum cst_moments moments; /* Format of the moments rows. */
    /* ENCODE and DECODE: which moments row is converted. */
    enum cst_row row;
    /* First converted element, and number of elements of the whole moments row. With MX8 both ends
     * of the range may lie within a block. */
    uint64_t first, row_elems;
};

/* An UPDATE command: where each row begins, in host or device memory. A row that is not needed has
 * no memory (mem is NULL). */
struct cste_device_update {
    const struct cst_tile_work *work; /* The chunk. The device supplies kernels and rows itself. */
    /* Hyper-parameters before the scales of a span are applied. */
    const struct cst_tile_hyper *hyper;
    uint64_t row_elems; /* Number of elements of each row. */
    /* Rows that are read: GRAD (only if n_src is 0), MASTER and the moments; with split
     * masters also WEIGHT, and of fp32 tensors WEIGHT instead of MASTER. In place, the weights may
     * be read from another row than the one written. */
    struct cste_addr in[CST_ROW_COUNT];
    /* Rows that are written: WEIGHT, MASTER (not of fp32 tensors) and the moments. */
    struct cste_addr out[CST_ROW_COUNT];
    /* Contributions that are summed in the pass of the update; borrowed. */
    const struct cste_addr *src;
    uint32_t n_src; /* Number of contributions. 0: the gradient is in a row. */
    /* Leave the states of a tile unchanged if its gradients exceed proto/grad_limit.h. */
    bool guard;
};

/* Returns the bytes of an element in the master row of a conversion to states. */
static inline uint64_t cste_convert_master_bytes(const struct cste_device_convert *convert)
{
    return convert->split ? sizeof(int16_t) : sizeof(float);
}

/* Returns the number of the first moments row among the destinations of a conversion
 * to states. */
static inline uint32_t cste_convert_first_moment(const struct cste_device_convert *convert)
{
    return convert->fp32 ? 1 : 2;
}

/* Returns the bytes of an element of the values that a conversion reads. */
static inline uint64_t cste_convert_src_bytes(const struct cste_device_convert *convert)
{
    return convert->from_bf16 || convert->what == CSTE_CONVERT_JOIN ? sizeof(uint16_t)
                                                                    : sizeof(float);
}

/* Returns the address of @addr, which is host memory. */
static inline void *cste_addr_host(struct cste_addr addr)
{
    return (char *)addr.mem->base + addr.offset;
}

/* Returns @addr moved forward by @bytes. */
static inline struct cste_addr cste_addr_ahead(struct cste_addr addr, uint64_t bytes)
{
    return (struct cste_addr){.mem = addr.mem, .offset = addr.offset + bytes};
}

/* Returns whether the states are updated in place. An update in place stores marks and uses undo
 * slots. All optimizers have a moment. */
static inline bool cste_device_is_in_place(const struct cste_device_update *update)
{
    return update->in[CST_ROW_MOMENT].mem == update->out[CST_ROW_MOMENT].mem &&
           update->in[CST_ROW_MOMENT].offset == update->out[CST_ROW_MOMENT].offset;
}

/* Arguments for opening a device. Calling threads are numbered: the compute team first, then the
 * lanes. */
struct cste_device_spec {
    /* Processors of the engine; borrowed for the life of the device. */
    const struct cste_cpus *cpus;
    /* Which device to open, for example the UUID of a GPU. NULL: there is only one. */
    const char *id;
    unsigned n_team; /* Threads [0, n_team) may call all operations. */
    /* Threads [n_team, n_threads) may call all operations except reduce, update and
     * orthogonalise. */
    unsigned n_threads;
    struct cste_rate_limit_spec pace; /* Rates that the device keeps. */
    /* Seconds after which a system call of a drive is late; 0: never. */
    uint32_t call_limit_s;
    const struct cste_net_spec *net; /* Of a network; borrowed for the call. NULL: no network. */
    /* Report one line to people. Any thread. NULL: nobody is told. */
    void (*warn)(const struct cst_err *what);
};

/* Description of an open device, for reports to people. Constant while the device is open. */
struct cste_device_about {
    const char *isa;  /* Instruction set of the kernels, such as "avx512" or "sm_90". */
    const char *name; /* Name of the device, such as "NVIDIA H200". NULL: the host. */
    uint64_t bytes;   /* Size of the device's own memory in bytes. */
    /* Allocations of device memory are multiples of this many bytes. 0: there is no device
     * memory. */
    uint64_t granularity;
    uint32_t driver; /* Driver version, such as 12040 for 12.4. 0: there is no driver. */
    /* Where other machines reach the device. end.address NULL: they do not. */
    struct cste_net_end end;
};

/* Kinds of traffic that a device can carry at the same time. Each kind has a thread pool of lanes
 * (threads that copy). */
enum cste_device_lane {
    CSTE_LANE_UP,   /* copies to the device or within one side, and fills */
    CSTE_LANE_DOWN, /* copies from the device to the host */
    CSTE_LANE_MAP,  /* mapping and unmapping of segments */
    CSTE_LANES,
};

/* The tables of a device. Each function has the contract of the wrapper below that has its name.
 * The wrapper has checked the arguments. @state was set by open.
 *
 * What moves bytes. Every device has it. */
struct cste_memory_ops {
    /* All lanes form one thread pool, instead of one thread pool for each kind of traffic. */
    bool one_pool;
    bool always_locks; /* Host memory is always locked, whether the daemon asks for it or not. */
    /* The device's memory is ranges of files, into which zeros are written if they are to be
     * populated. False: it is made as a whole, and has nothing to populate. */
    bool in_files;
    /* Largest number of threads in a thread pool of lanes if the engine chooses the number. */
    unsigned max_lanes;
    uint64_t piece_bytes; /* Bytes of a copy that a thread does at a time. */
    int (*map)(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
               struct cst_err *err);
    int (*import)(void *state, unsigned thread, int *fd, struct cste_mem *mem, struct cst_err *err);
    void (*unmap)(void *state, struct cste_mem *mem);
    int (*populate)(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                    struct cst_err *err);
    int (*lock)(void *state, const struct cste_mem *mem, struct cst_err *err);
    int (*copy)(void *state, unsigned thread, struct cste_addr dst, struct cste_addr src,
                uint64_t bytes, struct cst_err *err);
    int (*fill)(void *state, unsigned thread, struct cste_addr dst, uint64_t bytes,
                struct cst_err *err);
    /* NULL: the device's memory does not outlive the machine's power. */
    int (*flush)(void *state, unsigned thread, const struct cste_mem *mem, struct cst_err *err);
    /* NULL: no call of the device can be late. */
    int (*check)(void *state, unsigned *thread, struct cst_err *err);
};

/* What computes. */
struct cste_compute_ops {
    unsigned max_team;  /* Largest number of threads of the compute team. */
    uint64_t max_tiles; /* Tiles of a chunk that a thread does at a time, at most. */
    /* Pieces of a phase of Muon (kernels/math/muon.h) that a thread does at a time, at most. */
    uint64_t max_products;
    int (*convert)(void *state, unsigned thread, const struct cste_device_convert *convert,
                   struct cst_err *err);
    int (*reduce)(void *state, unsigned thread, const struct cst_tile_work *work, uint32_t n_src,
                  const struct cste_addr *src, uint64_t first, uint64_t count,
                  struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err);
    int (*update)(void *state, unsigned thread, const struct cste_device_update *update,
                  uint64_t first, uint64_t count, struct cst_undo_slot *undo,
                  struct cst_tile_done *done, struct cst_err *err);
    int (*orthogonalise)(void *state, unsigned thread, const struct cste_device_update *update,
                         unsigned phase, uint64_t first, uint64_t count, struct cst_err *err);
};

/* What a device that reaches other machines has besides. Loop thread. */
struct cste_peer_ops {
    int (*add)(void *state, const struct cste_peer_spec *spec, struct cst_err *err);
    int (*drop)(void *state, uint32_t machine, const char *cause, struct cst_err *err);
    void (*count)(void *state, void (*each)(const struct cste_peer_traffic *traffic, void *arg),
                  void *arg);
};

struct cste_device_ops {
    const char *name; /* Name of the kind of device, such as "host". */
    /* Number of calls that a thread may have under way, at most CSTE_THREAD_POOL_MAX_WINDOW. 0:
     * every call returns when its work is done, and there is no function `finish`. */
    unsigned window;
    int (*open)(void **state, const struct cste_device_spec *spec, struct cste_device_about *about,
                struct cst_err *err);
    void (*close)(void *state);
    int (*finish)(void *state, unsigned thread, struct cst_tile_done *done, struct cst_err *err);
    const struct cste_memory_ops *memory;
    const struct cste_compute_ops *compute; /* NULL: the device only copies and fills. */
    const struct cste_peer_ops *peers;      /* NULL: the device reaches no other machines. */
};

/* Returns the largest number of threads of the compute team. A device that only copies has one,
 * which has nothing to do. */
static inline unsigned cste_device_max_team(const struct cste_device_ops *ops)
{
    return ops->compute != NULL ? ops->compute->max_team : 1;
}

/* An open device. */
struct cste_device {
    const struct cste_device_ops *ops; /* Table of the device. */
    void *state;                       /* State of the table's functions. */
    struct cste_device_about about;    /* Description that open returned. */
};

/* Open a device with table @ops. CST_EUNSUPPORTED: this machine does not support the device;
 * CST_ENOTFOUND: there is no device spec->id; CST_ENOMEM; CST_EGPU: see below. */
int cste_device_open(struct cste_device *device, const struct cste_device_ops *ops,
                     const struct cste_device_spec *spec, struct cst_err *err);

/* Close the device. No call may be under way and nothing may be mapped. */
void cste_device_close(struct cste_device *device);

/* Rules for all functions below. Any thread may call them, several at a time, unless a function
 * says otherwise. @thread is the number of the caller; no two callers share a number. In addition
 * to the statuses of each function:
 * - CST_EGPU: the device has failed. No operation that the device was doing can be relied on, and
 *   only a new process can go on.
 * - CST_EUNSUPPORTED: this device does not support the operation, or only copies.
 *
 * A successful call of copy, fill, convert, reduce, update or orthogonalise may return while its
 * work is under way. The thread then ends the work with cste_device_finish: one call for each
 * successful call, in the same order. Until then, the memory and all arguments that are passed by
 * address stay as they are, except for the errors, `done`, and struct cste_device_convert, which is
 * copied. A failed call leaves nothing under way. */

/* Wait for the oldest call of @thread that is under way, and end it: only now its results are in
 * memory and its tiles are marked. *done receives what was done since the call returned. If
 * ops->window is 0, no call is ever under way, and the function does nothing. */
int cste_device_finish(struct cste_device *device, unsigned thread, struct cst_tile_done *done,
                       struct cst_err *err);

/* Check that no thread has been in a call of the device's for longer than spec.call_limit_s.
 * CST_ETIMEDOUT: one has; *thread is its number, or UINT32_MAX if it copies and fills nothing. The
 * thread may never come back, nor the process end. */
int cste_device_check_late(struct cste_device *device, unsigned *thread, struct cst_err *err);

/* CST_EUNSUPPORTED: the device only copies. */
int cste_device_check_computes(const struct cste_device *device, struct cst_err *err);

/* Map mem->bytes of the memfd @fd, which cste_segments_check_fd has checked. Other machines may
 * read it from then on if mem->served is set. @node: NUMA node to which the memory is bound before
 * its first touch; -1: any node. If binding fails, the call succeeds and @note describes the
 * failure; otherwise note->status is 0. CST_ENOMEM: no address space is left. */
int cste_device_map(struct cste_device *device, int fd, int node, struct cste_mem *mem,
                    struct cst_err *note, struct cst_err *err);

/* Map mem->bytes of device memory at an address that stays fixed until unmap. *fd is the handle of
 * the memory and stays the caller's. If *fd is -1, the call creates zeroed memory on this device
 * and sets *fd to a new handle, owned by the caller; the memory exists as long as a handle is open
 * or a mapping exists. May take long. If the device's memory is in files, *fd is a file, of which
 * the memory is the range that begins at mem->file_offset. With mem->fresh, space is taken for the
 * range, and the caller fills it with zeros and then clears mem->fresh. Memory of another machine
 * (mem->id_there) has no handle, and *fd is -1. CST_ENOMEM: the device has
 * too little memory; the message gives the numbers. CST_EINVAL: the size is not a multiple of the
 * granularity, or *fd is not a handle, or no file that the device can use. CST_EIO: the file system
 * failed. */
int cste_device_import(struct cste_device *device, unsigned thread, int *fd, struct cste_mem *mem,
                       struct cst_err *err);

/* Undo cste_device_map (and cste_device_lock) or cste_device_import. Memory that is not mapped is
 * left alone. A file that was extended for memory which is still fresh gives the space back. Nobody
 * uses @mem any more. */
void cste_device_unmap(struct cste_device *device, struct cste_mem *mem);

/* Allocate and touch the pages of [@offset, @offset + @bytes) of @mem, which is host memory mapped
 * from @fd. The content is kept. A device that leaves populating to the host's engines does
 * nothing. CST_ENOMEM: the machine has too little memory; the message gives the numbers.
 * CST_EINVAL: bounds. */
int cste_device_populate(struct cste_device *device, int fd, const struct cste_mem *mem,
                         uint64_t offset, uint64_t bytes, struct cst_err *err);

/* Keep the pages of @mem, which is host memory, from being swapped out. A device may need locked
 * memory to copy at full speed. Either all of @mem is locked or none of it. CST_EDENIED,
 * CST_ENOMEM: locking is not permitted or exceeds a limit; the memory can be used unlocked. */
int cste_device_lock(struct cste_device *device, struct cste_mem *mem, struct cst_err *err);

/* Returns the lane for a copy from @src to @dst. */
enum cste_device_lane cste_device_lane(const struct cste_mem *dst, const struct cste_mem *src);

/* Copy @bytes from @src to @dst. The two must not overlap. CST_EINVAL: bounds, or @dst is memory of
 * another machine. CST_EIO: a file could not be read or written, and the message names it; or bytes
 * of another machine came damaged each time. CST_ELOST: the other machine does not answer or was
 * dropped. CST_ENOTFOUND: it has no such segment. CST_ENOMEM: no space, or no memory for a buffer.
 */
int cste_device_copy(struct cste_device *device, unsigned thread, struct cste_addr dst,
                     struct cste_addr src, uint64_t bytes, struct cst_err *err);

/* Fill @bytes at @dst with zeros. Statuses as of a copy. */
int cste_device_fill(struct cste_device *device, unsigned thread, struct cste_addr dst,
                     uint64_t bytes, struct cst_err *err);

/* Make all that was written to the file of @mem last when the power is lost. CST_EUNSUPPORTED: @mem
 * is in no file. CST_EIO: the file system failed, and what was written may be lost. */
int cste_device_flush(struct cste_device *device, unsigned thread, const struct cste_mem *mem,
                      struct cst_err *err);

/* CST_EUNSUPPORTED: the device reaches no other machines. */
int cste_device_check_peers(const struct cste_device *device, struct cst_err *err);

/* Let the machine of @spec read here, and read from it. Nothing is sent yet. CST_EVERSION: it has
 * another transport or version; CST_EEXIST: the machine is a peer already; CST_EINVAL: it is this
 * machine, or a token of zeros, or it should have a certificate; CST_ENOMEM. Loop thread. */
int cste_device_add_peer(struct cste_device *device, const struct cste_peer_spec *spec,
                         struct cst_err *err);

/* Drop peer @machine: its reads end, and copies from it end soon with CST_ELOST and @cause.
 * CST_ENOTFOUND: it is no peer. Loop thread. */
int cste_device_drop_peer(struct cste_device *device, uint32_t machine, const char *cause,
                          struct cst_err *err);

/* Call @each with what went to and from each machine that is or was a peer, and @arg. */
void cste_device_count_peers(struct cste_device *device,
                             void (*each)(const struct cste_peer_traffic *traffic, void *arg),
                             void *arg);

/* Run a conversion. What is written must not overlap what is read. CST_EINVAL: bounds, alignment,
 * an unknown format, or memory that is not host memory (allowed only for the destination of
 * WEIGHT). */
int cste_device_convert(struct cste_device *device, unsigned thread,
                        const struct cste_device_convert *convert, struct cst_err *err);

/* Fill @out with the host addresses of @rows, which have @n_elems elements in the formats of the
 * chunk of @work. The address is NULL if a row has no memory or is not in host memory. */
void cste_device_rows(struct cst_rows *out, const struct cst_tile_work *work,
                      const struct cste_addr rows[CST_ROW_COUNT], uint64_t n_elems);

/* Sum the gradients of tiles [@first, @first + @count) of a checked chunk (kernels/engine/chunk.h)
 * whose grad row is host memory, as cst_tile_reduce_range does. Each of @src is the start of a
 * source row in host or device memory. @undo is the slot of the calling thread. The device chooses
 * its kernels and ignores work->kernels. *done receives what was done before the call returned,
 * also on failure; tiles that were not done do not carry the mark. CST_EINVAL: more than
 * CST_TILE_MAX_SRC sources, an invalid mark, a missing row, or an addition to a bf16 row. */
int cste_device_reduce(struct cste_device *device, unsigned thread,
                       const struct cst_tile_work *work, uint32_t n_src,
                       const struct cste_addr *src, uint64_t first, uint64_t count,
                       struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err);

/* Update tiles [@first, @first + @count) of a chunk, as cst_tile_update_range does. In place, tiles
 * that were not done carry no mark. Out of place there are no marks, and a repeated command does
 * all tiles again. The other rules are those of cste_device_reduce. CST_EINVAL: too many sources,
 * an invalid mark, bounds, alignment, a missing row, or memory in which this device does not
 * update. */
int cste_device_update(struct cste_device *device, unsigned thread,
                       const struct cste_device_update *update, uint64_t first, uint64_t count,
                       struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err);

/* Prepare an update by Muon: do the pieces [@first, @first + @count) of @phase of the batch
 * update->work->batch, which was checked (kernels/math/muon.h). In CST_MUON_DIRECTIONS these are
 * tiles of the chunk. All rows are host memory. CST_EINVAL: a row is not in host memory.
 * CST_ENOMEM. */
int cste_device_orthogonalise(struct cste_device *device, unsigned thread,
                              const struct cste_device_update *update, unsigned phase,
                              uint64_t first, uint64_t count, struct cst_err *err);

#endif
