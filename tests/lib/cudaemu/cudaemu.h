/* SPDX-License-Identifier: Apache-2.0 */
/* The project's CUDA kernels, run on the processor: each .cu file is compiled once more, as C++ for
 * the host, with cudaemu.hpp in place of the CUDA headers. Threads of a block are fibers that
 * change at __syncthreads and at the warp's collectives, so what is tested is the kernel's own
 * source: indexing, order of sums, rounding, barriers, which accesses are of global memory. It says
 * nothing about speed.
 *
 * tests/lib/fakecuda launches kernels through it by the name that the module knows; unit tests call
 * them directly. */
#ifndef CST_CUDAEMU_H
#define CST_CUDAEMU_H

#ifdef __cplusplus
extern "C" {
#endif

struct cst_emu_kernel {
    const char *name; /* as cuModuleGetFunction takes it */
    /* Run the whole grid, block after block; @shared: bytes of dynamic shared memory; @params: as
     * cuLaunchKernel takes them. Returns when it is done. Any thread; launches of several threads
     * take turns. A broken kernel (a barrier that not all threads reach, warps that diverge, a
     * launch that no GPU takes) ends the process with words. */
    void (*run)(const unsigned grid[3], const unsigned block[3], unsigned shared, void **params);
    /* Bytes of each parameter, 0 after the last: cuLaunchKernel copies them before it returns, and
     * the kernel runs later. */
    const unsigned *param_bytes;
};

/* The kernel called @name among those of list.h, or NULL. Any thread. */
const struct cst_emu_kernel *cst_emu_find(const char *name);

/* From the next launch on run blocks, and the threads of each between barriers, in a random order
 * that @seed decides; 0: in order of their numbers, as at first. A kernel that lacks a barrier, or
 * whose blocks depend on each other, shows it in some order. */
void cst_emu_shuffle(unsigned long long seed);

#ifdef __cplusplus
}
#endif

#endif
