/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/nccl.h"

#include <dlfcn.h>
#include <string.h>

/* Store the address of symbol @name in @out, as find_symbol of kernels/cuda/driver.c does. */
static bool find(void *library, const char *name, void *out)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL;
}

static int read_version(struct cstc_nccl *nccl, struct cst_err *err)
{
    int version = 0;

    if (!find(nccl->library, "ncclGetVersion", &nccl->ncclGetVersion) ||
        nccl->ncclGetVersion(&version) != ncclSuccess || version <= 0) {
        return cst_err_set(err, CST_EUNSUPPORTED, "libnccl.so.2 does not say its version");
    }
    nccl->version = (uint32_t)version;
    if (version < CSTC_NCCL_MIN_VERSION) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "libnccl.so.2 is version %d, which is too old: %d (2.14.0) is needed",
                           version, CSTC_NCCL_MIN_VERSION);
    }
    return CST_OK;
}

int cstc_nccl_open(struct cstc_nccl *nccl, struct cst_err *err)
{
    int rc;

    /* Without RTLD_DEEPBIND or RTLD_GLOBAL: a libnccl that the program has loaded under this name,
     * such as PyTorch's, is used. */
    *nccl = (struct cstc_nccl){.library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)};
    if (nccl->library == NULL) {
        const char *why = dlerror();

        return cst_err_set(err, CST_EUNSUPPORTED, "%s",
                           why != NULL ? why : "libnccl.so.2 cannot be opened");
    }
    rc = read_version(nccl, err);
    if (rc != CST_OK) {
        return rc;
    }
#define FIND(name, result, parameters)                                                             \
    if (!find(nccl->library, #name, &nccl->name)) {                                                \
        return cst_err_set(err, CST_EUNSUPPORTED, "libnccl.so.2 has no " #name);                   \
    }
    CSTC_NCCL_CALLS(FIND)
#undef FIND
#define FIND(name, result, parameters) (void)find(nccl->library, #name, &nccl->name);
    CSTC_NCCL_OPTIONAL_CALLS(FIND)
#undef FIND
    return CST_OK;
}

int cstc_nccl_check(const struct cstc_nccl *nccl, ncclComm_t comm, ncclResult_t result,
                    struct cst_err *err, const char *what)
{
    const char *last;

    if (result == ncclSuccess || result == ncclInProgress) {
        return CST_OK;
    }
    last = nccl->ncclGetLastError(comm);
    return cst_err_set(err, result == ncclUnhandledCudaError ? CST_EGPU : CST_EINTERNAL,
                       "%s: NCCL says: %s%s%.300s", what, nccl->ncclGetErrorString(result),
                       last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
}
