/* SPDX-License-Identifier: Apache-2.0 */
/* The main program of a target without libFuzzer. It gives the target its seed and every file of
 * its corpus, each of them unchanged, cut off at many places, and with random damage. FUZZ_SEED=N
 * in the environment is the seed of random numbers. The corpus is in $srcdir/tests/fuzz/corpus. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <limits.h>
#include <string.h>

enum { INPUT_BYTES = 1 << 16, N_CUTS = 4, N_DAMAGED = 4 };

static uint8_t input[INPUT_BYTES], copy[INPUT_BYTES];
static uint64_t state; /* state of the random numbers */
static unsigned long n_runs;

static uint64_t next_random(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull;
}

/* Run the target on a heap block of exactly @n bytes, so that a sanitizer detects reads behind
 * it. */
static void run(const uint8_t *data, size_t n)
{
    uint8_t *exact = malloc(n > 0 ? n : 1);

    fuzz_must(exact != NULL, "memory for an input");
    if (n > 0) {
        memcpy(exact, data, n);
    }
    (void)LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    n_runs++;
}

/* Change up to eight of the @n bytes, or remove a range of them, and run the target. */
static void run_damaged(size_t n)
{
    size_t from = next_random() % n, to = next_random() % n;

    memcpy(copy, input, n);
    if (from < to && next_random() % 2 == 0) {
        memmove(copy + from, copy + to, n - to);
        n -= to - from;
    }
    for (uint64_t i = next_random() % 8; i > 0; i--) {
        copy[next_random() % n] = (uint8_t)next_random();
    }
    run(copy, n);
}

/* Run the target on the @n bytes in `input` and on variants of them, @scale times as often as
 * usual. */
static void run_all(size_t n, size_t scale)
{
    run(input, n);
    for (size_t i = 0; n > 0 && i < scale * N_CUTS; i++) {
        run(input, n * i / (scale * N_CUTS));
    }
    for (size_t i = 0; n > 0 && i < scale * N_DAMAGED; i++) {
        run_damaged(n);
    }
}

static size_t read_file(const char *path)
{
    FILE *file = fopen(path, "rbe");
    size_t n = file != NULL ? fread(input, 1, sizeof input, file) : 0;

    fuzz_must(file != NULL && ferror(file) == 0, path);
    (void)fclose(file);
    return n;
}

static unsigned run_corpus(void)
{
    const char *top = getenv("srcdir");
    char dir[PATH_MAX / 2], path[PATH_MAX];
    struct dirent *entry;
    unsigned n = 0;
    DIR *open;

    (void)snprintf(dir, sizeof dir, "%s/tests/fuzz/corpus/%s", top != NULL ? top : ".", fuzz_name);
    open = opendir(dir);
    fuzz_must(open != NULL, dir);
    while ((entry = readdir(open)) != NULL) {
        if (entry->d_name[0] != '.') {
            (void)snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
            run_all(read_file(path), 1);
            n++;
        }
    }
    (void)closedir(open);
    return n;
}

int main(int argc, char **argv)
{
    const char *given = getenv("FUZZ_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : 1;
    unsigned n_files;

    (void)LLVMFuzzerInitialize(&argc, &argv);
    state = seed | 1;
    run_all(fuzz_seed(input, sizeof input), 96);
    n_files = run_corpus();
    (void)printf("%s: %lu runs from the seed and %u files, FUZZ_SEED=%llu\n", fuzz_name, n_runs,
                 n_files, (unsigned long long)seed);
    return EXIT_SUCCESS;
}
