/* What an engine's device can do: one table of twelve operations, all required, called through the
 * functions below, which check bounds and alignment first. A row per kind of device (kernels/host/;
 * CUDA has an issue of its own). Nothing above this table knows which row it drives. Which thread
 * runs what, and when, is not decided here: a call returns when its work is done. */
#ifndef CST_DEVICE_H
#define CST_DEVICE_H

#include "kernels/cpus.h"
#include "kernels/tile.h"
#include "proto/status.h"

struct cst_device;

/* A segment as a device sees it. */
struct cst_mem {
    void *base;     /* page-aligned; NULL: not mapped. The processor can read a table's */
    uint64_t bytes; /* length */
};

/* A stretch of memory, within bounds only after a check. */
struct cst_addr {
    const struct cst_mem *mem; /* borrowed */
    uint64_t offset;           /* bytes from its base */
};

/* CONVERT: where the fp32 values are and the rows that they become. Pointers to n_elems elements
 * each. */
struct cst_device_states {
    const float *src;  /* values */
    float *master;     /* := src */
    uint16_t *weight;  /* := bf16(src) */
    float *exp_avg;    /* := 0 */
    float *exp_avg_sq; /* := 0 */
};

/* Same as the wrappers below, with addresses in place of bounds. @state is what open made. */
struct cst_device_ops {
    const char *name; /* "host" */
    int (*open)(void **state, const struct cst_cpus *cpus, const char **isa, struct cst_err *err);
    void (*close)(void *state);
    int (*map)(void *state, int fd, uint64_t bytes, int node, void **base, struct cst_err *note,
               struct cst_err *err);
    void (*unmap)(void *state, void *base, uint64_t bytes);
    int (*populate)(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                    struct cst_err *err);
    int (*lock)(void *state, void *base, uint64_t bytes, struct cst_err *err);
    int (*copy)(void *state, void *dst, const void *src, uint64_t bytes, struct cst_err *err);
    int (*fill)(void *state, void *dst, uint64_t bytes, struct cst_err *err);
    int (*convert)(void *state, const struct cst_device_states *states, uint64_t n_elems,
                   struct cst_err *err);
    int (*reduce)(void *state, const struct cst_tile_work *work, uint32_t n_src,
                  const uint16_t *const *src, uint64_t first, uint64_t count,
                  struct cst_undo_slot *undo, struct cst_err *err);
    int (*update)(void *state, const struct cst_tile_work *work, const struct cst_tile_hyper *hyper,
                  uint64_t first, uint64_t count, struct cst_undo_slot *undo, struct cst_err *err);
    int (*restore)(void *state, struct cst_undo_slot *undo, const struct cst_tile_work *work,
                   uint64_t chunk_elems, struct cst_err *err);
};

struct cst_device {
    const struct cst_device_ops *ops; /* the row */
    void *state;                      /* the row's own */
    const char *isa;                  /* of its kernels, for people; constant */
};

/* The row called @name, or NULL. */
const struct cst_device_ops *cst_device_find(const char *name);

/* Open a device of row @ops on the node that @cpus (borrowed) describes. CST_EUNSUPPORTED: not on
 * this machine; CST_ENOMEM. */
int cst_device_open(struct cst_device *device, const struct cst_device_ops *ops,
                    const struct cst_cpus *cpus, struct cst_err *err);

/* No call may be under way and nothing may be mapped. */
void cst_device_close(struct cst_device *device);

/* All that follows: any thread, several at a time, unless it says otherwise. */

/* Map @bytes of @fd (checked by cst_segments_check_fd), bound to NUMA node @node before the first
 * touch (-1: no matter where). @note is set where that could not be had (status 0: it could); it is
 * not fatal. CST_ENOMEM: no address space. */
int cst_device_map(struct cst_device *device, int fd, uint64_t bytes, int node, struct cst_mem *mem,
                   struct cst_err *note, struct cst_err *err);

/* Undo cst_device_map; a no-op on memory that is not mapped. Nobody uses @mem any more. */
void cst_device_unmap(struct cst_device *device, struct cst_mem *mem);

/* Back and touch [@offset, @offset + @bytes) of @mem, which is mapped from @fd; what it holds
 * stays. CST_ENOMEM: the machine has no more, with the numbers; CST_EINVAL: bounds. */
int cst_device_populate(struct cst_device *device, int fd, const struct cst_mem *mem,
                        uint64_t offset, uint64_t bytes, struct cst_err *err);

/* Keep @mem from being paged out. CST_EDENIED: not allowed to, or over the limit. */
int cst_device_lock(struct cst_device *device, const struct cst_mem *mem, struct cst_err *err);

/* @dst := @src, @bytes of them, which do not overlap. CST_EINVAL: bounds. */
int cst_device_copy(struct cst_device *device, struct cst_addr dst, struct cst_addr src,
                    uint64_t bytes, struct cst_err *err);

/* @dst := 0. CST_EINVAL: bounds. */
int cst_device_fill(struct cst_device *device, struct cst_addr dst, uint64_t bytes,
                    struct cst_err *err);

/* @n_elems fp32 values at @src become states: dst[0] master, dst[1] weight (bf16), dst[2] and
 * dst[3] moments of zero. Nothing overlaps. CST_EINVAL: bounds or alignment. */
int cst_device_convert(struct cst_device *device, struct cst_addr src, const struct cst_addr dst[4],
                       uint64_t n_elems, struct cst_err *err);

/* Reduce or update tiles [@first, @first + @count) of a chunk that was checked (kernels/chunk.h);
 * as cst_tile_reduce_range and cst_tile_update_range. @undo is the calling thread's own slot.
 * work->kernels is the device's affair. CST_EINVAL: more than CST_TILE_MAX_SRC sources, mark 0, or
 * a row missing. */
int cst_device_reduce(struct cst_device *device, const struct cst_tile_work *work, uint32_t n_src,
                      const uint16_t *const *src, uint64_t first, uint64_t count,
                      struct cst_undo_slot *undo, struct cst_err *err);
int cst_device_update(struct cst_device *device, const struct cst_tile_work *work,
                      const struct cst_tile_hyper *hyper, uint64_t first, uint64_t count,
                      struct cst_undo_slot *undo, struct cst_err *err);

/* Make whole the tile that @undo holds: cst_undo_restore. One thread, before any reduce or update.
 * CST_EINVAL: the slot cannot be right. */
int cst_device_restore(struct cst_device *device, struct cst_undo_slot *undo,
                       const struct cst_tile_work *work, uint64_t chunk_elems, struct cst_err *err);

#endif
