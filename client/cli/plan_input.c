/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/plan_input.h"

#include "client/cli/options.h"
#include "client/cli/rates.h"
#include "offload/plan/preset.h"
#include "proto/job_options.h"
#include "proto/size.h"
#include "proto/rates_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char preset_prefix[] = "preset:";

/* -- model ------------------------------------------------------------------------------------ */

static int no_preset(const char *name, struct cst_err *err)
{
    char known[320] = "";

    for (uint32_t i = 0; cst_preset(i) != NULL; i++) {
        size_t used = strlen(known);

        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "",
                       cst_preset(i)->name);
    }
    return cst_err_set(err, CST_ENOTFOUND, "no preset '%.63s'; there are %s", name, known);
}

static int open_preset(struct cli_model *out, const char *name, const struct cli_plan_request *wish,
                       struct cst_err *err)
{
    const struct cst_preset *preset = cst_preset_find(name);
    struct cst_preset_options options = {.world = (uint32_t)wish->ranks,
                                         .batch = (uint32_t)wish->batch,
                                         .context = (uint32_t)wish->context,
                                         .recompute = wish->job.planning.recompute &&
                                                      wish->parallel == CLI_PARALLEL_NONE};
    int rc;

    if (preset == NULL) {
        return no_preset(name, err);
    }
    *out = (struct cli_model){.world = wish->ranks > 0 ? (uint32_t)wish->ranks : 1};
    (void)snprintf(out->name, sizeof out->name, "%s", name);
    out->heads = preset->heads;
    out->tokens =
        (wish->batch > 0 ? wish->batch : 1) * (wish->context > 0 ? wish->context : preset->context);
    cst_model_init(&out->model);
    rc = cst_preset_declare(&out->model, preset, &options, err);
    if (rc != CST_OK) {
        cst_model_close(&out->model);
    }
    return rc;
}

static int open_model(struct cli_model *out, const char *from, const struct cli_plan_request *wish,
                      struct cst_err *err)
{
    int rc;

    if (strncmp(from, preset_prefix, strlen(preset_prefix)) == 0) {
        return open_preset(out, from + strlen(preset_prefix), wish, err);
    }
    if (wish->batch != 0 || wish->context != 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "--batch and --context are only for presets: a model in a file has its own numbers");
    }
    rc = cli_model_read(out, from, err);
    if (rc == CST_OK && wish->ranks > 0) {
        rc = cli_model_set_world(out, wish->ranks, err);
        if (rc != CST_OK) {
            cli_model_close(out);
        }
    }
    return rc;
}

/* -- rates ------------------------------------------------------------------------------------ */

/* Read the rates: the given file or preset; else the file that `cistern probe` writes for this
 * user; else the file of the daemon. */
static int open_rates(struct cli_plan_input *input, const char *named, struct cst_err *err)
{
    static const char daemons[] = "/var/lib/cistern/rates.json";

    if (named != NULL && strcmp(named, "a100") == 0) {
        cst_rates_a100(&input->rates, input->model.world < CST_RATES_MAX_DEVICES
                                          ? input->model.world
                                          : CST_RATES_MAX_DEVICES);
        (void)snprintf(input->rates_from, sizeof input->rates_from,
                       "an A100 box as Elixir's authors fitted it");
        return CST_OK;
    }
    if (named != NULL) {
        (void)snprintf(input->rates_from, sizeof input->rates_from, "%s", named);
        return cst_rates_read(&input->rates, named, err);
    }
    if (!cli_rates_path(input->rates_from, sizeof input->rates_from) ||
        access(input->rates_from, R_OK) != 0) {
        (void)snprintf(input->rates_from, sizeof input->rates_from, "%s", daemons);
    }
    if (access(input->rates_from, R_OK) != 0) {
        return cst_err_set(err, CST_ENOTFOUND,
                           "no rates: run 'cistern probe', or use --rates FILE or --rates a100");
    }
    return cst_rates_read(&input->rates, input->rates_from, err);
}

static int no_device(const struct cst_rates *rates, const char *name, struct cst_err *err)
{
    char known[256] = "";

    for (uint32_t i = 0; i < rates->n_devices; i++) {
        size_t used = strlen(known);

        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "",
                       rates->devices[i].name);
    }
    return cst_err_set(err, CST_ENOTFOUND, "the rates have no device '%.63s'; they have %s", name,
                       known);
}

/* Return the accelerator for device updates if ranks compute on the host: the first device that is
 * not the host. */
static uint32_t find_accelerator(const struct cst_rates *rates)
{
    for (uint32_t i = 0; i < rates->n_devices; i++) {
        if (strcmp(rates->devices[i].name, "host") != 0) {
            return i;
        }
    }
    return 0;
}

/* Return whether @device is a simulated accelerator, whose memory consists of pages of the host. */
static bool is_simulated(const struct cst_rates_device *device)
{
    return strncmp(device->name, "paced", strlen("paced")) == 0;
}

/* Choose the device of the ranks: the one that --on names, else the first. Its flops may be
 * missing, because `cistern probe` does not measure them for GPUs. */
static int choose_device(struct cli_plan_input *input, const struct cli_plan_request *wish,
                         struct cst_err *err)
{
    struct cst_rates *rates = &input->rates;
    uint32_t i = 0;

    while (wish->on != NULL && i < rates->n_devices &&
           strcmp(rates->devices[i].name, wish->on) != 0) {
        i++;
    }
    if (i == rates->n_devices) {
        return wish->on != NULL ? no_device(rates, wish->on, err)
                                : cst_err_set(err, CST_EINVAL, "rates without a device");
    }
    if (wish->flops > 0) {
        rates->devices[i].flops = wish->flops;
    }
    if (rates->devices[i].flops == 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "the rates have no flop/s for '%s': use --flops, or write it into %.128s",
            rates->devices[i].name, input->rates_from);
    }
    input->config.device = i;
    input->config.apart = rates->devices[i].peer == 0 && !is_simulated(&rates->devices[i]);
    input->config.accelerator = find_accelerator(rates);
    if (is_simulated(&rates->devices[i])) {
        input->config.device_grain = (uint64_t)sysconf(_SC_PAGESIZE);
    }
    return CST_OK;
}

/* Without --device, plan for what the daemon leaves of a GPU with `pool = auto`. The search itself
 * subtracts the activations that operators declare. */
static void set_aside(struct cli_plan_input *input)
{
    const struct cst_rates_device *device = &input->rates.devices[input->config.device];
    const struct cst_model *model = &input->model.model;
    uint64_t aside = 0;

    if (input->budget.device_bytes != CST_PLAN_NO_LIMIT || device->memory_bytes == 0 ||
        strcmp(device->name, "host") == 0 || is_simulated(device)) {
        return;
    }
    for (uint32_t r = 0; r < input->model.world; r++) {
        struct cst_card card;

        cst_card_init(&card, device->memory_bytes);
        cst_card_add_rank(&card, cst_card_activations(model, r));
        if (r == 0 || cst_card_bytes(&card) > cst_card_bytes(&input->card)) {
            input->card = card;
        }
    }
    aside = cst_card_bytes(&input->card) - input->card.activation_bytes;
    input->budget.device_bytes = aside < device->memory_bytes ? device->memory_bytes - aside : 0;
}

/* -- drives ----------------------------------------------------------------------------------- */

/* True if @text can only be meant as a number, which it is not if it has a sign or a point. */
static bool is_like_a_number(const char *text)
{
    return strspn(text, "+-.0123456789") == strlen(text) && strpbrk(text, "0123456789") != NULL;
}

int cli_plan_count_drives(const char *text, uint32_t *n, struct cst_err *err)
{
    uint32_t count = 1;

    if (is_like_a_number(text)) {
        bool whole = strspn(text, "0123456789") == strlen(text);

        count = !whole ? 0 : strlen(text) > 2 ? UINT32_MAX : (uint32_t)strtoul(text, NULL, 10);
    }
    for (const char *p = text; *p != '\0'; p++) {
        count += *p == ',';
    }
    if (count == 0 || text[0] == ',' || text[0] == '\0' || strstr(text, ",,") != NULL ||
        text[strlen(text) - 1] == ',') {
        return cst_err_set(err, CST_EINVAL,
                           "disk: '%.150s' is neither a number of drives, 1 to %d, nor a list of "
                           "directories",
                           text, CST_CORE_MAX_UPDATE_DEVICES);
    }
    if (count > CST_CORE_MAX_UPDATE_DEVICES) {
        return cst_err_set(err, CST_EINVAL,
                           "disk: '%.150s': the states of a job can be on %d "
                           "drives at most",
                           text, CST_CORE_MAX_UPDATE_DEVICES);
    }
    *n = count;
    return CST_OK;
}

int cli_plan_check_drives(struct cli *cli, struct cst_err *err)
{
    struct cli_plan_request *wish = &cli->plan;
    const char *needs = wish->tbw > 0                     ? "--tbw"
                        : wish->job.states.disk_bytes > 0 ? "--disk-bytes"
                        : wish->job.states.durable        ? "--durable"
                                                          : NULL;
    int rc = cli->disk != NULL ? cli_plan_count_drives(cli->disk, &wish->n_drives, err) : CST_OK;

    if (rc == CST_OK && wish->n_drives == 0 && needs != NULL) {
        return cst_err_set(err, CST_EINVAL, "%s is for states on drives: name them with --disk",
                           needs);
    }
    if (rc == CST_OK && wish->n_drives > 0 && wish->parallel != CLI_PARALLEL_NONE) {
        return cst_err_set(
            err, CST_EINVAL,
            "--disk is not for plans with --parallel auto, which plan no memory of the host: "
            "leave it out; then plan the states on drives with --disk and --ranks, without "
            "--parallel");
    }
    return rc;
}

/* Check that the rates know drives. */
static int check_drives(const struct cli_plan_input *input, const struct cli_plan_request *wish,
                        struct cst_err *err)
{
    if (wish->n_drives > 0 && (input->rates.disk_read <= 0 || input->rates.disk_write <= 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "the rates of %.150s know no drives: measure one with 'cistern probe "
                           "--disk DIR', %s",
                           input->rates_from,
                           wish->rates != NULL
                               ? "and leave --rates out, or write disk_read, disk_write and "
                                 "disk_mixed of its file into a file of your own"
                               : "which adds disk_read, disk_write and disk_mixed to the file");
    }
    return CST_OK;
}

/* Check the options as those of a job are checked. */
static int check_options(const struct cli_plan_request *wish, struct cst_err *err)
{
    struct cst_job_spec job = wish->job;

    job.name = "plan";
    job.world = 1;
    job.states.disk = wish->n_drives > 0 ? "drives" : NULL;
    return cst_job_options_check(&job, err);
}

/* -- the whole -------------------------------------------------------------------------------- */

int cli_plan_input_open(struct cli_plan_input *input, const struct cli *cli, struct cst_err *err)
{
    const struct cli_plan_request *wish = &cli->plan;
    int rc;

    *input = (struct cli_plan_input){.rates_from = ""};
    input->budget.device_bytes = wish->device_bytes;
    input->budget.host_bytes = wish->host_bytes;
    rc = open_model(&input->model, cli->args[0], wish, err);
    if (rc != CST_OK) {
        return rc;
    }
    rc = open_rates(input, wish->rates, err);
    if (rc == CST_OK) {
        rc = choose_device(input, wish, err);
    }
    if (rc == CST_OK) {
        rc = check_options(wish, err);
    }
    if (rc == CST_OK) {
        rc = check_drives(input, wish, err);
    }
    if (rc != CST_OK) {
        cli_model_close(&input->model);
        return rc;
    }
    set_aside(input);
    input->tbw = wish->tbw;
    input->config.n_drives = wish->n_drives;
    input->config.drive_bytes = wish->job.states.disk_bytes;
    input->config.model = &input->model.model;
    input->config.world = input->model.world;
    input->config.budget = &input->budget;
    input->config.least = &input->least;
    input->config.rates = &input->rates;
    input->config.n_nodes = input->rates.n_nodes;
    input->config.micro_batches =
        wish->job.updates.micro_batches > 0 ? (uint32_t)wish->job.updates.micro_batches : 1;
    input->config.chunk_elems = wish->job.planning.chunk_elems;
    input->config.flops_share = wish->share;
    input->config.recompute = wish->job.planning.recompute;
    input->config.max_events =
        CST_PLAN_JOB_EVENTS; /* As in the daemon, which finds the same plan. */
    input->config.overlap = (enum cst_overlap)wish->job.updates.overlap;
    input->config.lent = wish->job.memory.device_update_bytes == CST_DEVICE_UPDATE_LENT;
    input->config.device_update_bytes =
        input->config.lent ? 0 : wish->job.memory.device_update_bytes;
    input->config.device_states = wish->job.memory.device_states;
    input->config.states = cst_layout_job_states(&wish->job);
    return CST_OK;
}

void cli_plan_input_close(struct cli_plan_input *input)
{
    cli_model_close(&input->model);
}

unsigned cli_plan_input_warn(const struct cli_plan_input *input, char words[][192], unsigned max)
{
    const struct cst_model *model = &input->model.model;
    uint32_t n[CST_PATTERN_COUNT] = {0}, example[CST_PATTERN_COUNT] = {0};
    unsigned n_words = 0;

    for (uint32_t i = 0; i < model->n_tensors && input->model.world > 1; i++) {
        const struct cst_layout_tensor *tensor = &model->tensors[i];

        if (cst_pattern(tensor->pattern)->wants_subset && tensor->group == 0 &&
            n[tensor->pattern]++ == 0) {
            example[tensor->pattern] = i;
        }
    }
    if (input->rates.busy_cores > 0 && n_words < max) {
        (void)snprintf(words[n_words++], 192,
                       "the rates were measured while other programs used %.1f cores: measure "
                       "again when the machine is quiet (cistern probe)",
                       input->rates.busy_cores);
    }
    for (uint32_t kind = 0; kind < CST_PATTERN_COUNT && n_words < max; kind++) {
        if (n[kind] > 0) {
            (void)snprintf(words[n_words++], 192,
                           "%u tensors of pattern %s are held by all ranks ('%s', ...): they are "
                           "useful only in smaller groups",
                           n[kind], cst_pattern(kind)->name, model->tensors[example[kind]].name);
        }
    }
    return n_words;
}
