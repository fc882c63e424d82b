/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpt/support.h"

#include "client/gpt/rng.h"
#include "kernels/math/cast.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
/* oneDNN is not compiled with ThreadSanitizer. Therefore ThreadSanitizer does not see oneDNN's
 * synchronisation. */
const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libdnnl.so\nrace:libdnnl.so\n";
}
#endif

unsigned test_isas(const struct gpt_simd *rows[3])
{
    static const char *const names[] = {"plain", "avx2", "avx512", "neon"};
    unsigned n = 0;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct gpt_simd *row = gpt_simd_get(names[i]);

        if (row != NULL) {
            rows[n++] = row;
        }
    }
    return n;
}

void test_fill(float *out, size_t n, uint64_t seed, float deviation)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = deviation * gpt_rng_normal(seed, 0, i);
    }
}

void test_fill_bf16(uint16_t *out, size_t n, uint64_t seed, float deviation)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = cst_fp32_to_bf16(deviation * gpt_rng_normal(seed, 0, i));
    }
}

double test_worst(const float *a, const double *b, size_t n)
{
    double off = 0, most = 1e-30;

    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]);

        if (!isnan(off) && !(d <= off)) { /* a difference that is NaN stays */
            off = d;
        }
        most = fabs(b[i]) > most ? fabs(b[i]) : most;
    }
    return off / most;
}

double test_distance(const float *a, const double *b, size_t n)
{
    double off = 0, all = 1e-60;

    for (size_t i = 0; i < n; i++) {
        off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += b[i] * b[i];
    }
    return sqrt(off / all);
}

static char directory[64];
static pid_t owner;

static void remove_directory(void)
{
    char command[128];

    if (getpid() == owner) {
        (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
        if (system(command) != 0) {
            (void)fprintf(stderr, "cannot remove %s\n", directory);
        }
    }
}

const char *test_path(unsigned slot, const char *name)
{
    static char paths[8][128];

    if (owner != getpid()) {
        owner = getpid();
        strcpy(directory, "/tmp/cistern-gpt-test.XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(directory));
        ck_assert_int_eq(atexit(remove_directory), 0);
    }
    ck_assert_uint_lt(slot, 8);
    (void)snprintf(paths[slot], sizeof paths[slot], "%s/%s", directory, name);
    return paths[slot];
}

const char *test_file(unsigned slot, const char *name, const void *bytes, size_t n)
{
    const char *path = test_path(slot, name);
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

void *test_read(const char *path, size_t *n_out)
{
    FILE *f = fopen(path, "r");
    long n;
    void *bytes;

    ck_assert_msg(f != NULL, "cannot open %s", path);
    ck_assert_int_eq(fseek(f, 0, SEEK_END), 0);
    n = ftell(f);
    ck_assert_int_ge(n, 0);
    rewind(f);
    bytes = malloc((size_t)n + 1);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, (size_t)n, f), (size_t)n);
    (void)fclose(f);
    *n_out = (size_t)n;
    return bytes;
}

void test_text(uint8_t out[TEST_TEXT_BYTES])
{
    static const char *const words[] = {"chunk ", "lease ", "block ", "arena ", "trace ", "grad\n"};
    size_t at = 0;

    for (uint64_t i = 0; at < TEST_TEXT_BYTES; i++) {
        const char *word = words[gpt_rng_u64(99, 7, i) % 6];

        for (size_t c = 0; word[c] != '\0' && at < TEST_TEXT_BYTES; c++) {
            out[at++] = (uint8_t)word[c];
        }
    }
}

struct gpt_options test_options(const char *line)
{
    static char lines[16][1024]; /* The options borrow strings from these lines. */
    static size_t n_lines;
    char *words = lines[n_lines++];
    char *argv[64] = {(char *)(uintptr_t) "cistern-gpt"};
    struct gpt_options options;
    struct cst_err err = {0};
    int argc = 1;

    ck_assert_uint_le(n_lines, 16);
    ck_assert_uint_lt(strlen(line), sizeof lines[0]);
    strcpy(words, line);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
        ck_assert_int_lt(argc, 63);
        argv[argc++] = word;
    }
    ck_assert_msg(gpt_options_parse(&options, argc, argv, &err) == 0, "%s", err.text);
    return options;
}

struct gpt_options test_text_options(const char *base, const char *more)
{
    uint8_t text[TEST_TEXT_BYTES];
    char line[512];
    struct gpt_options o;

    (void)snprintf(line, sizeof line, "%s%s", base, more);
    o = test_options(line);
    test_text(text);
    o.data = test_file(0, "text", text, sizeof text);
    return o;
}
