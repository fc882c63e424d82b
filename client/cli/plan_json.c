/* SPDX-License-Identifier: Apache-2.0 */
/* Output of a plan as JSON. */
#include "client/cli/plan_report.h"
#include "proto/optimizers.h"

static json_t *rows_json(const uint64_t *rows, uint64_t divisor)
{
    json_t *object = json_object();

    for (unsigned row = 0; object != NULL && row < CLI_PLAN_ROWS; row++) {
        if (json_object_set_new(object, cli_plan_row_name((int)row),
                                json_integer((json_int_t)(rows[row] / divisor))) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

static json_t *classes_json(const struct cst_plan_choice *choice)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list != NULL && i < choice->n_classes; i++) {
        uint64_t elems = i == 0 ? choice->layout.chunk_elems : choice->layout.class_elems[i - 1];

        if (json_array_append_new(list, json_pack("{s:I, s:i}", "chunk_elems", (json_int_t)elems,
                                                  "n_blocks", (int)choice->n_blocks[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

json_t *cli_plan_step_json(const struct cst_replay_result *p)
{
    return json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "step_s", (double)p->step_ns * 1e-9, "compute_s", (double)p->compute_ns * 1e-9, "wait_s",
        (double)p->wait_ns * 1e-9, "update_exposed_s", (double)p->update_exposed_ns * 1e-9,
        "update_s", (double)p->update_ns * 1e-9, "update_hidden_s",
        (double)p->update_hidden_ns * 1e-9, "tail_s", (double)p->tail_ns * 1e-9, "bytes_up",
        (json_int_t)p->bytes_up, "bytes_down", (json_int_t)p->bytes_down, "bytes_peer",
        (json_int_t)p->bytes_peer, "hits", (json_int_t)p->hits, "late", (json_int_t)p->late,
        "misses", (json_int_t)p->misses, "evictions", (json_int_t)p->evictions, "prefetches",
        (json_int_t)p->prefetches, "states_up", (json_int_t)p->states_up, "states_down",
        (json_int_t)p->states_down, "disk_read", (json_int_t)p->disk_read, "disk_ahead",
        (json_int_t)p->disk_ahead, "disk_written", (json_int_t)p->disk_written, "device_updates",
        (json_int_t)p->device_updates, "total_bytes_up", (json_int_t)p->total.bytes_up,
        "total_bytes_down", (json_int_t)p->total.bytes_down);
}

static json_t *choice_json(const struct cli_plan_input *input, const struct cst_plan_choice *choice)
{
    return json_pack(
        "{s:i, s:o, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:i, s:i, s:i, s:s?, "
        "s:f, s:f, s:o}",
        "n_chunks", (int)choice->n_chunks, "classes", classes_json(choice), "prefetch_depth",
        choice->prefetch_depth == CST_CORE_NO_PREFETCH ? -1 : (int)choice->prefetch_depth,
        "gradient", input->config.states.grad_over_weight ? "over" : "beside", "pool_bytes",
        (json_int_t)choice->pool_bytes, "state_bytes", (json_int_t)choice->state_bytes,
        "activation_bytes", (json_int_t)choice->activation_bytes, "host_bytes",
        (json_int_t)choice->host_bytes, "padding_bytes", (json_int_t)choice->padding_bytes,
        "device_update_bytes", (json_int_t)choice->device_update_bytes, "lent", (int)choice->lends,
        "device_states", (json_int_t)choice->device_states, "n_staying", (int)choice->n_staying,
        "n_buffers", (int)choice->n_buffers, "interleave", (int)choice->interleave, "binds",
        choice->binds, "tokens_per_s", cli_plan_tokens(input, choice), "spread",
        input->rates.spread, "predicted", cli_plan_step_json(&choice->predicted));
}

/* Return the states on drives; null: there are none. */
static json_t *drives_json(const struct cli_plan_input *input, const struct cst_plan_choice *choice)
{
    struct cst_plan_drives times;
    double days = cli_plan_days(input, choice);

    if (choice->n_drives == 0) {
        return json_null();
    }
    times = cst_plan_drives_times(&input->config, choice);
    return json_pack(
        "{s:i, s:I, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:b, s:f, s:I, s:i, "
        "s:I}",
        "drives", (int)choice->n_drives, "bytes", (json_int_t)choice->drive_bytes, "chunks",
        (int)choice->n_on_drives, "window_bytes", (json_int_t)choice->window_bytes,
        "host_bytes_per_param", (double)choice->rows_bytes / (double)input->model.model.n_params,
        "mixed_bytes_per_s", choice->n_drives * cst_rates_mixed(&input->rates), "disk_s",
        times.disk_s, "read_s", times.read_s, "read_under_s", times.read_under_s, "write_s",
        times.write_s, "write_under_s", times.write_under_s, "tbw",
        input->tbw > 0 ? json_real(input->tbw) : json_null(), "days",
        days > 0 ? json_real(days) : json_null(), "durable", (int)input->config.states.durable,
        "seal_s", times.seal_s, "record_bytes", (json_int_t)times.record_bytes, "chunks_in_memory",
        (int)choice->n_stay_in_host, "bytes_in_memory", (json_int_t)choice->stay_bytes);
}

static json_t *losers_json(const struct cli_plan_input *input, const struct cst_plans *plans)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list != NULL && i < plans->n_runners_up; i++) {
        if (json_array_append_new(list,
                                  json_pack("{s:s, s:o}", "why", plans->runners_up[i].why, "plan",
                                            choice_json(input, &plans->runners_up[i].plan))) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *model_summary(const struct cli_plan_input *input)
{
    const struct cst_model *model = &input->model.model;

    return json_pack("{s:s, s:i, s:I, s:i, s:i, s:i, s:s, s:s, s:s, s:s}", "name",
                     input->model.name, "world", (int)input->config.world, "n_params",
                     (json_int_t)model->n_params, "n_tensors", (int)model->n_tensors, "n_operators",
                     (int)model->n_operators, "micro_batches", (int)input->config.micro_batches,
                     "optimizer", cst_optimizer_names[input->config.states.optimizer], "masters",
                     cst_masters_names[input->config.states.masters], "moments",
                     cst_moments_names[input->config.states.moments], "overlap",
                     cst_overlap_names[input->config.overlap]);
}

static json_t *warnings_json(const struct cli_plan_input *input)
{
    char words[CLI_PLAN_MAX_WARNINGS][192];
    unsigned n = cli_plan_input_warn(input, words, CLI_PLAN_MAX_WARNINGS);
    json_t *list = json_array();

    for (unsigned i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, json_string(words[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* Return the words of a choice of the plan; null: the user did not leave it to the plan. */
static json_t *why_json(const char *words)
{
    return words[0] != '\0' ? json_string(words) : json_null();
}

/* Return the time of a step without states on accelerators; null: then nothing fits, or the user
 * did not leave the amount to the plan. */
static json_t *without_json(const struct cst_plans *plans)
{
    return plans->without_states_ns > 0 ? json_real((double)plans->without_states_ns * 1e-9)
                                        : json_null();
}

json_t *cli_limit_json(uint64_t bytes)
{
    return bytes == CST_PLAN_NO_LIMIT ? json_null() : json_integer((json_int_t)bytes);
}

/* Return what is set aside on the card of each rank; null: the budget does not come from the card.
 */
static json_t *card_json(const struct cst_card *card)
{
    return card->memory_bytes == 0
               ? json_null()
               : json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "memory_bytes",
                           (json_int_t)card->memory_bytes, "n_contexts",
                           (json_int_t)card->n_contexts, "context_bytes",
                           (json_int_t)card->context_bytes, "workspace_bytes",
                           (json_int_t)card->workspace_bytes, "activation_bytes",
                           (json_int_t)card->activation_bytes, "assumed_bytes",
                           (json_int_t)card->assumed_bytes);
}

json_t *cli_plan_json(const struct cli_plan_input *input, const struct cst_plans *plans,
                      const struct cli_plan_rows *rows)
{
    return json_pack(
        "{s:b, s:o, s:o, s:{s:s, s:s, s:b}, s:{s:o, s:o, s:o}, s:o, "
        "s:{s:o}, s:{s:o, s:o}, s:o, "
        "s:{s:o, s:o, s:o}, s:o, "
        "s:{s:I, s:I, s:I}}",
        "fits", 1, "model", model_summary(input), "warnings", warnings_json(input), "rates", "from",
        input->rates_from, "device", input->rates.devices[input->config.device].name, "peer_access",
        (int)!cli_plan_is_apart(input), "budget", "device_bytes",
        cli_limit_json(input->budget.device_bytes), "host_bytes",
        cli_limit_json(input->budget.host_bytes), "card", card_json(&input->card), "plan",
        choice_json(input, &plans->best), "device_update", "why", why_json(plans->update_why),
        "states", "why", why_json(plans->states_why), "step_without_s", without_json(plans), "disk",
        drives_json(input, &plans->best), "rows", "each_device",
        rows_json(rows->device, input->config.world), "host", rows_json(rows->host, 1), "drives",
        rows_json(rows->drive, 1), "runners_up", losers_json(input, plans), "searched",
        "candidates", (json_int_t)plans->n_candidates, "played", (json_int_t)plans->n_replayed,
        "events", (json_int_t)plans->n_events);
}
