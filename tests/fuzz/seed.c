/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { SEED_BYTES = 1 << 16 };

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static uint8_t seed[SEED_BYTES];
    const char *path;
    FILE *file;
    size_t n;

    if (*argc != 3 || strcmp((*argv)[1], "--seed") != 0) {
        return 0;
    }
    path = (*argv)[2];
    n = fuzz_seed(seed, sizeof seed);
    file = fopen(path, "wbe");
    if (file == NULL || fwrite(seed, 1, n, file) != n || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    exit(EXIT_SUCCESS);
}
