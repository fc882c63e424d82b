// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/cudaemu/block.hpp"

#include "tests/lib/cudaemu/fiber.hpp"

#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

namespace cudaemu
{

thread *now;
dim3 block_idx, block_dim, grid_dim;
unsigned char *dynamic_shared;

/* The addresses [begin, begin + bytes). */
struct range {
    uintptr_t begin;
    size_t bytes;

    bool has(const void *p) const
    {
        return reinterpret_cast<uintptr_t>(p) - begin < bytes;
    }
};

/* The lock and the variables below belong to the current launch, whose thread holds the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *kernel_name;
static void (*kernel_call)(void *args);
static void *kernel_args;
static uint64_t seed; /* 0: threads begin in ascending order */

static thread threads[MAX_THREADS];
static unsigned n_threads;          /* number of threads of a block */
static unsigned order[MAX_THREADS]; /* order in which threads begin */
static unsigned n_begun;            /* entries of `order` that have begun */
static unsigned n_done;             /* number of threads that have returned */
static thread *ready[MAX_THREADS];  /* ring of threads that can go on */
static unsigned first_ready;        /* index of the oldest entry of `ready` */
static unsigned n_ready;            /* number of entries of `ready` */
static unsigned n_at_barrier;       /* number of threads that wait at the barrier */
static gather *open_gathers;        /* gathers for which not all lanes have arrived */
static gather *free_gathers;
static fiber *idle;    /* fibers without a thread */
static fiber own;      /* the launching thread's own stack */
static fiber *running; /* the running fiber */
static range dynamic;  /* range of dynamic_shared */
static range statics;  /* range of the loaded object that contains the kernels */

/* Value of thread.file of threads that wait at the barrier. */
static const char BARRIER[] = "__syncthreads";

void broken(const char *fmt, ...)
{
    va_list args;

    fprintf(stderr, "cudaemu: %s, block %u,%u,%u, thread %u: ", kernel_name, block_idx.x,
            block_idx.y, block_idx.z, now != nullptr ? now->number : 0);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

/* Note the range of the loaded object if it contains the kernels. */
static int note_statics(dl_phdr_info *object, size_t, void *)
{
    uintptr_t begin = UINTPTR_MAX, end = 0;

    for (unsigned i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = object->dlpi_phdr[i];
        uintptr_t at = object->dlpi_addr + part.p_vaddr;

        if (part.p_type == PT_LOAD) {
            begin = at < begin ? at : begin;
            end = at + part.p_memsz > end ? at + part.p_memsz : end;
        }
    }
    if (!range{begin, end - begin}.has(threads)) {
        return 0;
    }
    statics = {begin, end - begin};
    return 1;
}

bool is_shared(const void *p)
{
    return dynamic.has(p) || statics.has(p);
}

bool is_global(const void *p)
{
    return !is_shared(p) &&
           !range{reinterpret_cast<uintptr_t>(running->stack), running->stack_bytes}.has(p);
}

/* A random number below @n (splitmix64). */
static unsigned random_below(unsigned n)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<unsigned>((z ^ (z >> 31)) % n);
}

static void make_ready(thread *t)
{
    t->file = nullptr;
    ready[(first_ready + n_ready++) % MAX_THREADS] = t;
}

static thread *take_ready()
{
    thread *t;

    if (seed != 0) {
        thread *&chosen = ready[(first_ready + random_below(n_ready)) % MAX_THREADS];

        t = chosen;
        chosen = ready[first_ready];
    } else {
        t = ready[first_ready];
    }
    first_ready = (first_ready + 1) % MAX_THREADS;
    n_ready--;
    return t;
}

/* Report where threads wait, one line per place, and end the process. */
[[noreturn]] static void deadlock()
{
    for (unsigned i = 0; i < n_threads; i++) {
        const thread *t = &threads[i];
        unsigned same = i;

        if (t->file == nullptr) {
            continue;
        }
        while (same + 1 < n_threads && threads[same + 1].file == t->file &&
               threads[same + 1].line == t->line) {
            same++;
        }
        fprintf(stderr, "cudaemu: %s: threads %u to %u wait at %s:%d\n", kernel_name, i, same,
                t->file, t->line);
        i = same;
    }
    now = nullptr;
    broken("deadlock: %u of %u threads have returned, the others wait", n_done, n_threads);
}

static void thread_loop();

/* The fiber to switch to when the running thread has to wait. */
static fiber *next_fiber()
{
    if (n_ready > 0) {
        now = take_ready();
        return now->on;
    }
    if (n_begun < n_threads) {
        fiber *f = idle;

        if (f == nullptr) {
            return fiber_make(thread_loop);
        }
        idle = f->next;
        return f;
    }
    if (n_done < n_threads) {
        deadlock();
    }
    return &own;
}

static void go_on()
{
    fiber *from = running;
    fiber *to = next_fiber();

    if (to != from) {
        running = to;
        fiber_switch(from, to);
    }
}

static void open_barrier()
{
    n_at_barrier = 0;
    for (unsigned i = 0; i < n_threads; i++) {
        if (threads[i].file == BARRIER) {
            make_ready(&threads[i]);
        }
    }
}

/* Let the running thread wait at @file:@line until it is made ready. */
static void wait_at(const char *file, int line)
{
    now->file = file;
    now->line = line;
    now->on = running;
    go_on();
}

/* All threads of a block must wait at the same barrier of the source. */
void barrier(const char *file, int line)
{
    static const char *first_file;
    static int first_line;

    if (n_at_barrier == 0) {
        first_file = file;
        first_line = line;
    }
    if (strcmp(first_file, file) != 0 || first_line != line) {
        broken("it is at the barrier in %s:%d, others of its block are at that in %s:%d", file,
               line, first_file, first_line);
    }
    if (++n_at_barrier + n_done == n_threads) {
        open_barrier();
        return;
    }
    wait_at(BARRIER, line);
}

static gather *new_gather(unsigned mask, const char *file, int line)
{
    gather *g = free_gathers;

    if (g != nullptr) {
        free_gathers = g->next;
    } else if (posix_memalign(reinterpret_cast<void **>(&g), 16, sizeof *g) != 0) {
        broken("out of memory");
    }
    g->warp = now->warp;
    g->mask = mask;
    g->arrived = 0;
    g->readers = mask;
    g->file = file;
    g->line = line;
    g->next = open_gathers;
    open_gathers = g;
    return g;
}

static gather *find_gather(unsigned mask, const char *file, int line)
{
    for (gather *g = open_gathers; g != nullptr; g = g->next) {
        if (g->warp != now->warp || (g->mask & mask) == 0) {
            continue;
        }
        if (g->mask != mask || g->line != line || strcmp(g->file, file) != 0) {
            broken("it is at the collective in %s:%d with lanes %08x, others of its warp are at "
                   "that in %s:%d with lanes %08x",
                   file, line, mask, g->file, g->line, g->mask);
        }
        return g;
    }
    return new_gather(mask, file, line);
}

static void close_gather(gather *g)
{
    gather **at = &open_gathers;

    while (*at != g) {
        at = &(*at)->next;
    }
    *at = g->next;
    for (unsigned lane = 0; lane < WARP; lane++) {
        thread *t = &threads[g->warp * WARP + lane];

        if ((g->mask >> lane & 1u) != 0 && t != now) {
            make_ready(t);
        }
    }
}

gather *collect(unsigned mask, const void *value, size_t bytes, const char *file, int line)
{
    unsigned in_warp = n_threads - now->warp * WARP;
    gather *g;

    if (in_warp < WARP) {
        mask &= (1u << in_warp) - 1; /* a short block has fewer lanes */
    }
    if ((mask >> now->lane & 1u) == 0) {
        broken("it is at the collective in %s:%d, whose lanes are %08x: not itself", file, line,
               mask);
    }
    g = find_gather(mask, file, line);
    memcpy(g->v[now->lane], value, bytes);
    g->arrived |= 1u << now->lane;
    if (g->arrived == g->mask) {
        close_gather(g);
    } else {
        wait_at(file, line);
    }
    return g;
}

void collected(gather *g)
{
    g->readers &= ~(1u << now->lane);
    if (g->readers == 0) {
        g->next = free_gathers;
        free_gathers = g;
    }
}

void copy_later(void *to, const void *from, unsigned bytes, unsigned zeros)
{
    if (now->n_copies == now->max_copies) {
        now->max_copies = now->max_copies * 2 + 16;
        now->copies =
            static_cast<copy *>(realloc(now->copies, now->max_copies * sizeof *now->copies));
        if (now->copies == nullptr) {
            broken("out of memory");
        }
    }
    now->copies[now->n_copies++] = {to, from, bytes, zeros, now->n_groups};
}

void copy_commit()
{
    now->n_groups++;
}

void copy_wait(unsigned keep)
{
    unsigned end =
        keep == ~0u ? ~0u : now->n_groups - (keep < now->n_groups ? keep : now->n_groups);
    size_t left = 0;

    for (size_t i = 0; i < now->n_copies; i++) {
        copy c = now->copies[i];

        if (c.group >= end) {
            now->copies[left++] = c;
            continue;
        }
        memcpy(c.to, c.from, c.bytes);
        memset(static_cast<char *>(c.to) + c.bytes, 0, c.zeros);
    }
    now->n_copies = left;
}

static void run_thread(thread *t)
{
    now = t;
    kernel_call(kernel_args);
    t = now;
    if (t->n_copies > 0) {
        broken("it returned with %zu copies (cp.async) that it did not wait for", t->n_copies);
    }
    n_done++;
    if (n_at_barrier > 0 && n_at_barrier + n_done == n_threads) {
        open_barrier();
    }
}

static void thread_loop()
{
    for (;;) {
        while (n_begun < n_threads) {
            run_thread(&threads[order[n_begun++]]);
        }
        running->next = idle;
        idle = running;
        go_on();
    }
}

static void shuffle_order()
{
    for (unsigned i = 0; i < n_threads; i++) {
        order[i] = i;
    }
    if (seed == 0) {
        return;
    }
    for (unsigned i = n_threads; i > 1; i--) {
        unsigned j = random_below(i);
        unsigned swap = order[i - 1];

        order[i - 1] = order[j];
        order[j] = swap;
    }
}

static void start_threads()
{
    for (unsigned i = 0; i < n_threads; i++) {
        thread *t = &threads[i];

        t->idx =
            dim3(i % block_dim.x, i / block_dim.x % block_dim.y, i / block_dim.x / block_dim.y);
        t->number = i;
        t->warp = i / WARP;
        t->lane = i % WARP;
        t->on = nullptr;
        t->file = nullptr;
        t->n_groups = 0;
    }
}

static void run_block(size_t number, unsigned shared)
{
    block_idx = dim3(static_cast<unsigned>(number % grid_dim.x),
                     static_cast<unsigned>(number / grid_dim.x % grid_dim.y),
                     static_cast<unsigned>(number / grid_dim.x / grid_dim.y));
    if (shared > 0) {
        memset(dynamic_shared, 0xff, shared); /* the initial content is undefined, here NaN */
    }
    start_threads();
    shuffle_order();
    n_begun = n_done = n_ready = n_at_barrier = 0;
    running = &own;
    go_on();
    now = nullptr;
}

static void check_launch(const unsigned grid[3], const unsigned block[3], unsigned shared)
{
    size_t per_block = static_cast<size_t>(block[0]) * block[1] * block[2];

    if (per_block == 0 || per_block > MAX_THREADS || block[2] > 64) {
        broken("a block of %u x %u x %u threads", block[0], block[1], block[2]);
    }
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > 0x7fffffffu || grid[1] > 65535 ||
        grid[2] > 65535) {
        broken("a grid of %u x %u x %u blocks", grid[0], grid[1], grid[2]);
    }
    if (shared > MAX_SHARED) {
        broken("%u bytes of shared memory", shared);
    }
}

static void run_grid(unsigned shared)
{
    size_t n_blocks = static_cast<size_t>(grid_dim.x) * grid_dim.y * grid_dim.z;
    size_t turn = seed != 0 ? random_below(0x7fffffffu) % n_blocks : 0;

    bool backwards = seed % 2 != 0;

    for (size_t i = 0; i < n_blocks; i++) {
        size_t at = (i + turn) % n_blocks;

        run_block(backwards ? n_blocks - 1 - at : at, shared);
    }
}

void launch(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared,
            void (*call)(void *args), void *args)
{
    pthread_mutex_lock(&lock);
    kernel_name = name;
    kernel_call = call;
    kernel_args = args;
    block_idx = dim3(0, 0, 0);
    check_launch(grid, block, shared);
    grid_dim = dim3(grid[0], grid[1], grid[2]);
    block_dim = dim3(block[0], block[1], block[2]);
    n_threads = block[0] * block[1] * block[2];
    fiber_adopt(&own);
    /* The size is not rounded up, so that a sanitizer detects accesses behind it. */
    if (shared > 0 &&
        posix_memalign(reinterpret_cast<void **>(&dynamic_shared), 128, shared) != 0) {
        broken("out of memory");
    }
    dynamic = {reinterpret_cast<uintptr_t>(dynamic_shared), shared};
    if (statics.bytes == 0) {
        dl_iterate_phdr(note_statics, nullptr);
    }
    run_grid(shared);
    if (shared > 0) {
        free(dynamic_shared);
        dynamic_shared = nullptr;
    }
    pthread_mutex_unlock(&lock);
}

} // namespace cudaemu

void cst_emu_shuffle(unsigned long long seed)
{
    pthread_mutex_lock(&cudaemu::lock);
    cudaemu::seed = seed;
    pthread_mutex_unlock(&cudaemu::lock);
}
