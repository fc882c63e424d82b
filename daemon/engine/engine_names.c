/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the states and kinds of engines. */
#include "daemon/engine/drives.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/net_engine.h"
#include "daemon/settings/paced.h"

const char *cstd_engine_state_name(enum cstd_engine_state state)
{
    static const char *const names[] = {
        [CSTD_ENGINE_OFF] = "off",
        [CSTD_ENGINE_STARTING] = "starting",
        [CSTD_ENGINE_MOUNTING] = "restarting",
        [CSTD_ENGINE_READY] = "ready",
        [CSTD_ENGINE_FAILED] = "failed",
        [CSTD_ENGINE_ENDING] = "ending",
    };

    return names[state];
}

const char *cstd_engine_kind(const struct cstd_engine *engine)
{
    if (cstd_paced_is(engine->device)) {
        return "paced";
    }
    if (cstd_drive_is(engine->device)) {
        return "disk";
    }
    if (cstd_net_is(engine->device)) {
        return "net";
    }
    return cstd_engine_is_gpu(engine) ? "cuda" : "host";
}
