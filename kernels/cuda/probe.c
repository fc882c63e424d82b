/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/probe.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cste_cuda_node(const struct cst_cuda_driver *driver, const struct cst_host_nodes *nodes,
                   CUdevice device)
{
    char slot[32];

    return driver->cuDeviceGetPCIBusId(slot, sizeof slot, device) == CUDA_SUCCESS
               ? cst_host_nodes_nearest(nodes, slot)
               : -1;
}

/* Directory of the pipes of MPS, unless CUDA_MPS_PIPE_DIRECTORY names another. */
#define MPS_DIRECTORY "/tmp/nvidia-mps"
/* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers do not have. */
#define MPS_ENABLED 133

/* Return whether processes of @device share it by MPS (NVIDIA's Multi-Process Service). A driver
 * that does not know this attribute connects to the control daemon of MPS if its socket exists. */
static bool uses_mps(const struct cst_cuda_driver *driver, CUdevice device)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char control[PATH_MAX];
    int enabled = 0;

    if (driver->cuDeviceGetAttribute(&enabled, (CUdevice_attribute)MPS_ENABLED, device) ==
        CUDA_SUCCESS) {
        return enabled != 0;
    }
    (void)snprintf(control, sizeof control, "%s/control",
                   directory != NULL && directory[0] != '\0' ? directory : MPS_DIRECTORY);
    return access(control, F_OK) == 0;
}

/* Append to @to the numbers of the devices, of @n, whose memory @device, number @i, cannot
 * access. */
static int add_unreachable(const struct cst_cuda_driver *driver, CUdevice device, int i, int n,
                           json_t *to, struct cst_err *err)
{
    int rc = CST_OK;

    for (int other = 0; other < n && rc == CST_OK; other++) {
        CUdevice peer;
        int reaches = 1;

        rc = cst_cuda_check(driver, driver->cuDeviceGet(&peer, other), err, "device %d", other);
        if (rc == CST_OK && other != i) {
            rc = cst_cuda_check(driver, driver->cuDeviceCanAccessPeer(&reaches, device, peer), err,
                                "access of device %d to device %d", i, other);
        }
        if (rc == CST_OK && reaches == 0 && json_array_append_new(to, json_integer(other)) != 0) {
            rc = cst_err_set(err, CST_ENOMEM, "no memory for the list of GPUs");
        }
    }
    return rc;
}

/* Describe device number @i of @n in *out, which the caller owns; NULL: no memory. */
static int describe(const struct cst_cuda_driver *driver, const struct cst_host_nodes *nodes, int i,
                    int n, json_t **out, struct cst_err *err)
{
    char uuid[CST_CUDA_UUID_BYTES], name[128] = "";
    json_t *unreachable = json_array();
    CUdevice device = 0;
    size_t bytes = 0;
    int rc = cst_cuda_check(driver, driver->cuDeviceGet(&device, i), err, "device %d", i);

    if (rc == CST_OK) {
        rc = cst_cuda_uuid(driver, device, uuid, err);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuDeviceGetName(name, sizeof name - 1, device), err,
                            "name of %s", uuid);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuDeviceTotalMem(&bytes, device), err, "memory of %s",
                            uuid);
    }
    if (rc == CST_OK) {
        rc = add_unreachable(driver, device, i, n, unreachable, err);
    }
    if (rc == CST_OK) {
        *out = json_pack("{s:i, s:s, s:s, s:I, s:i, s:O, s:b}", "index", i, "uuid", uuid, "name",
                         name, "memory_bytes", (json_int_t)bytes, "node",
                         cste_cuda_node(driver, nodes, device), "unreachable", unreachable, "mps",
                         (int)uses_mps(driver, device));
    }
    json_decref(unreachable);
    return rc;
}

static int list(const struct cst_cuda_driver *driver, json_t *gpus, struct cst_err *err)
{
    struct cst_host_nodes nodes;
    int n = 0, rc = cst_cuda_check(driver, driver->cuDeviceGetCount(&n), err, "counting devices");

    if (rc == CST_OK) {
        rc = cst_host_nodes_open(&nodes, CST_HOST_NODES_WITH_DEVICES, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    for (int i = 0; i < n && rc == CST_OK; i++) {
        json_t *gpu = NULL;

        rc = describe(driver, &nodes, i, n, &gpu, err);
        if (rc == CST_OK && json_array_append_new(gpus, gpu) != 0) {
            rc = cst_err_set(err, CST_ENOMEM, "no memory for the list of GPUs");
        }
    }
    cst_host_nodes_close(&nodes);
    return rc;
}

int cste_cuda_probe(FILE *to, struct cst_err *err)
{
    struct cst_cuda_driver driver;
    json_t *gpus = json_array(), *object = NULL;
    int rc = cst_cuda_driver_open(&driver, err);

    if (rc == CST_OK) {
        rc = list(&driver, gpus, err);
        if (rc == CST_OK) {
            object = json_pack("{s:O, s:i}", "gpus", gpus, "driver", driver.version);
        }
        cst_cuda_driver_close(&driver);
    }
    if (rc != CST_OK) {
        object = json_pack("{s:s}", "error", err->text);
    }
    rc = object == NULL ? cst_err_set(err, CST_ENOMEM, "no memory for the list of GPUs") : CST_OK;
    if (rc == CST_OK &&
        (json_dumpf(object, to, JSON_COMPACT) != 0 || fputc('\n', to) == EOF || fflush(to) != 0)) {
        rc = cst_err_set(err, CST_EIO, "the list of GPUs could not be written");
    }
    json_decref(object);
    json_decref(gpus);
    return rc;
}
