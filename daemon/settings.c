/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/settings.h"

#include "daemon/gpu_list.h"
#include "daemon/log.h"
#include "proto/size.h"

#include <errno.h>
#include <ini.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Default budgets in percent of the machine's memory. The rest is for workers and the system. */
enum { HOST_PERCENT = 60, POOL_PERCENT = 25 };

typedef int (*set_fn)(struct cstd_settings *config, const char *value, void *field,
                      struct cst_err *err);

static int set_count(const char *value, uint32_t min, uint32_t max, uint32_t *out,
                     struct cst_err *err)
{
    char *end;
    unsigned long n = strtoul(value, &end, 10);

    if (*value < '0' || *value > '9' || *end != '\0' || n < min || n > max) {
        return cst_err_set(err, CST_EINVAL, "'%s' is not a number from %u to %u", value, min, max);
    }
    *out = (uint32_t)n;
    return CST_OK;
}

static int set_text(const char *value, char *out, size_t size, struct cst_err *err)
{
    if (*value != '/' || strlen(value) >= size) {
        return cst_err_set(err, CST_EINVAL, "'%s' is not an absolute path of at most %zu bytes",
                           value, size - 1);
    }
    (void)snprintf(out, size, "%s", value);
    return CST_OK;
}

static int set_socket(struct cstd_settings *config, const char *value, void *field,
                      struct cst_err *err)
{
    (void)config;
    return set_text(value, field, CSTD_SETTINGS_SOCKET_BYTES, err);
}

static int set_path(struct cstd_settings *config, const char *value, void *field,
                    struct cst_err *err)
{
    (void)config;
    return set_text(value, field, CSTD_SETTINGS_PATH_BYTES, err);
}

static int set_bytes(struct cstd_settings *config, const char *value, void *field,
                     struct cst_err *err)
{
    return cst_size_parse(value, config->memory_bytes, field, err);
}

static int set_time(const char *value, uint32_t max, uint32_t *out, struct cst_err *err)
{
    uint32_t seconds = 0;
    int rc = cst_size_parse_seconds(value, max, &seconds, err);

    if (rc == CST_OK && seconds == 0) {
        rc = cst_err_set(err, CST_EINVAL, "'%s': a time must be at least 1 s", value);
    }
    if (rc == CST_OK) {
        *out = seconds;
    }
    return rc;
}

static int set_life(struct cstd_settings *config, const char *value, void *field,
                    struct cst_err *err)
{
    (void)config;
    return set_time(value, 366 * 86400, field, err);
}

/* Set a time that is used in milliseconds, which must fit in 32 bits. */
static int set_wait(struct cstd_settings *config, const char *value, void *field,
                    struct cst_err *err)
{
    (void)config;
    return set_time(value, 30 * 86400, field, err);
}

static int set_threads(struct cstd_settings *config, const char *value, void *field,
                       struct cst_err *err)
{
    (void)config;
    return set_count(value, 0, 1024, field, err);
}

static int set_limit(struct cstd_settings *config, const char *value, void *field,
                     struct cst_err *err)
{
    (void)config;
    return set_count(value, 1, 1024, field, err);
}

static int set_paced(struct cstd_settings *config, const char *value, void *field,
                     struct cst_err *err)
{
    (void)config;
    return set_count(value, 0, CSTD_SETTINGS_MAX_PACED, field, err);
}

/* Set a rate in units per second. Percentages are not allowed. */
static int set_rate(struct cstd_settings *config, const char *value, void *field,
                    struct cst_err *err)
{
    (void)config;
    return cst_size_parse(value, 0, field, err);
}

/* Set copy_share. The maximum is the engine's: compute threads must make progress during copies. */
static int set_copy_share(struct cstd_settings *config, const char *value, void *field,
                          struct cst_err *err)
{
    char *end;
    float share = strtof(value, &end);

    (void)config;
    if (*value < '0' || *value > '9' || *end != '\0' || !(share >= 0.0f && share <= 0.9f)) {
        return cst_err_set(err, CST_EINVAL, "'%s' is not a number from 0 to 0.9", value);
    }
    *(float *)field = share;
    return CST_OK;
}

static int set_log_level(struct cstd_settings *config, const char *value, void *field,
                         struct cst_err *err)
{
    int level = cstd_log_parse(value);

    (void)config;
    if (level == 0) {
        return cst_err_set(err, CST_EINVAL, "'%s' is none of error, warning, notice, info, debug",
                           value);
    }
    *(int *)field = level;
    return CST_OK;
}

static int set_access(struct cstd_settings *config, const char *value, void *field,
                      struct cst_err *err)
{
    (void)config;
    return cstd_access_parse(field, value, err);
}

static int set_yes(struct cstd_settings *config, const char *value, void *field,
                   struct cst_err *err)
{
    bool yes = strcmp(value, "yes") == 0;

    (void)config;
    if (!yes && strcmp(value, "no") != 0) {
        return cst_err_set(err, CST_EINVAL, "'%s' is none of yes, no", value);
    }
    *(bool *)field = yes;
    return CST_OK;
}

static int set_interleave(struct cstd_settings *config, const char *value, void *field,
                          struct cst_err *err)
{
    uint32_t k = strcmp(value, "auto") == 0 ? CSTD_SETTINGS_INTERLEAVE_AUTO : 0;

    (void)config;
    if (k == 0 && strcmp(value, "none") != 0 && set_count(value, 1, 1 << 20, &k, err) != CST_OK) {
        return cst_err_set(err, CST_EINVAL, "'%s' is none of auto, none, 1 to %d", value, 1 << 20);
    }
    *(uint32_t *)field = k;
    return CST_OK;
}

static int set_lock(struct cstd_settings *config, const char *value, void *field,
                    struct cst_err *err)
{
    static const char *const names[] = {
        [CSTD_LOCK_NO] = "no", [CSTD_LOCK_TRY] = "try", [CSTD_LOCK_YES] = "yes"};

    (void)config;
    for (unsigned i = 0; i < 3; i++) {
        if (strcmp(value, names[i]) == 0) {
            *(enum cstd_settings_lock *)field = (enum cstd_settings_lock)i;
            return CST_OK;
        }
    }
    return cst_err_set(err, CST_EINVAL, "'%s' is none of try, yes, no", value);
}

/* Set the list of NUMA nodes: "all", or node numbers separated by commas or spaces. */
static int set_nodes(struct cstd_settings *config, const char *value, void *field,
                     struct cst_err *err)
{
    char copy[128], *save = NULL;
    unsigned n = 0;

    (void)field;
    if (strcmp(value, "all") == 0) {
        config->n_nodes = 0;
        return CST_OK;
    }
    (void)snprintf(copy, sizeof copy, "%s", value);
    for (char *word = strtok_r(copy, ", ", &save); word != NULL;
         word = strtok_r(NULL, ", ", &save)) {
        uint32_t node = 0;

        if (n == CSTD_SETTINGS_MAX_NODES || set_count(word, 0, 1023, &node, NULL) != CST_OK) {
            n = 0;
            break;
        }
        config->nodes[n++] = node;
    }
    if (n == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "'%s' is neither 'all' nor a list of at most %d node numbers", value,
                           CSTD_SETTINGS_MAX_NODES);
    }
    config->n_nodes = n;
    return CST_OK;
}

static int set_gpu_devices(struct cstd_settings *config, const char *value, void *field,
                           struct cst_err *err)
{
    int rc = cstd_gpu_list_check(value, err);

    (void)field;
    if (rc == CST_OK) {
        (void)snprintf(config->gpu_devices, sizeof config->gpu_devices, "%s", value);
    }
    return rc;
}

static int set_gpu_copies(struct cstd_settings *config, const char *value, void *field,
                          struct cst_err *err)
{
    bool worker = strcmp(value, "worker") == 0;

    (void)config;
    if (!worker && strcmp(value, "engine") != 0) {
        return cst_err_set(err, CST_EINVAL, "'%s' is none of engine, worker", value);
    }
    *(enum cstd_settings_copies *)field = worker ? CSTD_COPIES_WORKER : CSTD_COPIES_ENGINE;
    return CST_OK;
}

/* Set the smallest piece in bytes; "no" sets 0. */
static int set_gpu_gather(struct cstd_settings *config, const char *value, void *field,
                          struct cst_err *err)
{
    uint64_t bytes = 0;
    int rc = cst_size_parse_or(value, "no", 0, &bytes, err);

    (void)config;
    if (rc == CST_OK && bytes < 4096 && strcmp(value, "no") != 0) {
        rc = cst_err_set(err, CST_EINVAL, "'%s' is neither 'no' nor at least 4096", value);
    }
    if (rc == CST_OK) {
        *(uint64_t *)field = bytes;
    }
    return rc;
}

/* Set the budget of GPUs. The text is kept, because a percentage refers to the memory of each
 * card. */
static int set_gpu_pool(struct cstd_settings *config, const char *value, void *field,
                        struct cst_err *err)
{
    uint64_t bytes = 0;
    /* Any total will do, because only the form is checked here. */
    int rc = cst_size_parse(value, UINT64_C(1) << 40, &bytes, err);

    (void)field;
    if (rc == CST_OK && (bytes == 0 || strlen(value) >= sizeof config->gpu_pool)) {
        rc = cst_err_set(err, CST_EINVAL, "'%.40s' is too small or too long for the size of a pool",
                         value);
    }
    if (rc == CST_OK) {
        (void)snprintf(config->gpu_pool, sizeof config->gpu_pool, "%s", value);
    }
    return rc;
}

static const struct row {
    const char *section;
    const char *key;
    set_fn set;
    size_t field; /* Offset in struct cstd_settings. */
} rows[] = {
    {"daemon", "socket", set_socket, offsetof(struct cstd_settings, socket)},
    {"daemon", "manager_socket", set_socket, offsetof(struct cstd_settings, manager_socket)},
    {"daemon", "log_level", set_log_level, offsetof(struct cstd_settings, log_level)},
    {"daemon", "access", set_access, offsetof(struct cstd_settings, access)},
    {"host", "memory", set_bytes, offsetof(struct cstd_settings, host_bytes)},
    {"host", "lock", set_lock, offsetof(struct cstd_settings, lock)},
    {"host", "nodes", set_nodes, offsetof(struct cstd_settings, nodes)},
    {"device host", "pool", set_bytes, offsetof(struct cstd_settings, pool_bytes)},
    {"engine", "threads", set_threads, offsetof(struct cstd_settings, threads)},
    {"engine", "copy_threads", set_threads, offsetof(struct cstd_settings, copy_threads)},
    {"engine", "copy_share", set_copy_share, offsetof(struct cstd_settings, copy_share)},
    {"engine", "update_rate", set_rate, offsetof(struct cstd_settings, update_rate)},
    {"engine", "program", set_path, offsetof(struct cstd_settings, engine)},
    {"gpu", "devices", set_gpu_devices, offsetof(struct cstd_settings, gpu_devices)},
    {"gpu", "pool", set_gpu_pool, offsetof(struct cstd_settings, gpu_pool)},
    {"gpu", "copies", set_gpu_copies, offsetof(struct cstd_settings, gpu_copies)},
    {"gpu", "gather", set_gpu_gather, offsetof(struct cstd_settings, gpu_gather)},
    {"gpu", "idle", set_wait, offsetof(struct cstd_settings, gpu_idle_s)},
    {"gpu", "program", set_path, offsetof(struct cstd_settings, gpu_engine)},
    {"paced", "devices", set_paced, offsetof(struct cstd_settings, n_paced)},
    {"paced", "up", set_rate, offsetof(struct cstd_settings, paced_up)},
    {"paced", "down", set_rate, offsetof(struct cstd_settings, paced_down)},
    {"paced", "update", set_rate, offsetof(struct cstd_settings, paced_update)},
    {"paced", "memory", set_bytes, offsetof(struct cstd_settings, paced_memory)},
    {"plan", "rates", set_path, offsetof(struct cstd_settings, rates)},
    {"plan", "interleave", set_interleave, offsetof(struct cstd_settings, interleave)},
    {"plan", "search", set_yes, offsetof(struct cstd_settings, plan_search)},
    {"plan", "search_time", set_wait, offsetof(struct cstd_settings, search_time_s)},
    {"job", "ttl", set_life, offsetof(struct cstd_settings, ttl_s)},
    {"job", "timeout", set_wait, offsetof(struct cstd_settings, timeout_s)},
    {"job", "max_jobs", set_limit, offsetof(struct cstd_settings, max_jobs)},
    {"job", "max_sessions", set_limit, offsetof(struct cstd_settings, max_sessions)},
    {"job", "credits", set_limit, offsetof(struct cstd_settings, credits)},
};

enum { N_ROWS = sizeof rows / sizeof *rows };

static bool was_given(const struct cstd_settings *config, const void *field)
{
    size_t offset = (size_t)((const char *)field - (const char *)config);

    for (unsigned i = 0; i < N_ROWS; i++) {
        if (rows[i].field == offset) {
            return (config->given >> i & 1) != 0;
        }
    }
    return false;
}

void cstd_settings_init(struct cstd_settings *config, uint64_t memory_bytes)
{
    *config = (struct cstd_settings){
        .memory_bytes = memory_bytes,
        .socket = "/run/cistern/cistern.sock",
        .log_level = CSTD_LOG_INFO,
        .access = {.any = true},
        .host_bytes = memory_bytes / 100 * HOST_PERCENT,
        .lock = CSTD_LOCK_TRY,
        .pool_bytes = memory_bytes / 100 * POOL_PERCENT,
        .copy_share = 0.25f,
        .gpu_devices = "all",
        .gpu_pool = "90%",
        .gpu_idle_s = 300,
        .gpu_gather = 1u << 20,
        .paced_memory = UINT64_C(1) << 30,
        .ttl_s = 86400,
        .timeout_s = 300,
        .interleave = CSTD_SETTINGS_INTERLEAVE_AUTO,
        .plan_search = true,
        .search_time_s = 5,
        .max_jobs = 64,
        .max_sessions = 256,
        .credits = 64,
    };
}

/* Returns the index of the row, or -1 with an error that lists the known keys. */
static int find_row(const char *section, const char *key, struct cst_err *err)
{
    char known[256] = "";
    bool section_known = false;

    for (unsigned i = 0; i < N_ROWS; i++) {
        size_t used = strlen(known);

        if (strcmp(rows[i].section, section) != 0) {
            continue;
        }
        if (strcmp(rows[i].key, key) == 0) {
            return (int)i;
        }
        section_known = true;
        (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                       rows[i].key);
    }
    if (section_known) {
        (void)cst_err_set(err, CST_EINVAL, "unknown key '%s' in [%s] (known: %s)", key, section,
                          known);
    } else {
        (void)cst_err_set(err, CST_EINVAL,
                          "unknown section [%s] (known: daemon, host, device host, gpu, paced, "
                          "engine, plan, job, quota)",
                          section);
    }
    return -1;
}

static int set_row(struct cstd_settings *config, int i, const char *value, struct cst_err *err)
{
    int rc = rows[i].set(config, value, (char *)config + rows[i].field, err);

    if (rc == CST_OK) {
        config->given |= UINT64_C(1) << i;
        return CST_OK;
    }
    return cst_err_prefix(err, "%s", rows[i].key);
}

int cstd_settings_set(struct cstd_settings *config, const char *section, const char *key,
                      const char *value, struct cst_err *err)
{
    int i = find_row(section, key, err);

    return i < 0 ? CST_EINVAL : set_row(config, i, value, err);
}

struct load {
    struct cstd_settings *config;
    FILE *file;
    /* Number of the line being read. inih counts lines as well but does not pass the number to the
     * handler. */
    int line;
    uint64_t seen;      /* Rows of the table that this file has set, one bit each. */
    struct cst_err err; /* First error in a key or value. */
    int err_line;       /* Line of err. */
};

static char *read_line(char *line, int size, void *user)
{
    struct load *load = user;

    load->line++;
    return fgets(line, size, load->file);
}

static int set_once(struct load *load, const char *section, const char *key, const char *value)
{
    int i;

    /* Quota sections are named after users and groups and are not in the table. */
    if (cstd_quota_rules_is_section(section)) {
        return cstd_quota_rules_set(&load->config->quota, section, key, value, &load->err);
    }
    i = find_row(section, key, &load->err);
    if (i < 0) {
        return CST_EINVAL;
    }
    if ((load->seen >> i & 1) != 0) {
        return cst_err_set(&load->err, CST_EINVAL, "'%s' is set twice in [%s]", key, section);
    }
    load->seen |= UINT64_C(1) << i;
    return set_row(load->config, i, value, &load->err);
}

/* Handler of inih for one line; returns 1 to continue, 0 for an error. Only the first error is
 * kept. */
static int on_line(void *user, const char *section, const char *key, const char *value)
{
    struct load *load = user;

    if (load->err.status != 0) {
        return 0;
    }
    if (set_once(load, section, key, value) != CST_OK) {
        load->err_line = load->line;
        return 0;
    }
    return 1;
}

/* Compose the error for @line. A line that inih cannot parse is not passed to the handler. */
static int explain_line(const struct load *load, const char *path, int line, struct cst_err *err)
{
    if (load->err.status == 0 || line < load->err_line) {
        return cst_err_set(err, CST_EINVAL, "%s:%d: neither '[section]' nor 'key = value'", path,
                           line);
    }
    return cst_err_set(err, CST_EINVAL, "%s:%d: %s", path, line, load->err.text);
}

int cstd_settings_load(struct cstd_settings *config, const char *path, bool required,
                       struct cst_err *err)
{
    struct load load = {.config = config, .file = fopen(path, "re")};
    int line, rc = CST_OK;

    (void)snprintf(config->file, sizeof config->file, "%s", path);
    config->file_required = required;
    if (load.file == NULL) {
        if (errno == ENOENT && !required) {
            return CST_OK;
        }
        return cst_err_errno(err, errno == ENOENT ? CST_ENOTFOUND : CST_EIO, errno, "%s", path);
    }
    line = ini_parse_stream(read_line, &load, on_line, &load);
    if (ferror(load.file) != 0) {
        rc = cst_err_set(err, CST_EIO, "%s: cannot be read", path);
    } else if (line != 0) {
        rc = explain_line(&load, path, line, err);
    }
    (void)fclose(load.file);
    return rc;
}

int cstd_settings_reload(const struct cstd_settings *config, struct cstd_quota_rules *out,
                         struct cst_err *err)
{
    struct cstd_settings fresh;
    int rc;

    /* The whole file is parsed, and a mistake anywhere in it is reported. */
    cstd_settings_init(&fresh, config->memory_bytes);
    rc = config->file[0] != '\0'
             ? cstd_settings_load(&fresh, config->file, config->file_required, err)
             : CST_OK;
    if (rc == CST_OK) {
        *out = fresh.quota;
    }
    return rc;
}

static int finish_manager_socket(struct cstd_settings *config, struct cst_err *err)
{
    /* Not NULL, because set_socket only accepts absolute paths. */
    const char *slash = strrchr(config->socket, '/');
    int dir = (int)(slash - config->socket);

    if (config->manager_socket[0] != '\0') {
        return CST_OK;
    }
    if ((size_t)dir + sizeof "/manager.sock" > sizeof config->manager_socket) {
        return cst_err_set(
            err, CST_EINVAL,
            "the path of 'manager.sock' in the directory of '%s' is too long: set manager_socket",
            config->socket);
    }
    (void)snprintf(config->manager_socket, sizeof config->manager_socket, "%.*s/manager.sock", dir,
                   config->socket);
    return CST_OK;
}

/* Check the sum of the budgets. Budgets that were not set are reduced in favour of those that were
 * set and of simulated accelerators. */
static int finish_budgets(struct cstd_settings *config, struct cst_err *err)
{
    uint64_t paced = config->n_paced * config->paced_memory, left = config->memory_bytes;
    char host[CST_SIZE_TEXT], pool[CST_SIZE_TEXT], machine[CST_SIZE_TEXT], each[CST_SIZE_TEXT];

    (void)cst_size_text(config->memory_bytes, machine);
    /* Divided, because the product above may have wrapped. */
    if (config->n_paced > 0 && config->paced_memory > left / config->n_paced) {
        return cst_err_set(
            err, CST_EBUDGET,
            "%u simulated accelerators of %s exceed the machine's memory of %s: lower 'memory' "
            "or 'devices' in [paced]",
            config->n_paced, cst_size_text(config->paced_memory, each), machine);
    }
    left -= paced;
    /* Checked first, for a message that names only the setting that is wrong. */
    if (config->host_bytes > config->memory_bytes) {
        return cst_err_set(
            err, CST_EBUDGET,
            "host memory of %s exceeds the machine's memory of %s: lower 'memory' in [host] or "
            "--host-memory",
            cst_size_text(config->host_bytes, host), machine);
    }
    if (!was_given(config, &config->pool_bytes) && config->host_bytes <= left &&
        config->pool_bytes > left - config->host_bytes) {
        config->pool_bytes = left - config->host_bytes;
    }
    if (!was_given(config, &config->host_bytes) && config->pool_bytes <= left &&
        config->host_bytes > left - config->pool_bytes) {
        config->host_bytes = left - config->pool_bytes;
    }
    if (config->host_bytes > left || config->pool_bytes > left - config->host_bytes) {
        return cst_err_set(err, CST_EBUDGET,
                           "host memory of %s and pools of %s exceed the machine's memory of %s, "
                           "of which simulated accelerators have %s: lower 'memory' in [host] or "
                           "'pool' in [device host]",
                           cst_size_text(config->host_bytes, host),
                           cst_size_text(config->pool_bytes, pool), machine,
                           cst_size_text(paced, each));
    }
    return CST_OK;
}

int cstd_settings_finish(struct cstd_settings *config, struct cst_err *err)
{
    int rc = finish_manager_socket(config, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (strcmp(config->socket, config->manager_socket) == 0) {
        return cst_err_set(err, CST_EINVAL, "socket and manager_socket are both '%s'",
                           config->socket);
    }
    return finish_budgets(config, err);
}
