/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of libcistern without memory: the n-th allocation of a worker's run fails, for every n. */
#include "tests/lib/descriptors.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static struct fake_job f;
/* Number of the allocation of this thread that fails; the daemon's thread is not affected. */
static __thread uint32_t n_left = UINT32_MAX;
static bool failed;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t n);

static bool fails(void)
{
    if (n_left == UINT32_MAX || n_left-- > 0) {
        return false;
    }
    n_left = UINT32_MAX;
    failed = true;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t n)
{
    return fails() ? NULL : __real_realloc(old, n);
}

/* The device's stream has always passed. Check's assertions would allocate memory, too. */
static void insist(bool good)
{
    if (!good) {
        abort();
    }
}

static int map(void *arg, int fd, uint64_t bytes, void **base, struct cst_err *err)
{
    (void)arg;
    (void)err;
    *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    insist(*base != MAP_FAILED);
    return CST_OK;
}

static void unmap(void *arg, void *base, uint64_t bytes)
{
    (void)arg;
    insist(munmap(base, bytes) == 0);
}

static int zero(void *arg, void *at, uint64_t bytes, struct cst_err *err)
{
    (void)arg;
    (void)err;
    memset(at, 0, bytes);
    return CST_OK;
}

static uint64_t mark;
static struct cst_device_calls device;

static int fence(void *arg, uint64_t *number, struct cst_err *err)
{
    uint64_t one = 1;

    (void)arg;
    (void)err;
    *number = ++mark;
    insist(write(device.fd, &one, sizeof one) == sizeof one);
    return CST_OK;
}

static int done(void *arg, uint64_t *passed, struct cst_err *err)
{
    uint64_t count;

    (void)arg;
    (void)err;
    insist(read(device.fd, &count, sizeof count) > 0 || errno == EAGAIN);
    *passed = mark;
    return CST_OK;
}

static void use_device(void)
{
    device = (struct cst_device_calls){.map = map,
                                       .unmap = unmap,
                                       .zero = zero,
                                       .fence = fence,
                                       .done = done,
                                       .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    ck_assert_int_ge(device.fd, 0);
    f.device = &device;
    f.fake.device = "GPU-1";
}

/* Whichever allocation fails, the call that needed it returns ENOMEM. Neither a descriptor nor
 * memory leaks; builds with sanitizers check the latter. With one credit requests are queued, too.
 * _i: 0: on the host; 1: on a device. */
START_TEST(test_every_allocation)
{
    struct cst_err err = {0};
    unsigned before;
    uint32_t n = 0;

    if (_i == 1) {
        use_device();
    }
    f.fake.credits = 1;
    fake_daemon_start(&f.fake);
    before = descriptors_count();
    do {
        int rc;

        failed = false;
        f.fake.n_tensors = 0;
        f.client = NULL;
        n_left = n++;
        rc = fake_job_live(&f, &err);
        n_left = UINT32_MAX;
        ck_assert_msg(rc == (failed ? CST_ENOMEM : CST_OK), "allocation %u: %s: %s", n - 1,
                      cst_status_name(rc), err.text);
        cst_disconnect(f.client);
    } while (failed);
    ck_assert_uint_gt(n, 20);
    fake_daemon_stop(&f.fake);
    ck_assert_uint_lt(descriptors_count(), before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_memory");
    TCase *tcase = suite_case(suite, "client_memory", NULL, NULL);

    tcase_add_loop_test(tcase, test_every_allocation, 0, 2);
    return suite_run(suite);
}
