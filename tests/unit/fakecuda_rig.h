/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the tests of fakecuda: they load the driver as programs do, kill processes, and pass
 * descriptors between processes. Each test runs in a process of its own, so that fakecuda reads the
 * environment that the test has set. */
#ifndef FAKECUDA_RIG_H
#define FAKECUDA_RIG_H

#include "kernels/cuda/driver.h"

#include <check.h>
#include <sys/types.h>

#define MIB ((size_t)1 << 20)
#define SLAB (2 * MIB)

#define ck_ok(call) ck_assert_int_eq((call), CUDA_SUCCESS)

/* Device memory that is mapped for the engine's process. */
struct piece {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t bytes;
};

extern struct cst_cuda_driver cu; /* the driver; open after rig_open */
extern CUcontext rig_context;     /* context of device 0, current after rig_open */

/* Execute the program again with fakecuda's folder first in LD_LIBRARY_PATH, unless it is first
 * already. */
void rig_find_library(char **argv);

/* Open the driver and make device 0's context current. */
void rig_open(void);
/* Make the context of @device current. */
void rig_use_device(CUdevice device);

/* rig_properties describes memory of @device that can be exported. rig_create allocates such
 * memory. */
CUmemAllocationProp rig_properties(CUdevice device);
CUresult rig_create(CUdevice device, size_t bytes, CUmemGenericAllocationHandle *out);
/* rig_map reserves addresses, maps @piece's handle there, and lets @device read and write.
 * rig_piece also allocates the memory, on device 0. rig_unmap undoes rig_piece. */
void rig_map(struct piece *piece, CUdevice device);
struct piece rig_piece(size_t bytes);
void rig_unmap(const struct piece *piece);

/* Page-aligned, zeroed host memory. Fails the test if there is none. */
unsigned char *rig_host(size_t bytes);

/* Start a child process that runs @fn with one end of a socket pair and then exits. *@socket_out is
 * the other end. The caller must not have used CUDA before, and ends the child with rig_kill or
 * rig_join. */
pid_t rig_fork(void (*fn)(int socket), int *socket_out);
/* Kill the child and wait for its end. */
void rig_kill(pid_t child);
/* Wait for the child's end. Fails the test unless the child exits with status 0. */
void rig_join(pid_t child);
/* Send a descriptor or a byte through @socket, or wait for one. The receiver owns the
 * descriptor. */
void rig_send_fd(int socket, int fd);
int rig_take_fd(int socket);
void rig_send_byte(int socket);
void rig_take_byte(int socket);

/* Create an empty folder on tmpfs and name it in CST_FAKECUDA_STATE. rig_end removes it, as the
 * teardown of a fixture. */
const char *rig_state(void);
void rig_end(void);

#endif
