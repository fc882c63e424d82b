/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target: one function that takes any bytes and aborts where a promise is broken. Each
 * target is a source file of this directory, from which two programs are made: fuzz_NAME with
 * libFuzzer (clang alone; `make fuzz`), and replay_NAME with replay.c (any compiler; `make check`).
 * Not thread-safe: a target keeps static state between calls. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Name of the target; its corpus is tests/fuzz/corpus/NAME. */
extern const char fuzz_name[];

/* Give @data to the code under test. Always returns 0; aborts on a finding. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Write a well-formed input that reaches far into the code to @out, and return its length, at most
 * @max bytes. It is made anew by today's code, so it stays well-formed when a format changes. */
size_t fuzz_seed(uint8_t *out, size_t max);

/* End the process with @what, the promise that was broken, unless @holds. */
#define fuzz_must(holds, what)                                                                     \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            (void)fprintf(stderr, "broken: %s\n", what);                                           \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
