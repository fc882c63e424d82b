/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job_options.h"

#include "proto/job_name.h"
#include "proto/optimizers.h"
#include "proto/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CST_JOB_AT(member) offsetof(struct cst_job_spec, member)
#define CST_JOB_OPTION(path, in, has, in_section, option, argument_name, text, ...)                \
    {.member = #path,                                                                              \
     .field = #in,                                                                                 \
     .traits = (has),                                                                              \
     .name = (option),                                                                             \
     .argument = (argument_name),                                                                  \
     .help = (text),                                                                               \
     .section = (in_section),                                                                      \
     .value = __VA_ARGS__},
#define CST_JOB_FIELD(path, in, has, ...)                                                          \
    {.member = #path, .field = #in, .traits = (has), .value = __VA_ARGS__},

const struct cst_option cst_job_options[] = {
#include "proto/job_options.def"
    CST_OPTION_END,
};

/* -- fields of the struct --------------------------------------------------------------------- */

static uint64_t load(const void *at, size_t size)
{
    return size == sizeof(bool)       ? *(const bool *)at
           : size == sizeof(uint32_t) ? *(const uint32_t *)at
                                      : *(const uint64_t *)at;
}

static void store(void *at, size_t size, uint64_t number)
{
    if (size == sizeof(bool)) {
        *(bool *)at = number != 0;
    } else if (size == sizeof(uint32_t)) {
        *(uint32_t *)at = (uint32_t)number;
    } else {
        *(uint64_t *)at = number;
    }
}

static bool is_text(const struct cst_option *option)
{
    return option->value.kind == CST_VALUE_TEXT;
}

/* Return the size of the option in the struct. An enum without negative members is an unsigned. */
static size_t size_of(const struct cst_option *option)
{
    const enum cst_value_kind kind = option->value.kind;

    return kind == CST_VALUE_FLAG                            ? sizeof(bool)
           : kind == CST_VALUE_U32 || kind == CST_VALUE_NAME ? sizeof(uint32_t)
                                                             : sizeof(uint64_t);
}

static uint64_t number_of(const struct cst_option *option, const struct cst_job_spec *spec)
{
    return load((const char *)spec + option->value.field, size_of(option));
}

static const char **text_at(const struct cst_option *option, const struct cst_job_spec *spec)
{
    return (const char **)(uintptr_t)((const char *)spec + option->value.field);
}

/* Return the name of the number @number of @option. NULL: it has none. */
static const char *name_of(const struct cst_option *option, uint64_t number)
{
    uint64_t i = 0;

    while (i < number && option->value.names[i] != NULL) {
        i++;
    }
    return option->value.names[i];
}

const char *cst_job_options_text(const struct cst_option *option, const struct cst_job_spec *spec,
                                 char out[CST_JOB_VALUE_BYTES])
{
    uint64_t number = number_of(option, spec);

    if (option->value.kind == CST_VALUE_NAME) {
        return name_of(option, number);
    }
    if (option->value.kind == CST_VALUE_FLAG) {
        return number != 0 ? "yes" : "no";
    }
    for (int i = 0; option->value.kind == CST_VALUE_SIZE && i < 2; i++) {
        if (option->value.words[i] != NULL && option->value.words_mean[i] == number) {
            return option->value.words[i];
        }
    }
    (void)snprintf(out, CST_JOB_VALUE_BYTES, "%" PRIu64, number);
    return out;
}

const struct cst_option *cst_job_options_difference(const struct cst_job_spec *a,
                                                    const struct cst_job_spec *b, int traits)
{
    for (const struct cst_option *o = cst_job_options; o->field != NULL; o++) {
        if ((o->traits & traits) != 0 && !is_text(o) && number_of(o, a) != number_of(o, b)) {
            return o;
        }
    }
    return NULL;
}

/* -- messages --------------------------------------------------------------------------------- */

void cst_job_texts_make(struct cst_job_texts *texts, const struct cst_job_spec *spec)
{
    char value[CST_JOB_VALUE_BYTES];

    texts->n = 0;
    for (const struct cst_option *o = cst_job_options; o->field != NULL; o++) {
        if ((o->traits & CST_JOB_TEXT) != 0 && number_of(o, spec) != 0) {
            char *text = texts->text[texts->n];

            (void)snprintf(text, sizeof texts->text[0], "%s=%s", o->field,
                           cst_job_options_text(o, spec, value));
            texts->list[texts->n++] = text;
        }
    }
}

/* Return the field of @message with texts of options; NULL: it has none. */
static const ProtobufCFieldDescriptor *texts_of(const ProtobufCMessage *message)
{
    return protobuf_c_message_descriptor_get_field_by_name(message->descriptor, "options");
}

/* Set the option in @text, "name=value". */
static int read_text(struct cst_job_spec *spec, const char *text, struct cst_err *err)
{
    const size_t n = strcspn(text, "=");
    const struct cst_option *o = cst_job_options;

    while (o->field != NULL && ((o->traits & CST_JOB_TEXT) == 0 || strlen(o->field) != n ||
                                strncmp(o->field, text, n) != 0)) {
        o++;
    }
    if (o->field == NULL || text[n] == '\0') {
        return cst_err_set(err, CST_EINVAL, "option '%.64s' is unknown in this version", text);
    }
    return cst_value_read(&o->value, spec, text + n + 1, err) == CST_OK
               ? CST_OK
               : cst_err_prefix(err, "%s", o->field);
}

/* Return the size of a number in a message. */
static size_t field_size(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_UINT64 ? sizeof(uint64_t) : sizeof(uint32_t);
}

_Static_assert(sizeof(protobuf_c_boolean) == sizeof(uint32_t), "a flag has the size of a number");

void cst_job_options_fill(ProtobufCMessage *message, const struct cst_job_spec *spec,
                          const struct cst_job_texts *texts, int traits)
{
    const ProtobufCFieldDescriptor *list = texts_of(message);

    if (list != NULL) {
        *(size_t *)(void *)((char *)message + list->quantifier_offset) = texts->n;
        *(char *const **)(void *)((char *)message + list->offset) = texts->list;
    }
    for (const struct cst_option *o = cst_job_options; o->field != NULL; o++) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(message->descriptor, o->field);
        char *base = (char *)message;

        if (field == NULL || (o->traits & CST_JOB_TEXT) != 0 ||
            (traits != CST_JOB_ALL && (o->traits & traits) == 0)) {
            continue;
        }
        if (field->type == PROTOBUF_C_TYPE_STRING) {
            *(const char **)(void *)(base + field->offset) =
                is_text(o) ? *text_at(o, spec) : name_of(o, number_of(o, spec));
            continue;
        }
        store(base + field->offset, field_size(field), number_of(o, spec));
        if (field->label == PROTOBUF_C_LABEL_OPTIONAL) {
            store(base + field->quantifier_offset, sizeof(protobuf_c_boolean),
                  number_of(o, spec) != 0);
        }
    }
}

int cst_job_options_take(struct cst_job_spec *spec, const ProtobufCMessage *message,
                         struct cst_err *err)
{
    const ProtobufCFieldDescriptor *list = texts_of(message);
    const char *base = (const char *)message;
    size_t n = list != NULL ? *(const size_t *)(const void *)(base + list->quantifier_offset) : 0;
    int rc = CST_OK;

    for (const struct cst_option *o = cst_job_options; o->field != NULL; o++) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(message->descriptor, o->field);

        if (field == NULL || (o->traits & CST_JOB_TEXT) != 0) {
            continue;
        }
        /* What an optional field that is left out has is its default, which is 0 or NULL. */
        if (is_text(o)) {
            *text_at(o, spec) = *(const char *const *)(const void *)(base + field->offset);
        } else {
            store((char *)spec + o->value.field, size_of(o),
                  load(base + field->offset, field_size(field)));
        }
    }
    for (size_t t = 0; rc == CST_OK && t < n; t++) {
        rc = read_text(spec, (*(char *const *const *)(const void *)(base + list->offset))[t], err);
    }
    return rc;
}

/* -- checks ----------------------------------------------------------------------------------- */

static int check_text(const struct cst_option *option, const char *text, struct cst_err *err)
{
    if (text == NULL) {
        return CST_OK;
    }
    if ((option->traits & CST_JOB_NAME) != 0 && !cst_job_name_is_valid(text)) {
        return cst_err_set(err, CST_EINVAL,
                           "%s '%.64s': the name of a job has " CST_JOB_NAME_RULE
                           "; this one has %zu bytes",
                           option->field, text, strlen(text));
    }
    if ((option->traits & CST_JOB_CONFIG) != 0 && !cst_text_fits(text, CST_MAX_CONFIG_BYTES)) {
        return cst_err_set(err, CST_EINVAL, "%s is not UTF-8, or has more than %d bytes",
                           option->field, CST_MAX_CONFIG_BYTES);
    }
    return CST_OK;
}

/* Check a number. 0 stands for the default. */
static int check_number(const struct cst_option *option, uint64_t number, struct cst_err *err)
{
    const struct cst_value *value = &option->value;
    char range[CST_VALUE_RANGE_BYTES];
    uint32_t n_names = 0;

    if (number == 0 || value->kind == CST_VALUE_FLAG || value->kind == CST_VALUE_SIZE) {
        return CST_OK;
    }
    if (value->kind != CST_VALUE_NAME) {
        return (double)number >= value->least && (double)number <= value->most
                   ? CST_OK
                   : cst_err_set(err, CST_EINVAL, "%s %" PRIu64 " is not %s", option->field, number,
                                 cst_value_range(value, range));
    }
    while (value->names[n_names] != NULL) {
        n_names++;
    }
    return number < n_names
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "%s %" PRIu64 " is unknown, this version knows 0 to %" PRIu32,
                             option->field, number, n_names - 1);
}

/* All states of a durable job lie in files, and change with its steps alone. */
static int check_durable(const struct cst_job_spec *spec, struct cst_err *err)
{
    const char *with = spec->updates.overlap != CST_OVERLAP_COMMIT
                           ? "early or delayed updates: overlap commit is possible"
                       : spec->updates.unused == CST_UNUSED_SKIP
                           ? "unused skip: all states take turns in each step; unused zero is "
                             "possible"
                       : spec->model.base != NULL ? "a base job, whose tensors are not in the files"
                                                  : NULL;

    if (spec->states.disk_bytes > 0) {
        return cst_err_set(err, CST_EINVAL,
                           "durable cannot be combined with disk_bytes %" PRIu64
                           ": states beyond these bytes would be in memory alone, and lost with "
                           "it; leave disk_bytes out, so that all states are in files, or durable",
                           spec->states.disk_bytes);
    }
    return with == NULL ? CST_OK
                        : cst_err_set(err, CST_EINVAL, "durable cannot be combined with %s", with);
}

/* The second version of the weights is a second weight row, which not every job can have. */
static int check_versions(const struct cst_job_spec *spec, struct cst_err *err)
{
    const char *with = spec->states.grad_over_weight
                           ? "grad_over_weight: gradients take the place of the weights"
                       : spec->states.durable ? "durable: the files have one version of the weights"
                                              : NULL;

    if (spec->states.versions == 2 && with != NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "versions 2 cannot be combined with %s; leave one of the two out", with);
    }
    if (spec->states.versions == 1 && spec->updates.overlap != CST_OVERLAP_COMMIT) {
        return cst_err_set(err, CST_EINVAL,
                           "versions 1 cannot be combined with overlap %s, whose jobs have two: "
                           "leave versions out, or set overlap to commit",
                           cst_overlap_names[spec->updates.overlap]);
    }
    return CST_OK;
}

static int check_together(const struct cst_job_spec *spec, struct cst_err *err)
{
    const char *overlap = cst_overlap_names[spec->updates.overlap];

    if (spec->states.grad_over_weight && spec->updates.micro_batches > 1) {
        return cst_err_set(err, CST_EINVAL,
                           "grad_over_weight cannot be combined with %" PRIu32
                           " micro-batches, whose sum in fp32 is larger than the weights: set "
                           "micro_batches to 1, or leave grad_over_weight out",
                           spec->updates.micro_batches);
    }
    if (spec->states.grad_over_weight && spec->updates.overlap != CST_OVERLAP_COMMIT) {
        return cst_err_set(err, CST_EINVAL,
                           "grad_over_weight cannot be combined with overlap %s, which needs two "
                           "rows of weights: set "
                           "overlap to commit, or leave grad_over_weight out",
                           overlap);
    }
    if (spec->states.grad_over_weight && spec->states.masters == CST_MASTERS_SPLIT) {
        return cst_err_set(
            err, CST_EINVAL,
            "grad_over_weight cannot be combined with masters split, of which the weights are a "
            "part: set masters to fp32, or leave grad_over_weight out");
    }
    if (spec->states.grad_over_weight && spec->states.disk != NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "grad_over_weight cannot be combined with disk: weights are made again "
                           "from master weights in memory. Leave one of the two out");
    }
    if (spec->updates.delay_from > 0 && spec->updates.overlap != CST_OVERLAP_DELAYED) {
        return cst_err_set(err, CST_EINVAL, "delay_from %" PRIu64 " needs overlap delayed, not %s",
                           spec->updates.delay_from, overlap);
    }
    if (spec->updates.unused == CST_UNUSED_SKIP && spec->updates.overlap == CST_OVERLAP_EARLY) {
        return cst_err_set(
            err, CST_EINVAL,
            "unused skip cannot be combined with overlap early: updates begin before "
            "it is known which tensors have no gradient");
    }
    if (check_versions(spec, err) != CST_OK) {
        return err->status;
    }
    return spec->states.durable ? check_durable(spec, err) : CST_OK;
}

int cst_job_options_check(const struct cst_job_spec *spec, struct cst_err *err)
{
    if (spec->name == NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "a job without a name: the name of a job has " CST_JOB_NAME_RULE);
    }
    for (const struct cst_option *o = cst_job_options; o->field != NULL; o++) {
        int rc = is_text(o) ? check_text(o, *text_at(o, spec), err)
                            : check_number(o, number_of(o, spec), err);

        if (rc != CST_OK) {
            return rc;
        }
    }
    if (spec->rank >= spec->world) {
        return cst_err_set(err, CST_EINVAL,
                           "rank %" PRIu32 " of %" PRIu32
                           ": a job has 1 to %d ranks, numbered from 0",
                           spec->rank, spec->world, CST_JOB_MAX_WORLD);
    }
    if (spec->nodes.first_rank + spec->world > cst_job_all_ranks(spec)) {
        return cst_err_set(err, CST_EINVAL,
                           "first_rank %" PRIu32 ", world %" PRIu32 " and all_ranks %" PRIu32
                           ": the job has no such ranks; all_ranks counts those on all nodes",
                           spec->nodes.first_rank, spec->world, cst_job_all_ranks(spec));
    }
    return check_together(spec, err);
}
