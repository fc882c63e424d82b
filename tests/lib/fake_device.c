/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fake_device.h"

#include <check.h>
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static int map(void *arg, int fd, uint64_t bytes, void **base, struct cst_err *err)
{
    struct fake_device *device = arg;

    if ((int)++device->n_maps == device->map_fails) {
        return cst_err_set(err, CST_ENOMEM, "the device is full");
    }
    *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(*base, MAP_FAILED);
    return CST_OK;
}

/* Check that all work is done before memory is unmapped. */
static void unmap(void *arg, void *base, uint64_t bytes)
{
    struct fake_device *device = arg;

    ck_assert_uint_ge(device->passed, device->failed != 0 ? 0 : device->mark);
    ck_assert_int_eq(munmap(base, bytes), 0);
    device->n_unmaps++;
}

static int check(struct fake_device *device, struct cst_err *err)
{
    return device->failed != 0 ? cst_err_set(err, device->failed, "the device failed") : CST_OK;
}

static int zero(void *arg, void *at, uint64_t bytes, struct cst_err *err)
{
    struct fake_device *device = arg;
    int rc = check(device, err);

    if (rc == CST_OK) {
        memset(at, 0, bytes);
        device->n_zeros++;
    }
    return rc;
}

static void signal_fd(struct fake_device *device)
{
    uint64_t one = 1;

    ck_assert_int_eq(write(device->calls.fd, &one, sizeof one), sizeof one);
}

void fake_device_move(struct fake_device *device, uint64_t mark)
{
    device->passed = mark;
    signal_fd(device);
}

static int fence(void *arg, uint64_t *out, struct cst_err *err)
{
    struct fake_device *device = arg;
    int rc = check(device, err);

    if (rc != CST_OK) {
        return rc;
    }
    *out = ++device->mark;
    device->works = false;
    if (device->passed >= device->mark) {
        signal_fd(device);
    }
    device->n_fences++;
    return CST_OK;
}

/* A slow stream reaches the mark only after it was asked several times, so a missing wait is
 * detected. */
static void come_along(struct fake_device *device)
{
    if (device->slow > 0) {
        device->slow--;
        fake_device_move(device, device->slow == 0 ? FAKE_DEVICE_FLOWS : device->passed);
    }
}

static int done(void *arg, uint64_t *passed, struct cst_err *err)
{
    struct fake_device *device = arg;
    uint64_t count;
    int rc;

    if (read(device->calls.fd, &count, sizeof count) < 0) {
        ck_assert_int_eq(errno, EAGAIN);
    }
    rc = check(device, err);
    if (rc == CST_OK) {
        *passed = device->passed;
        come_along(device);
    }
    return rc;
}

void fake_device_break(struct fake_device *device)
{
    device->failed = CST_EGPU;
    signal_fd(device);
}

void fake_device_open(struct fake_device *device)
{
    device->calls = (struct cst_device_calls){
        .map = map,
        .unmap = unmap,
        .zero = zero,
        .fence = fence,
        .done = done,
        .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
    };
    ck_assert_int_ge(device->calls.fd, 0);
}
