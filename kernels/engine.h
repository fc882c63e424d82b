/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: one loop thread that reads the daemon's messages, keeps segments and commands, and
 * answers; lanes that move bytes; a team that computes. All state is the loop's; crews hand jobs
 * back by mail. It touches no bulk byte itself.
 *
 *   socket --SETUP--> device, crews --SEGMENT_ADD--> mapping --> SEGMENT_DONE
 *          --SUBMIT--> tickets --> work --> lanes | team --mail--> tickets, outbox --> DONE */
#ifndef CST_ENGINE_H
#define CST_ENGINE_H

#include "kernels/device.h"

struct cst_engine_config {
    int sock;                             /* to the daemon; borrowed */
    const struct cst_device_ops *ops;     /* the device */
    struct cst_pace_spec pace;            /* rates that it keeps */
    void (*warn)(const struct cst_err *); /* one line for people; never NULL */
};

/* Serve the daemon until it hangs up. CST_OK: it did; threads may still have pieces in hand, and
 * undo slots hold what they had, so the caller ends the process without waiting for anything.
 * CST_EPROTO: a message was malformed; CST_EGPU: the device has failed, commands that were under
 * way are for another engine to do again; CST_ENOMEM, CST_ENOTFOUND, CST_EUNSUPPORTED,
 * CST_EINTERNAL: the engine cannot go on. */
int cst_engine_run(const struct cst_engine_config *config, struct cst_err *err);

#endif
