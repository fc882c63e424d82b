/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/measure.h"

#include "cistern/cistern.h"
#include "proto/clock.h"
#include "proto/fingerprint.h"
#include "proto/host_nodes.h"
#include "proto/program.h"
#include "proto/rates_fields.h"
#include "proto/rates_json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_ANSWER = CLI_MEASURE_TEXT - 1, N_PINGS = 501 };

void cli_measure_note(struct cli_measured *out, const char *fmt, ...)
{
    va_list ap;

    if (out->n_notes < CLI_MEASURE_MAX_NOTES) {
        va_start(ap, fmt);
        (void)vsnprintf(out->notes[out->n_notes], sizeof out->notes[0], fmt, ap);
        va_end(ap);
        out->n_notes++;
    }
}

/* -- programs --------------------------------------------------------------------------------- */

/* Start the program @argv. Its standard output and error can be read from *fd. */
static int spawn(char *const *argv, pid_t *pid, int *fd, struct cst_err *err)
{
    posix_spawn_file_actions_t actions;
    int ends[2], rc;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return cst_err_errno(err, CST_EENGINE, errno, "pipe");
    }
    (void)posix_spawn_file_actions_init(&actions);
    rc = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (rc == 0) {
        rc = posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    }
    if (rc == 0) {
        rc = posix_spawn(pid, argv[0], &actions, NULL, argv, environ);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    if (rc != 0) {
        (void)close(ends[0]);
        return cst_err_errno(err, CST_EENGINE, rc, "%s", argv[0]);
    }
    *fd = ends[0];
    return CST_OK;
}

/* Read from @fd until its end, as text. What exceeds MAX_ANSWER bytes is read and dropped, so that
 * the program can end. */
static void read_answer(int fd, char text[MAX_ANSWER + 1])
{
    size_t used = 0;
    char more[512];
    ssize_t n;

    while ((n = read(fd, more, sizeof more)) > 0 || (n < 0 && errno == EINTR)) {
        size_t keep = n > 0 ? (size_t)n : 0;

        keep = keep < MAX_ANSWER - used ? keep : MAX_ANSWER - used;
        memcpy(text + used, more, keep);
        used += keep;
    }
    text[used] = '\0';
}

/* Return @text without the name of the program @path, with which its messages begin. */
static const char *without_name(const char *path, const char *text)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    size_t n = strlen(name);

    return strncmp(text, name, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2 : text;
}

/* Parse the output of an engine program as JSON. If that is not possible, or the program failed,
 * the first line of the output is the error. */
static int judge(const char *program, const char *text, int status, json_t **out,
                 struct cst_err *err)
{
    json_t *root = json_loads(text, 0, NULL);
    const char *words = json_string_value(json_object_get(root, "error"));
    int rc = CST_OK;

    text = without_name(program, text);
    if (root != NULL && words != NULL) {
        rc = cst_err_set(err, CST_EENGINE, "%s", words);
    } else if (root == NULL || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        rc = cst_err_set(err, CST_EENGINE, "%s: %.*s", program,
                         (int)(text[0] != '\0' ? strcspn(text, "\n") : strlen("no answer")),
                         text[0] != '\0' ? text : "no answer");
    }
    if (rc != CST_OK) {
        json_decref(root);
        return rc;
    }
    *out = root;
    return CST_OK;
}

int cli_measure_run(char *const *argv, char text[CLI_MEASURE_TEXT], int *status,
                    struct cst_err *err)
{
    pid_t pid;
    int fd = -1, rc = spawn(argv, &pid, &fd, err);

    if (rc == CST_OK) {
        read_answer(fd, text);
        (void)close(fd);
        while (waitpid(pid, status, 0) < 0 && errno == EINTR) {
        }
    }
    return rc;
}

/* Run an engine program and parse its output. *out belongs to the caller. */
static int ask(char *const *argv, json_t **out, struct cst_err *err)
{
    char *text = malloc(CLI_MEASURE_TEXT);
    int status = 0, rc;

    if (text == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for an answer");
    }
    rc = cli_measure_run(argv, text, &status, err);
    if (rc == CST_OK) {
        rc = judge(argv[0], text, status, out, err);
    }
    free(text);
    return rc;
}

/* -- engines ---------------------------------------------------------------------------------- */

double cli_measure_median(double *values, unsigned n, double *spread)
{
    double median, range;

    for (unsigned i = 1; i < n; i++) {
        for (unsigned k = i; k > 0 && values[k] < values[k - 1]; k--) {
            double value = values[k];

            values[k] = values[k - 1];
            values[k - 1] = value;
        }
    }
    median = values[n / 2];
    range = median > 0 ? (values[n - 1] - values[0]) / 2 / median : 0;
    *spread = range > *spread ? range : *spread;
    return median;
}

/* Replace the numbers of @fields in @out by the medians over @trials, which have @stride bytes
 * each. */
static void take_medians(void *out, const struct cst_rates_field *fields, const void *trials,
                         size_t stride, double *spread)
{
    for (; fields->name != NULL; fields++) {
        double values[CLI_MEASURE_TRIALS];

        for (unsigned i = 0; i < CLI_MEASURE_TRIALS; i++) {
            values[i] = cst_rates_get((const char *)trials + i * stride, fields);
        }
        *cst_rates_value(out, fields) = cli_measure_median(values, CLI_MEASURE_TRIALS, spread);
    }
}

/* Run an engine program with "--rates @option @name" several times, and add its answers to
 * @trials. */
static int run_trials(struct cst_rates *trials, char *program, const char *option, const char *name,
                      int (*add)(struct cst_rates *rates, const json_t *answer,
                                 struct cst_err *err),
                      struct cst_err *err)
{
    char *argv[] = {program, (char *)(uintptr_t) "--rates", (char *)(uintptr_t)option,
                    (char *)(uintptr_t)name, NULL};
    int rc = CST_OK;

    *trials = (struct cst_rates){.n_nodes = 0};
    for (unsigned i = 0; i < CLI_MEASURE_TRIALS && rc == CST_OK; i++) {
        json_t *answer = NULL;

        rc = ask(argv, &answer, err);
        if (rc == CST_OK) {
            rc = add(trials, answer, err);
            json_decref(answer);
        }
    }
    return rc;
}

static int measure_node(struct cst_rates *rates, char *program, unsigned node, struct cst_err *err)
{
    struct cst_rates trials;
    char number[16];
    int rc;

    (void)snprintf(number, sizeof number, "%u", node);
    rc = run_trials(&trials, program, "--node", number, cst_rates_add_node, err);
    if (rc == CST_OK) {
        rates->nodes[rates->n_nodes] = trials.nodes[0];
        take_medians(&rates->nodes[rates->n_nodes++], cst_rates_node_fields, trials.nodes,
                     sizeof trials.nodes[0], &rates->spread);
    }
    return rc;
}

/* Measure the nodes that the daemon would start engines for. */
static int measure_nodes(struct cst_rates *rates, char *program, struct cst_err *err)
{
    struct cst_host_nodes nodes;
    int rc = cst_host_nodes_open(&nodes, CST_HOST_NODES_ONLY, err);

    if (rc != CST_OK) {
        return rc;
    }
    for (unsigned i = 0; i < nodes.n && i < CST_RATES_MAX_NODES && rc == CST_OK; i++) {
        rc = measure_node(rates, program, nodes.v[i].os_index, err);
    }
    if (nodes.n == 0) {
        rc = measure_node(rates, program, 0, err);
    }
    cst_host_nodes_close(&nodes);
    return rc;
}

/* Add the device "host". If a rank computes on the host, its pool is in host memory, and a transfer
 * to the pool is a copy in memory. */
static void add_host_device(struct cst_rates *rates)
{
    struct cst_rates_device *device = &rates->devices[rates->n_devices++];
    const struct cst_rates_node *node = &rates->nodes[0];

    *device = (struct cst_rates_device){.name = "host",
                                        .up = node->copy,
                                        .down = node->copy,
                                        .up_both = node->copy / 2,
                                        .down_both = node->copy / 2,
                                        .update = node->update,
                                        .memory = node->pass};
    for (uint32_t i = 0; i < rates->n_nodes; i++) {
        device->memory_bytes += rates->nodes[i].memory_bytes;
    }
}

static int measure_gpu(struct cst_rates *rates, char *program, const char *uuid,
                       struct cst_err *err)
{
    struct cst_rates trials;
    int rc = run_trials(&trials, program, "--device", uuid, cst_rates_add_device, err);

    if (rc == CST_OK) {
        rates->devices[rates->n_devices] = trials.devices[0];
        take_medians(&rates->devices[rates->n_devices++], cst_rates_device_fields, trials.devices,
                     sizeof trials.devices[0], &rates->spread);
    }
    return rc;
}

/* Measure all GPUs. A failure becomes a note, because the rates of the host are useful without
 * GPUs. Returns the number of @uuids, which are borrowed from *list; *list belongs to the
 * caller. */
static size_t measure_gpus(struct cli_measured *out, json_t **list,
                           const char *uuids[CST_RATES_MAX_DEVICES])
{
    char program[PATH_MAX];
    char *argv[] = {program, (char *)(uintptr_t) "--probe", NULL};
    struct cst_err err = {0};
    size_t n = 0;

    if (cst_program_find("cistern-engine-cuda", NULL, "CISTERN_ENGINE_CUDA", program,
                         sizeof program, NULL) != CST_OK) {
        cli_measure_note(out, "no GPUs: there is no cistern-engine-cuda");
        return 0;
    }
    if (ask(argv, list, &err) != CST_OK) {
        cli_measure_note(out, "no GPUs: %.160s", err.text);
        return 0;
    }
    for (size_t i = 0; i < json_array_size(json_object_get(*list, "gpus")); i++) {
        const json_t *gpu = json_array_get(json_object_get(*list, "gpus"), i);
        const char *uuid = json_string_value(json_object_get(gpu, "uuid"));

        if (uuid == NULL || n == CST_RATES_MAX_DEVICES - 1) {
            continue;
        }
        uuids[n++] = uuid;
        if (measure_gpu(&out->rates, program, uuid, &err) != CST_OK) {
            cli_measure_note(out, "cuda:%zu: %.160s", i, err.text);
        }
    }
    return n;
}

int cli_measure_engines(struct cli_measured *out, struct cst_err *err)
{
    const char *uuids[CST_RATES_MAX_DEVICES];
    char program[PATH_MAX];
    json_t *list = NULL;
    size_t n_gpus;
    int rc = CST_OK;

    rc = cst_program_find("cistern-engine-host", NULL, "CISTERN_ENGINE_HOST", program,
                          sizeof program, err);
    if (rc != CST_OK) {
        return rc;
    }
    rc = measure_nodes(&out->rates, program, err);
    if (rc != CST_OK) {
        return rc;
    }
    n_gpus = measure_gpus(out, &list, uuids);
    add_host_device(&out->rates);
    cst_fingerprint(uuids, n_gpus, out->rates.fingerprint);
    json_decref(list);
    return CST_OK;
}

/* -- drives ----------------------------------------------------------------------------------- */

/* Take the rates of a drive from the answer of an engine program. */
static int take_disk(struct cli_measured *out, const json_t *answer, struct cst_err *err)
{
    const double read = json_number_value(json_object_get(answer, "disk_read")),
                 write = json_number_value(json_object_get(answer, "disk_write")),
                 mixed = json_number_value(json_object_get(answer, "disk_mixed")),
                 flush_s = json_number_value(json_object_get(answer, "disk_flush_s"));

    if (!(read > 0) || !(write > 0) || !(mixed > 0) || !(flush_s > 0)) {
        return cst_err_set(err, CST_EENGINE, "an engine program that does not measure drives");
    }
    out->rates.disk_read = read;
    out->rates.disk_write = write;
    out->rates.disk_mixed = mixed;
    out->rates.disk_flush_s = flush_s;
    out->disk_bytes = (uint64_t)json_integer_value(json_object_get(answer, "bytes"));
    return CST_OK;
}

int cli_measure_disk(struct cli_measured *out, const char *directory, uint64_t bytes,
                     struct cst_err *err)
{
    char program[PATH_MAX], size[24];
    char *argv[] = {program,
                    (char *)(uintptr_t) "--rates",
                    (char *)(uintptr_t) "--directory",
                    (char *)(uintptr_t)directory,
                    bytes > 0 ? (char *)(uintptr_t) "--bytes" : NULL,
                    size,
                    NULL};
    json_t *answer = NULL;
    int rc = cst_program_find("cistern-engine-host", NULL, "CISTERN_ENGINE_HOST", program,
                              sizeof program, err);

    (void)snprintf(size, sizeof size, "%" PRIu64, bytes);
    if (rc == CST_OK) {
        rc = ask(argv, &answer, err);
    }
    if (rc == CST_OK) {
        rc = take_disk(out, answer, err);
        json_decref(answer);
    }
    return rc;
}

/* -- requests --------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

int cli_measure_request(struct cli_measured *out, struct cst_client *client, struct cst_err *err)
{
    uint64_t ns[N_PINGS];
    int rc = CST_OK;

    for (unsigned i = 0; i < N_PINGS && rc == CST_OK; i++) {
        rc = cst_ping(client, &ns[i], err);
    }
    if (rc == CST_OK) {
        qsort(ns, N_PINGS, sizeof *ns, compare);
        out->rates.request_s = (double)ns[N_PINGS / 2] * 1e-9;
    }
    return rc;
}
