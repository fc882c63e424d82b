// SPDX-License-Identifier: Apache-2.0
/* A block of threads on the processor: fibers, barriers and the warp's collectives. cudaemu.hpp and
 * mma.hpp are built on it; kernels do not include it.
 *
 *   fresh --first run--> running --barrier, collective--> waiting --all are there--> ready
 *   ready --> running --> done
 *
 * A thread that waits keeps the fiber of its first wait until the thread is done. Threads that
 * never wait share one fiber. If no thread is ready or fresh and some thread waits, the kernel is
 * broken: the process ends with a message that names the kernel and the threads that wait. */
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
static const unsigned MAX_THREADS = 1024;      /* threads of a block */
static const unsigned MAX_SHARED = 227 * 1024; /* bytes that a block may ask for on sm_90 */
static const size_t MAX_VALUE = 64;            /* bytes that a lane brings to a collective */

struct fiber;

struct copy { /* a copy of cp.async, which is made when it is waited for */
    void *to;
    const void *from;
    unsigned bytes; /* bytes copied from `from` */
    unsigned zeros; /* zeros after these bytes */
    unsigned group; /* number of the group to which the copy belongs */
};

struct thread {
    dim3 idx;
    unsigned number;     /* number in the block */
    unsigned warp, lane; /* number / 32 and number % 32 */
    fiber *on;           /* fiber of the thread, from its first wait on */
    /* File in which the thread waits ("__syncthreads" at a barrier); NULL: it does not wait. */
    const char *file;
    int line;          /* line in `file` */
    copy *copies;      /* copies of cp.async that are under way */
    size_t n_copies;   /* entries in `copies` */
    size_t max_copies; /* entries allocated for `copies` */
    unsigned n_groups; /* number of groups that the thread has committed */
};

/* The values that the lanes of @mask bring to a collective. It exists until each lane has read. */
struct gather {
    unsigned warp;    /* number of the warp in the block */
    unsigned mask;    /* lanes that take part */
    unsigned arrived; /* lanes that have arrived */
    unsigned readers; /* lanes that have not read yet */
    const char *file; /* file of the call of the lane that arrived first */
    int line;         /* line in `file` */
    gather *next;     /* next in the list of the open gathers, or of the free ones */
    alignas(16) unsigned char v[WARP][MAX_VALUE]; /* one value per lane */
};

extern thread *now; /* the running thread */
extern dim3 block_idx, block_dim, grid_dim;
extern unsigned char *dynamic_shared;

/* Which kind of memory @p points to. Shared memory of a block is dynamic_shared and the program's
 * static memory, of which __shared__ variables are made; constants count as shared, too. A thread's
 * own memory is its stack. All other memory is global. */
bool is_shared(const void *p);
bool is_global(const void *p);

/* Wait until every thread of the block that has not returned has arrived here. */
void barrier(const char *file, int line);

/* collect brings @bytes at @value and waits for the lanes of @mask. collected ends the reading of
 * the result. */
gather *collect(unsigned mask, const void *value, size_t bytes, const char *file, int line);
void collected(gather *g);

/* cp.async: copy_later notes a copy, copy_commit closes the group, and copy_wait makes the copies
 * of all groups but the last @keep, or with ~0u all copies, including those of the open group. */
void copy_later(void *to, const void *from, unsigned bytes, unsigned zeros);
void copy_commit();
void copy_wait(unsigned keep);

/* Report an error of the kernel and end the process. */
[[noreturn]] void broken(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Run @call(@args) for each thread of the grid. */
void launch(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared,
            void (*call)(void *args), void *args);

/* Return @read's result. @read receives a function that maps a lane's number to the value which
 * that lane of @mask brought. */
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

/* A kernel's address, with arguments as cuLaunchKernel takes them. */
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
