/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* -- the descriptor --------------------------------------------------------------------------- */

static int add(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};

    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static int open_fds(struct cst_cuda *cuda, struct cst_err *err)
{
    cuda->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cuda->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    cuda->fd = epoll_create1(EPOLL_CLOEXEC);
    if (cuda->wake < 0 || cuda->timer < 0 || cuda->fd < 0 || add(cuda->fd, cuda->wake) != 0 ||
        add(cuda->fd, cuda->timer) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "a descriptor for the marks of a stream");
    }
    return CST_OK;
}

static void close_fds(struct cst_cuda *cuda)
{
    int *const fds[] = {&cuda->fd, &cuda->timer, &cuda->wake};

    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0) {
            (void)close(*fds[i]);
            *fds[i] = -1;
        }
    }
}

static void read_count(int fd)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);

    (void)n; /* The counter may be 0, in which case read() fails. */
}

/* Start the timer if marks are open. After a failure of the GPU the driver runs no host functions,
 * and only the timer makes the program check the stream. */
static void run_timer(struct cst_cuda *cuda)
{
    struct itimerspec after = {.it_value = {.tv_nsec = CSTC_MARKS_LOOK_MS * 1000000l}};

    if (cuda->n_open > 0 && !cuda->timer_runs) {
        cuda->timer_runs = timerfd_settime(cuda->timer, 0, &after, NULL) == 0;
    }
}

static void quiet(struct cst_cuda *cuda)
{
    uint64_t count;

    read_count(cuda->wake);
    if (cuda->timer_runs && read(cuda->timer, &count, sizeof count) == (ssize_t)sizeof count) {
        cuda->timer_runs = false;
    }
}

/* -- life ------------------------------------------------------------------------------------- */

int cstc_marks_open(struct cst_cuda *cuda, struct cst_err *err)
{
    const int rc = open_fds(cuda, err);

    return rc == CST_OK ? cstc_cuda_side_stream(cuda, &cuda->side, err) : rc;
}

void cstc_marks_close(struct cst_cuda *cuda)
{
    const struct cst_cuda_driver *driver = &cuda->driver;

    if (cuda->side != NULL) {
        (void)driver->cuStreamSynchronize(cuda->stream);
        /* Host functions write to the descriptors, which are closed below. */
        (void)driver->cuStreamSynchronize(cuda->side);
        (void)driver->cuStreamDestroy(cuda->side);
    }
    for (uint32_t i = 0; i < cuda->n_open; i++) {
        (void)driver->cuEventDestroy(cuda->open[(cuda->first + i) % cuda->capacity].event);
    }
    for (uint32_t i = 0; i < cuda->n_idle; i++) {
        (void)driver->cuEventDestroy(cuda->idle[i]);
    }
    free(cuda->open);
    free(cuda->idle);
    close_fds(cuda);
}

/* -- marks ------------------------------------------------------------------------------------ */

/* Make space for one more mark. There are as many events as marks were ever open at the same
 * time. */
static int grow(struct cst_cuda *cuda, struct cst_err *err)
{
    uint32_t capacity = cuda->capacity > 0 ? 2 * cuda->capacity : 16;
    struct cstc_mark *open;
    CUevent *idle;

    if (cuda->n_open < cuda->capacity) {
        return CST_OK;
    }
    open = calloc(capacity, sizeof *open);
    idle = calloc(capacity, sizeof *idle);
    if (open == NULL || idle == NULL) {
        free(open);
        free(idle);
        return cst_err_set(err, CST_ENOMEM, "no memory for %u marks", capacity);
    }
    for (uint32_t i = 0; i < cuda->n_open; i++) {
        open[i] = cuda->open[(cuda->first + i) % cuda->capacity];
    }
    /* The ring is full, so that open marks use all events, and the list of idle events is empty. */
    free(cuda->open);
    free(cuda->idle);
    cuda->open = open;
    cuda->idle = idle;
    cuda->first = 0;
    cuda->capacity = capacity;
    return CST_OK;
}

static int get_event(struct cst_cuda *cuda, CUevent *out, struct cst_err *err)
{
    if (cuda->n_idle > 0) {
        *out = cuda->idle[--cuda->n_idle];
        return CST_OK;
    }
    return cst_cuda_check(&cuda->driver, cuda->driver.cuEventCreate(out, CU_EVENT_DISABLE_TIMING),
                          err, "an event of %s", cuda->uuid);
}

/* Host function. Runs in a thread of the driver, in which no call of CUDA is allowed. */
static void CUDA_CB wake(void *arg)
{
    const struct cst_cuda *cuda = arg;
    uint64_t one = 1;
    ssize_t n = write(cuda->wake, &one, sizeof one);

    (void)n; /* If the counter is full, the descriptor is readable already. */
}

static int record(struct cst_cuda *cuda, CUevent event, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &cuda->driver;
    int rc = cst_cuda_check(driver, driver->cuEventRecord(event, cuda->stream), err,
                            "a mark in the stream of %s", cuda->uuid);

    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuStreamWaitEvent(cuda->side, event, 0), err,
                            "a wait for the stream of %s", cuda->uuid);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuLaunchHostFunc(cuda->side, wake, cuda), err,
                            "a host function of %s", cuda->uuid);
    }
    return rc;
}

int cstc_cuda_fence(void *arg, uint64_t *fence, struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    CUevent event = NULL;
    int rc = cstc_cuda_enter(cuda, err);

    if (rc == CST_OK) {
        rc = grow(cuda, err);
    }
    if (rc == CST_OK) {
        rc = get_event(cuda, &event, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = record(cuda, event, err);
    if (rc != CST_OK) {
        cuda->idle[cuda->n_idle++] = event;
        return rc;
    }
    cuda->open[(cuda->first + cuda->n_open++) % cuda->capacity] =
        (struct cstc_mark){.event = event, .number = ++cuda->last};
    run_timer(cuda);
    *fence = cuda->last;
    return CST_OK;
}

/* The descriptors are read before the events are queried: a mark that is passed between the two
 * makes the descriptor readable again. */
int cstc_cuda_done(void *arg, uint64_t *passed, struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    CUresult result = CUDA_SUCCESS;
    int rc = cuda->n_open > 0 ? cstc_cuda_enter(cuda, err) : CST_OK;

    if (rc != CST_OK) {
        return rc;
    }
    quiet(cuda);
    while (cuda->n_open > 0 && result == CUDA_SUCCESS) {
        const struct cstc_mark *mark = &cuda->open[cuda->first];

        result = cuda->driver.cuEventQuery(mark->event);
        if (result == CUDA_SUCCESS) {
            cuda->passed = mark->number;
            cuda->idle[cuda->n_idle++] = mark->event;
            cuda->first = (cuda->first + 1) % cuda->capacity;
            cuda->n_open--;
        }
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
        rc = cst_cuda_check(&cuda->driver, result, err, "the stream of %s", cuda->uuid);
        return rc != CST_OK ? rc : CST_EGPU;
    }
    run_timer(cuda);
    *passed = cuda->passed;
    return CST_OK;
}
