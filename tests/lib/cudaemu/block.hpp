// SPDX-License-Identifier: Apache-2.0
/* A block of threads on the processor: fibers, barriers, the warp's collectives. What cudaemu.hpp
 * and mma.hpp are made of; kernels do not include it.
 *
 *   fresh --first run--> running --barrier, collective--> waiting --all are there--> ready -->
 * running --> done
 *
 * A thread keeps the fiber on which it first waits until it is done; threads that never wait share
 * one. When nobody is ready or fresh and somebody waits, the kernel is broken: it is named with who
 * waits where, and the process ends. */
#ifndef CST_CUDAEMU_BLOCK_HPP
#define CST_CUDAEMU_BLOCK_HPP

#include "tests/lib/cudaemu/cudaemu.h"

#include <stddef.h>
#include <string.h>
#include <utility>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

namespace cudaemu
{

static const unsigned WARP = 32;
static const unsigned MAX_THREADS = 1024;      /* of a block */
static const unsigned MAX_SHARED = 227 * 1024; /* bytes that a block may ask for on sm_90 */
static const size_t MAX_VALUE = 64;            /* bytes that a lane brings to a collective */

struct fiber;

struct copy { /* of cp.async, done when it is waited for */
    void *to;
    const void *from;
    unsigned bytes; /* taken from there */
    unsigned zeros; /* behind them */
    unsigned group; /* number of the group that it belongs to */
};

struct thread {
    dim3 idx;
    unsigned number;     /* in the block */
    unsigned warp, lane; /* number / 32, number % 32 */
    fiber *on;           /* from its first wait on */
    const char *file;    /* where it waits ("__syncthreads" at a barrier); NULL: it does not */
    int line;            /* there */
    copy *copies;        /* of cp.async, under way */
    size_t n_copies;     /* of those */
    size_t max_copies;   /* allocated */
    unsigned n_groups;   /* committed */
};

/* What the lanes of @mask bring to a collective; alive until each has read. */
struct gather {
    unsigned warp;    /* of the block */
    unsigned mask;    /* lanes that take part */
    unsigned arrived; /* lanes that are there */
    unsigned readers; /* lanes that have not read yet */
    const char *file; /* where the first one came */
    int line;         /* there */
    gather *next;     /* in the list of the open ones, or of the free ones */
    alignas(16) unsigned char v[WARP][MAX_VALUE]; /* one per lane */
};

extern thread *now; /* the running one */
extern dim3 block_idx, block_dim, grid_dim;
extern unsigned char *dynamic_shared;

/* Where @p is. A block's shared memory is dynamic_shared and what the program has statically, of
 * which __shared__ is made; constants are there, too. The running thread's own is its stack. The
 * rest is global. */
bool is_shared(const void *p);
bool is_global(const void *p);

/* Wait until every thread of the block that has not returned is here. */
void barrier(const char *file, int line);

/* Bring @bytes at @value, wait for the lanes of @mask. */
gather *collect(unsigned mask, const void *value, size_t bytes, const char *file, int line);
void collected(gather *g);

/* cp.async: note the copy; close the group; do those of all but the last @keep groups (or, ~0u:
 * all, also of the open one). */
void copy_later(void *to, const void *from, unsigned bytes, unsigned zeros);
void copy_commit();
void copy_wait(unsigned keep);

/* Say what is wrong with the kernel and end the process. */
[[noreturn]] void broken(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Run @call(@args) for each thread of the grid. */
void launch(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared,
            void (*call)(void *args), void *args);

/* What @read makes of the values that the lanes of @mask brought; it is given a function of a
 * lane's number. */
template <class T, class Read>
auto exchange(unsigned mask, const T &mine, const char *file, int line, Read read)
{
    static_assert(sizeof(T) <= MAX_VALUE, "a lane's value is too large");
    gather *g = collect(mask, &mine, sizeof mine, file, line);
    auto result = read([g](unsigned lane) {
        T value;

        if ((g->mask >> lane & 1u) == 0) {
            broken("it reads lane %u in a collective of lanes %08x", lane, g->mask);
        }
        memcpy(&value, g->v[lane], sizeof value);
        return value;
    });

    collected(g);
    return result;
}

/* A kernel's address, and arguments as cuLaunchKernel takes them. */
template <class... A> struct bound {
    static constexpr unsigned param_bytes[] = {sizeof(A)..., 0};

    void (*kernel)(A...);
    void **params;

    template <size_t... I> void call(std::index_sequence<I...>) const
    {
        kernel(*static_cast<A *>(params[I])...);
    }

    static void run(void *self)
    {
        static_cast<bound *>(self)->call(std::index_sequence_for<A...>());
    }
};

template <class... A> constexpr bound<A...> bind(void (*kernel)(A...), void **params)
{
    return {kernel, params};
}

} // namespace cudaemu

#endif
