/* SPDX-License-Identifier: Apache-2.0 */
/* faulty_daemon: cisternd with faults. Each is there while the file of its name is in the folder
 * $CST_TEST_FAULTS:
 *
 *   submit   no memory for a command to an engine
 *   layout   a FIFO: a layout is built after the end of what is in it */
#include "daemon/engine/engines.h"
#include "offload/layout/layout.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int __real_cstd_engines_submit(struct cstd_engines *engines, const struct cst_command *command,
                               struct cst_err *err);
int __wrap_cstd_engines_submit(struct cstd_engines *engines, const struct cst_command *command,
                               struct cst_err *err);
int __real_cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                            const struct cst_layout_config *config, struct cst_err *err);
int __wrap_cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                            const struct cst_layout_config *config, struct cst_err *err);

/* The descriptor of the file of fault @name; -1: the fault is not there. */
static int open_fault(const char *name)
{
    const char *folder = getenv("CST_TEST_FAULTS");
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", folder != NULL ? folder : "/nonexistent", name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

int __wrap_cstd_engines_submit(struct cstd_engines *engines, const struct cst_command *command,
                               struct cst_err *err)
{
    int fd = open_fault("submit");

    if (fd >= 0) {
        (void)close(fd);
        return cst_err_set(err, CST_ENOMEM, "no memory for a command");
    }
    return __real_cstd_engines_submit(engines, command, err);
}

int __wrap_cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                            const struct cst_layout_config *config, struct cst_err *err)
{
    int fd = open_fault("layout");
    char byte;

    while (fd >= 0 && read(fd, &byte, 1) > 0) {
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return __real_cst_layout_build(layout, model, config, err);
}
