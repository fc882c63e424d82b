/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of devices named in a message. */
#define MAX_LISTED 16

typedef CUresult (*get_proc_fn)(const char *symbol, void **out, int version, cuuint64_t flags,
                                CUdriverProcAddressQueryResult *found);
typedef CUresult (*get_version_fn)(int *version);

/* -- opening -------------------------------------------------------------------------------- */

/* Store the address of symbol @name in @out. C has no conversion from the object pointer of dlsym
 * to a function pointer, hence the copy. Returns false if there is no such symbol. */
static bool find_symbol(void *library, const char *name, void *out)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL;
}

static int too_old(const struct cst_cuda_driver *driver, struct cst_err *err)
{
    return cst_err_set(err, CST_EUNSUPPORTED,
                       "the NVIDIA driver is too old: it is for CUDA %d.%d, %d.%d is needed",
                       driver->version / 1000, driver->version % 1000 / 10,
                       CST_CUDA_MIN_DRIVER / 1000, CST_CUDA_MIN_DRIVER % 1000 / 10);
}

/* Check the version of the driver. cuDriverGetVersion works before cuInit and is found without
 * cuGetProcAddress. */
static int check_version(struct cst_cuda_driver *driver, struct cst_err *err)
{
    get_version_fn get_version;
    CUresult result;

    if (!find_symbol(driver->library, "cuDriverGetVersion", &get_version)) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "no NVIDIA driver: libcuda.so.1 has no cuDriverGetVersion");
    }
    result = get_version(&driver->version);
    if (result == CUDA_ERROR_STUB_LIBRARY) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "no NVIDIA driver: libcuda.so.1 is the toolkit's stub");
    }
    if (result != CUDA_SUCCESS) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "no NVIDIA driver: cuDriverGetVersion says %d, it is not loaded",
                           (int)result);
    }
    return driver->version < CST_CUDA_MIN_DRIVER ? too_old(driver, err) : CST_OK;
}

static int find_calls(struct cst_cuda_driver *driver, struct cst_err *err)
{
    CUdriverProcAddressQueryResult found;
    get_proc_fn get_proc;

    if (!find_symbol(driver->library, "cuGetProcAddress_v2", &get_proc)) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "the NVIDIA driver is too old: it has no cuGetProcAddress_v2");
    }
#define CST_CUDA_DRIVER_FIND(name, since)                                                          \
    {                                                                                              \
        void *symbol = NULL;                                                                       \
        CUresult result = get_proc(#name, &symbol, since, CU_GET_PROC_ADDRESS_DEFAULT, &found);    \
                                                                                                   \
        if (result != CUDA_SUCCESS || symbol == NULL) {                                            \
            return cst_err_set(err, CST_EUNSUPPORTED,                                              \
                               "the NVIDIA driver is too old: it has no " #name                    \
                               " as in CUDA %d.%d",                                                \
                               (since) / 1000, (since) % 1000 / 10);                               \
        }                                                                                          \
        memcpy(&driver->name, &symbol, sizeof symbol);                                             \
    }
    CST_CUDA_DRIVER_CALLS(CST_CUDA_DRIVER_FIND)
#undef CST_CUDA_DRIVER_FIND
    return CST_OK;
}

static int no_gpu(const char *says, struct cst_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    if (visible != NULL) {
        return cst_err_set(err, CST_EUNSUPPORTED, "no GPU: %s (CUDA_VISIBLE_DEVICES is '%.64s')",
                           says, visible);
    }
    return cst_err_set(err, CST_EUNSUPPORTED, "no GPU: %s", says);
}

static int start_driver(struct cst_cuda_driver *driver, struct cst_err *err)
{
    CUresult result = driver->cuInit(0);
    const char *name = "an error";
    int n = 0;

    if (result == CUDA_SUCCESS) {
        result = driver->cuDeviceGetCount(&n);
    }
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && n == 0)) {
        return no_gpu("the driver has no device", err);
    }
    if (result != CUDA_SUCCESS) {
        (void)driver->cuGetErrorName(result, &name);
        return cst_err_set(err, CST_EUNSUPPORTED, "no NVIDIA driver: cuInit says %s (%d)", name,
                           (int)result);
    }
    return CST_OK;
}

int cst_cuda_driver_open(struct cst_cuda_driver *driver, struct cst_err *err)
{
    struct cst_cuda_driver out = {.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    int rc;

    if (out.library == NULL) {
        const char *why = dlerror();

        return cst_err_set(err, CST_EUNSUPPORTED, "no NVIDIA driver: %s",
                           why != NULL ? why : "libcuda.so.1 cannot be opened");
    }
    rc = check_version(&out, err);
    if (rc == CST_OK) {
        rc = find_calls(&out, err);
    }
    if (rc == CST_OK) {
        rc = start_driver(&out, err);
    }
    if (rc == CST_OK) {
        *driver = out;
    }
    return rc;
}

void cst_cuda_driver_close(struct cst_cuda_driver *driver)
{
    *driver = (struct cst_cuda_driver){0};
}

/* -- results -------------------------------------------------------------------------------- */

bool cst_cuda_is_sticky(CUresult result)
{
    static const CUresult sticky[] = {
        CUDA_ERROR_DEINITIALIZED,
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUDA_ERROR_CONTAINED,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_TENSOR_MEMORY_LEAK,
        CUDA_ERROR_MPS_CLIENT_TERMINATED,
        CUDA_ERROR_MPS_RPC_FAILURE,
        CUDA_ERROR_EXTERNAL_DEVICE,
        CUDA_ERROR_UNKNOWN,
    };

    for (size_t i = 0; i < sizeof sticky / sizeof sticky[0]; i++) {
        if (sticky[i] == result) {
            return true;
        }
    }
    return false;
}

/* Returns whether @result means that this device, or this pair of devices, cannot do the
 * operation. */
static bool is_unsupported(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ||
           result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
           result == CUDA_ERROR_UNSUPPORTED_LIMIT;
}

static int status_of(CUresult result)
{
    if (cst_cuda_is_sticky(result)) {
        return CST_EGPU;
    }
    if (is_unsupported(result)) {
        return CST_EUNSUPPORTED;
    }
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CST_ENOMEM : CST_EINTERNAL;
}

int cst_cuda_check(const struct cst_cuda_driver *driver, CUresult result, struct cst_err *err,
                   const char *what, ...)
{
    const char *name = NULL, *words = NULL;
    char text[sizeof err->text];
    va_list args;

    if (result == CUDA_SUCCESS) {
        return CST_OK;
    }
    va_start(args, what);
    (void)vsnprintf(text, sizeof text, what, args);
    va_end(args);
    if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL) {
        name = "a CUDA error";
    }
    if (driver->cuGetErrorString(result, &words) != CUDA_SUCCESS || words == NULL) {
        words = "no words for it";
    }
    return cst_err_set(err, status_of(result), "%s: %s (%d: %s)", text, name, (int)result, words);
}

/* -- devices -------------------------------------------------------------------------------- */

int cst_cuda_uuid(const struct cst_cuda_driver *driver, CUdevice device,
                  char text[CST_CUDA_UUID_BYTES], struct cst_err *err)
{
    char name[128] = "", *to = text;
    CUuuid uuid = {{0}};
    int rc = cst_cuda_check(driver, driver->cuDeviceGetUuid(&uuid, device), err,
                            "UUID of device %d", (int)device);

    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuDeviceGetName(name, sizeof name - 1, device), err,
                            "name of device %d", (int)device);
    }
    if (rc != CST_OK) {
        return rc;
    }
    /* The driver has no attribute for MIG instances. Their names contain "MIG", as in "NVIDIA H100
     * MIG 1g.10gb". */
    to += sprintf(to, "%s", strstr(name, " MIG ") != NULL ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;

        to += sprintf(to, "%s%02x", dash ? "-" : "", (unsigned)(unsigned char)uuid.bytes[i]);
    }
    return CST_OK;
}

/* Add @uuid to the list in @text, which has @size bytes. */
static void list(char *text, size_t size, const char *uuid)
{
    size_t n = strlen(text);

    (void)snprintf(text + n, size - n, "%s%s", n > 0 ? ", " : "", uuid);
}

int cst_cuda_find(const struct cst_cuda_driver *driver, const char *uuid, CUdevice *out,
                  struct cst_err *err)
{
    char here[MAX_LISTED * (CST_CUDA_UUID_BYTES + 2)] = "";
    int n = 0, n_found = 0;
    CUdevice found = 0;
    int rc = cst_cuda_check(driver, driver->cuDeviceGetCount(&n), err, "counting devices");

    for (int i = 0; i < n && rc == CST_OK; i++) {
        char text[CST_CUDA_UUID_BYTES];
        CUdevice device;

        rc = cst_cuda_check(driver, driver->cuDeviceGet(&device, i), err, "device %d", i);
        if (rc == CST_OK) {
            rc = cst_cuda_uuid(driver, device, text, err);
        }
        if (rc == CST_OK && strncmp(text, uuid, strlen(uuid)) == 0) {
            found = device;
            n_found++;
        }
        if (rc == CST_OK) {
            list(here, sizeof here, text);
        }
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (n_found != 1) {
        return cst_err_set(err, CST_ENOTFOUND, "%s GPU '%.64s'; there are: %.256s",
                           n_found == 0 ? "no" : "more than one", uuid, here);
    }
    *out = found;
    return CST_OK;
}
