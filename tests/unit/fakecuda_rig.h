/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of fakecuda share: the driver found as the programs find it, processes that are
 * killed, descriptors that travel. Every test runs in a process of its own, so that the environment
 * it sets is read anew. */
#ifndef FAKECUDA_RIG_H
#define FAKECUDA_RIG_H

#include "kernels/cuda/driver.h"

#include <check.h>
#include <sys/types.h>

#define MIB ((size_t)1 << 20)
#define SLAB (2 * MIB)

#define ck_ok(call) ck_assert_int_eq((call), CUDA_SUCCESS)

/* A piece of device memory as the engine has it. */
struct piece {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t bytes;
};

extern struct cst_cuda_driver cu; /* open after rig_open */
extern CUcontext rig_context;     /* of device 0, current */

/* Start again with fakecuda's folder first in LD_LIBRARY_PATH, unless it is there already. */
void rig_find_library(char **argv);

/* Open the driver and make device 0's context current. */
void rig_open(void);
void rig_use_device(CUdevice device);

/* Memory of @device that can be exported. */
CUmemAllocationProp rig_properties(CUdevice device);
CUresult rig_create(CUdevice device, size_t bytes, CUmemGenericAllocationHandle *out);
/* Reserve addresses, map @piece's handle there, let @device read and write; all three at once for
 * device 0; and undo it. */
void rig_map(struct piece *piece, CUdevice device);
struct piece rig_piece(size_t bytes);
void rig_unmap(const struct piece *piece);

/* Page-aligned host memory, zeroed. */
unsigned char *rig_host(size_t bytes);

/* A child that runs @fn(@socket) and then waits for its end; it has not used CUDA. */
pid_t rig_fork(void (*fn)(int socket), int *socket_out);
void rig_kill(pid_t child);
/* Wait for the child to end by itself. */
void rig_join(pid_t child);
void rig_send_fd(int socket, int fd);
int rig_take_fd(int socket);
void rig_send_byte(int socket);
void rig_take_byte(int socket);

/* A new empty folder on tmpfs for CST_FAKECUDA_STATE, which is set; rig_end, a fixture, removes it.
 */
const char *rig_state(void);
void rig_end(void);

#endif
