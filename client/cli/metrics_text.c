/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/metrics_text.h"

#include "client/cli/metrics_value.h"
#include "proto/job_states.h"
#include "proto/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -- the tables ----------------------------------------------------------------------------- */

enum type { GAUGE, COUNTER };

/* A sample of each item: of the node, of an engine, of a job ... Rows of the same metric follow one
 * another, and have the same type and help. */
struct row {
    const char *name;
    enum type type;
    const char *help;
    /* Field of the item's messages, "step", or of a message in that, "pool.free". A number is
     * summed over the messages of the item. A text becomes the value of the label @label of a
     * sample that is 1. */
    const char *field;
    /* Label of the row, such as direction="up"; the name of the label of a text. NULL: none. */
    const char *label;
};

/* Of StatReply. */
static const struct row node_rows[] = {
    {"cistern_build_info", GAUGE, "Version of the daemon; the value is 1.", "version", "version"},
    {"cistern_uptime_seconds", GAUGE, "Time since the start of the daemon.", "uptime_s", NULL},
    {"cistern_machine_memory_bytes", GAUGE, "Memory of the machine.", "memory_bytes", NULL},
#define BUDGET "Budget for model states in host memory, and for pools in host memory."
    {"cistern_memory_budget_bytes", GAUGE, BUDGET, "host_budget", "tier=\"host\""},
    {"cistern_memory_budget_bytes", GAUGE, BUDGET, "pool_budget", "tier=\"pool\""},
#define USED "Used part of the budget."
    {"cistern_memory_used_bytes", GAUGE, USED, "host_used", "tier=\"host\""},
    {"cistern_memory_used_bytes", GAUGE, USED, "pool_used", "tier=\"pool\""},
#define BLOCKS "Bytes of the blocks of all pools of workers, by state."
    {"cistern_pool_blocks_bytes", GAUGE, BLOCKS, "pool.free", "state=\"free\""},
    {"cistern_pool_blocks_bytes", GAUGE, BLOCKS, "pool.cached", "state=\"cached\""},
    {"cistern_pool_blocks_bytes", GAUGE, BLOCKS, "pool.leased", "state=\"leased\""},
    {"cistern_pool_blocks_bytes", GAUGE, BLOCKS, "pool.moving", "state=\"moving\""},
    {"cistern_pool_blocks_bytes", GAUGE, BLOCKS, "pool.pending", "state=\"pending\""},
    {"cistern_pool_blocks_bytes", GAUGE, BLOCKS, "pool.quarantined", "state=\"quarantined\""},
    {"cistern_jobs", GAUGE, "Jobs of all users.", "n_jobs", NULL},
    {"cistern_nodes", GAUGE, "Other nodes that this one trusts.", "n_nodes", NULL},
    {"cistern_nodes_up", GAUGE, "Those of them to which there is a link.", "n_nodes_up", NULL},
    {"cistern_sessions", GAUGE, "Connections to the daemon.", "n_sessions", NULL},
    {"cistern_requests_total", COUNTER, "Requests to the daemon.", "n_requests", NULL},
    {"cistern_open_descriptors", GAUGE, "Open file descriptors of the daemon.", "n_fds", NULL},
};

/* Of an EngineInfo. */
static const struct row engine_rows[] = {
    {"cistern_engine_state", GAUGE, "State of the engine; the value is 1.", "state", "state"},
    {"cistern_engine_restarts_total", COUNTER, "Restarts of the engine after it died.", "restarts",
     NULL},
    {"cistern_engine_commands_total", COUNTER, "Completed commands.", "commands", NULL},
    {"cistern_engine_commands_in_flight", GAUGE, "Commands that wait or are under way.",
     "in_flight", NULL},
    {"cistern_engine_copied_bytes_total", COUNTER, "Copied bytes.", "copy_bytes", NULL},
    {"cistern_engine_copy_seconds_total", COUNTER, "Time in which copies were under way.",
     "copy_seconds", NULL},
    {"cistern_engine_updated_elements_total", COUNTER, "Elements updated by the optimizer.",
     "update_elems", NULL},
    {"cistern_engine_update_bytes_total", COUNTER, "Bytes that updates read and wrote.",
     "update_bytes", NULL},
    {"cistern_engine_update_seconds_total", COUNTER, "Time in which updates were under way.",
     "update_seconds", NULL},
    {"cistern_engine_reduced_elements_total", COUNTER, "Elements of summed gradients.",
     "reduce_elems", NULL},
    {"cistern_engine_reduce_bytes_total", COUNTER, "Bytes that sums of gradients read and wrote.",
     "reduce_bytes", NULL},
    {"cistern_engine_reduce_seconds_total", COUNTER,
     "Time in which sums of gradients were under way.", "reduce_seconds", NULL},
    {"cistern_engine_held_seconds_total", COUNTER,
     "Time for which updates and sums paused in favour of copies.", "held_seconds", NULL},
#define MOVED "Bytes copied to the accelerator (up) and from it (down)."
    {"cistern_engine_transferred_bytes_total", COUNTER, MOVED, "up_bytes", "direction=\"up\""},
    {"cistern_engine_transferred_bytes_total", COUNTER, MOVED, "down_bytes", "direction=\"down\""},
#define MOVING "Time of copies to the accelerator (up) and from it (down)."
    {"cistern_engine_transfer_seconds_total", COUNTER, MOVING, "up_seconds", "direction=\"up\""},
    {"cistern_engine_transfer_seconds_total", COUNTER, MOVING, "down_seconds",
     "direction=\"down\""},
};

/* Of a GpuInfo. */
static const struct row accelerator_rows[] = {
    {"cistern_accelerator_info", GAUGE, "Name of the accelerator; the value is 1.", "name", "name"},
    {"cistern_accelerator_memory_bytes", GAUGE, "Memory of the accelerator.", "memory_bytes", NULL},
    {"cistern_accelerator_budget_bytes", GAUGE, "Budget for pools, updates and states there.",
     "pool_budget", NULL},
    {"cistern_accelerator_used_bytes", GAUGE, "Used part of the budget.", "pool_used", NULL},
#define ASIDE "Memory that is set aside for others than the budget."
    {"cistern_accelerator_set_aside_bytes", GAUGE, ASIDE, "context_bytes", "use=\"contexts\""},
    {"cistern_accelerator_set_aside_bytes", GAUGE, ASIDE, "workspace_bytes", "use=\"workspaces\""},
    {"cistern_accelerator_set_aside_bytes", GAUGE, ASIDE, "activation_bytes",
     "use=\"activations\""},
    {"cistern_accelerator_set_aside_bytes", GAUGE, ASIDE, "assumed_bytes",
     "use=\"assumed_activations\""},
    {"cistern_accelerator_processes", GAUGE, "The daemon's processes and workers there.",
     "n_processes", NULL},
};

/* Of a DriveInfo. */
static const struct row drive_rows[] = {
    {"cistern_drive_used_bytes", GAUGE, "Size of the files with states.", "used", NULL},
    {"cistern_drive_read_bytes_total", COUNTER, "Bytes read.", "read_bytes", NULL},
    {"cistern_drive_written_bytes_total", COUNTER, "Bytes written.", "written_bytes", NULL},
    {"cistern_drive_read_seconds_total", COUNTER, "Time of reads.", "read_seconds", NULL},
    {"cistern_drive_write_seconds_total", COUNTER, "Time of writes.", "write_seconds", NULL},
    {"cistern_drive_commands_in_flight", GAUGE, "Commands that wait or are under way.", "in_flight",
     NULL},
};

/* Of a JobInfo. */
static const struct row job_rows[] = {
    {"cistern_job_state", GAUGE, "State of the job; the value is 1.", "state", "state"},
    {"cistern_job_ranks", GAUGE, "Number of ranks.", "world", NULL},
    {"cistern_job_parameters", GAUGE, "Number of parameters.", "n_params", NULL},
    {"cistern_job_age_seconds", GAUGE, "Time since the job was made.", "age_s", NULL},
    {"cistern_job_idle_seconds", GAUGE, "Time without a worker; 0 while there is one.", "idle_s",
     NULL},
    {"cistern_job_step", GAUGE, "Number of committed steps.", "step", NULL},
    {"cistern_job_skipped_steps_total", COUNTER, "Committed steps that changed nothing.",
     "n_skipped", NULL},
    {"cistern_job_overflows_total", COUNTER, "Steps whose gradients were too large.", "n_overflows",
     NULL},
    {"cistern_job_loss", GAUGE, "Loss of the last step.", "last_loss", NULL},
    {"cistern_job_gradient_norm", GAUGE, "Norm of the gradients of the last step.",
     "last_grad_norm", NULL},
    {"cistern_job_step_seconds", GAUGE, "Time of the last step.", "step_seconds", NULL},
    {"cistern_job_expected_step_seconds", GAUGE, "Time with which steps are compared.",
     "expected_step_seconds", NULL},
    {"cistern_job_drifted", GAUGE, "1: eight steps in a row differed by more than 20 %.", "drifted",
     NULL},
    {"cistern_job_memory_bytes", GAUGE, "Memory for the states of the job.", "arena_bytes", NULL},
    {"cistern_job_accelerator_states_bytes", GAUGE, "Memory of accelerators for states.",
     "device_states", NULL},
    {"cistern_job_accelerator_updates_bytes", GAUGE, "Memory of accelerators for updates.",
     "device_update_bytes", NULL},
    {"cistern_job_updates_total", COUNTER, "Updates of chunks.", "n_updates", NULL},
    {"cistern_job_accelerator_updates_total", COUNTER, "Those that accelerators made.",
     "n_device_updates", NULL},
    {"cistern_job_update_seconds_total", COUNTER, "Time in which updates were under way.",
     "update_seconds", NULL},
    {"cistern_job_exposed_update_seconds_total", COUNTER, "Time that updates added to steps.",
     "exposed_seconds", NULL},
    {"cistern_job_saving", GAUGE, "1: a checkpoint is being written.", "saving", NULL},
    {"cistern_job_save_wait_seconds_total", COUNTER, "Time for which commits waited for saves.",
     "save_wait_seconds", NULL},
    {"cistern_job_readers", GAUGE, "Processes that read the weights.", "readers", NULL},
    {"cistern_job_versions_lost_total", COUNTER,
     "Versions of the weights that were overwritten while a reader had them.", "versions_lost",
     NULL},
    {"cistern_job_reader_wait_seconds_total", COUNTER, "Time for which commits waited for readers.",
     "reader_wait_seconds", NULL},
};

/* Of all RankInfos of a job. */
static const struct row rank_rows[] = {
#define FETCHES                                                                                    \
    "Fetches of weights: in the pool before (hit), on the way (late), or neither (miss)."
    {"cistern_job_fetches_total", COUNTER, FETCHES, "hits", "result=\"hit\""},
    {"cistern_job_fetches_total", COUNTER, FETCHES, "late", "result=\"late\""},
    {"cistern_job_fetches_total", COUNTER, FETCHES, "misses", "result=\"miss\""},
    {"cistern_job_weight_wait_seconds_total", COUNTER, "Time for which workers waited for weights.",
     "weight_wait_seconds", NULL},
    {"cistern_job_block_waits_total", COUNTER, "Fetches that waited for a block of the pool.",
     "waits", NULL},
    {"cistern_job_prefetches_total", COUNTER, "Weights copied before their fetch.", "prefetches",
     NULL},
    {"cistern_job_evictions_total", COUNTER, "Blocks emptied for other weights.", "evictions",
     NULL},
    {"cistern_job_surprises_total", COUNTER, "Fetches that earlier steps did not predict.",
     "surprises", NULL},
#define COPIED "Bytes copied to pools (up), from pools (down), and between pools (peer)."
    {"cistern_job_copied_bytes_total", COUNTER, COPIED, "bytes_up", "direction=\"up\""},
    {"cistern_job_copied_bytes_total", COUNTER, COPIED, "bytes_down", "direction=\"down\""},
    {"cistern_job_copied_bytes_total", COUNTER, COPIED, "bytes_peer", "direction=\"peer\""},
    {"cistern_job_pool_bytes", GAUGE, "Size of the pools.", "pool.capacity", NULL},
};

/* Of a JobNode. */
static const struct row job_node_rows[] = {
    {"cistern_job_node_up", GAUGE, "1: there is a link to the node, or it is this one.", "up",
     NULL},
    {"cistern_job_node_member", GAUGE, "1: the job goes on with the node.", "member", NULL},
#define NODE_BYTES "Bytes copied from the node (received), and by the node from here (sent)."
    {"cistern_job_node_bytes_total", COUNTER, NODE_BYTES, "received_bytes",
     "direction=\"received\""},
    {"cistern_job_node_bytes_total", COUNTER, NODE_BYTES, "sent_bytes", "direction=\"sent\""},
    {"cistern_job_node_wait_seconds_total", COUNTER,
     "Time for which steps here waited for the node.", "wait_seconds", NULL},
};

/* Of a QuotaUse in bytes, and of another one. */
static const struct row quota_bytes_rows[] = {
    {"cistern_quota_used_bytes", GAUGE, "Memory that a user or group has.", "used", NULL},
    {"cistern_quota_limit_bytes", GAUGE, "Limit of the memory.", "limit", NULL},
};
static const struct row quota_rows[] = {
    {"cistern_quota_used", GAUGE, "Number that a user or group has.", "used", NULL},
    {"cistern_quota_limit", GAUGE, "Limit of the number.", "limit", NULL},
};

/* -- printing ------------------------------------------------------------------------------- */

enum { LABELS = 512 };

/* What has the samples of a table: the sum of its messages. */
struct item {
    const ProtobufCMessage *const *messages; /* Borrowed. */
    size_t n;
    char labels[LABELS]; /* Labels of all samples: name="x",uid="0". */
};

/* Append @name="@text" to @labels, after a comma if it is not the first label. What does not fit is
 * cut off. Control characters were replaced, and quotes and backslashes get a backslash. */
static void add_label(char labels[LABELS], const char *name, const char *text)
{
    char clean[128];
    size_t n = strlen(labels);

    (void)snprintf(clean, sizeof clean, "%s", text);
    cst_text_clean(clean, sizeof clean);
    n += (size_t)snprintf(labels + n, LABELS - n, "%s%s=\"", n > 0 ? "," : "", name);
    for (const char *c = clean; *c != '\0' && n < LABELS - 4; c++) {
        if (*c == '"' || *c == '\\') {
            labels[n++] = '\\';
        }
        labels[n++] = *c;
    }
    labels[n++] = '"';
    labels[n] = '\0';
}

static void add_number_label(char labels[LABELS], const char *name, unsigned number)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%u", number);
    add_label(labels, name, text);
}

/* Print the shortest form that is read as the same number. */
static void print_real(double real, FILE *out)
{
    char text[32];

    if (isnan(real) || isinf(real)) {
        (void)fputs(isnan(real) ? "NaN" : real > 0 ? "+Inf" : "-Inf", out);
        return;
    }
    (void)snprintf(text, sizeof text, "%.15g", real);
    if (strtod(text, NULL) < real || strtod(text, NULL) > real) {
        (void)snprintf(text, sizeof text, "%.17g", real);
    }
    (void)fputs(text, out);
}

static void print_header(const char *name, enum type type, const char *help, FILE *out)
{
    (void)fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
                  type == COUNTER ? "counter" : "gauge");
}

/* Print the labels of the item and of the row, with the text of the sample, if it has one. */
static void print_labels(const struct row *row, const struct item *item, const char *text,
                         FILE *out)
{
    char label[LABELS] = "";
    const char *more = row->label != NULL ? row->label : "";

    if (text != NULL) {
        add_label(label, row->label, text);
        more = label;
    }
    if (item->labels[0] != '\0' || more[0] != '\0') {
        (void)fprintf(out, "{%s%s%s}", item->labels,
                      item->labels[0] != '\0' && more[0] != '\0' ? "," : "", more);
    }
}

static void print_sample(const struct row *row, const struct item *item, FILE *out)
{
    struct cli_metrics_value value = {.there = false};

    for (size_t i = 0; i < item->n; i++) {
        cli_metrics_value_add(item->messages[i], row->field, &value);
    }
    if (!value.there) {
        return;
    }
    (void)fputs(row->name, out);
    print_labels(row, item, value.text, out);
    (void)fputc(' ', out);
    if (value.is_real) {
        print_real(value.real, out);
    } else {
        (void)fprintf(out, "%" PRIu64, value.text != NULL ? 1 : value.whole);
    }
    (void)fputc('\n', out);
}

/* Print the metrics of a table. All samples of a metric must follow one another. */
static void print_table(const struct row *rows, size_t n_rows, const struct item *items,
                        size_t n_items, FILE *out)
{
    for (size_t first = 0, end; first < n_rows; first = end) {
        end = first + 1;
        while (end < n_rows && strcmp(rows[end].name, rows[first].name) == 0) {
            end++;
        }
        print_header(rows[first].name, rows[first].type, rows[first].help, out);
        for (size_t i = 0; i < n_items; i++) {
            for (size_t r = first; r < end; r++) {
                print_sample(&rows[r], &items[i], out);
            }
        }
    }
}

#define PRINT_TABLE(rows, items, n, out)                                                           \
    print_table(rows, sizeof(rows) / sizeof *(rows), items, n, out)

/* -- the parts ------------------------------------------------------------------------------ */

/* A table of items under construction. */
struct items {
    struct item *v; /* Owned. */
    size_t n;
};

/* Return the next item, of the @n messages @messages; NULL: out of memory. @messages is the address
 * of an array of pointers to messages of any type. */
static struct item *add_item(struct items *items, const void *messages, size_t n)
{
    struct item *v = realloc(items->v, (items->n + 1) * sizeof *v);

    if (v == NULL) {
        return NULL;
    }
    items->v = v;
    v[items->n] = (struct item){.messages = messages, .n = n};
    return &v[items->n++];
}

static bool is_paced(const Cistern__GpuInfo *gpu)
{
    return strncmp(gpu->uuid, "paced:", 6) == 0;
}

static void label_accelerator(const Cistern__GpuInfo *gpu, char labels[LABELS], const char *name)
{
    char text[32];

    (void)snprintf(text, sizeof text, "cuda:%u", gpu->index);
    add_label(labels, name, is_paced(gpu) ? gpu->uuid : text);
}

/* The label of an engine is "host:NODE" or that of its device. */
static void label_engine(const Cistern__StatReply *stat, const Cistern__EngineInfo *engine,
                         char labels[LABELS])
{
    char text[32];

    for (size_t i = 0; engine->device != NULL && i < stat->n_gpus; i++) {
        if (strcmp(stat->gpus[i]->uuid, engine->device) == 0) {
            label_accelerator(stat->gpus[i], labels, "engine");
            return;
        }
    }
    (void)snprintf(text, sizeof text, "%s:%u", engine->kind, engine->node);
    add_label(labels, "engine", engine->device != NULL ? engine->device : text);
}

static bool print_engines(const Cistern__StatReply *stat, FILE *out)
{
    struct items items = {.n = 0};

    for (size_t i = 0; i < stat->n_engines; i++) {
        struct item *item = add_item(&items, &stat->engines[i], 1);

        if (item == NULL) {
            break;
        }
        label_engine(stat, stat->engines[i], item->labels);
    }
    PRINT_TABLE(engine_rows, items.v, items.n, out);
    free(items.v);
    return items.n == stat->n_engines;
}

static bool print_accelerators(const Cistern__StatReply *stat, FILE *out)
{
    struct items items = {.n = 0};

    for (size_t i = 0; i < stat->n_gpus; i++) {
        struct item *item = add_item(&items, &stat->gpus[i], 1);

        if (item == NULL) {
            break;
        }
        label_accelerator(stat->gpus[i], item->labels, "device");
    }
    PRINT_TABLE(accelerator_rows, items.v, items.n, out);
    free(items.v);
    return items.n == stat->n_gpus;
}

static bool print_drives(const Cistern__StatReply *stat, FILE *out)
{
    struct items items = {.n = 0};

    for (size_t i = 0; i < stat->n_drives; i++) {
        struct item *item = add_item(&items, &stat->drives[i], 1);

        if (item == NULL) {
            break;
        }
        add_label(item->labels, "drive", stat->drives[i]->uuid);
        add_label(item->labels, "name", stat->drives[i]->name);
    }
    PRINT_TABLE(drive_rows, items.v, items.n, out);
    free(items.v);
    return items.n == stat->n_drives;
}

/* Print the number of jobs in each state, of those that the socket shows. */
static void print_states(const struct cli_messages *listed, FILE *out)
{
    print_header("cistern_jobs_in_state", GAUGE, "Jobs that this program can see, by state.", out);
    for (int s = 0; s < CST_JOB_STATE_COUNT; s++) {
        size_t n = 0;

        for (size_t p = 0; p < listed->n; p++) {
            const Cistern__JobListPart *page = (const Cistern__JobListPart *)listed->v[p];

            for (size_t i = 0; i < page->n_jobs; i++) {
                n += strcmp(page->jobs[i]->state, cst_job_state_names[s]) == 0;
            }
        }
        (void)fprintf(out, "cistern_jobs_in_state{state=\"%s\"} %zu\n", cst_job_state_names[s], n);
    }
}

static void label_job(const Cistern__JobInfo *job, struct item *item)
{
    add_label(item->labels, "name", job->name); /* Prometheus has a label "job". */
    add_number_label(item->labels, "uid", job->uid);
}

/* Add the nodes of @job, if it has several. False: out of memory. */
static bool add_nodes(const Cistern__JobInfo *job, struct items *nodes)
{
    for (size_t i = 0; i < job->n_nodes; i++) {
        struct item *node = add_item(nodes, &job->nodes[i], 1);

        if (node == NULL) {
            return false;
        }
        label_job(job, node);
        add_label(node->labels, "node", job->nodes[i]->name);
    }
    return true;
}

static bool print_jobs(const struct cli_messages *replies, FILE *out)
{
    struct items jobs = {.n = 0}, ranks = {.n = 0}, nodes = {.n = 0};
    bool good = true;

    for (size_t i = 0; good && i < replies->n; i++) {
        Cistern__JobInfoReply *reply = (Cistern__JobInfoReply *)replies->v[i];
        struct item *job = add_item(&jobs, &reply->job, 1);
        struct item *all = add_item(&ranks, reply->job->ranks, reply->job->n_ranks);

        good = job != NULL && all != NULL && add_nodes(reply->job, &nodes);
        if (good) {
            label_job(reply->job, job);
            label_job(reply->job, all);
        }
    }
    PRINT_TABLE(job_rows, jobs.v, jobs.n, out);
    PRINT_TABLE(rank_rows, ranks.v, ranks.n, out);
    PRINT_TABLE(job_node_rows, nodes.v, nodes.n, out);
    free(jobs.v);
    free(nodes.v);
    free(ranks.v);
    return good;
}

/* Add the amount @use of @account to the table that has its unit. Times to live are not used. */
static bool add_use(const Cistern__QuotaAccount *account, size_t use, struct items *bytes,
                    struct items *numbers)
{
    const char *key = account->uses[use]->key, *device = account->uses[use]->device;
    const bool is_bytes =
        strcmp(key, "host") == 0 || strcmp(key, "pool") == 0 || strcmp(key, "disk") == 0;
    struct item *item;

    if (strcmp(key, "ttl") == 0) {
        return true;
    }
    item = add_item(is_bytes ? bytes : numbers, &account->uses[use], 1);
    if (item == NULL) {
        return false;
    }
    add_number_label(item->labels, account->group ? "gid" : "uid", account->id);
    add_label(item->labels, "key", key);
    if (device != NULL) {
        add_label(item->labels, "device", device);
    }
    return true;
}

static bool print_accounts(const struct cli_messages *pages, FILE *out)
{
    struct items bytes = {.n = 0}, numbers = {.n = 0};
    bool good = true;

    for (size_t p = 0; p < pages->n; p++) {
        const Cistern__QuotaPart *page = (const Cistern__QuotaPart *)pages->v[p];

        for (size_t a = 0; a < page->n_accounts; a++) {
            for (size_t u = 0; good && u < page->accounts[a]->n_uses; u++) {
                good = add_use(page->accounts[a], u, &bytes, &numbers);
            }
        }
    }
    PRINT_TABLE(quota_bytes_rows, bytes.v, bytes.n, out);
    PRINT_TABLE(quota_rows, numbers.v, numbers.n, out);
    free(bytes.v);
    free(numbers.v);
    return good;
}

bool cli_metrics_print(const struct cli_metrics *metrics, FILE *out)
{
    const struct item node = {.messages = (const ProtobufCMessage *const *)&metrics->stat, .n = 1};
    bool good;

    print_header("cistern_up", GAUGE, "1: the daemon has answered.", out);
    (void)fprintf(out, "cistern_up %d\n", metrics->stat != NULL);
    if (metrics->stat == NULL) {
        return true;
    }
    PRINT_TABLE(node_rows, &node, 1, out);
    print_states(&metrics->listed, out);
    good = print_engines(metrics->stat, out);
    good = print_accelerators(metrics->stat, out) && good;
    good = print_drives(metrics->stat, out) && good;
    good = print_jobs(&metrics->jobs, out) && good;
    return print_accounts(&metrics->accounts, out) && good;
}
