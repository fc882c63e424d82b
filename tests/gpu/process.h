/* SPDX-License-Identifier: Apache-2.0 */
/* The role "gpu" of the experiments: a child process with a CUDA context that executes verbs of its
 * parent. It has at most one slab of GPU memory, one piece of registered host memory and two
 * streams. The first verb that needs one of them makes it. */
#ifndef GPU_PROCESS_H
#define GPU_PROCESS_H

/* The verbs. In their descriptions, v is the value that is sent with the verb, and values[] and
 * text are those of the reply. */
enum gpu_verb {
    /* Open the driver and make a context. values[0]: free bytes, values[1]: all bytes, values[2]:
     * version of the driver; text: name of the device. */
    GPU_OPEN = 1,
    /* Open the driver, and allocate v bytes without a context. The reply has their descriptor. */
    GPU_NO_CONTEXT,
    /* Allocate and map a slab of v bytes. The reply has its descriptor. */
    GPU_CREATE,
    /* Map the slab of v bytes whose descriptor is sent. */
    GPU_IMPORT,
    /* Fill the slab with the 32-bit word v. */
    GPU_PAINT,
    /* values[0]: the number of words of the slab that differ from v. */
    GPU_COUNT_OTHERS,
    /* values[0]: the checksum of the slab. */
    GPU_CHECKSUM,
    /* values[0]: the free bytes of the device. */
    GPU_FREE_BYTES,
    /* Map the v bytes of host memory whose descriptor is sent, and register them, 256 MiB at a
     * time. values[0]: the time in ms. */
    GPU_HOST,
    /* Reply; then copy host memory to the slab without end, with other words each time. */
    GPU_COPY_FOR_EVER,
    /* Run kernels without a pause for v seconds. values[0]: kernels per second. */
    GPU_BUSY,
    /* Copy the host memory v times to the slab and v times back. values[0]: GB/s to the slab,
     * values[1]: GB/s from the slab. */
    GPU_BANDWIDTH,
    /* Enqueue v rounds, and reply. In round i, the stream waits until word 0 is i, then writes i to
     * word 1. */
    GPU_TIMELINE_ECHO,
    /* Run v rounds in each of which the stream writes word 0 and waits for word 1. values[0]: us
     * per round. */
    GPU_TIMELINE_DRIVE,
    /* Reply when all work of the streams is done. */
    GPU_SYNC,
};

/* Execute verbs that come over GPU_LINK_FD, until the parent closes the socket. Returns the exit
 * status of the program. */
int gpu_process_run(void);

#endif
