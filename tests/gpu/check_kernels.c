/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the CUDA kernels on a GPU with the cases of tests/kernels/check_cuda_kernels, bit by bit
 * compared with the C references, and measures their speed. Exit status 77: no GPU. */
#include "tests/gpu/kernels_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NO_GPU = 77 };

struct options {
    const char *json; /* file to which a line is appended, or NULL */
    bool speed;       /* measure the speed, too */
    uint64_t seed;
};

static bool parse(int argc, char **argv, struct options *options)
{
    const char *seed = getenv("CST_SEED");

    *options = (struct options){.speed = true, .seed = seed != NULL ? strtoull(seed, NULL, 0) : 20};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            options->json = argv[++i];
        } else if (strcmp(argv[i], "--no-speed") == 0) {
            options->speed = false;
        } else {
            (void)fprintf(stderr, "usage: check_kernels [--json FILE] [--no-speed]\n");
            return false;
        }
    }
    return true;
}

/* Print a line of the table. True if the bits are right. */
static bool report(const char *name, const struct cases_result *result, FILE *json)
{
    (void)printf("%-22s %12llu elements: %s\n", name, result->n_elems,
                 result->ok ? "same bits" : result->why);
    (void)fflush(stdout);
    if (json != NULL) {
        (void)fprintf(json, ", \"%s bits\": %s", name, result->ok ? "true" : "false");
    }
    return result->ok;
}

static bool check_all(struct kernels_device *d, const struct options *options, FILE *json)
{
    unsigned n;
    const struct cases_op *ops = cases_all(&n);
    struct cases_result result;
    bool ok = true;

    for (unsigned i = 0; i < n; i++) {
        ops[i].run(&d->cases, options->seed, &result);
        ok = report(ops[i].name, &result, json) && ok;
    }
    kernels_device_mma(d, &result);
    return report("mma", &result, json) && ok;
}

static bool run(struct kernels_device *d, const struct options *options, FILE *json)
{
    bool ok;

    (void)printf("%s, driver %d.%d, seed %llu\n", d->name, d->driver.version / 1000,
                 d->driver.version % 1000 / 10, (unsigned long long)options->seed);
    if (json != NULL) {
        (void)fprintf(json, "{\"test\": \"kernels\", \"card\": \"%s\"", d->name);
    }
    ok = check_all(d, options, json);
    if (options->speed) {
        kernels_speed(d, json);
    }
    if (json != NULL) {
        (void)fprintf(json, ", \"ok\": %s}\n", ok ? "true" : "false");
    }
    return ok;
}

int main(int argc, char **argv)
{
    struct kernels_device d;
    struct cst_err err = {0};
    struct options options;
    FILE *json = NULL;
    bool ok;
    int status;

    if (!parse(argc, argv, &options)) {
        return 2;
    }
    status = kernels_device_open(&d, &err);
    if (status == CST_EUNSUPPORTED) {
        (void)printf("check_kernels: not run: %s\n", err.text);
        return NO_GPU;
    }
    kernels_device_need(status, &err);
    if (options.json != NULL && (json = fopen(options.json, "ae")) == NULL) {
        (void)fprintf(stderr, "check_kernels: %s: %s\n", options.json, strerror(errno));
        return EXIT_FAILURE;
    }
    ok = run(&d, &options, json);
    kernels_device_close(&d);
    if (json != NULL && fclose(json) != 0) {
        (void)fprintf(stderr, "check_kernels: %s: %s\n", options.json, strerror(errno));
        return EXIT_FAILURE;
    }
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
