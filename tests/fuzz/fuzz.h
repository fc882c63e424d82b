/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target is a function that accepts any bytes, and aborts if an invariant is broken. Each
 * target is a source file of this directory and a program of its name: with libFuzzer in the tree
 * of `make fuzz`, with replay.c in others, where `make check` runs it. Not thread-safe: a target
 * keeps static state between calls. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The name of the target. Its corpus is the folder tests/fuzz/corpus/NAME. */
extern const char fuzz_name[];

/* Give @data to the code under test. Aborts if an invariant is broken. Always returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* With the arguments `--seed FILE`, write the seed to FILE, as libFuzzer's first input, and exit.
 * Otherwise return 0. */
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Write a valid input that reaches much of the code to @out, and return its length, which is at
 * most
 * @max bytes. The encoder under test makes it, so that it stays valid when a format changes. */
size_t fuzz_seed(uint8_t *out, size_t max);

/* Print @what, which names the broken invariant, and abort, unless @holds. */
#define fuzz_must(holds, what)                                                                     \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            (void)fprintf(stderr, "broken: %s\n", what);                                           \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
