/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/ucx_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libucp.so.0"

extern char **environ;

/* Remove all variables of UCX, also those that a user has set for programs of his own. */
static void clear_environment(void)
{
    char **at = environ;
    char name[256];

    while (*at != NULL) {
        size_t n = strcspn(*at, "=");

        if (strncmp(*at, "UCX_", 4) != 0 || n >= sizeof name) {
            at++;
            continue;
        }
        memcpy(name, *at, n);
        name[n] = '\0';
        (void)unsetenv(name);
        at = environ;
    }
}

static int set_environment(const char *devices, bool tcp, struct cst_err *err)
{
    const char *const settings[][2] = {
        /* No handlers of signals, among them SIGHUP, and no debugger. */
        {"UCX_HANDLE_ERRORS", "none"},
        {"UCX_ERROR_SIGNALS", ""},
        {"UCX_DEBUG_SIGNO", "0"},
        /* What fails is reported by the engine, with the machine. */
        {"UCX_LOG_LEVEL", "fatal"},
        {"UCX_NET_DEVICES", devices},
        /* No shared memory: engines of one machine are those of different users. */
        {"UCX_TLS", tcp ? "tcp" : "rc,ud,dc,tcp"},
        /* An endpoint that is closed amid a PUT over TCP makes UCX 1.13 abort at the other end. */
        {"UCX_TCP_PUT_ENABLE", "n"},
        /* The largest pieces in which a payload goes over TCP. UCX copies each of them to its place
         * while it is in the processor's cache; smaller ones cost more system calls. */
        {"UCX_TCP_RX_SEG_SIZE", "512K"},
    };

    clear_environment();
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (setenv(settings[i][0], settings[i][1], 1) != 0) {
            return cst_err_set(err, CST_ENOMEM, "no memory for settings of UCX");
        }
    }
    return CST_OK;
}

int cste_ucx_load(struct cste_ucx *out, const char *devices, bool tcp, struct cst_err *err)
{
    unsigned major, minor, release;
    void *library;
    int rc = set_environment(devices, tcp, err);

    if (rc != CST_OK) {
        return rc;
    }
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "transport 'ucx' needs UCX (Debian: libucx0; transport 'tcp' does not): %s", dlerror());
    }
#define FIND(name)                                                                                 \
    *(void **)&out->name = dlsym(library, "ucp_" #name);                                           \
    if (out->name == NULL) {                                                                       \
        return cst_err_set(err, CST_EUNSUPPORTED, "%s has no ucp_%s: install UCX 1.13 or later",   \
                           LIBRARY, #name);                                                        \
    }
    CSTE_UCX_FUNCTIONS(FIND)
#undef FIND
    *(void **)&out->status_string = dlsym(library, "ucs_status_string");
    if (out->status_string == NULL) {
        return cst_err_set(err, CST_EUNSUPPORTED, "%s has no ucs_status_string", LIBRARY);
    }
    out->get_version(&major, &minor, &release);
    (void)snprintf(out->version, sizeof out->version, "%u.%u", major, minor);
    return CST_OK;
}

int cste_ucx_failed(const struct cste_ucx *ucx, ucs_status_t status, const char *what,
                    struct cst_err *err)
{
    return cst_err_set(err, CST_EIO, "%s: %s", what, ucx->status_string(status));
}
