/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the daemon's configuration file. An input is the file. */
#include "daemon/settings/settings.h"

#include "tests/fuzz/file.h"

const char fuzz_name[] = "config";

static const uint64_t machine_bytes = UINT64_C(64) << 30;

size_t fuzz_seed(uint8_t *out, size_t max)
{
    static const char text[] =
        "# a comment\n"
        "[daemon]\nsocket = /tmp/s\nlog_level = debug\naccess = uid:1, gid:2\n"
        "[host]\nmemory = 50%\nlock = yes\nnodes = 0, 1\n"
        "[device host]\npool = 1G\n"
        "[gpu]\ndevices = 0\npool = 90%\ngather = 1M\nidle = 5m\n"
        "[paced]\ndevices = 2\nup = 1G\nupdate = 1e9\nmemory = 2G\n"
        "[engine]\nthreads = 2\ncopy_share = 0.25\n"
        "[plan]\ninterleave = 2\nsearch = no\n"
        "[job]\nttl = 1d\ntimeout = 5m\nmax_jobs = 4\n";

    fuzz_must(sizeof text - 1 <= max, "room for the seed");
    memcpy(out, text, sizeof text - 1);
    return sizeof text - 1;
}

static bool ends_in(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

/* Check the properties of an accepted configuration on which the daemon relies. */
static void check(const struct cstd_settings *config)
{
    fuzz_must(config->host_bytes <= machine_bytes && config->pool_bytes <= machine_bytes,
              "budgets are within the machine's memory");
    fuzz_must(config->n_nodes <= CSTD_SETTINGS_MAX_NODES, "nodes keep their limit");
    fuzz_must(config->n_paced <= CSTD_SETTINGS_MAX_PACED,
              "simulated accelerators keep their limit");
    fuzz_must(config->copy_share >= 0.0f && config->copy_share <= 0.9f, "a share is a share");
    fuzz_must(config->ttl_s >= 1 && config->timeout_s >= 1, "times are not zero");
    fuzz_must(config->max_jobs >= 1 && config->max_sessions >= 1 && config->credits >= 1,
              "limits are not zero");
    fuzz_must(ends_in(config->socket, sizeof config->socket) &&
                  ends_in(config->manager_socket, sizeof config->manager_socket) &&
                  ends_in(config->engine, sizeof config->engine) &&
                  ends_in(config->gpu_engine, sizeof config->gpu_engine) &&
                  ends_in(config->rates, sizeof config->rates) &&
                  ends_in(config->gpu_devices, sizeof config->gpu_devices),
              "texts end");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct cstd_settings config;
    struct cst_err err = {0};
    const char *path = fuzz_file(data, n);
    int rc;

    cstd_settings_init(&config, machine_bytes);
    rc = cstd_settings_load(&config, path, true, &err);
    if (rc == CST_OK) {
        rc = cstd_settings_finish(&config, &err);
    }
    if (rc == CST_OK) {
        check(&config);
    } else {
        fuzz_must(rc == CST_EINVAL || rc == CST_EBUDGET, "a refusal is of the file");
        fuzz_must(err.status == rc && err.text[0] != '\0', "a refusal has words");
    }
    return 0;
}
