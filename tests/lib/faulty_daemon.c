/* SPDX-License-Identifier: Apache-2.0 */
/* faulty_daemon: cisternd with faults. Each is there while the file of its name is in the folder
 * $CST_TEST_FAULTS:
 *
 *   submit      no memory for a command to an engine
 *   layout      a FIFO: a layout is built after the end of what is in it
 *   ledger      a FIFO: the same for the file of a ledger
 *   committed   the daemon dies after its first answer to a Commit, and removes the file
 *   synced      the same before its first answer to a Sync
 *   io          the daemon dies when it has given an engine as many commands that read or write
 *               states for a worker as the number in the file says, and removes the file */
#include "daemon/engine/engines.h"
#include "daemon/ledger/ledger_file.h"
#include "daemon/session/session.h"
#include "offload/layout/layout.h"
#include "proto/cistern.pb-c.h"

#include <fcntl.h>
#include <signal.h>
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
int __real_cstd_ledger_file_make(struct cstd_ledger_file *file, const Ledger__Job *ledger,
                                 struct cst_err *err);
int __wrap_cstd_ledger_file_make(struct cstd_ledger_file *file, const Ledger__Job *ledger,
                                 struct cst_err *err);
void __real_cstd_session_answer(struct cstd_daemon *daemon, struct cstd_pending *request,
                                uint16_t type, const ProtobufCMessage *message, const int *fds,
                                unsigned n_fds);
void __wrap_cstd_session_answer(struct cstd_daemon *daemon, struct cstd_pending *request,
                                uint16_t type, const ProtobufCMessage *message, const int *fds,
                                unsigned n_fds);

/* The path of the file of fault @name. */
static const char *path_of(const char *name)
{
    static _Thread_local char path[256];
    const char *folder = getenv("CST_TEST_FAULTS");

    (void)snprintf(path, sizeof path, "%s/%s", folder != NULL ? folder : "/nonexistent", name);
    return path;
}

/* The descriptor of the file of fault @name; -1: the fault is not there. */
static int open_fault(const char *name)
{
    return open(path_of(name), O_RDONLY | O_CLOEXEC);
}

/* Die if fault @name is there. */
static void die_once(const char *name)
{
    if (unlink(path_of(name)) == 0) {
        (void)raise(SIGKILL);
    }
}

void __wrap_cstd_session_answer(struct cstd_daemon *daemon, struct cstd_pending *request,
                                uint16_t type, const ProtobufCMessage *message, const int *fds,
                                unsigned n_fds)
{
    if (type == CISTERN__MSG_TYPE__MSG_SYNCED) {
        die_once("synced");
    }
    __real_cstd_session_answer(daemon, request, type, message, fds, n_fds);
    if (type == CISTERN__MSG_TYPE__MSG_COMMITTED) {
        die_once("committed");
    }
}

/* Count a command for a worker, and die if it is the one of fault "io". */
static void count_io(void)
{
    static unsigned long n;
    int fd = open_fault("io");
    char text[16] = "";

    if (fd >= 0) {
        (void)!read(fd, text, sizeof text - 1);
        (void)close(fd);
        if (++n >= strtoul(text, NULL, 10)) {
            die_once("io");
        }
    }
}

int __wrap_cstd_engines_submit(struct cstd_engines *engines, const struct cst_command *command,
                               struct cst_err *err)
{
    int fd = open_fault("submit"), rc;

    if (fd >= 0) {
        (void)close(fd);
        return cst_err_set(err, CST_ENOMEM, "no memory for a command");
    }
    rc = __real_cstd_engines_submit(engines, command, err);
    if (command->io) {
        count_io();
    }
    return rc;
}

/* Wait until there are no writers any more to the FIFO of fault @name, if it is there. */
static void wait_at(const char *name)
{
    int fd = open_fault(name);
    char byte;

    while (fd >= 0 && read(fd, &byte, 1) > 0) {
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

int __wrap_cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                            const struct cst_layout_config *config, struct cst_err *err)
{
    wait_at("layout");
    return __real_cst_layout_build(layout, model, config, err);
}

int __wrap_cstd_ledger_file_make(struct cstd_ledger_file *file, const Ledger__Job *ledger,
                                 struct cst_err *err)
{
    wait_at("ledger");
    return __real_cstd_ledger_file_make(file, ledger, err);
}
