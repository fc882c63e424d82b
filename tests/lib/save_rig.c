/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/save_rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char save_rig_dir[] = "/tmp/cistern-saves.XXXXXX";

void save_rig_setup(void)
{
    memcpy(save_rig_dir + sizeof save_rig_dir - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(save_rig_dir));
    job_rig_setup();
}

void save_rig_teardown(void)
{
    char command[64];

    settle_remove_jobs(&witness);
    job_rig_teardown();
    (void)snprintf(command, sizeof command, "rm -rf %s", save_rig_dir);
    ck_assert_int_eq(system(command), 0);
}

const char *save_rig_path(const char *name)
{
    static char path[64];

    (void)snprintf(path, sizeof path, "%s/%s", save_rig_dir, name);
    return path;
}

const char *save_rig_step(const char *name, uint64_t step)
{
    static char path[96];

    (void)snprintf(path, sizeof path, "%s/step-%08u", save_rig_path(name), (unsigned)step);
    return path;
}
