/* SPDX-License-Identifier: Apache-2.0 */
/* Experiments that find out what a GPU's driver does where its manual is silent and cistern's
 * design depends on it. Each line of the table is a question; its answer and numbers are also
 * written to the JSON file. The parent does not use CUDA: processes in the role "gpu" execute its
 * requests.
 *
 * Usage: experiments [--json FILE] [--only NAME]. Exit status 77: no GPU. */
#include "tests/gpu/link.h"
#include "tests/gpu/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NO_GPU 77
#define SLAB_BYTES ((uint64_t)64 << 20)
#define HOST_BYTES ((uint64_t)256 << 20)
#define PATTERN 0x5a17c0de
#define KILLS 12
#define ROUNDS 200

struct answer {
    char words[160];   /* text for the table */
    char figures[200]; /* members of a JSON object; may be empty */
};

struct experiment {
    const char *name, *question;
    int (*run)(struct answer *answer, struct cst_err *err);
};

static void say(struct answer *answer, const char *words, const char *figures)
{
    (void)snprintf(answer->words, sizeof answer->words, "%s", words);
    (void)snprintf(answer->figures, sizeof answer->figures, "%s", figures);
}

static void pause_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL);
}

/* Start a GPU process with a context. */
static int start_gpu(struct gpu_link *link, struct cst_err *err)
{
    struct gpu_message answer;
    int rc = gpu_link_start(link, "gpu", err);

    return rc != CST_OK ? rc : gpu_link_ask(link, GPU_OPEN, 0, -1, &answer, NULL, err);
}

/* Make shared host memory; with @huge, of 2 MiB pages. */
static int host_memory(bool huge, int *out, struct cst_err *err)
{
    int fd = memfd_create("experiments", MFD_CLOEXEC | (huge ? MFD_HUGETLB : 0u));

    if (fd < 0 || ftruncate(fd, (off_t)HOST_BYTES) != 0) {
        int rc =
            cst_err_errno(err, CST_ENOMEM, errno, "host memory of %" PRIu64 " bytes", HOST_BYTES);

        if (fd >= 0) {
            (void)close(fd);
        }
        return rc;
    }
    *out = fd;
    return CST_OK;
}

/* -- memory after its maker's death --------------------------------------------------------- */

static int check_survivor(int slab, double *others, struct cst_err *err)
{
    struct gpu_link reader = {0};
    struct gpu_message answer;
    int rc = start_gpu(&reader, err);

    if (rc == CST_OK) {
        rc = gpu_link_ask(&reader, GPU_IMPORT, SLAB_BYTES, slab, &answer, NULL, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(&reader, GPU_COUNT_OTHERS, PATTERN, -1, &answer, NULL, err);
        *others = answer.values[0];
    }
    gpu_link_close(&reader);
    return rc;
}

/* Free bytes of the device, as a new process sees them. */
static int look_at_free(double *out, struct cst_err *err)
{
    struct gpu_link looker = {0};
    struct gpu_message answer;
    int rc = start_gpu(&looker, err);

    if (rc == CST_OK) {
        rc = gpu_link_ask(&looker, GPU_FREE_BYTES, 0, -1, &answer, NULL, err);
        *out = answer.values[0];
    }
    gpu_link_close(&looker);
    return rc;
}

static int survive(struct answer *answer, struct cst_err *err)
{
    struct gpu_link maker = {0};
    struct gpu_message reply;
    double before = 0, held = 0, after = 0, others = -1;
    char figures[200];
    int slab = -1, rc = look_at_free(&before, err);

    if (rc == CST_OK) {
        rc = start_gpu(&maker, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(&maker, GPU_CREATE, SLAB_BYTES, -1, &reply, &slab, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(&maker, GPU_PAINT, PATTERN, -1, &reply, NULL, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_kill(&maker, err);
    }
    if (rc == CST_OK) {
        rc = check_survivor(slab, &others, err);
    }
    if (rc == CST_OK) {
        rc = look_at_free(&held, err);
    }
    if (slab >= 0) {
        (void)close(slab);
    }
    gpu_link_close(&maker);
    if (rc == CST_OK) {
        rc = look_at_free(&after, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    (void)snprintf(figures, sizeof figures,
                   "\"words_lost\": %.0f, \"kept_bytes\": %.0f, \"returned_bytes\": %.0f", others,
                   before - held, after - held);
    say(answer,
        others == 0
            ? (after - held >= (double)SLAB_BYTES ? "yes; given back when the fd is closed"
                                                  : "yes, but closing the fd gives nothing back")
            : "NO",
        figures);
    return CST_OK;
}

/* -- memory without a context ----------------------------------------------------------------- */

static int no_context(struct answer *answer, struct cst_err *err)
{
    struct gpu_link maker = {0};
    struct gpu_message reply;
    int slab = -1, rc = gpu_link_start(&maker, "gpu", err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = gpu_link_ask(&maker, GPU_NO_CONTEXT, SLAB_BYTES, -1, &reply, &slab, err);
    say(answer, rc == CST_OK && slab >= 0 ? "yes" : "no: ", "");
    if (rc != CST_OK) {
        (void)snprintf(answer->words, sizeof answer->words, "no: %.120s", err->text);
    }
    if (slab >= 0) {
        (void)close(slab);
    }
    gpu_link_close(&maker);
    return CST_OK;
}

/* -- a timeline page between processes ------------------------------------------------------ */

/* The streams of two processes answer each other with two words of host memory. */
static int timeline_pair(struct gpu_link *echo, struct gpu_link *drive, int page, double *us,
                         struct cst_err *err)
{
    struct gpu_message reply;
    int rc = gpu_link_ask(echo, GPU_HOST, HOST_BYTES, page, &reply, NULL, err);

    if (rc == CST_OK) {
        rc = gpu_link_ask(drive, GPU_HOST, HOST_BYTES, page, &reply, NULL, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(echo, GPU_TIMELINE_ECHO, ROUNDS, -1, &reply, NULL, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(drive, GPU_TIMELINE_DRIVE, ROUNDS, -1, &reply, NULL, err);
        *us = reply.values[0];
    }
    return rc != CST_OK ? rc : gpu_link_ask(echo, GPU_SYNC, 0, -1, &reply, NULL, err);
}

/* A stream waits for a process that is dead, and the processor releases it. */
static int timeline_free(struct gpu_link *echo, int page, struct cst_err *err)
{
    struct gpu_message reply;
    volatile uint64_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    int rc;

    if (words == MAP_FAILED) {
        return cst_err_errno(err, CST_ENOMEM, errno, "mmap");
    }
    words[0] = words[1] = 0;
    rc = gpu_link_ask(echo, GPU_TIMELINE_ECHO, 1, -1, &reply, NULL, err);
    if (rc == CST_OK) {
        words[0] = 1;
        rc = gpu_link_ask(echo, GPU_SYNC, 0, -1, &reply, NULL, err);
    }
    if (rc == CST_OK && words[1] != 1) {
        rc = cst_err_set(err, CST_EINTERNAL, "the stream went on but did not write");
    }
    (void)munmap((void *)(uintptr_t)words, 4096);
    return rc;
}

static int timeline(struct answer *answer, struct cst_err *err)
{
    struct gpu_link echo = {0}, drive = {0};
    char words[160], figures[200];
    int page = -1, rc = host_memory(false, &page, err);
    double us = 0;

    if (rc == CST_OK) {
        rc = start_gpu(&echo, err);
    }
    if (rc == CST_OK) {
        rc = start_gpu(&drive, err);
    }
    if (rc == CST_OK) {
        rc = timeline_pair(&echo, &drive, page, &us, err);
    }
    if (rc == CST_OK) {
        rc = timeline_free(&echo, page, err);
    }
    if (rc == CST_OK) {
        (void)snprintf(words, sizeof words, "yes, %.1f us a round; freed by the processor too", us);
        (void)snprintf(figures, sizeof figures, "\"round_us\": %.2f", us);
        say(answer, words, figures);
    }
    gpu_link_close(&drive);
    gpu_link_close(&echo);
    if (page >= 0) {
        (void)close(page);
    }
    return rc;
}

/* -- copies during another process's kernels ------------------------------------------------ */

static int equip_for_copies(struct gpu_link *link, int page, struct cst_err *err)
{
    struct gpu_message reply;
    int slab = -1, rc = gpu_link_ask(link, GPU_HOST, HOST_BYTES, page, &reply, NULL, err);

    if (rc == CST_OK) {
        rc = gpu_link_ask(link, GPU_CREATE, SLAB_BYTES, -1, &reply, &slab, err);
    }
    if (slab >= 0) {
        (void)close(slab);
    }
    return rc;
}

static int measure_beside(struct gpu_link *copier, struct gpu_link *busy, struct answer *answer,
                          struct cst_err *err)
{
    struct gpu_message alone, beside, kernels_alone, kernels_beside;
    struct gpu_message ask = {.what = GPU_BUSY, .values = {1.5}};
    char words[160], figures[200];
    int rc = gpu_link_ask(copier, GPU_BANDWIDTH, 100, -1, &alone, NULL, err);

    if (rc == CST_OK) {
        rc = gpu_link_ask(busy, GPU_BUSY, 0.7, -1, &kernels_alone, NULL, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_send(busy->sock, &ask, -1, err);
    }
    if (rc == CST_OK) {
        pause_ms(200); /* the kernels run by then, and continue long after the copies */
        rc = gpu_link_ask(copier, GPU_BANDWIDTH, 100, -1, &beside, NULL, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_recv(busy->sock, 60000, &kernels_beside, NULL, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    (void)snprintf(words, sizeof words,
                   "up %.1f of %.1f, down %.1f of %.1f GB/s; kernels at %.0f %%", beside.values[0],
                   alone.values[0], beside.values[1], alone.values[1],
                   100 * kernels_beside.values[0] / kernels_alone.values[0]);
    (void)snprintf(figures, sizeof figures,
                   "\"up_alone\": %.2f, \"up_beside\": %.2f, \"down_alone\": %.2f, "
                   "\"down_beside\": %.2f, \"kernels_ratio\": %.3f",
                   alone.values[0], beside.values[0], alone.values[1], beside.values[1],
                   kernels_beside.values[0] / kernels_alone.values[0]);
    say(answer, words, figures);
    return CST_OK;
}

static int overlap(struct answer *answer, struct cst_err *err)
{
    struct gpu_link copier = {0}, busy = {0};
    int page = -1, rc = host_memory(false, &page, err);

    if (rc == CST_OK) {
        rc = start_gpu(&copier, err);
    }
    if (rc == CST_OK) {
        rc = start_gpu(&busy, err);
    }
    if (rc == CST_OK) {
        rc = equip_for_copies(&copier, page, err);
    }
    if (rc == CST_OK) {
        rc = measure_beside(&copier, &busy, answer, err);
    }
    gpu_link_close(&busy);
    gpu_link_close(&copier);
    if (page >= 0) {
        (void)close(page);
    }
    return rc;
}

/* -- registration --------------------------------------------------------------------------- */

/* Milliseconds of registering 256 MiB of populated memory. Negative: the system has no such
 * pages. */
static int time_registration(bool huge, double *ms, struct cst_err *err)
{
    struct gpu_link link = {0};
    struct gpu_message reply;
    int page = -1, rc = host_memory(huge, &page, err);

    if (rc == CST_OK) {
        rc = start_gpu(&link, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(&link, GPU_HOST, HOST_BYTES, page, &reply, NULL, err);
        *ms = reply.values[0];
    }
    gpu_link_close(&link);
    if (page >= 0) {
        (void)close(page);
    }
    if (rc != CST_OK && huge) { /* none are reserved, so mmap fails */
        *ms = -1;
        rc = CST_OK;
    }
    return rc;
}

static int registration(struct answer *answer, struct cst_err *err)
{
    double small = 0, large = 0;
    char words[160], figures[200], huge[64] = "no 2 MiB pages are reserved";
    int rc = time_registration(false, &small, err);

    if (rc == CST_OK) {
        rc = time_registration(true, &large, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (large >= 0) {
        (void)snprintf(huge, sizeof huge, "%.1f ms in 2 MiB pages", large);
    }
    (void)snprintf(words, sizeof words, "%.1f ms in 4 KiB pages (%.1f GB/s); %s", small,
                   (double)HOST_BYTES / small * 1e-6, huge);
    (void)snprintf(figures, sizeof figures, "\"ms_4k\": %.2f, \"ms_2m\": %.2f", small, large);
    say(answer, words, figures);
    return CST_OK;
}

/* -- SIGKILL during a copy ------------------------------------------------------------------ */

/* Kill a process once. *@moved: the slab changed after the process's end. */
static int kill_once(struct gpu_link *watcher, int slab, int page, long after_ms, bool *moved,
                     struct cst_err *err)
{
    struct gpu_link copier = {0};
    struct gpu_message reply, first;
    int rc = start_gpu(&copier, err);

    *moved = false;
    if (rc == CST_OK) {
        rc = gpu_link_ask(&copier, GPU_HOST, HOST_BYTES, page, &reply, NULL, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(&copier, GPU_IMPORT, SLAB_BYTES, slab, &reply, NULL, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(&copier, GPU_COPY_FOR_EVER, 0, -1, &reply, NULL, err);
    }
    if (rc == CST_OK) {
        pause_ms(after_ms); /* the copy that the kill hits is random */
        rc = gpu_link_kill(&copier, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(watcher, GPU_CHECKSUM, 0, -1, &first, NULL, err);
    }
    for (int look = 0; look < 4 && rc == CST_OK && !*moved; look++) {
        pause_ms(look * 20);
        rc = gpu_link_ask(watcher, GPU_CHECKSUM, 0, -1, &reply, NULL, err);
        *moved = rc == CST_OK && memcmp(&reply.values[0], &first.values[0], sizeof(double)) != 0;
    }
    gpu_link_close(&copier);
    return rc;
}

static int killed_copy(struct answer *answer, struct cst_err *err)
{
    struct gpu_link watcher = {0};
    struct gpu_message reply;
    char words[160], figures[200];
    int slab = -1, page = -1, n_moved = 0;
    int rc = host_memory(false, &page, err);

    if (rc == CST_OK) {
        rc = start_gpu(&watcher, err);
    }
    if (rc == CST_OK) {
        rc = gpu_link_ask(&watcher, GPU_CREATE, SLAB_BYTES, -1, &reply, &slab, err);
    }
    for (int i = 0; i < KILLS && rc == CST_OK; i++) {
        bool moved;

        rc = kill_once(&watcher, slab, page, 5 + 7 * i % 23, &moved, err);
        n_moved += moved;
    }
    if (rc == CST_OK) {
        (void)snprintf(words, sizeof words, "%s (%d of %d kills: the slab changed afterwards)",
                       n_moved == 0 ? "yes" : "NO", n_moved, KILLS);
        (void)snprintf(figures, sizeof figures, "\"kills\": %d, \"moved\": %d", KILLS, n_moved);
        say(answer, words, figures);
    }
    gpu_link_close(&watcher);
    if (slab >= 0) {
        (void)close(slab);
    }
    if (page >= 0) {
        (void)close(page);
    }
    return rc;
}

/* -- list of the experiments ---------------------------------------------------------------- */

static const struct experiment experiments[] = {
    {"survive", "memory outlives its maker while an fd is held", survive},
    {"no_context", "memory can be made without a context", no_context},
    {"timeline", "streams of two processes wait for each other", timeline},
    {"overlap", "copies beside another process's kernels", overlap},
    {"registration", "registering 256 MiB", registration},
    {"killed_copy", "after kill -9 in a copy, quiet once the pidfd is readable", killed_copy},
};

static void write_json(FILE *json, const struct experiment *experiment, const struct answer *answer,
                       const struct cst_err *err)
{
    if (json != NULL) {
        (void)fprintf(json, "{\"name\": \"experiment_%s\", \"answer\": \"%s\"%s%s}\n",
                      experiment->name, err->status == 0 ? answer->words : err->text,
                      answer->figures[0] != '\0' ? ", " : "", answer->figures);
    }
}

/* True if there is a GPU. Its name is printed on the first line. */
static int look(void)
{
    struct gpu_link link = {0};
    struct gpu_message answer;
    struct cst_err err;
    int rc = gpu_link_start(&link, "gpu", &err);

    if (rc == CST_OK) {
        rc = gpu_link_ask(&link, GPU_OPEN, 0, -1, &answer, NULL, &err);
        gpu_link_close(&link);
    }
    if (rc != CST_OK) {
        (void)printf("experiments: %s\n", err.text);
        return rc == CST_EUNSUPPORTED ? NO_GPU : EXIT_FAILURE;
    }
    (void)printf("experiments on %s, driver %.0f\n", answer.text, answer.values[2]);
    return 0;
}

static int run_all(const char *only, FILE *json)
{
    int failed = 0, run = 0;

    for (size_t i = 0; i < sizeof experiments / sizeof experiments[0]; i++) {
        struct answer answer = {{0}, {0}};
        struct cst_err err = {0};

        if (only != NULL && strcmp(only, experiments[i].name) != 0) {
            continue;
        }
        run++;
        if (experiments[i].run(&answer, &err) == CST_OK) {
            err.status = 0;
        } else {
            failed++;
        }
        (void)printf("%-58s %s%s\n", experiments[i].question,
                     err.status == 0 ? "" : "FAILED: ", err.status == 0 ? answer.words : err.text);
        (void)fflush(stdout);
        write_json(json, &experiments[i], &answer, &err);
    }
    if (run == 0) {
        (void)fprintf(stderr, "experiments: there is none called '%s'\n", only);
    }
    return failed > 0 || run == 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *only = NULL, *path = NULL;
    FILE *json = NULL;
    int rc;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--role") == 0 && strcmp(argv[i + 1], "gpu") == 0) {
            return gpu_process_run();
        } else if (strcmp(argv[i], "--only") == 0) {
            only = argv[i + 1];
        } else if (strcmp(argv[i], "--json") == 0) {
            path = argv[i + 1];
        }
    }
    if (argc % 2 == 0 || (argc > 1 && only == NULL && path == NULL)) {
        (void)fprintf(stderr, "usage: experiments [--json FILE] [--only NAME]\n");
        return 2;
    }
    rc = look();
    if (rc != 0) {
        return rc;
    }
    if (path != NULL && (json = fopen(path, "ae")) == NULL) {
        (void)fprintf(stderr, "experiments: %s: %s\n", path, strerror(errno));
        return EXIT_FAILURE;
    }
    rc = run_all(only, json);
    return json == NULL || fclose(json) == 0 ? rc : EXIT_FAILURE;
}
