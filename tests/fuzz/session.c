/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what workers send to the daemon. The format of an input is that of daemon_rig.h. */
#include "tests/fuzz/daemon_rig.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "session";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool started;
    struct rig_input in = {.at = data, .end = data + n};

    if (!started) {
        rig_start(NULL);
        started = true;
    }
    for (unsigned i = 0; i < RIG_SESSIONS; i++) {
        rig_open(i);
    }
    rig_settle();
    while (in.at < in.end) {
        rig_step((enum rig_op)(rig_take_byte(&in) % RIG_OPS), &in);
    }
    rig_end();
    return 0;
}
