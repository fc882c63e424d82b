/* SPDX-License-Identifier: Apache-2.0 */
/* The engine. One loop thread reads the daemon's messages, keeps segments and commands, and
 * answers. Thread pools of lanes copy bytes, and a team computes. The loop thread owns all state;
 * thread pools return finished tasks to the loop thread by mail. The loop thread itself touches no
 * bulk data.
 *
 *   socket --SETUP--> device, thread pools --SEGMENT_ADD--> mapping --> SEGMENT_DONE
 *          --SUBMIT--> tickets --> work --> lanes | team --mail--> tickets, outbox --> DONE */
#ifndef CSTE_ENGINE_H
#define CSTE_ENGINE_H

#include "kernels/engine/device.h"

/* Settings of an engine. */
struct cste_engine_config {
    int sock;                             /* Socket to the daemon; borrowed. */
    const struct cste_device_ops *ops;    /* Table of the device. */
    struct cste_rate_limit_spec pace;     /* Rates that the device keeps. */
    uint32_t call_limit_s;                /* As in struct cste_device_spec. */
    void (*warn)(const struct cst_err *); /* Report one line to people; never NULL. */
};

/* Serve the daemon until it closes the connection. The caller then ends the process at once and
 * does not wait for threads. Threads may still be running pieces; the undo slots hold the tiles
 * that these threads are changing. CST_OK: the daemon closed the connection; CST_EPROTO: a message
 * was malformed; CST_EGPU: the device has failed, and another engine has to repeat the commands
 * that were under way; CST_ETIMEDOUT: a thread is in a call that has not returned in time, of which
 * the command has been answered, and the process may not be able to end; CST_ENOMEM, CST_ENOTFOUND,
 * CST_EUNSUPPORTED, CST_EINTERNAL: the engine cannot go on. */
int cste_engine_run(const struct cste_engine_config *config, struct cst_err *err);

#endif
