/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the flop/s of a training step on the host, and the use of processors by other
 * programs. */
#include "client/cli/measure.h"

#include "proto/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Share of the cores that other programs may use before a note is added. */
#define BUSY_SHARE 0.1
#define DATA_BYTES 65536

enum { STEPS = 6 }; /* Including one step that warms up and is not counted. */

/* -- cistern-gpt ------------------------------------------------------------------------------ */

/* Find cistern-gpt in the directory of this program. False: it is not there. */
static bool find_gpt(char out[PATH_MAX])
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    return snprintf(out, PATH_MAX, "%s/cistern-gpt", self) < PATH_MAX && access(out, X_OK) == 0;
}

/* Write a file of text for the training; its contents do not matter. */
static bool write_data(const char *path)
{
    FILE *to = fopen(path, "we");
    bool good = to != NULL;

    for (unsigned i = 0; good && i < DATA_BYTES; i++) {
        good = fputc((int)(32 + i * 2654435761u % 90), to) != EOF;
    }
    return to != NULL && fclose(to) == 0 && good;
}

/* Read the flop/s of the steps in the log @path, except the first step. Returns their number. */
static unsigned read_log(const char *path, double flops[STEPS])
{
    FILE *from = fopen(path, "re");
    json_t *step;
    unsigned n = 0, skipped = 0;

    /* The log has one JSON object per line. */
    while (from != NULL && n < STEPS &&
           (step = json_loadf(from, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
        double value = json_number_value(json_object_get(step, "model_flops_per_s"));

        if (skipped++ > 0 && value > 0) {
            flops[n++] = value;
        }
        json_decref(step);
    }
    if (from != NULL) {
        (void)fclose(from);
    }
    return n;
}

/* Train a model whose time is nearly all in matrix products, on all cores. */
static int train(const char *program, const char *data, const char *log, struct cst_err *err)
{
    char *words[] = {(char *)(uintptr_t)program,
                     (char *)(uintptr_t) "--store=local",
                     (char *)(uintptr_t) "--layers=2",
                     (char *)(uintptr_t) "--heads=8",
                     (char *)(uintptr_t) "--width=512",
                     (char *)(uintptr_t) "--context=256",
                     (char *)(uintptr_t) "--batch=4",
                     (char *)(uintptr_t) "--steps=6",
                     (char *)(uintptr_t) "--quiet",
                     (char *)(uintptr_t) "--data",
                     (char *)(uintptr_t)data,
                     (char *)(uintptr_t) "--log-json",
                     (char *)(uintptr_t)log,
                     NULL};
    char *text = malloc(CLI_MEASURE_TEXT);
    int status = 0;
    int rc = text != NULL ? cli_measure_run(words, text, &status, err)
                          : cst_err_set(err, CST_ENOMEM, "no memory for an answer");

    if (rc == CST_OK && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
        rc = cst_err_set(err, CST_EENGINE, "%.*s",
                         (int)(text[0] != '\0' ? strcspn(text, "\n") : strlen("no answer")),
                         text[0] != '\0' ? text : "no answer");
    }
    free(text);
    return rc;
}

static void measure_in(struct cli_measured *out, const char *program, const char *directory)
{
    char data[PATH_MAX], log[PATH_MAX];
    double flops[STEPS];
    struct cst_err err = {0};
    unsigned n;

    (void)snprintf(data, sizeof data, "%s/data", directory);
    (void)snprintf(log, sizeof log, "%s/log", directory);
    if (!write_data(data)) {
        cli_measure_note(out, "no flop/s of the host: %.100s: %s", data, strerror(errno));
    } else if (train(program, data, log, &err) != CST_OK) {
        cli_measure_note(out, "no flop/s of the host: %.140s", err.text);
    } else if ((n = read_log(log, flops)) < 3) {
        cli_measure_note(out, "no flop/s of the host: cistern-gpt reported them for only %u steps",
                         n);
    } else {
        for (uint32_t i = 0; i < out->rates.n_devices; i++) {
            if (strcmp(out->rates.devices[i].name, "host") == 0) {
                out->rates.devices[i].flops = cli_measure_median(flops, n, &out->rates.spread);
            }
        }
    }
    (void)unlink(data);
    (void)unlink(log);
}

void cli_measure_flops(struct cli_measured *out)
{
    const char *home = getenv("TMPDIR");
    char program[PATH_MAX], directory[PATH_MAX - 16];

    if (!find_gpt(program)) {
        cli_measure_note(out, "no flop/s of the host: there is no cistern-gpt in the directory of "
                              "this program: use --flops with plans");
        return;
    }
    (void)snprintf(directory, sizeof directory, "%s/cistern-probe.XXXXXX",
                   home != NULL && home[0] == '/' ? home : "/tmp");
    if (mkdtemp(directory) == NULL) {
        cli_measure_note(out, "no flop/s of the host: %.100s: %s", directory, strerror(errno));
        return;
    }
    measure_in(out, program, directory);
    (void)rmdir(directory);
}

/* -- other programs --------------------------------------------------------------------------- */

/* Return the processor time of the machine in seconds, all cores together; 0: unknown. */
static double machine_used(void)
{
    FILE *from = fopen("/proc/stat", "re");
    unsigned long long user, nice, system, idle, wait, irq, softirq, steal;
    int n = 0;

    if (from != NULL) {
        n = fscanf(from, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system,
                   &idle, &wait, &irq, &softirq, &steal);
        (void)fclose(from);
    }
    return n == 8 ? (double)(user + nice + system + irq + softirq + steal) /
                        (double)sysconf(_SC_CLK_TCK)
                  : 0;
}

static double seconds(const struct timeval *time)
{
    return (double)time->tv_sec + 1e-6 * (double)time->tv_usec;
}

/* Return the processor time of this program and of its ended children, in seconds. */
static double own_used(void)
{
    struct rusage self, children;

    (void)getrusage(RUSAGE_SELF, &self);
    (void)getrusage(RUSAGE_CHILDREN, &children);
    return seconds(&self.ru_utime) + seconds(&self.ru_stime) + seconds(&children.ru_utime) +
           seconds(&children.ru_stime);
}

void cli_busy_begin(struct cli_busy *busy)
{
    *busy = (struct cli_busy){
        .began_s = cst_clock_s(), .used_s = machine_used(), .used_own_s = own_used()};
}

void cli_busy_end(const struct cli_busy *busy, struct cli_measured *out)
{
    double wall = cst_clock_s() - busy->began_s, used = machine_used();
    double others = (used - busy->used_s) - (own_used() - busy->used_own_s);
    double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);

    if (used == 0 || wall <= 0 || others < BUSY_SHARE * cores * wall) {
        return;
    }
    out->rates.busy_cores = others / wall;
    cli_measure_note(out,
                     "the machine was busy: other programs used %.1f of %.0f cores; measure again "
                     "when it is quiet",
                     out->rates.busy_cores, cores);
}
