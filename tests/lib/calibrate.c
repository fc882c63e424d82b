/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the factor for the time limits of tests on this machine, at this moment, for programs
 * that are compiled as this one is.
 *
 *   calibrate N    print a whole number from 4 to 32
 *
 * N processes, as many as there will be tests at a time, do a fixed amount of what tests do: they
 * compute, wake each other through pipes, fork, and touch new memory. The time of the slowest one
 * is compared with that of four processes of a plain build on two quiet processors, where four
 * times the limits have been enough for all tests. Sanitizers, fewer or slower processors and other
 * processes make it longer, so they need not be considered one by one. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    QUIET_MS = 150,   /* time of four processes on two processors of 2.7 GHz that do nothing else */
    QUIET_FACTOR = 4, /* the factor on that machine */
    MOST = 32,
    MOST_PROCESSES = 1024
};

static double now_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static void fail(const char *what)
{
    perror(what);
    _exit(1);
}

/* Loads, stores and branches, which sanitizers slow down. */
static uint32_t compute(void)
{
    static uint32_t table[1 << 14];
    uint32_t x = 1;

    for (uint32_t i = 0; i < 20000000; i++) {
        x = x * 1664525u + 1013904223u;
        table[x >> 18] += x;
        x += table[i % (1 << 14)] & 1u;
    }
    return x;
}

static void child_end(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            fail("waitpid");
        }
    }
    if (status != 0) {
        (void)fprintf(stderr, "calibrate: a process ended with status %d\n", status);
        _exit(1);
    }
}

/* Send a byte to a child and back, many times: wake-ups, and turns that other processes can
 * take. */
static void wake(void)
{
    int to[2], from[2];
    char byte = 0;
    pid_t pid;

    if (pipe(to) != 0 || pipe(from) != 0) {
        fail("pipe");
    }
    pid = fork();
    if (pid < 0) {
        fail("fork");
    }
    if (pid == 0) {
        (void)close(to[1]);
        while (read(to[0], &byte, 1) == 1 && write(from[1], &byte, 1) == 1) {
        }
        _exit(0);
    }
    for (int i = 0; i < 500; i++) {
        if (write(to[1], &byte, 1) != 1 || read(from[0], &byte, 1) != 1) {
            fail("pipe");
        }
    }
    for (int i = 0; i < 2; i++) {
        (void)close(to[i]);
        (void)close(from[i]);
    }
    child_end(pid);
}

static void touch_and_fork(void)
{
    const size_t bytes = 8u << 20;

    for (int i = 0; i < 4; i++) {
        char *memory =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pid_t pid;

        if (memory == MAP_FAILED) {
            fail("mmap");
        }
        memset(memory, 1, bytes);
        pid = fork();
        if (pid < 0) {
            fail("fork");
        }
        if (pid == 0) {
            _exit(0);
        }
        child_end(pid);
        (void)munmap(memory, bytes);
    }
}

static void work(void)
{
    volatile uint32_t kept = compute();

    (void)kept;
    wake();
    touch_and_fork();
}

int main(int argc, char **argv)
{
    char *end = NULL;
    long n = argc == 2 ? strtol(argv[1], &end, 10) : 0;
    double began, factor;
    pid_t pids[MOST_PROCESSES];

    if (n < 1 || n > MOST_PROCESSES || *end != '\0') {
        (void)fprintf(stderr, "usage: calibrate PROCESSES (1 to %d)\n", MOST_PROCESSES);
        return 2;
    }
    began = now_ms();
    for (long i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] < 0) {
            fail("fork");
        }
        if (pids[i] == 0) {
            work();
            _exit(0);
        }
    }
    for (long i = 0; i < n; i++) {
        child_end(pids[i]);
    }
    factor = (now_ms() - began) / QUIET_MS * QUIET_FACTOR;
    factor = factor < QUIET_FACTOR ? QUIET_FACTOR : factor > MOST ? MOST : factor;
    (void)printf("%d\n", (int)factor + ((double)(int)factor < factor ? 1 : 0));
    return 0;
}
