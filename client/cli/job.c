/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of `cistern` about one job: job and explain. */
#include "client/cli/cli.h"
#include "client/cli/job_nodes.h"
#include "client/cli/job_ranks.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/tensors.h"
#include "proto/cgroup.h"
#include "proto/message_json.h"
#include "client/cli/watch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* -- job -------------------------------------------------------------------------------------- */

/* Print how states are stored, and the bytes per parameter. */
static void print_states(const Cistern__JobInfo *job, FILE *out)
{
    char text[CLI_HUMAN_BYTES];

    if (job->optimizer == NULL) { /* An older daemon does not send it. */
        return;
    }
    (void)fprintf(out, "states    %s, %smoments in %s%s%s, %.4g B/parameter%s", job->optimizer,
                  job->masters != NULL && strcmp(job->masters, "split") == 0 ? "split masters, "
                                                                             : "",
                  job->moments, job->rounding != NULL ? ", rounding " : "",
                  job->rounding != NULL ? job->rounding : "", job->state_bytes_per_param,
                  job->grad_over_weight ? ", gradients in the place of weights" : "");
    if (job->has_device_states) {
        (void)fprintf(out, ", %s on devices", cli_bytes(job->device_states, text));
    }
    if (job->has_drive_bytes) {
        (void)fprintf(out, ", %s on drives", cli_bytes(job->drive_bytes, text));
    }
    (void)fprintf(out, "\n");
}

/* Print the file of a job on a drive. @durable: it should have a name. */
static void print_file(const Cistern__StateFile *file, bool durable, FILE *out)
{
    (void)fprintf(out, "%s on drive %s", file->path, file->drive);
    if (file->unnamed) {
        (void)fprintf(out, durable ? ", which was removed: nothing will be left of it"
                                   : ", without a name");
    }
}

/* Print the files with states on drives, and what a loss of power leaves. */
static void print_files(const Cistern__JobInfo *job, FILE *out)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];

    for (size_t i = 0; i < job->n_files; i++) {
        const Cistern__StateFile *file = job->files[i];

        (void)fprintf(out, "file      ");
        print_file(file, job->durable, out);
        (void)fprintf(out, ": %s, states of %u of %u chunks, updated in %s of host memory\n",
                      cli_bytes(file->bytes, a), file->n_chunks, job->n_chunks,
                      cli_bytes(file->buffer_bytes, b));
    }
    if (job->has_n_stay_in_host) {
        (void)fprintf(
            out,
            "in memory the states of %u chunk%s, %s: buffers of their size for each drive "
            "would take more\n",
            job->n_stay_in_host, job->n_stay_in_host == 1 ? "" : "s",
            cli_bytes(job->stay_bytes, a));
    }
    if (job->has_recorded_step) {
        (void)fprintf(
            out,
            "recorded  step %llu: 'cistern adopt FILE... DIR' makes a checkpoint of it if "
            "the job is lost\n",
            (unsigned long long)job->recorded_step);
    } else if (job->durable) {
        (void)fprintf(out, "recorded  no step since this daemon has the job\n");
    }
}

/* Print when and where chunks are updated, and how much longer steps take because of the
 * updates. */
static void print_updates(const Cistern__JobInfo *job, FILE *out)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES];

    if (job->overlap == NULL) {
        return;
    }
    (void)fprintf(out, "updates   %s",
                  strcmp(job->overlap, "commit") == 0 ? "after the commit" : job->overlap);
    if (job->has_delay_from) {
        (void)fprintf(out, " from step %llu", (unsigned long long)job->delay_from);
    }
    if (job->unused != NULL && strcmp(job->unused, "skip") == 0) {
        (void)fprintf(out, ", tensors without a gradient are skipped");
    }
    if (job->has_chunks_ahead) {
        (void)fprintf(out, ", %llu of %u chunks ahead of the commit, %llu gradient%s dropped",
                      (unsigned long long)job->chunks_ahead, job->n_chunks,
                      (unsigned long long)job->grads_dropped, job->grads_dropped == 1 ? "" : "s");
    }
    if (job->has_device_update_bytes) {
        (void)fprintf(out, "; device reservations of %s: ", cli_bytes(job->device_update_bytes, a));
        (void)fprintf(out,
                      job->has_interleave ? "one chunk in %u of each node is updated there"
                                          : "no chunk is updated there at present",
                      job->interleave);
    }
    if (job->n_device_updates > 0) {
        (void)fprintf(out, "; %s of chunks on devices",
                      cli_percent(job->n_device_updates, job->n_updates, a));
    }
    if (job->has_n_lent_updates) {
        (void)fprintf(out, ", %s in lent memory",
                      cli_percent(job->n_lent_updates, job->n_updates, a));
    }
    if (job->has_reservation_failures) {
        (void)fprintf(out, "; %llu failures of device updates",
                      (unsigned long long)job->reservation_failures);
    }
    if (job->has_reservations_given_up) {
        (void)fprintf(out, ", %u device%s no longer used for updates", job->reservations_given_up,
                      job->reservations_given_up == 1 ? "" : "s");
    }
    if (job->has_last_update_seconds) {
        (void)fprintf(out, "; in the last step %s, %s exposed",
                      cli_seconds(job->last_update_seconds, a),
                      cli_seconds(job->last_exposed_seconds, b));
    }
    if (job->has_update_seconds) {
        (void)fprintf(
            out, "; of all update time %s hidden",
            cli_percent((uint64_t)(fmax(job->update_seconds - job->exposed_seconds, 0) * 1e9),
                        (uint64_t)(job->update_seconds * 1e9), c));
    }
    (void)fprintf(out, "\n");
}

/* Print where the job has memory, and what it has read from drives and written to them. */
static void print_memory(const Cistern__JobInfo *job, FILE *out)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];

    for (size_t i = 0; i < job->n_memory; i++) {
        (void)fprintf(out, "%s%s %s%s", i == 0 ? "memory    " : ", ", job->memory[i]->place,
                      cli_bytes(job->memory[i]->bytes, a), i + 1 == job->n_memory ? "\n" : "");
    }
    if (job->has_drive_read_bytes) {
        (void)fprintf(out, "drives    %s read, %s written\n", cli_bytes(job->drive_read_bytes, a),
                      cli_bytes(job->drive_written_bytes, b));
    }
}

static void print_readers(const Cistern__JobInfo *job, FILE *out)
{
    char text[CLI_HUMAN_BYTES];

    if (job->has_readers) {
        (void)fprintf(out, "readers   %u; they have lost %llu versions, and steps waited %s\n",
                      job->readers, (unsigned long long)job->versions_lost,
                      cli_seconds(job->reader_wait_seconds, text));
    }
}

/* Print how many steps changed no weight. An older daemon does not tell which ones overflowed. */
static void print_skipped(const Cistern__JobInfo *job, FILE *out)
{
    if (job->n_skipped == 0 && job->n_overflows == 0) {
        return;
    }
    (void)fprintf(out, "skipped   %llu steps", (unsigned long long)job->n_skipped);
    if (job->has_n_overflows) {
        (void)fprintf(out, "; the gradients of %llu steps overflowed",
                      (unsigned long long)job->n_overflows);
    }
    (void)fprintf(out, "\n");
}

static void print_progress(const Cistern__JobInfo *job, FILE *out)
{
    char text[CLI_HUMAN_BYTES], more[CLI_HUMAN_BYTES], loss[32] = "unknown";

    if (job->has_populated_bytes && job->populated_bytes < job->arena_bytes) {
        (void)fprintf(out, "populated %s of %s\n", cli_bytes(job->populated_bytes, text),
                      cli_bytes(job->arena_bytes, more));
    }
    if (job->step > 0) {
        if (job->has_last_loss) {
            (void)snprintf(loss, sizeof loss, "%.4f", job->last_loss);
        }
        (void)fprintf(out, "last step loss %s, gradient norm %.4g, %s\n", loss, job->last_grad_norm,
                      cli_seconds(job->step_seconds, text));
        print_skipped(job, out);
        print_readers(job, out);
    }
    print_updates(job, out);
    if (job->plan != NULL) {
        (void)fprintf(out, "plan      %s\n", job->plan);
    }
    if (job->has_expected_step_seconds) {
        (void)fprintf(out, "expected  %s a step, by the %s%s\n",
                      cli_seconds(job->expected_step_seconds, text), job->expected_by,
                      job->drifted ? "; the steps now take another time" : "");
    }
    (void)fprintf(out, "age       %s", cli_seconds(job->age_s, text));
    if (job->has_idle_s && job->idle_s > 0) {
        (void)fprintf(out, ", without a worker for %s", cli_seconds(job->idle_s, text));
    }
    (void)fprintf(out, "\n");
}

/* Print size classes and patterns, unless there is only the default one. */
static void print_kinds(const Cistern__JobInfo *job, FILE *out)
{
    char text[CLI_HUMAN_BYTES];

    for (size_t i = 0; job->n_classes > 1 && i < job->n_classes; i++) {
        (void)fprintf(out, "%s%u of %s", i == 0 ? "sizes     " : ", ", job->classes[i]->n_chunks,
                      cli_bytes(2 * job->classes[i]->chunk_elems, text));
    }
    (void)fprintf(out, "%s", job->n_classes > 1 ? "\n" : "");
    if (job->n_patterns > 1 ||
        (job->n_patterns == 1 && strcmp(job->patterns[0]->name, "shard") != 0)) {
        for (size_t i = 0; i < job->n_patterns; i++) {
            const Cistern__PatternInfo *pattern = job->patterns[i];

            (void)fprintf(out, "%s%u %s (%s)", i == 0 ? "tensors   " : ", ", pattern->n_tensors,
                          pattern->name, cli_count(pattern->n_params, text));
        }
        (void)fprintf(out, "; %u group%s of ranks\n", job->n_groups, job->n_groups == 1 ? "" : "s");
    }
}

static void print_base(const Cistern__JobInfo *job, FILE *out)
{
    char text[CLI_HUMAN_BYTES];

    if (job->base_job != NULL) {
        (void)fprintf(out, "base      %s: this job uses %s of its memory\n", job->base_job,
                      cli_bytes(job->base_bytes, text));
    }
    for (size_t i = 0; i < job->n_users; i++) {
        (void)fprintf(out, "%s%s%s", i == 0 ? "base of   " : ", ", job->users[i],
                      i + 1 == job->n_users ? "\n" : "");
    }
}

static void print_head(const Cistern__JobInfo *job, FILE *out)
{
    char params[CLI_HUMAN_BYTES], arena[CLI_HUMAN_BYTES], chunk[CLI_HUMAN_BYTES];
    char pause[CLI_PAUSE_WORDS];
    double per_param = job->n_params > 0 ? (double)job->arena_bytes / (double)job->n_params : 0;

    (void)fprintf(out, "job       %s of uid %u: %s, step %llu, attempt %llu, %u", job->name,
                  job->uid, job->state, (unsigned long long)job->step,
                  (unsigned long long)job->attempt, job->world);
    if (job->has_all_ranks) {
        (void)fprintf(out, " of %u", job->all_ranks);
    }
    (void)fprintf(out, " rank%s on %s\n", job->world == 1 && !job->has_all_ranks ? "" : "s",
                  job->device != NULL ? job->device : "?");
    (void)fprintf(out, "model     %s parameters, %s of host memory, %.2f B/parameter\n",
                  cli_count(job->n_params, params), cli_bytes(job->arena_bytes, arena), per_param);
    (void)fprintf(out,
                  "chunks    %u of up to %s of weights: %llu current, %llu being updated, %llu "
                  "being summed\n",
                  job->n_chunks, cli_bytes(2 * job->chunk_elems, chunk),
                  (unsigned long long)job->chunks_clean, (unsigned long long)job->chunks_updating,
                  (unsigned long long)job->chunks_reducing);
    print_kinds(job, out);
    print_states(job, out);
    print_files(job, out);
    if (job->has_micro_batches) {
        (void)fprintf(out, "step      of %u micro-batches, gradients in fp32\n",
                      job->micro_batches);
    }
    if (job->has_n_edges) {
        (void)fprintf(out, "edges     %u with %s of host memory", job->n_edges,
                      cli_bytes(job->edge_bytes, params));
        if (job->has_edge_device_bytes) {
            (void)fprintf(out, " and %s of device memory",
                          cli_bytes(job->edge_device_bytes, params));
        }
        (void)fprintf(out, "\n");
    }
    print_memory(job, out);
    print_base(job, out);
    cli_pause_words(job, pause, sizeof pause);
    if (pause[0] != '\0') {
        (void)fprintf(out, "pause     %s\n", pause);
    }
    if (job->waits_for != NULL) {
        (void)fprintf(out, "waits     for %s\n", job->waits_for);
    }
    cli_job_nodes_print_state(job, out);
    if (job->copies != NULL) {
        (void)fprintf(out, "copies    of weights into pools on GPUs by the %s\n",
                      strcmp(job->copies, "worker") == 0 ? "workers" : "GPUs' engines");
    }
    print_progress(job, out);
}

static void add_books(struct cli_table *table, const Cistern__Books *books)
{
    const Cistern__Books none = CISTERN__BOOKS__INIT;
    const Cistern__Books *b = books != NULL ? books : &none;
    const uint64_t values[] = {b->capacity, b->free,    b->cached,     b->leased,
                               b->moving,   b->pending, b->quarantined};
    char text[CLI_HUMAN_BYTES];

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        cli_table_cell(table, "%s", cli_bytes(values[i], text));
    }
}

static bool print_pools(const Cistern__JobInfo *job, FILE *out)
{
    static const char *const titles[] = {"RANK",    "STATE",    "DEVICE",       ">PID",
                                         ">POOL",   ">FREE",    ">CACHED",      ">LEASED",
                                         ">MOVING", ">PENDING", ">QUARANTINED", NULL};
    struct cli_table table;

    cli_table_init(&table, titles);
    for (size_t i = 0; i < job->n_ranks; i++) {
        const Cistern__RankInfo *rank = job->ranks[i];

        cli_table_cell(&table, "%u", rank->rank);
        cli_table_cell(&table, "%s", rank->state);
        cli_table_cell(&table, "%s", rank->device != NULL ? rank->device : "-");
        if (rank->has_pid && rank->pid > 0) {
            cli_table_cell(&table, "%d", rank->pid);
        } else {
            cli_table_cell(&table, "-");
        }
        add_books(&table, rank->pool);
    }
    return cli_table_print(&table, out);
}

static bool print_traffic(const Cistern__JobInfo *job, FILE *out)
{
    static const char *const titles[] = {
        "RANK",       ">HITS",      ">LATE",  ">MISSES", ">HIT RATE", ">WAITED", ">PREFETCHES",
        ">EVICTIONS", ">SURPRISES", ">WAITS", ">UP",     ">PEERS",    ">DOWN",   NULL};
    struct cli_table table;
    char text[CLI_HUMAN_BYTES];

    cli_table_init(&table, titles);
    for (size_t i = 0; i < job->n_ranks; i++) {
        const Cistern__RankInfo *rank = job->ranks[i];

        cli_table_cell(&table, "%u", rank->rank);
        cli_table_cell(&table, "%llu", (unsigned long long)rank->hits);
        cli_table_cell(&table, "%llu", (unsigned long long)rank->late);
        cli_table_cell(&table, "%llu", (unsigned long long)rank->misses);
        cli_table_cell(&table, "%s",
                       cli_percent(rank->hits, rank->hits + rank->late + rank->misses, text));
        cli_table_cell(&table, "%s", cli_seconds(rank->weight_wait_seconds, text));
        cli_table_cell(&table, "%llu", (unsigned long long)rank->prefetches);
        cli_table_cell(&table, "%llu", (unsigned long long)rank->evictions);
        cli_table_cell(&table, "%llu", (unsigned long long)rank->surprises);
        cli_table_cell(&table, "%llu", (unsigned long long)rank->waits);
        cli_table_cell(&table, "%s", cli_bytes(rank->bytes_up, text));
        cli_table_cell(&table, "%s", cli_bytes(rank->bytes_peer, text));
        cli_table_cell(&table, "%s", cli_bytes(rank->bytes_down, text));
    }
    return cli_table_print(&table, out);
}

/* The control group of the worker of @rank, if this program can see its process. */
static bool group_of(const Cistern__RankInfo *rank, char group[CST_CGROUP_BYTES])
{
    return rank->has_pid && rank->pid > 0 && cst_cgroup_of("", rank->pid, group);
}

/* Print the control groups of the workers, in which their own memory is. */
static void print_groups(const Cistern__JobInfo *job, FILE *out)
{
    char group[CST_CGROUP_BYTES], before[CST_CGROUP_BYTES] = "";

    for (size_t i = 0; i < job->n_ranks; i++) {
        if (group_of(job->ranks[i], group) && strcmp(group, before) != 0) {
            (void)fprintf(out, "cgroup    from rank %u on: %s\n", job->ranks[i]->rank, group);
            memcpy(before, group, sizeof before);
        }
    }
}

bool cli_job_print(const Cistern__JobInfo *job, FILE *out)
{
    print_head(job, out);
    if (!cli_job_nodes_print(job, out)) {
        return false;
    }
    if (job->n_ranks == 0) {
        return true;
    }
    print_groups(job, out);
    (void)fprintf(out, "\n");
    if (!print_pools(job, out)) {
        return false;
    }
    (void)fprintf(out, "\n");
    return print_traffic(job, out);
}

static Cistern__JobName name_of(const struct cli *cli)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;

    msg.name = cli->args[0];
    msg.has_uid = cli->uid != CLI_NO_UID;
    msg.uid = cli->uid;
    return msg;
}

bool cli_ask_job(struct cli *cli, struct cstc_call *call)
{
    Cistern__JobName msg = name_of(cli);
    Cistern__JobInfo *job;
    struct cst_err err = {0};
    bool more;

    if (!cli_ask(cli, call, CISTERN__MSG_TYPE__MSG_JOB_INFO, &msg.base,
                 CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &cistern__job_info_reply__descriptor)) {
        return false;
    }
    job = ((Cistern__JobInfoReply *)call->reply)->job;
    for (more = cli_job_ranks_next(job, &msg); more; (void)cli_job_ranks_next(job, &msg)) {
        struct cstc_call next = {0};

        if (!cli_ask(cli, &next, CISTERN__MSG_TYPE__MSG_JOB_INFO, &msg.base,
                     CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &cistern__job_info_reply__descriptor)) {
            cstc_call_reset(call);
            return false;
        }
        if (cli_job_ranks_join(job, ((Cistern__JobInfoReply *)next.reply)->job, &more, &err) !=
            CST_OK) {
            (void)cli_fail(&err);
            cstc_call_reset(&next);
            cstc_call_reset(call);
            return false;
        }
        cstc_call_reset(&next);
    }
    return true;
}

bool cli_ask_about(struct cli *cli, struct cstc_call *call, uint16_t type, uint16_t reply_type,
                   const ProtobufCMessageDescriptor *form)
{
    Cistern__JobName msg = name_of(cli);

    msg.has_unused = msg.unused = type == CISTERN__MSG_TYPE__MSG_JOB_REMOVE && !cli->force;
    return cli_ask(cli, call, type, &msg.base, reply_type, form);
}

/* The message, and the control group of each worker. NULL: out of memory. */
static json_t *job_to_json(const Cistern__JobInfo *job)
{
    json_t *object = cst_message_to_json(&job->base);
    json_t *ranks = json_object_get(object, "ranks");
    char group[CST_CGROUP_BYTES];

    for (size_t i = 0; i < job->n_ranks; i++) {
        if (group_of(job->ranks[i], group)) {
            (void)json_object_set_new(json_array_get(ranks, i), "cgroup", json_string(group));
        }
    }
    return object;
}

static bool draw(struct cli *cli, FILE *out, void *arg)
{
    const Cistern__JobInfo *job;
    struct cstc_call call = {0};
    bool good;

    (void)arg;
    if (!cli_ask_job(cli, &call)) {
        return false;
    }
    job = ((const Cistern__JobInfoReply *)call.reply)->job;
    good = cli->json ? cli_json_print(job_to_json(job)) : cli_job_print(job, out);
    cstc_call_reset(&call);
    return good;
}

int cli_job(struct cli *cli)
{
    return cli_watch(cli, draw, NULL);
}

/* -- explain ---------------------------------------------------------------------------------- */

/* Print where rows of states lie in files. */
static void print_places(const Cistern__ExplainReply *reply)
{
    for (size_t i = 0; i < reply->n_places; i++) {
        const Cistern__StatePlace *place = reply->places[i];

        if (place->file >= reply->n_files) {
            continue;
        }
        (void)printf("%s of the chunk: %llu bytes at byte %llu", place->row,
                     (unsigned long long)place->bytes, (unsigned long long)place->offset);
        if (place->has_twin_offset) {
            (void)printf(" and at byte %llu, which steps write in turn,",
                         (unsigned long long)place->twin_offset);
        }
        (void)printf(" of ");
        print_file(reply->files[place->file], place->has_twin_offset || reply->has_recorded_step,
                   stdout);
        (void)printf("\n");
    }
    if (reply->has_recorded_step && reply->n_places > 0) {
        (void)printf("the last step that is recorded on the drives is %llu\n",
                     (unsigned long long)reply->recorded_step);
    }
}

int cli_explain(struct cli *cli)
{
    Cistern__Explain msg = CISTERN__EXPLAIN__INIT;
    const Cistern__ExplainReply *reply;
    struct cstc_call call = {0};
    struct cst_err err = {0};
    char hint[CLI_TENSORS_HINT_BYTES];
    bool good = true;

    msg.job = cli->args[0];
    msg.tensor = cli->args[1];
    msg.has_uid = cli->uid != CLI_NO_UID;
    msg.uid = cli->uid;
    if (cstc_call_sync(cli->client, &call, CISTERN__MSG_TYPE__MSG_EXPLAIN, &msg.base,
                       CISTERN__MSG_TYPE__MSG_EXPLAIN_REPLY, &cistern__explain_reply__descriptor,
                       &err) != CST_OK) {
        (void)fprintf(stderr, "cistern: %s%s\n", err.text,
                      err.status == CST_ENOTFOUND ? cli_tensors_hint(cli, msg.tensor, hint) : "");
        return CLI_EXIT_FAILURE;
    }
    reply = (const Cistern__ExplainReply *)call.reply;
    if (cli->json) {
        good = cli_json_print(cst_message_to_json(&reply->base));
    } else {
        for (size_t i = 0; i < reply->n_lines; i++) {
            (void)printf("%s\n", reply->lines[i]);
        }
        print_places(reply);
    }
    cstc_call_reset(&call);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
