/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/html.h"
#include "client/cli/report.h"
#include "client/cli/report_style.h"
#include "client/cli/table.h"

#include <string.h>
#include <time.h>

/* -- key figures ------------------------------------------------------------------------------ */

static void card(FILE *to, const char *name, const char *value)
{
    (void)fputs("<li>", to);
    cli_html_element(to, "span", "%s", name);
    cli_html_element(to, "b", "%s", value);
    (void)fputs("</li>\n", to);
}

static void card_loss(const struct cli_report *report, FILE *to)
{
    char text[64];

    for (size_t i = report->n_history; i-- > 0;) {
        if (report->history[i].has_loss) {
            (void)snprintf(text, sizeof text, "%.4f", report->history[i].loss);
            card(to, report->history[i].n_steps > 1 ? "last loss, mean" : "last loss", text);
            return;
        }
    }
}

static void card_speed(const struct cli_report *report, FILE *to)
{
    bool tokens;
    const double speed = cli_report_speed(report, 0, report->n_history, &tokens);
    char text[64], human[CLI_HUMAN_BYTES];

    if (speed >= 1000) {
        card(to, tokens ? "tokens per second" : "steps per second",
             cli_count((uint64_t)speed, human));
    } else if (speed > 0) {
        (void)snprintf(text, sizeof text, "%.4g", speed);
        card(to, tokens ? "tokens per second" : "steps per second", text);
    }
}

static void card_exposed(const struct cli_report *report, FILE *to)
{
    double exposed = 0, seconds = 0;
    char text[64];

    for (size_t i = 0; i < report->n_history; i++) {
        exposed += report->history[i].exposed_seconds;
        seconds += report->history[i].seconds;
    }
    if (seconds > 0) {
        (void)snprintf(text, sizeof text, "%.1f %%", 100 * exposed / seconds);
        card(to, "exposed update", text);
    }
}

static void card_hits(const struct cli_report *report, FILE *to)
{
    uint64_t hits = 0, all = 0;
    char text[CLI_HUMAN_BYTES];

    for (size_t i = 0; i < report->job->n_ranks; i++) {
        const Cistern__RankInfo *rank = report->job->ranks[i];

        hits += rank->hits;
        all += rank->hits + rank->late + rank->misses;
    }
    if (all > 0) {
        card(to, "hits of weights", cli_percent(hits, all, text));
    }
}

static void write_cards(const struct cli_report *report, FILE *to)
{
    const double seconds = cli_report_step_seconds(report);
    char text[CLI_HUMAN_BYTES];

    (void)fputs("<ul class=\"cards\">\n", to);
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)report->job->step);
    card(to, "steps", text);
    card_loss(report, to);
    if (seconds > 0) {
        card(to, "median step", cli_seconds(seconds, text));
    }
    card_speed(report, to);
    card_exposed(report, to);
    card_hits(report, to);
    (void)fputs("</ul>\n", to);
}

/* -- facts ------------------------------------------------------------------------------------ */

static void fact_begin(FILE *to, const char *name)
{
    cli_html_element(to, "dt", "%s", name);
    (void)fputs("<dd>", to);
}

static void fact_end(FILE *to)
{
    (void)fputs("</dd>\n", to);
}

static void fact_model(const Cistern__JobInfo *job, FILE *to)
{
    char text[CLI_HUMAN_BYTES];
    uint64_t chunk_elems = 0;
    uint32_t n_tensors = 0;

    for (size_t i = 0; i < job->n_patterns; i++) {
        n_tensors += job->patterns[i]->n_tensors;
    }
    for (size_t i = 0; i < job->n_classes; i++) {
        chunk_elems =
            job->classes[i]->chunk_elems > chunk_elems ? job->classes[i]->chunk_elems : chunk_elems;
    }
    fact_begin(to, "Model");
    cli_html_text(to, "%s parameters in %u tensors", cli_count(job->n_params, text), n_tensors);
    cli_html_text(to, ", %u chunks of up to %s", job->n_chunks, cli_bytes(2 * chunk_elems, text));
    fact_end(to);
    if (job->base_job != NULL) {
        fact_begin(to, "Base job");
        cli_html_text(to, "%s, of whose memory %s are used", job->base_job,
                      cli_bytes(job->base_bytes, text));
        fact_end(to);
    }
}

static void fact_ranks(const Cistern__JobInfo *job, FILE *to)
{
    fact_begin(to, "Ranks");
    cli_html_text(to, "%u", job->world);
    if (job->has_all_ranks) {
        cli_html_text(to, " of %u", job->all_ranks);
    }
    cli_html_text(to, " on %s", job->device != NULL ? job->device : "?");
    if (job->has_micro_batches) {
        cli_html_text(to, ", %u micro-batches in a step", job->micro_batches);
    }
    fact_end(to);
}

/* The options that differ between jobs: those of the states, of the updates, and the texts of all
 * others. */
static void fact_options(const Cistern__JobInfo *job, FILE *to)
{
    if (job->optimizer == NULL) { /* An older daemon does not send it. */
        return;
    }
    fact_begin(to, "Options");
    cli_html_text(to, "%s, %smoments in %s", job->optimizer,
                  job->masters != NULL && strcmp(job->masters, "split") == 0 ? "split masters, "
                                                                             : "",
                  job->moments);
    if (job->rounding != NULL) {
        cli_html_text(to, ", rounded %s", job->rounding);
    }
    cli_html_text(to, "; %.4g B/parameter", job->state_bytes_per_param);
    if (job->grad_over_weight) {
        cli_html_text(to, "; gradients in the place of weights");
    }
    cli_html_text(to, "; updates: %s", job->overlap);
    if (job->has_delay_from) {
        cli_html_text(to, " from step %llu", (unsigned long long)job->delay_from);
    }
    if (job->unused != NULL && strcmp(job->unused, "skip") == 0) {
        cli_html_text(to, "; tensors without a gradient are skipped");
    }
    for (size_t i = 0; i < job->n_options; i++) {
        cli_html_text(to, "; %s", job->options[i]);
    }
    fact_end(to);
}

static void fact_machine(const Cistern__StatReply *stat, FILE *to)
{
    char text[CLI_HUMAN_BYTES];
    unsigned n_nodes = 0, n_threads = 0;
    const char *isa = NULL;

    for (size_t i = 0; i < stat->n_engines; i++) {
        if (strcmp(stat->engines[i]->kind, "host") == 0) {
            n_nodes++;
            n_threads += stat->engines[i]->threads;
            isa = isa == NULL ? stat->engines[i]->isa : isa;
        }
    }
    fact_begin(to, "Machine");
    cli_html_text(to, "%s: %s of memory, %u NUMA node%s", stat->host,
                  cli_bytes(stat->memory_bytes, text), n_nodes, n_nodes == 1 ? "" : "s");
    if (n_threads > 0) {
        cli_html_text(to, ", %u threads of engines", n_threads);
    }
    if (isa != NULL && isa[0] != '\0') {
        cli_html_text(to, ", %s", isa);
    }
    for (size_t i = 0; i < stat->n_gpus; i++) {
        cli_html_text(to, "; %s with %s", stat->gpus[i]->name,
                      cli_bytes(stat->gpus[i]->memory_bytes, text));
    }
    fact_end(to);
}

static void write_facts(const struct cli_report *report, FILE *to)
{
    (void)fputs("<dl>\n", to);
    fact_model(report->job, to);
    fact_ranks(report->job, to);
    fact_options(report->job, to);
    fact_machine(report->stat, to);
    fact_begin(to, "Version");
    cli_html_text(to, "cisternd %s; report by cistern %s", report->stat->version, cst_version());
    fact_end(to);
    (void)fputs("</dl>\n", to);
}

/* -- head ------------------------------------------------------------------------------------- */

void cli_report_head(const struct cli_report *report, FILE *to)
{
    const Cistern__JobInfo *job = report->job;
    const time_t now = time(NULL);
    struct tm at = {0};
    char date[64] = "", age[CLI_HUMAN_BYTES];

    if (localtime_r(&now, &at) != NULL) {
        (void)strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S %z", &at);
    }
    (void)fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
                to);
    cli_html_text(to, "%s: run report", job->name);
    (void)fprintf(to, "</title>\n<style>\n%s</style></head>\n<body><main>\n", cli_report_style);
    cli_html_element(to, "h1", "%s", job->name);
    cli_html_element(to, "p", "%s, %s old; written %s", job->state, cli_seconds(job->age_s, age),
                     date);
    write_cards(report, to);
    write_facts(report, to);
}
