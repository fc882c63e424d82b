/* SPDX-License-Identifier: Apache-2.0 */
/* A process with a CUDA context that does as it is told: role "gpu" of the experiments. One slab,
 * one piece of registered host memory and two streams at most, made by the first verb that needs
 * them. */
#ifndef GPU_PROCESS_H
#define GPU_PROCESS_H

/* Verbs. v: the value sent; fd: what goes along; ->: what comes back. */
enum gpu_verb {
    GPU_OPEN = 1,   /* driver and context -> values[0] free bytes, [1] all bytes, [2] driver; text:
                       name of the device */
    GPU_NO_CONTEXT, /* driver alone, then cuMemCreate of v bytes without a context -> fd */
    GPU_CREATE,     /* slab of v bytes, mapped -> fd */
    GPU_IMPORT,     /* fd: slab of v bytes, mapped */
    GPU_PAINT,      /* the slab's 32-bit words := v */
    GPU_COUNT_OTHERS, /* -> values[0] words of the slab that are not v */
    GPU_CHECKSUM,     /* -> values[0] of the slab */
    GPU_FREE_BYTES,   /* -> values[0] */
    GPU_HOST, /* fd: host memory of v bytes, mapped and registered 256 MiB at a time -> values[0] ms
                 for it */
    GPU_COPY_FOR_EVER, /* answers, then copies host memory to the slab, other words each time */
    GPU_BUSY,          /* kernels back to back for v seconds -> values[0] kernels a second */
    GPU_BANDWIDTH, /* v copies of the host memory up, v down -> values[0] up, values[1] down, GB/s
                    */
    GPU_TIMELINE_ECHO, /* v rounds: the stream waits until word 0 is the round's number, then writes
                          it to word 1. Answers when enqueued */
    GPU_TIMELINE_DRIVE, /* v rounds: the stream writes word 0 and waits for word 1 -> values[0] us a
                           round */
    GPU_SYNC,           /* wait for the streams -> when they are done */
};

/* Serve the parent on GPU_LINK_FD until it hangs up. Exit status. */
int gpu_process_run(void);

#endif
