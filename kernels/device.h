/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine's device can do: one table of twelve operations, all required, called through the
 * functions below, which check bounds and alignment first. A row per kind of device (kernels/host/,
 * kernels/cuda/); a program is linked with one. Nothing above this table knows which row it drives.
 * Which thread runs what, and when, is not decided here: a call returns when its work is done.
 *
 * A device works on host memory, which is mapped from a memfd, and may have memory of its own,
 * which only its copies, fills and sums reach. */
#ifndef CST_DEVICE_H
#define CST_DEVICE_H

#include "kernels/cpus.h"
#include "kernels/pace.h"
#include "kernels/tile.h"
#include "cistern/status.h"

struct cst_device;

/* A segment as a device sees it. */
struct cst_mem {
    void *base;      /* host memory: where it is, page-aligned; NULL: it is none, or not mapped */
    uint64_t device; /* the device's own memory: its address there; 0: it is none, or not mapped */
    uint64_t bytes;  /* length */
    bool locked;     /* host memory: cst_device_lock succeeded */
};

/* A stretch of memory, within bounds only after a check. */
struct cst_addr {
    const struct cst_mem *mem; /* borrowed */
    uint64_t offset;           /* bytes from its start */
};

enum cst_device_conversion {
    CST_CONVERT_STATES, /* fp32 values -> master, bf16 -> weight, zeros -> moments */
    CST_CONVERT_WEIGHT, /* fp32 values -> bf16 */
    CST_CONVERT_ENCODE, /* fp32 values -> elements of a moments row */
    CST_CONVERT_DECODE, /* elements of a moments row -> fp32 values */
};

#define CST_CONVERT_MAX_DST 4

/* CONVERT, or a part of it: all of it host memory, but for weights that are made alone. Places of
 * values, master and weight are those of the first element that is converted; a moments row's is
 * that of its first element, of which [first, first + n_elems) are. */
struct cst_device_convert {
    enum cst_device_conversion what;
    struct cst_addr src;                      /* values; DECODE: the row */
    struct cst_addr dst[CST_CONVERT_MAX_DST]; /* STATES: master, weight, moments' rows; WEIGHT:
                                                 bf16; ENCODE: the row; DECODE: values */
    uint32_t n_dst;                           /* how many of them: STATES 3 or 4, else 1 */
    uint64_t n_elems;                         /* that are converted */
    enum cst_moments moments;                 /* format of the moments' rows */
    enum cst_row row;                         /* ENCODE, DECODE: which one it is */
    uint64_t first, row_elems; /* elements of such a row; of MX8 both begin and end of the range may
                                  lie within a block */
};

/* UPDATE: where each row begins, in whichever memory. A row that is not needed has no memory. */
struct cst_device_update {
    const struct cst_tile_work *work; /* the chunk; its kernels and rows are the device's affair */
    const struct cst_tile_hyper *hyper; /* before a span's scales */
    uint64_t row_elems;                 /* of each row */
    struct cst_addr in[CST_ROW_COUNT]; /* read: GRAD, but with n_src; MASTER, EXP_AVG, EXP_AVG_SQ */
    struct cst_addr out[CST_ROW_COUNT]; /* written: WEIGHT, MASTER, EXP_AVG, EXP_AVG_SQ */
    const struct cst_addr *src;         /* contributions that are summed in the same pass */
    uint32_t n_src;                     /* 0: the gradient is a row */
    bool guard;                         /* a tile whose gradients are beyond proto/limit.h stays */
};

/* Are states changed where they are? Then marks are kept, and undo slots are used. */
static inline bool cst_device_is_in_place(const struct cst_device_update *update)
{
    return update->in[CST_ROW_MASTER].mem == update->out[CST_ROW_MASTER].mem &&
           update->in[CST_ROW_MASTER].offset == update->out[CST_ROW_MASTER].offset;
}

/* What opening one takes. Threads that call are numbered: the compute team first, then the lanes.
 */
struct cst_device_spec {
    const struct cst_cpus *cpus; /* borrowed for the life of the device */
    const char *id;              /* which device: a GPU's UUID; NULL: there is one only */
    unsigned n_team;             /* threads [0, n_team): all operations */
    unsigned n_threads;          /* threads [n_team, n_threads): not reduce and update */
    struct cst_pace_spec pace;   /* rates to keep */
};

/* What is known of an open one. For people; constant while it is open. */
struct cst_device_about {
    const char *isa;      /* of its kernels: "avx512", "sm_90" */
    const char *name;     /* "NVIDIA H200"; NULL: the host */
    uint64_t bytes;       /* memory of its own */
    uint64_t granularity; /* of which pieces of that are multiples, bytes; 0: it has none */
    uint32_t driver;      /* version, 12040 for 12.4; 0: none */
};

/* A crew of lanes for each kind of traffic that a device can have at the same time. */
enum cst_device_lane {
    CST_LANE_UP,   /* copies to it or within; fills */
    CST_LANE_DOWN, /* copies from it to the host */
    CST_LANE_MAP,  /* segments' ways in and out */
    CST_LANES,
};

/* Same as the wrappers below, after their checks. @state is what open made. */
struct cst_device_ops {
    const char *name;     /* "host" */
    bool one_crew;        /* the lanes are one crew, not one for each kind of traffic */
    bool always_locks;    /* host memory is locked, whether the daemon asks for it or not */
    unsigned max_team;    /* threads of the compute team, at most */
    unsigned max_lanes;   /* threads in a crew of lanes, chosen at most */
    uint64_t piece_bytes; /* of a copy, that a thread does at a time */
    uint64_t max_tiles;   /* of a chunk, same */
    int (*open)(void **state, const struct cst_device_spec *spec, struct cst_device_about *about,
                struct cst_err *err);
    void (*close)(void *state);
    int (*map)(void *state, int fd, int node, struct cst_mem *mem, struct cst_err *note,
               struct cst_err *err);
    int (*import)(void *state, unsigned thread, int *fd, struct cst_mem *mem, struct cst_err *err);
    void (*unmap)(void *state, struct cst_mem *mem);
    int (*populate)(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                    struct cst_err *err);
    int (*lock)(void *state, const struct cst_mem *mem, struct cst_err *err);
    int (*copy)(void *state, unsigned thread, struct cst_addr dst, struct cst_addr src,
                uint64_t bytes, struct cst_err *err);
    int (*fill)(void *state, unsigned thread, struct cst_addr dst, uint64_t bytes,
                struct cst_err *err);
    int (*convert)(void *state, unsigned thread, const struct cst_device_convert *convert,
                   struct cst_err *err);
    int (*reduce)(void *state, unsigned thread, const struct cst_tile_work *work, uint32_t n_src,
                  const struct cst_addr *src, uint64_t first, uint64_t count,
                  struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err);
    int (*update)(void *state, unsigned thread, const struct cst_device_update *update,
                  uint64_t first, uint64_t count, struct cst_undo_slot *undo,
                  struct cst_tile_done *done, struct cst_err *err);
};

struct cst_device {
    const struct cst_device_ops *ops; /* the row */
    void *state;                      /* the row's own */
    struct cst_device_about about;    /* what opening it told */
};

/* Open a device of row @ops. CST_EUNSUPPORTED: not on this machine; CST_ENOTFOUND: no device has
 * spec->id; CST_ENOMEM; CST_EGPU: see below. */
int cst_device_open(struct cst_device *device, const struct cst_device_ops *ops,
                    const struct cst_device_spec *spec, struct cst_err *err);

/* No call may be under way and nothing may be mapped. */
void cst_device_close(struct cst_device *device);

/* All that follows: any thread, several at a time, unless it says otherwise; where there is a
 * @thread, it is the caller's number, and no two callers have the same. Beside what each of them
 * says: CST_EGPU: the device has failed, nothing that it was doing can be trusted to be done, and
 * only another process can go on; CST_EUNSUPPORTED: it is none of this device's operations. */

/* Map mem->bytes of the memfd @fd (checked by cst_segments_check_fd), bound to NUMA node @node
 * before the first touch (-1: no matter where). @note is set where that could not be had (status 0:
 * it could); it is not fatal. CST_ENOMEM: no address space. */
int cst_device_map(struct cst_device *device, int fd, int node, struct cst_mem *mem,
                   struct cst_err *note, struct cst_err *err);

/* Map mem->bytes of a device's memory, to stay at one address until unmap. *fd: its handle, which
 * stays the caller's; -1: make the memory, zeroed, on this device, and *fd is a new handle of it,
 * which keeps it in being for as long as it is open anywhere. CST_ENOMEM: the device has no more,
 * with the numbers; CST_EINVAL: no multiple of the granularity, or no such handle. May take long.
 */
int cst_device_import(struct cst_device *device, unsigned thread, int *fd, struct cst_mem *mem,
                      struct cst_err *err);

/* Undo cst_device_map (and lock) or cst_device_import; a no-op on memory that is not mapped. Nobody
 * uses @mem any more. */
void cst_device_unmap(struct cst_device *device, struct cst_mem *mem);

/* Back and touch [@offset, @offset + @bytes) of @mem, host memory that is mapped from @fd; what it
 * holds stays. A device that leaves that to the host's does nothing. CST_ENOMEM: the machine has no
 * more, with the numbers; CST_EINVAL: bounds. */
int cst_device_populate(struct cst_device *device, int fd, const struct cst_mem *mem,
                        uint64_t offset, uint64_t bytes, struct cst_err *err);

/* Keep @mem, host memory, from being paged out, as the device needs it to copy at its full speed:
 * all of it or nothing. CST_EDENIED, CST_ENOMEM: not allowed to, or over a limit; it can be used as
 * it is. */
int cst_device_lock(struct cst_device *device, struct cst_mem *mem, struct cst_err *err);

/* Whose copy from @src to @dst is. */
enum cst_device_lane cst_device_lane(const struct cst_mem *dst, const struct cst_mem *src);

/* @dst := @src, @bytes of them, which do not overlap. CST_EINVAL: bounds. */
int cst_device_copy(struct cst_device *device, unsigned thread, struct cst_addr dst,
                    struct cst_addr src, uint64_t bytes, struct cst_err *err);

/* @dst := 0. CST_EINVAL: bounds. */
int cst_device_fill(struct cst_device *device, unsigned thread, struct cst_addr dst, uint64_t bytes,
                    struct cst_err *err);

/* Nothing that is written overlaps what is read. CST_EINVAL: bounds, alignment, a format that there
 * is not, memory that is not the host's (but for what WEIGHT writes). */
int cst_device_convert(struct cst_device *device, unsigned thread,
                       const struct cst_device_convert *convert, struct cst_err *err);

/* Where @rows (of @n_elems elements, in formats that @header says) are mapped; NULL where there is
 * none, or it is no host memory. */
void cst_device_rows(struct cst_rows *out, const struct cst_table_header *header,
                     const struct cst_addr rows[CST_ROW_COUNT], uint64_t n_elems);

/* Sum the gradients of tiles [@first, @first + @count) of a chunk that was checked
 * (kernels/chunk.h), whose grad row is host memory; as cst_tile_reduce_range. Each of @src is where
 * a source's row starts, in whichever memory. @undo is the calling thread's own slot; work->kernels
 * is the device's affair. *done: what it did, also when it fails; tiles that it did not do do
 * not carry the mark. CST_EINVAL: more than CST_TILE_MAX_SRC sources, mark 0,
 * a row missing, or an addition to a bf16 row. */
int cst_device_reduce(struct cst_device *device, unsigned thread, const struct cst_tile_work *work,
                      uint32_t n_src, const struct cst_addr *src, uint64_t first, uint64_t count,
                      struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err);

/* Same for updates, as cst_tile_update_range. Tiles that were not done carry no mark, or, where
 * states are not changed in place, are done again with all others. CST_EINVAL: too many sources,
 * mark 0, bounds, alignment, a row missing, or memory in which this device does not update. */
int cst_device_update(struct cst_device *device, unsigned thread,
                      const struct cst_device_update *update, uint64_t first, uint64_t count,
                      struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err);

#endif
