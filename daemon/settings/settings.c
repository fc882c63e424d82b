/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/settings/settings.h"

#include "daemon/settings/gpu_list.h"
#include "daemon/settings/line.h"
#include "daemon/base/log.h"
#include "proto/size.h"
#include "proto/usage.h"
#include "proto/value.h"

#include <errno.h>
#include <ini.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Default budgets in percent of the machine's memory. The rest is for workers and the system. */
enum { HOST_PERCENT = 60, POOL_PERCENT = 25 };

/* Longest time that is used in milliseconds, which must fit in 32 bits. */
enum { WAIT_MAX = 30 * 86400, LIFE_MAX = 366 * 86400 };

/* Read a size, or a percentage of the machine's memory. */
static int read_bytes(void *base, const char *text, void *field, struct cst_err *err)
{
    const struct cstd_settings *config = base;

    return cst_size_parse(text, config->memory_bytes, field, err);
}

static int read_access(void *base, const char *text, void *field, struct cst_err *err)
{
    (void)base;
    return cstd_access_parse(field, text, err);
}

static int read_interleave(void *base, const char *text, void *field, struct cst_err *err)
{
    static const struct cst_value number = CST_U32(0, 1, 1 << 20);
    uint32_t k = strcmp(text, "auto") == 0 ? CSTD_SETTINGS_INTERLEAVE_AUTO : 0;

    (void)base;
    if (k == 0 && strcmp(text, "none") != 0 && cst_value_read(&number, &k, text, err) != CST_OK) {
        return cst_err_set(err, CST_EINVAL, "'%s' is none of auto, none, 1 to %d", text, 1 << 20);
    }
    *(uint32_t *)field = k;
    return CST_OK;
}

/* Read the list of NUMA nodes: "all", or node numbers separated by commas or spaces. */
static int read_nodes(void *base, const char *text, void *field, struct cst_err *err)
{
    static const struct cst_value number = CST_U32(0, 0, 1023);
    struct cstd_settings *config = base;
    char copy[128], *save = NULL;
    unsigned n = 0;

    (void)field;
    if (strcmp(text, "all") == 0) {
        config->n_nodes = 0;
        return CST_OK;
    }
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, ", ", &save); word != NULL;
         word = strtok_r(NULL, ", ", &save)) {
        uint32_t node = 0;

        if (n == CSTD_SETTINGS_MAX_NODES || cst_value_read(&number, &node, word, NULL) != CST_OK) {
            n = 0;
            break;
        }
        config->nodes[n++] = node;
    }
    if (n == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "'%s' is neither 'all' nor a list of at most %d node numbers", text,
                           CSTD_SETTINGS_MAX_NODES);
    }
    config->n_nodes = n;
    return CST_OK;
}

static int read_gpu_devices(void *base, const char *text, void *field, struct cst_err *err)
{
    struct cstd_settings *config = base;
    int rc = cstd_gpu_list_check(text, err);

    (void)field;
    if (rc == CST_OK) {
        (void)snprintf(config->gpu_devices, sizeof config->gpu_devices, "%s", text);
    }
    return rc;
}

/* Read the budget of GPUs. The text is kept, because a percentage refers to the memory of each
 * card. */
static int read_gpu_pool(void *base, const char *text, void *field, struct cst_err *err)
{
    struct cstd_settings *config = base;
    uint64_t bytes = 1;
    /* Any total will do, because only the form is checked here. */
    int rc =
        strcmp(text, "auto") == 0 ? CST_OK : cst_size_parse(text, UINT64_C(1) << 40, &bytes, err);

    (void)field;
    if (rc == CST_OK && (bytes == 0 || strlen(text) >= sizeof config->gpu_pool)) {
        rc = cst_err_set(err, CST_EINVAL, "'%.40s' is too small or too long for the size of a pool",
                         text);
    }
    if (rc == CST_OK) {
        (void)snprintf(config->gpu_pool, sizeof config->gpu_pool, "%s", text);
    }
    return rc;
}

static int read_node_name(void *base, const char *text, void *field, struct cst_err *err)
{
    (void)base;
    if (!cst_job_name_is_valid(text)) {
        return cst_err_set(err, CST_EINVAL, "'%.80s' is not " CST_JOB_NAME_RULE, text);
    }
    (void)snprintf(field, CST_JOB_NAME_BYTES, "%s", text);
    return CST_OK;
}

static int read_listen(void *base, const char *text, void *field, struct cst_err *err)
{
    struct cstd_machine_address address;
    int rc = cstd_machine_address_read(&address, text, err);

    (void)base;
    if (rc == CST_OK && strlen(text) >= CSTD_MACHINE_ADDRESS_BYTES) {
        rc = cst_err_set(err, CST_EINVAL, "'%.40s...' is too long", text);
    }
    if (rc == CST_OK) {
        (void)snprintf(field, CSTD_MACHINE_ADDRESS_BYTES, "%s", text);
    }
    return rc;
}

static const char *const lock_names[] = {"try", "yes", "no", NULL};
static const char *const copies_names[] = {"engine", "worker", NULL};
static const char *const network_names[] = {"trusted", "encrypted", NULL};

#define AT(name) offsetof(struct cstd_settings, name)
#define CHARS(name) sizeof((struct cstd_settings *)NULL)->name

static const struct row {
    const char *section;
    const char *key;
    struct cst_value value;
} rows[] = {
    {"daemon", "socket", CST_PATH(AT(socket), CHARS(socket))},
    {"daemon", "manager_socket", CST_PATH(AT(manager_socket), CHARS(manager_socket))},
    {"daemon", "log_level", CST_NAME(AT(log_level), CSTD_LOG_ERROR, cstd_log_names)},
    {"daemon", "access", CST_OTHER(AT(access), read_access)},
    {"host", "memory", CST_OTHER(AT(host_bytes), read_bytes)},
    {"host", "lock", CST_NAME(AT(lock), 0, lock_names)},
    {"host", "nodes", CST_OTHER(AT(nodes), read_nodes)},
    {"device host", "pool", CST_OTHER(AT(pool_bytes), read_bytes)},
    {"engine", "threads", CST_U32(AT(threads), 0, 1024)},
    {"engine", "copy_threads", CST_U32(AT(copy_threads), 0, 1024)},
    /* The most is the engine's: compute threads must make progress during copies. */
    {"engine", "copy_share", CST_REAL(AT(copy_share), 0, 0.9)},
    {"engine", "update_rate", CST_SIZE(AT(update_rate))},
    {"engine", "program", CST_PATH(AT(engine), CHARS(engine))},
    {"gpu", "devices", CST_OTHER(AT(gpu_devices), read_gpu_devices)},
    {"gpu", "pool", CST_OTHER(AT(gpu_pool), read_gpu_pool)},
    {"gpu", "copies", CST_NAME(AT(gpu_copies), 0, copies_names)},
    {"gpu", "gather", CST_SIZE_OR(AT(gpu_gather), 4096, "no", 0)},
    {"gpu", "peers", CST_YES(AT(gpu_peers))},
    {"gpu", "idle", CST_SECONDS(AT(gpu_idle_s), 1, WAIT_MAX)},
    {"gpu", "program", CST_PATH(AT(gpu_engine), CHARS(gpu_engine))},
    {"disk", "timeout", CST_SECONDS(AT(disk_timeout_s), 1, WAIT_MAX)},
    {"paced", "devices", CST_U32(AT(n_paced), 0, CSTD_SETTINGS_MAX_PACED)},
    {"paced", "up", CST_SIZE(AT(paced_up))},
    {"paced", "down", CST_SIZE(AT(paced_down))},
    {"paced", "update", CST_SIZE(AT(paced_update))},
    {"paced", "memory", CST_OTHER(AT(paced_memory), read_bytes)},
    {"plan", "rates", CST_PATH(AT(rates), CHARS(rates))},
    {"plan", "interleave", CST_OTHER(AT(interleave), read_interleave)},
    {"plan", "search", CST_YES(AT(plan_search))},
    {"plan", "search_time", CST_SECONDS(AT(search_time_s), 1, WAIT_MAX)},
    {"job", "ttl", CST_SECONDS(AT(ttl_s), 1, LIFE_MAX)},
    {"job", "timeout", CST_SECONDS(AT(timeout_s), 1, WAIT_MAX)},
    {"job", "max_jobs", CST_U32(AT(max_jobs), 1, 1024)},
    {"job", "max_sessions", CST_U32(AT(max_sessions), 1, 1024)},
    {"job", "credits", CST_U32(AT(credits), 1, 1024)},
    {"node", "name", CST_OTHER(AT(node.name), read_node_name)},
    {"node", "listen", CST_OTHER(AT(node.listen), read_listen)},
    {"node", "key", CST_PATH(AT(node.key), CHARS(node.key))},
    {"node", "certificate", CST_PATH(AT(node.certificate), CHARS(node.certificate))},
    {"node", "trusted", CST_PATH(AT(node.trusted), CHARS(node.trusted))},
    {"node", "authorities", CST_PATH(AT(node.authorities), CHARS(node.authorities))},
    {"node", "network", CST_NAME(AT(node.network), CSTD_NETWORK_TRUSTED, network_names)},
    {"node", "wait", CST_SECONDS(AT(node.wait_s), 1, WAIT_MAX)},
};

/* All sections, for errors. */
static const char *const sections[] = {"daemon", "host", "device host", "gpu",  "disk", "paced",
                                       "engine", "plan", "job",         "node", "quota"};
enum { N_SECTIONS = sizeof sections / sizeof *sections, N_ROWS = sizeof rows / sizeof *rows };

bool cstd_settings_was_given(const struct cstd_settings *config, const void *field)
{
    size_t offset = (size_t)((const char *)field - (const char *)config);

    for (unsigned i = 0; i < N_ROWS; i++) {
        if (rows[i].value.field == offset) {
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
        .copy_share = 0.25,
        .gpu_devices = "all",
        .gpu_pool = "auto",
        .gpu_idle_s = 300,
        .gpu_gather = 1u << 20,
        .gpu_peers = true,
        .disk_timeout_s = 120,
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
    cstd_links_config_init(&config->node);
}

/* Make the error for a section that does not exist, or for a key before the first section. */
static int no_section(const char *section, const char *key, struct cst_err *err)
{
    const char *nearest = NULL;
    unsigned best = CST_USAGE_FAR;
    char known[256] = "";

    if (section[0] == '\0') {
        return cst_err_set(err, CST_EINVAL,
                           "key '%.64s' is before the first section: write a line such as [host] "
                           "before it",
                           key);
    }
    for (unsigned i = 0; i < N_SECTIONS; i++) {
        size_t used = strlen(known);

        (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                       sections[i]);
        if (cst_usage_nearer(section, sections[i], &best)) {
            nearest = sections[i];
        }
    }
    return nearest != NULL
               ? cst_err_set(err, CST_EINVAL,
                             "unknown section [%.64s], with key '%.64s': did you mean [%s]? "
                             "(known: %s)",
                             section, key, nearest, known)
               : cst_err_set(err, CST_EINVAL,
                             "unknown section [%.64s], with key '%.64s' (known: %s)", section, key,
                             known);
}

/* Make the error for a key that @section does not have. */
static int no_key(const char *section, const char *key, struct cst_err *err)
{
    const char *nearest = NULL, *other = NULL;
    unsigned best = CST_USAGE_FAR;
    char known[256] = "";

    for (unsigned i = 0; i < N_ROWS; i++) {
        size_t used = strlen(known);

        if (strcmp(rows[i].section, section) != 0) {
            other = strcmp(rows[i].key, key) == 0 ? rows[i].section : other;
            continue;
        }
        (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                       rows[i].key);
        if (cst_usage_nearer(key, rows[i].key, &best)) {
            nearest = rows[i].key;
        }
    }
    if (nearest != NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "unknown key '%.64s' in [%s]: did you mean '%s'? (known: %s)", key,
                           section, nearest, known);
    }
    return other != NULL ? cst_err_set(err, CST_EINVAL,
                                       "unknown key '%.64s' in [%s]: it is one of [%s] (known: %s)",
                                       key, section, other, known)
                         : cst_err_set(err, CST_EINVAL, "unknown key '%.64s' in [%s] (known: %s)",
                                       key, section, known);
}

/* Returns the index of the row, or -1 with an error that lists the known keys. */
static int find_row(const char *section, const char *key, struct cst_err *err)
{
    bool section_known = false;

    for (unsigned i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].section, section) != 0) {
            continue;
        }
        if (strcmp(rows[i].key, key) == 0) {
            return (int)i;
        }
        section_known = true;
    }
    (void)(section_known ? no_key(section, key, err) : no_section(section, key, err));
    return -1;
}

static int set_row(struct cstd_settings *config, int i, const char *value, struct cst_err *err)
{
    int rc = cst_value_read(&rows[i].value, config, value, err);

    if (rc == CST_OK) {
        config->given |= UINT64_C(1) << i;
    }
    return rc;
}

int cstd_settings_set(struct cstd_settings *config, const char *section, const char *key,
                      const char *value, struct cst_err *err)
{
    int i = find_row(section, key, err);

    if (i < 0) {
        return CST_EINVAL;
    }
    return set_row(config, i, value, err) == CST_OK ? CST_OK : cst_err_prefix(err, "%s", key);
}

/* Lines that are read as if they were empty, because their errors are known. The keys below a wrong
 * '[section' are, too. */
struct known_errors {
    int lines[CSTD_SETTINGS_MAX_ERRORS];
    unsigned n;
};

struct load {
    struct cstd_settings *config;
    FILE *file;
    const struct known_errors *known; /* NULL: none. */
    /* Number of the line being read. inih counts lines as well but does not pass the number to the
     * handler. */
    int line;
    bool skips;         /* The section of the line is known to be wrong. */
    uint64_t seen;      /* Rows of the table that this file has set, one bit each. */
    struct cst_err err; /* First error in a key or value. */
    int err_line;       /* Line of err. */
};

static bool is_known(const struct known_errors *known, int line)
{
    for (unsigned i = 0; known != NULL && i < known->n; i++) {
        if (known->lines[i] == line) {
            return true;
        }
    }
    return false;
}

/* Reader of inih, which would take the rest of a long line for another line. */
static char *read_line(char *line, int size, void *user)
{
    struct load *load = user;
    const size_t n = cstd_line_read(line, (size_t)size, load->file);
    const char first = line[strspn(line, " \t")];
    const bool known = is_known(load->known, ++load->line);

    if (n == 0) {
        return NULL;
    }
    load->skips = first == '[' ? known : load->skips;
    if (n >= (size_t)size && first != '#' && first != ';' && !known && !load->skips &&
        load->err.status == 0) {
        (void)cst_err_set(&load->err, CST_EINVAL, "a line of %zu bytes: write at most %d", n,
                          size - 2);
        load->err_line = load->line;
    }
    return known || load->skips || load->err_line == load->line ? strcpy(line, "\n") : line;
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
    return set_row(load->config, i, value, &load->err) == CST_OK
               ? CST_OK
               : cst_err_prefix(&load->err, "[%s] %s", section, key);
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

/* Compose the error for @line. A line that inih cannot parse is not passed to the handler. Returns
 * the number of the line. */
static int explain_line(const struct load *load, const char *path, int line, struct cst_err *err)
{
    if (load->err.status == 0 || (line != 0 && line < load->err_line)) {
        (void)cst_err_set(err, CST_EINVAL,
                          "%s:%d: neither '[section]' nor 'key = value': correct the line, or put "
                          "a # before it",
                          path, line);
        return line;
    }
    (void)cst_err_set(err, CST_EINVAL, "%s:%d: %s", path, load->err_line, load->err.text);
    return load->err_line;
}

/* Read @file without the lines of @known. Returns the number of the first line with an error, which
 * is explained in @err; 0: there is none. */
static int read_file(struct cstd_settings *config, FILE *file, const char *path,
                     const struct known_errors *known, struct cst_err *err)
{
    struct load load = {.config = config, .file = file, .known = known};
    int line;

    rewind(file);
    line = ini_parse_stream(read_line, &load, on_line, &load);
    return line != 0 || load.err.status != 0 ? explain_line(&load, path, line, err) : 0;
}

/* Open the file of @config. *out NULL with CST_OK: there is none, and none is required. */
static int open_file(const struct cstd_settings *config, FILE **out, struct cst_err *err)
{
    struct stat st;

    *out = fopen(config->file, "re");
    if (*out == NULL && errno == ENOENT && !config->file_required) {
        return CST_OK;
    }
    if (*out == NULL) {
        return cst_err_set(err, errno == ENOENT ? CST_ENOTFOUND : CST_EIO,
                           "%s: %s: name a file that the daemon can read (--config)", config->file,
                           strerror(errno));
    }
    if (fstat(fileno(*out), &st) == 0 && S_ISDIR(st.st_mode)) {
        (void)fclose(*out);
        return cst_err_set(err, CST_EIO, "%s: is a directory: name a file in it (--config)",
                           config->file);
    }
    return CST_OK;
}

int cstd_settings_load(struct cstd_settings *config, const char *path, bool required,
                       struct cst_err *err)
{
    FILE *file;
    int rc;

    (void)snprintf(config->file, sizeof config->file, "%s", path);
    config->file_required = required;
    rc = open_file(config, &file, err);
    if (rc != CST_OK || file == NULL) {
        return rc;
    }
    rc = read_file(config, file, path, NULL, err) != 0 ? CST_EINVAL : CST_OK;
    if (ferror(file) != 0) {
        rc = cst_err_set(err, CST_EIO, "%s: cannot be read", path);
    }
    (void)fclose(file);
    return rc;
}

unsigned cstd_settings_check(const struct cstd_settings *config,
                             void (*report)(const struct cst_err *err))
{
    struct known_errors known = {.n = 0};
    struct cst_err err = {0};
    bool more = false;
    FILE *file;

    if (open_file(config, &file, &err) != CST_OK) {
        report(&err);
        return 1;
    }
    while (file != NULL) {
        struct cstd_settings fresh;
        int line;

        cstd_settings_init(&fresh, config->memory_bytes);
        line = read_file(&fresh, file, config->file, &known, &err);
        more = line != 0 && known.n == CSTD_SETTINGS_MAX_ERRORS;
        if (line == 0 || more) {
            break;
        }
        report(&err);
        known.lines[known.n++] = line;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return known.n + more;
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
