/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/device.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/settings.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Numbers in the machine of the devices that this process sees. */
static int visible[CST_FAKE_MAX_DEVICES];
static int n_visible;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* -- CUDA_VISIBLE_DEVICES ------------------------------------------------------------------- */

static void uuid_of(int physical, unsigned char out[16])
{
    static const unsigned char base[16] = {0xfa, 0xce, 0xc0, 0xda, 0, 0, 0x40, 0, 0x80};

    memcpy(out, base, sizeof base);
    out[15] = (unsigned char)physical;
}

static void uuid_text(int physical, char out[64])
{
    snprintf(out, 64, "%s-facec0da-0000-4000-8000-00000000%04x",
             cst_fake_settings()->mig[physical] ? "MIG" : "GPU", (unsigned)physical);
}

/* The device that @item, of @length characters, names by its number or by the beginning of its
 * UUID. -1: none, or more than one. */
static int find(const char *item, size_t length)
{
    const struct cst_fake_settings *s = cst_fake_settings();
    char text[64], *end = NULL;
    int found = -1;
    long n;

    if (length > 4 && (strncasecmp(item, "GPU-", 4) == 0 || strncasecmp(item, "MIG-", 4) == 0)) {
        for (int i = 0; i < s->n_devices; i++) {
            uuid_text(i, text);
            if (length < sizeof text && strncasecmp(text, item, length) == 0) {
                if (found >= 0) {
                    return -1;
                }
                found = i;
            }
        }
        return found;
    }
    n = strtol(item, &end, 10);
    return length > 0 && end == item + length && n >= 0 && n < s->n_devices ? (int)n : -1;
}

static bool seen(int physical)
{
    for (int i = 0; i < n_visible; i++) {
        if (visible[i] == physical) {
            return true;
        }
    }
    return false;
}

/* As in CUDA, the first item that names no device hides those after it, and a device named twice
 * hides all. */
static void find_visible(void)
{
    const struct cst_fake_settings *s = cst_fake_settings();
    const char *at = s->visible;

    if (at == NULL) {
        for (; n_visible < s->n_devices; n_visible++) {
            visible[n_visible] = n_visible;
        }
        return;
    }
    while (*at != '\0') {
        size_t length = strcspn(at, ",");
        int physical = find(at, length);

        if (physical < 0) {
            return;
        }
        if (seen(physical)) {
            n_visible = 0;
            return;
        }
        visible[n_visible++] = physical;
        at += length;
        at += *at == ',';
    }
}

int cst_fake_n_devices(void)
{
    (void)pthread_once(&once, find_visible);
    return n_visible;
}

bool cst_fake_device_is(CUdevice device)
{
    return device >= 0 && device < cst_fake_n_devices();
}

int cst_fake_device_physical(CUdevice device)
{
    return visible[device];
}

CUdevice cst_fake_device_visible(int physical)
{
    for (int i = 0; i < cst_fake_n_devices(); i++) {
        if (visible[i] == physical) {
            return i;
        }
    }
    return -1;
}

size_t cst_fake_device_bytes(CUdevice device)
{
    return cst_fake_settings()->memory_bytes[visible[device]];
}

bool cst_fake_device_reaches(CUdevice device, CUdevice peer)
{
    return device == peer || cst_fake_settings()->peer[visible[device]][visible[peer]];
}

/* -- entry points --------------------------------------------------------------------------- */

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    *count = cst_fake_n_devices();
    return cst_fake_end(CUDA_SUCCESS);
}

/* The frame of entry points that ask about one device. */
static CUresult begin_for(const char *name, CUdevice device, const void *out)
{
    CUresult result = cst_fake_begin(name, CST_FAKE_INIT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!cst_fake_device_is(device)) {
        return cst_fake_end(CUDA_ERROR_INVALID_DEVICE);
    }
    return out != NULL ? CUDA_SUCCESS : cst_fake_end(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = begin_for(__func__, ordinal, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *device = ordinal;
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    CUresult result = begin_for(__func__, dev, name);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (len <= 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    snprintf(name, (size_t)len, "%s",
             cst_fake_settings()->mig[visible[dev]] ? "Fake GPU MIG 1g.10gb" : "Fake GPU");
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    CUresult result = begin_for(__func__, dev, uuid);
    unsigned char bytes[16];

    if (result != CUDA_SUCCESS) {
        return result;
    }
    uuid_of(visible[dev], bytes);
    memcpy(uuid->bytes, bytes, sizeof bytes);
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev)
{
    CUresult result = begin_for(__func__, dev, bytes);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *bytes = cst_fake_device_bytes(dev);
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    CUresult result = begin_for(__func__, dev, pciBusId);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (len < 13) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    /* A slot that no machine has. */
    snprintf(pciBusId, (size_t)len, "FFFF:%02X:00.0", (unsigned)visible[dev] + 1);
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    CUresult result = begin_for(__func__, dev, canAccessPeer);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!cst_fake_device_is(peerDev)) {
        return cst_fake_end(CUDA_ERROR_INVALID_DEVICE);
    }
    /* A device is not its own peer. */
    *canAccessPeer = dev != peerDev && cst_fake_device_reaches(dev, peerDev);
    return cst_fake_end(CUDA_SUCCESS);
}

/* -- attributes ----------------------------------------------------------------------------- */

static const struct cst_fake_attribute usual[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 1 << 20},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
};

static int attribute(CUdevice dev, int number)
{
    const struct cst_fake_settings *s = cst_fake_settings();

    for (size_t i = 0; i < s->n_attributes; i++) {
        if (s->attributes[i].number == number) {
            return s->attributes[i].value;
        }
    }
    if (number == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) {
        return s->capability / 10;
    }
    if (number == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) {
        return s->capability % 10;
    }
    if (number == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
        return visible[dev] + 1;
    }
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        if (usual[i].number == number) {
            return usual[i].value;
        }
    }
    return 0;
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    CUresult result = begin_for(__func__, dev, pi);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((int)attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    *pi = attribute(dev, (int)attrib);
    return cst_fake_end(CUDA_SUCCESS);
}
