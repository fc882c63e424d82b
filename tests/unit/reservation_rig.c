/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/reservation_rig.h"

#include <check.h>

void reservation_commit(struct rig *rig, uint32_t n_chunks)
{
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint64_t lease = rig_get(rig, 0, c);

        ck_assert_int_eq(rig_status(rig, rig_release(rig, 0, c, lease)), CST_OK);
    }
    (void)rig_step(rig, 0);
    while (rig_command(rig, CST_COMMAND_UPDATE, 0) == NULL) {
        ck_assert_uint_gt(rig->n_commands, 0);
        rig_done(rig, rig->commands[0].ticket, CST_OK, NULL);
    }
}

const struct cst_command *reservation_update(const struct rig *rig, uint32_t chunk)
{
    const struct cst_command *update;

    for (unsigned i = 0; (update = rig_command(rig, CST_COMMAND_UPDATE, i)) != NULL; i++) {
        if (update->chunk == chunk) {
            return update;
        }
    }
    ck_abort_msg("no update of chunk %u", chunk);
    return NULL;
}

const struct cst_command *reservation_copy(const struct rig *rig, uint32_t chunk, bool up,
                                           unsigned n)
{
    const struct cst_command *copy;

    for (unsigned i = 0; (copy = rig_command(rig, CST_COMMAND_COPY, i)) != NULL; i++) {
        if (copy->chunk == chunk &&
            (up ? copy->dst : copy->src)[0].segment == RESERVATION_SEGMENT && n-- == 0) {
            return copy;
        }
    }
    return NULL;
}

bool reservation_waits_for(const struct cst_command *command, uint64_t ticket)
{
    for (uint32_t i = 0; i < command->n_after; i++) {
        if (command->after[i] == ticket) {
            return true;
        }
    }
    return false;
}
