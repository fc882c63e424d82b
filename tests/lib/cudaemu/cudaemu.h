/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the project's CUDA kernels on the processor. Each .cu file is compiled a second time, as C++
 * for the host, with cudaemu.hpp in place of the CUDA headers. The threads of a block are fibers
 * that switch at __syncthreads and at the warp's collectives. This tests the kernel's own source:
 * indexing, order of sums, rounding, barriers, and which accesses are to global memory. It does not
 * test speed. tests/lib/fakecuda launches the kernels by the names in their modules; unit tests
 * call them directly. */
#ifndef CST_CUDAEMU_H
#define CST_CUDAEMU_H

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel that can be run on the processor. */
struct cst_emu_kernel {
    const char *name; /* the name that cuModuleGetFunction takes */
    /* Run the whole grid, block after block, and return when it is done. @shared: bytes of dynamic
     * shared memory. @params: as for cuLaunchKernel. May be called by any thread; launches of
     * several threads take turns. A broken kernel (a barrier that not all threads reach, warps that
     * diverge, a launch that no GPU accepts) ends the process with a message. */
    void (*run)(const unsigned grid[3], const unsigned block[3], unsigned shared, void **params);
    /* The size of each parameter, then 0. cuLaunchKernel copies the parameters before it returns,
     * because the kernel runs later. */
    const unsigned *param_bytes;
};

/* The kernel @name of those in list.h, or NULL. May be called by any thread. */
const struct cst_emu_kernel *cst_emu_find(const char *name);

/* From the next launch on run blocks, and their threads between barriers, in a random order that
 * depends on @seed. 0: in ascending order, which is the default. A kernel that lacks a barrier, or
 * whose blocks depend on each other, fails in some order. */
void cst_emu_shuffle(unsigned long long seed);

#ifdef __cplusplus
}
#endif

#endif
