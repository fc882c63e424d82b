/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fake_gpu.h"

#include "tests/lib/fakecuda/ledger.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Relative to the build folder, in which tests run. */
#define FOLDER "tests/lib/fakecuda/.libs"
#define NCCL_FOLDER "tests/lib/fakenccl/.libs"
#define MARK "CST_FAKE_GPU_STARTED"

extern char **environ;

static char ledger[] = "/tmp/cst-ledger-XXXXXX";

static _Noreturn void fail(const char *what)
{
    perror(what);
    abort();
}

static void forget_settings(void)
{
    static const char *const prefixes[] = {"CST_FAKECUDA_", "CST_FAKENCCL_"};

    for (char **e = environ; *e != NULL;) {
        char name[64];
        size_t n = strcspn(*e, "=");

        if ((strncmp(*e, prefixes[0], strlen(prefixes[0])) != 0 &&
             strncmp(*e, prefixes[1], strlen(prefixes[1])) != 0) ||
            n >= sizeof name || strncmp(*e, "CST_FAKECUDA_SEED", n) == 0) {
            e++;
            continue;
        }
        memcpy(name, *e, n);
        name[n] = '\0';
        (void)unsetenv(name);
        e = environ;
    }
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
}

void fake_gpu_use(char **argv)
{
    const char *old = getenv("LD_LIBRARY_PATH");
    char folder[PATH_MAX], nccl[PATH_MAX], path[3 * PATH_MAX];

    if (getenv(MARK) != NULL) {
        (void)unsetenv(MARK);
        return;
    }
    if (realpath(FOLDER, folder) == NULL) {
        fail(FOLDER);
    }
    if (realpath(NCCL_FOLDER, nccl) == NULL) {
        fail(NCCL_FOLDER);
    }
    (void)snprintf(path, sizeof path, "%s:%s%s%s", folder, nccl, old != NULL ? ":" : "",
                   old != NULL ? old : "");
    forget_settings();
    (void)setenv("LD_LIBRARY_PATH", path, 1);
    (void)setenv(MARK, "1", 1);
    (void)execv("/proc/self/exe", argv);
    fail("exec");
}

void fake_gpu_open_ledger(void)
{
    if (mkdtemp(ledger) == NULL || setenv("CST_FAKECUDA_STATE", ledger, 1) != 0) {
        fail(ledger);
    }
}

void fake_gpu_close_ledger(void)
{
    DIR *folder = opendir(ledger);
    struct dirent *entry;

    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] != '.') {
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder == NULL || closedir(folder) != 0 || rmdir(ledger) != 0) {
        fail(ledger);
    }
}

unsigned long fake_gpu_used(void)
{
    struct cst_fake_use use;

    if (cst_fake_ledger_use(ledger, -1, &use) != 0) {
        fail(ledger);
    }
    return use.bytes;
}

const char *fake_gpu_probe(void)
{
    static char text[4096];
    FILE *from = popen(FAKE_GPU_ENGINE " --probe 2>/dev/null", "r");
    size_t n;

    if (from == NULL) {
        fail("popen");
    }
    n = fread(text, 1, sizeof text - 1, from);
    text[n] = '\0';
    return pclose(from) == 0 && n > 0 ? text : NULL;
}

const char *fake_gpu_uuid(unsigned i)
{
    static char uuids[8][64];
    static const char key[] = "\"uuid\":\"";
    const char *at = fake_gpu_probe();

    for (unsigned k = 0; at != NULL && k <= i; k++) {
        at = strstr(k == 0 ? at : at + 1, key);
    }
    if (at == NULL || i >= 8) {
        fprintf(stderr, "fake_gpu: no GPU %u\n", i);
        abort();
    }
    at += strlen(key);
    (void)snprintf(uuids[i], sizeof uuids[i], "%.*s", (int)strcspn(at, "\""), at);
    return uuids[i];
}
