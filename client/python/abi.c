/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the Python module cistern._abi: the constants, structs and functions of the public headers
 * for ctypes. The compiler refuses this file in each of these cases:
 *   - a struct of the lists below has a field that its list lacks, or a list has one that its
 *     struct lacks,
 *   - an enumerator is missing,
 *   - the type of a field has no name in Python,
 *   - a function has other parameters than its line says.
 * The program fails if a list has other gaps than a compiler makes for alignment, because the
 * fields are then not in the order of the struct. */
#include "cistern/checkpoint.h"
#include "cistern/cistern.h"
#include "cistern/cuda.h"
#include "cistern/device.h"
#include "cistern/reader.h"
#include "proto/job_options.h"
#include "proto/optimizers.h"
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic error "-Wmissing-field-initializers"
#pragma GCC diagnostic error "-Wswitch"
/* An array of structs begins with {0}. */
#pragma GCC diagnostic ignored "-Wmissing-braces"

/* -- structs -------------------------------------------------------------------------------- */

/* A is applied to the fields that are arrays, N to those that are structs, F to the others. */
/* clang-format off */
#define FIELDS_cst_err(F, A, N, s) \
    F(s, status) F(s, reason) A(s, text)
#define FIELDS_cst_tensor_spec(F, A, N, s) \
    F(s, name) F(s, dtype) F(s, n_dims) F(s, shape) F(s, group) F(s, pattern) F(s, lr_scale) \
    F(s, decay_scale) F(s, whole_shape) F(s, first) F(s, packed) F(s, external_names) F(s, external_rows) \
    F(s, n_external) F(s, transposed) F(s, whole_name) F(s, param_group) F(s, update)
#define FIELDS_cst_operator_cost(F, A, N, s) \
    F(s, flops) F(s, activation_bytes) F(s, expected_uses)
#define FIELDS_cst_plan_class(F, A, N, s) \
    F(s, chunk_elems) F(s, n_blocks) F(s, min_blocks)
#define FIELDS_cst_plan(F, A, N, s) \
    F(s, n_params) F(s, chunk_elems) F(s, n_chunks) F(s, n_blocks) F(s, min_blocks) \
    F(s, block_bytes) F(s, pool_bytes) F(s, arena_bytes) F(s, n_classes) A(s, classes)
#define FIELDS_cst_io(F, A, N, s) \
    F(s, weight) F(s, grad) F(s, accumulate) F(s, n_elems)
#define FIELDS_cst_hyper_params(F, A, N, s) \
    F(s, lr) F(s, beta1) F(s, beta2) F(s, eps) F(s, weight_decay) F(s, clip_norm) F(s, grad_scale) \
    F(s, loss) F(s, tokens)
#define FIELDS_cst_param_group(F, A, N, s) \
    F(s, lr) F(s, weight_decay)
#define FIELDS_cst_step_result(F, A, N, s) \
    F(s, step) F(s, skipped) F(s, grad_norm) F(s, clip) F(s, loss) F(s, n_skipped) F(s, overflow)
#define FIELDS_cst_rank_stat(F, A, N, s) \
    F(s, hits) F(s, late) F(s, misses) F(s, weight_wait_seconds) F(s, evictions) F(s, prefetches) \
    F(s, surprises) F(s, bytes_up) F(s, bytes_down) F(s, pool_bytes) F(s, step) F(s, step_seconds) \
    F(s, exposed_seconds) F(s, n_skipped)
#define FIELDS_cst_save_spec(F, A, N, s) \
    F(s, dir) F(s, keep) F(s, on_begun) F(s, arg) F(s, fp32_weights) F(s, buffers) \
    F(s, buffers_bytes)
#define FIELDS_cst_save_result(F, A, N, s) \
    F(s, step) F(s, bytes) F(s, seconds) F(s, read_seconds)
#define FIELDS_cst_load_result(F, A, N, s) \
    F(s, step) F(s, converted) N(s, params) A(s, warning)
#define FIELDS_cst_load_model_spec(F, A, N, s) \
    F(s, path) F(s, prefix) F(s, wants) F(s, arg)
#define FIELDS_cst_load_model_result(F, A, N, s) \
    F(s, n_tensors) F(s, n_ignored) A(s, ignored)
#define FIELDS_cst_checkpoint(F, A, N, s) \
    F(s, step) F(s, bytes) F(s, whole) F(s, status) A(s, name) A(s, job) A(s, why)
#define FIELDS_cst_adopt_result(F, A, N, s) \
    A(s, job) F(s, step) F(s, bytes) F(s, seconds) F(s, n_unchecked) F(s, n_rows) A(s, warning)
#define FIELDS_cst_edge_spec(F, A, N, s) \
    F(s, name) F(s, from) F(s, to) F(s, slot_bytes) F(s, n_slots) F(s, on_device)
#define FIELDS_cst_unit(F, A, N, s) \
    F(s, kind) F(s, stage) F(s, micro_batch)
#define FIELDS_cst_pause_result(F, A, N, s) \
    F(s, step) F(s, wait_s) F(s, update_s) F(s, release_s) F(s, released_bytes) F(s, already)
#define FIELDS_cst_resume_result(F, A, N, s) \
    F(s, step) F(s, paused_s) F(s, resume_s) F(s, pool_bytes)
#define FIELDS_cst_launch(F, A, N, s) \
    F(s, rank) F(s, world) F(s, first_rank) F(s, all_ranks)
#define FIELDS_cst_reader_tensor(F, A, N, s) \
    F(s, name) F(s, file_name) F(s, shape) F(s, n_dims) F(s, dtype) F(s, frozen) F(s, bytes)
#define FIELDS_cst_reader_version(F, A, N, s) \
    F(s, step) F(s, number) F(s, row) F(s, pad)
#define FIELDS_cst_reader_wish(F, A, N, s) \
    F(s, any) F(s, after) F(s, keep)
/* A struct comes after those that it contains. */
#define STRUCTS(X) \
    X(cst_err) X(cst_tensor_spec) X(cst_operator_cost) X(cst_plan_class) \
    X(cst_plan) X(cst_io) X(cst_hyper_params) X(cst_param_group) X(cst_step_result) \
    X(cst_rank_stat) X(cst_save_spec) X(cst_save_result) X(cst_load_result) X(cst_load_model_spec) X(cst_load_model_result) \
    X(cst_checkpoint) X(cst_adopt_result) X(cst_edge_spec) X(cst_unit) X(cst_launch) \
    X(cst_pause_result) X(cst_resume_result) \
    X(cst_reader_tensor) X(cst_reader_version) X(cst_reader_wish)
/* clang-format on */

/* The ctypes name of the type of an expression. A type without a name here does not compile. */
#define PYTHON_TYPE(x)                                                                             \
    _Generic((x),                                                                                  \
        bool: "c_bool",                                                                            \
        char: "c_char",                                                                            \
        int: "c_int",                                                                              \
        unsigned: "c_uint",                                                                        \
        int64_t: "c_int64",                                                                        \
        uint64_t: "c_uint64",                                                                      \
        float: "c_float",                                                                          \
        double: "c_double",                                                                        \
        const void *: "c_void_p",                                                                  \
        void *: "c_void_p",                                                                        \
        const char *: "c_char_p",                                                                  \
        const int64_t *: "POINTER(c_int64)",                                                       \
        const char *const *: "POINTER(c_char_p)",                                                  \
        void (*)(void *, uint64_t): "BegunCallback",                         \
        bool (*)(void *, const char *): "WantsCallback",                   \
        struct cst_hyper_params: "cst_hyper_params",                                               \
        struct cst_plan_class: "cst_plan_class")

static size_t end; /* Where the last field of the struct in work ends. */

static void begin_struct(const char *name)
{
    end = 0;
    printf("\n\nclass %s(Structure):\n    _fields_ = [\n", name);
}

/* @step is the size of one of the @count elements. */
static void field(const char *owner, const char *name, const char *type, size_t offset,
                  size_t align, size_t step, size_t count, bool array)
{
    if (offset != (end + align - 1) / align * align) {
        fprintf(stderr, "abi: %s.%s is at %zu, after a field that ends at %zu\n", owner, name,
                offset, end);
        exit(1);
    }
    end = offset + step * count;
    if (array) {
        printf("        (\"%s\", %s * %zu),\n", name, type, count);
    } else {
        printf("        (\"%s\", %s),\n", name, type);
    }
}

static void end_struct(const char *name, size_t size, size_t align)
{
    if (size != (end + align - 1) / align * align) {
        fprintf(stderr, "abi: %s has %zu bytes, its fields have %zu\n", name, size, end);
        exit(1);
    }
    printf("    ]\n");
}

#define MEMBER(s, f) ((struct s *)0)->f
#define ZERO(s, f) 0,
#define ZEROS(s, f) {0},
#define SCALAR(s, f)                                                                               \
    field(#s, #f, PYTHON_TYPE(MEMBER(s, f)), offsetof(struct s, f),                                \
          _Alignof(__typeof__(MEMBER(s, f))), sizeof MEMBER(s, f), 1, false);
#define ARRAY(s, f)                                                                                \
    field(#s, #f, PYTHON_TYPE(MEMBER(s, f)[0]), offsetof(struct s, f),                             \
          _Alignof(__typeof__(MEMBER(s, f)[0])), sizeof MEMBER(s, f)[0],                           \
          sizeof MEMBER(s, f) / sizeof MEMBER(s, f)[0], true);
/* The initializer is there for -Wmissing-field-initializers. */
#define DEFINE_STRUCT(s)                                                                           \
    static void struct_##s(void)                                                                   \
    {                                                                                              \
        static const struct s all = {FIELDS_##s(ZERO, ZEROS, ZEROS, s)};                           \
                                                                                                   \
        (void)all;                                                                                 \
        begin_struct(#s);                                                                          \
        FIELDS_##s(SCALAR, ARRAY, SCALAR, s) end_struct(#s, sizeof(struct s), _Alignof(struct s)); \
    }
STRUCTS(DEFINE_STRUCT)

/* -- the options of a job ------------------------------------------------------------------- */

/* Return the option with the smallest offset from @from on, or NULL. */
static const struct cst_option *next_option(size_t from)
{
    const struct cst_option *next = NULL;

    for (const struct cst_option *o = cst_job_options; o->field != NULL; o++) {
        if (o->value.field >= from && (next == NULL || o->value.field < next->value.field)) {
            next = o;
        }
    }
    return next;
}

/* Return the name of @option in Python: that of the member, without the struct in which it is. */
static const char *option_name(const struct cst_option *option)
{
    const char *dot = strchr(option->member, '.');

    return dot != NULL ? dot + 1 : option->member;
}

/* Print the field of @option, with padding before it. Sets `end`. */
static void option_field(const struct cst_option *option)
{
    const enum cst_value_kind kind = option->value.kind;
    const bool is_text = kind == CST_VALUE_TEXT, is_flag = kind == CST_VALUE_FLAG,
               is_small = kind == CST_VALUE_U32 || kind == CST_VALUE_NAME;
    const size_t at = option->value.field;

    if (at >= end + sizeof(uint64_t)) {
        fprintf(stderr, "abi: no option is what struct cst_job_spec has at %zu, before %s\n", end,
                option->member);
        exit(1);
    }
    if (at > end) {
        printf("        (\"_before_%s\", c_char * %zu),\n", option_name(option), at - end);
    }
    printf("        (\"%s\", %s),\n", option_name(option),
           is_text    ? "c_char_p"
           : is_flag  ? "c_bool"
           : is_small ? "c_uint"
                      : "c_uint64");
    end = at + (is_text    ? sizeof(char *)
                : is_flag  ? sizeof(bool)
                : is_small ? sizeof(uint32_t)
                           : sizeof(uint64_t));
}

/* Print struct cst_job_spec with the fields of the structs in it as its own. */
static void print_job_spec(void)
{
    begin_struct("cst_job_spec");
    for (const struct cst_option *o = next_option(0); o != NULL;
         o = next_option(o->value.field + 1)) {
        option_field(o);
    }
    end_struct("cst_job_spec", sizeof(struct cst_job_spec), _Alignof(struct cst_job_spec));
}

static void print_job_layout(void)
{
    printf("    cst_job_spec: (%zu, {", sizeof(struct cst_job_spec));
    for (const struct cst_option *o = next_option(0); o != NULL;
         o = next_option(o->value.field + 1)) {
        printf("\"%s\": %zu, ", option_name(o), o->value.field);
    }
    printf("}),\n");
}

/* Print the enum of an option whose values have names: that of its own name. */
static void print_enum_of(const struct cst_option *option)
{
    printf("%c%s", toupper((unsigned char)*option_name(option)), option_name(option) + 1);
}

/* Print the types of the options, for type checkers, and their defaults. */
static void print_job_options(void)
{
    printf("\n\nclass JobOptions(TypedDict, total=False):\n"
           "    \"\"\"The options of a job, struct cst_job_spec, but its name.\"\"\"\n\n");
    for (const struct cst_option *o = cst_job_options + 1; o->field != NULL; o++) {
        printf("    %s: ", option_name(o));
        if (o->value.kind == CST_VALUE_NAME) {
            print_enum_of(o);
            printf(" | str\n");
        } else {
            printf("%s\n", o->value.kind == CST_VALUE_TEXT   ? "str | os.PathLike[str] | None"
                           : o->value.kind == CST_VALUE_FLAG ? "bool"
                                                             : "int");
        }
    }
    printf("\n\nJOB_OPTIONS: dict[str, Any] = {\n");
    for (const struct cst_option *o = cst_job_options + 1; o->field != NULL; o++) {
        printf("    \"%s\": ", option_name(o));
        if (o->value.kind == CST_VALUE_NAME) {
            print_enum_of(o);
            printf("(0),\n");
        } else {
            printf("%s,\n", o->value.kind == CST_VALUE_TEXT   ? "None"
                            : o->value.kind == CST_VALUE_FLAG ? "False"
                            : strcmp(o->field, "world") == 0  ? "1"
                                                              : "0");
        }
    }
    printf("}\n");
}

#define PRINT_STRUCT(s) struct_##s();
#define PRINT_OFFSET(s, f) printf("\"%s\": %zu, ", #f, offsetof(struct s, f));
#define PRINT_LAYOUT(s)                                                                            \
    printf("    %s: (%zu, {", #s, sizeof(struct s));                                               \
    FIELDS_##s(PRINT_OFFSET, PRINT_OFFSET, PRINT_OFFSET, s) printf("}),\n");

static void print_structs(void)
{
    printf("\nBegunCallback = CFUNCTYPE(None, c_void_p, c_uint64)\n"
           "WantsCallback = CFUNCTYPE(c_bool, c_void_p, c_char_p)\n");
    STRUCTS(PRINT_STRUCT)
    print_job_spec();
    printf("\n\n# Size of each struct, and the offsets of its fields, as the C compiler has them.\n"
           "LAYOUTS: dict[type[Structure], tuple[int, dict[str, int]]] = {\n");
    STRUCTS(PRINT_LAYOUT)
    print_job_layout();
    printf("}\n");
}

/* -- enums ---------------------------------------------------------------------------------- */

#define ENUM_Dtype(X) X(enum cst_dtype, CST_, BF16) X(enum cst_dtype, CST_, FP32)
#define ENUM_Direction(X) X(enum cst_direction, CST_, FORWARD) X(enum cst_direction, CST_, BACKWARD)
#define ENUM_Hint(X) X(enum cst_hint, CST_, PREFETCH) X(enum cst_hint, CST_, EVICT)
#define ENUM_State(X)                                                                              \
    X(enum cst_state, CST_STATE_, WEIGHT)                                                          \
    X(enum cst_state, CST_STATE_, GRAD)                                                            \
    X(enum cst_state, CST_STATE_, MASTER)                                                          \
    X(enum cst_state, CST_STATE_, EXP_AVG) X(enum cst_state, CST_STATE_, EXP_AVG_SQ)
#define ENUM_Optimizer(X)                                                                          \
    X(enum cst_optimizer, CST_OPTIMIZER_, ADAMW)                                                   \
    X(enum cst_optimizer, CST_OPTIMIZER_, ADAM)                                                    \
    X(enum cst_optimizer, CST_OPTIMIZER_, LION)                                                    \
    X(enum cst_optimizer, CST_OPTIMIZER_, SGD) X(enum cst_optimizer, CST_OPTIMIZER_, MUON)
#define ENUM_TensorUpdate(X)                                                                       \
    X(enum cst_tensor_update, CST_TENSOR_UPDATE_, AUTO)                                            \
    X(enum cst_tensor_update, CST_TENSOR_UPDATE_, ADAMW)                                           \
    X(enum cst_tensor_update, CST_TENSOR_UPDATE_, MUON)
#define ENUM_Masters(X)                                                                            \
    X(enum cst_masters, CST_MASTERS_, FP32) X(enum cst_masters, CST_MASTERS_, SPLIT)
#define ENUM_Moments(X)                                                                            \
    X(enum cst_moments, CST_MOMENTS_, FP32)                                                        \
    X(enum cst_moments, CST_MOMENTS_, BF16) X(enum cst_moments, CST_MOMENTS_, MX8)
#define ENUM_Rounding(X)                                                                           \
    X(enum cst_rounding, CST_ROUNDING_, STOCHASTIC) X(enum cst_rounding, CST_ROUNDING_, NEAREST)
#define ENUM_Overlap(X)                                                                            \
    X(enum cst_overlap, CST_OVERLAP_, COMMIT)                                                      \
    X(enum cst_overlap, CST_OVERLAP_, EARLY) X(enum cst_overlap, CST_OVERLAP_, DELAYED)
#define ENUM_Unused(X) X(enum cst_unused, CST_UNUSED_, ZERO) X(enum cst_unused, CST_UNUSED_, SKIP)
#define ENUM_UnitKind(X)                                                                           \
    X(enum cst_unit_kind, CST_UNIT_, FORWARD)                                                      \
    X(enum cst_unit_kind, CST_UNIT_, BACKWARD) X(enum cst_unit_kind, CST_UNIT_, STEP)
#define ENUM_Pattern(X)                                                                            \
    X(enum cst_pattern_kind, CST_PATTERN_, SHARD)                                                  \
    X(enum cst_pattern_kind, CST_PATTERN_, REPLICATE)                                              \
    X(enum cst_pattern_kind, CST_PATTERN_, TENSOR)                                                 \
    X(enum cst_pattern_kind, CST_PATTERN_, EXPERT) X(enum cst_pattern_kind, CST_PATTERN_, FROZEN)

/* The second argument is the type in C. The last one is a case of no value. */
#define ENUMS(X)                                                                                   \
    X(Dtype, enum cst_dtype, "Type of a tensor's elements in the model.", )                        \
    X(Direction, enum cst_direction, "The pass in which an operator is begun.", )                  \
    X(Hint, enum cst_hint, "What a worker says of weights that it will use soon, or not.", )       \
    X(State, enum cst_state, "The states of a tensor.", )                                          \
    X(Optimizer, enum cst_optimizer, "The rule by which a job is updated.",                        \
      case CST_OPTIMIZER_COUNT:)                                                                   \
    X(TensorUpdate, enum cst_tensor_update, "How a job of Muon updates a tensor.",                 \
      case CST_TENSOR_UPDATE_COUNT:)                                                               \
    X(Masters, enum cst_masters, "Where the bits of the master weights are stored.",               \
      case CST_MASTERS_COUNT:)                                                                     \
    X(Moments, enum cst_moments, "Format of the moments of the optimizer.",                        \
      case CST_MOMENTS_COUNT:)                                                                     \
    X(Rounding, enum cst_rounding, "Rounding of moments that are not fp32.",                       \
      case CST_ROUNDING_COUNT:)                                                                    \
    X(Overlap, enum cst_overlap, "The time at which chunks are updated.", case CST_OVERLAP_COUNT:) \
    X(Unused, enum cst_unused, "What a step does with tensors without a gradient.",                \
      case CST_UNUSED_COUNT:)                                                                      \
    X(UnitKind, enum cst_unit_kind, "What a rank does next in a model that is cut into stages.", ) \
    X(Pattern, enum cst_pattern_kind, "The way in which the ranks hold a tensor.",                 \
      case CST_PATTERN_COUNT:)

#define CASE(type, prefix, name) case prefix##name:
#define PRINT_VALUE(type, prefix, name) printf("    %s = %d\n", #name, (int)prefix##name);
/* The switch is there for -Wswitch; the last argument is a case for the number of enumerators. */
#define DEFINE_ENUM(python, type, text, ...)                                                       \
    static void enum_##python(type value)                                                          \
    {                                                                                              \
        printf("\n\nclass %s(IntEnum):\n    \"\"\"%s\"\"\"\n\n", #python, text);                   \
        ENUM_##python(PRINT_VALUE) switch (value)                                                  \
        {                                                                                          \
            ENUM_##python(CASE) __VA_ARGS__ break;                                                 \
        }                                                                                          \
    }
ENUMS(DEFINE_ENUM)

static void print_statuses(void)
{
    printf("\n\nclass Status(IntEnum):\n    \"\"\"The result of a call: OK, or a negative number."
           "\"\"\"\n\n");
#define PRINT_STATUS(name, number, retryable, words) printf("    %s = %d\n", #name, CST_##name);
    CST_STATUS_MAP(PRINT_STATUS)
}

static void print_reasons(void)
{
    printf("\n\nclass Reason(IntEnum):\n    \"\"\"What an error of a status is about.\"\"\"\n\n");
#define PRINT_REASON(name, number, words)                                                          \
    printf("    %s = %d  # %s\n", #name, (int)CST_REASON_##name, words);
    CST_REASON_MAP(PRINT_REASON)
}

static void print_enums(void)
{
    print_statuses();
    print_reasons();
#define PRINT_ENUM(python, type, ...) enum_##python((type)0);
    ENUMS(PRINT_ENUM)
}

/* Print the default of beta2 by number of the optimizer. */
static void print_beta2(void)
{
    printf("\n\nBETA2 = (");
    for (int i = 0; i < CST_OPTIMIZER_COUNT; i++) {
        printf("%s%g", i > 0 ? ", " : "", cst_optimizer_beta2((enum cst_optimizer)i));
    }
    printf(")  # By default, of each optimizer.\n");
}

/* -- functions ------------------------------------------------------------------------------ */

/* cst_job_use_device and the three that write errors are for libraries in C. */
#define CISTERN_FUNCTIONS(X)                                                                       \
    X(const char *, cst_version, void)                                                             \
    X(int, cst_connect, struct cst_client **, const char *, struct cst_err *)                      \
    X(void, cst_disconnect, struct cst_client *)                                                   \
    X(int, cst_client_fd, const struct cst_client *)                                               \
    X(bool, cst_client_is_pending, const struct cst_client *)                                      \
    X(int, cst_ping, struct cst_client *, uint64_t *, struct cst_err *)                            \
    X(int, cst_launch_find, struct cst_launch *, struct cst_err *)                                 \
    X(int, cst_job_open, struct cst_job **, struct cst_client *, const struct cst_job_spec *,      \
      struct cst_err *)                                                                            \
    X(int, cst_job_leave, struct cst_job *, struct cst_err *)                                      \
    X(int, cst_job_remove, struct cst_client *, const char *, struct cst_err *)                    \
    X(int, cst_job_pause, struct cst_client *, const char *, bool, struct cst_pause_result *,      \
      struct cst_err *)                                                                            \
    X(int, cst_job_resume, struct cst_client *, const char *, struct cst_resume_result *,          \
      struct cst_err *)                                                                            \
    X(int, cst_job_waits, struct cst_client *, const char *, char *, size_t, struct cst_err *)     \
    X(int, cst_try_standby, struct cst_client *, const char *, uint32_t, uint32_t *,               \
      struct cst_err *)                                                                            \
    X(int, cst_group, struct cst_job *, const uint32_t *, uint32_t)                                \
    X(int, cst_tensor_as, struct cst_job *, const struct cst_tensor_spec *)                        \
    X(int, cst_operator_as, struct cst_job *, const char *, const int *, uint32_t,                 \
      const struct cst_operator_cost *)                                                            \
    X(const struct cst_err *, cst_job_error, const struct cst_job *)                               \
    X(int, cst_try_commit, struct cst_job *, struct cst_plan *, struct cst_err *)                  \
    X(bool, cst_job_initialised, const struct cst_job *)                                           \
    X(uint64_t, cst_job_steps, const struct cst_job *)                                             \
    X(const char *, cst_job_device, const struct cst_job *)                                        \
    X(int, cst_try_sync, struct cst_job *, uint64_t *, struct cst_err *)                           \
    X(int, cst_try_op_begin, struct cst_job *, int, enum cst_direction, struct cst_io *, uint32_t, \
      struct cst_err *)                                                                            \
    X(int, cst_op_end, struct cst_job *, int, struct cst_err *)                                    \
    X(int, cst_op_fits, struct cst_job *, int, struct cst_err *)                                   \
    X(int, cst_hint, struct cst_job *, int, enum cst_hint, struct cst_err *)                       \
    X(int, cst_hint_tensor, struct cst_job *, int, enum cst_hint, struct cst_err *)                \
    X(int, cst_accumulate, struct cst_job *, struct cst_err *)                                     \
    X(int, cst_param_groups, struct cst_job *, const struct cst_param_group *, uint32_t,           \
      struct cst_err *)                                                                            \
    X(int, cst_prepare_step, struct cst_job *, const struct cst_hyper_params *, struct cst_err *)  \
    X(int, cst_no_gradient, struct cst_job *, int, bool, struct cst_err *)                         \
    X(int, cst_try_step, struct cst_job *, const struct cst_hyper_params *,                        \
      struct cst_step_result *, struct cst_err *)                                                  \
    X(int, cst_tensor_read, struct cst_job *, int, enum cst_state, uint64_t, uint64_t, void *,     \
      struct cst_err *)                                                                            \
    X(int, cst_tensor_write, struct cst_job *, int, enum cst_state, uint64_t, uint64_t,            \
      const void *, struct cst_err *)                                                              \
    X(int, cst_set_steps, struct cst_job *, uint64_t, uint64_t, const uint64_t *,                  \
      struct cst_err *)                                                                            \
    X(int, cst_missed_steps, struct cst_job *, uint64_t *, struct cst_err *)                       \
    X(int, cst_edge, struct cst_job *, const struct cst_edge_spec *)                               \
    X(int, cst_edge_on_device, const struct cst_job *, int, struct cst_err *)                      \
    X(int, cst_put, struct cst_job *, int, uint32_t, const void *, uint64_t, struct cst_err *)     \
    X(int, cst_take, struct cst_job *, int, uint32_t, void *, uint64_t, struct cst_err *)          \
    X(int, cst_put_begin, struct cst_job *, int, uint32_t, void **, struct cst_err *)              \
    X(int, cst_put_end, struct cst_job *, int, uint32_t, struct cst_err *)                         \
    X(int, cst_take_begin, struct cst_job *, int, uint32_t, const void **, struct cst_err *)       \
    X(int, cst_take_end, struct cst_job *, int, uint32_t, struct cst_err *)                        \
    X(int, cst_put_start, struct cst_job *, int, uint32_t, const void *, uint64_t,                 \
      struct cst_err *)                                                                            \
    X(int, cst_take_start, struct cst_job *, int, uint32_t, void *, uint64_t, struct cst_err *)    \
    X(int, cst_edge_wait, struct cst_job *, int, uint32_t, struct cst_err *)                       \
    X(int, cst_stage, struct cst_job *)                                                            \
    X(int, cst_try_next, struct cst_job *, double, struct cst_unit *, struct cst_err *)            \
    X(int, cst_stat, struct cst_job *, struct cst_rank_stat *, struct cst_err *)                   \
    X(const char *, cst_status_words, int)                                                         \
    X(bool, cst_status_retryable, int)                                                             \
    X(int, cst_try_save, struct cst_client *, const char *, const struct cst_save_spec *,          \
      struct cst_save_result *, struct cst_err *)                                                  \
    X(int, cst_try_load, struct cst_job *, const char *, struct cst_load_result *,                 \
      struct cst_err *)                                                                            \
    X(int, cst_load_model, struct cst_job *, const struct cst_load_model_spec *,                   \
      struct cst_load_model_result *, struct cst_err *)                                            \
    X(int, cst_adopt, const char *const *, uint32_t, const char *, struct cst_adopt_result *,      \
      struct cst_err *)                                                                            \
    X(int, cst_checkpoints, const char *, bool, struct cst_checkpoint **, uint32_t *,              \
      struct cst_err *)                                                                            \
    X(int, cst_reader_open, struct cst_reader **, const char *, const char *, struct cst_err *)    \
    X(void, cst_reader_close, struct cst_reader *)                                                 \
    X(uint32_t, cst_reader_count, const struct cst_reader *)                                       \
    X(const struct cst_reader_tensor *, cst_reader_tensor, const struct cst_reader *, uint32_t)    \
    X(const char *, cst_reader_model_config, const struct cst_reader *)                            \
    X(const char *, cst_reader_adapter_config, const struct cst_reader *)                          \
    X(uint32_t, cst_reader_versions, const struct cst_reader *)                                    \
    X(int, cst_reader_next, struct cst_reader *, const struct cst_reader_wish *, int,              \
      struct cst_reader_version *, struct cst_err *)                                               \
    X(const void *, cst_reader_weights, const struct cst_reader *,                                 \
      const struct cst_reader_version *, uint32_t)                                                 \
    X(int, cst_reader_check, struct cst_reader *, const struct cst_reader_version *,               \
      struct cst_err *)                                                                            \
    X(int, cst_reader_release, struct cst_reader *, const struct cst_reader_version *,             \
      struct cst_err *)
#define CUDA_FUNCTIONS(X)                                                                          \
    X(int, cst_cuda_open, struct cst_cuda **, struct cst_job *, void *, struct cst_err *)          \
    X(void, cst_cuda_close, struct cst_cuda *)                                                     \
    X(int, cst_cuda_device, const struct cst_cuda *)                                               \
    X(int, cst_cuda_available, struct cst_err *)

/* A parameter that is not a number is the address of a struct of this module, or just an address:
 * handles are opaque. */
static const struct {
    const char *c, *python;
} types[] = {
    {"void", "None"},
    {"bool", "c_bool"},
    {"int", "c_int"},
    {"size_t", "c_size_t"},
    {"uint32_t", "c_uint"},
    {"uint64_t", "c_uint64"},
    {"double", "c_double"},
    {"enum cst_direction", "c_uint"},
    {"enum cst_hint", "c_uint"},
    {"enum cst_state", "c_uint"},
    {"const char *", "c_char_p"},
    {"struct cst_err *", "POINTER(cst_err)"},
    {"const struct cst_err *", "POINTER(cst_err)"},
};

/* Print the type that is written in the first @length characters of @text. */
static void print_type(const char *text, size_t length)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strlen(types[i].c) == length && strncmp(types[i].c, text, length) == 0) {
            printf("%s", types[i].python);
            return;
        }
    }
    if (text[length - 1] != '*') {
        fprintf(stderr, "abi: no type of ctypes for %.*s\n", (int)length, text);
        exit(1);
    }
    printf("c_void_p");
}

static void function(const char *result, const char *name, const char *parameters)
{
    printf("    \"%s\": (", name);
    print_type(result, strlen(result));
    printf(", (");
    while (strcmp(parameters, "void") != 0 && *parameters != '\0') {
        size_t length = strcspn(parameters, ",");

        print_type(parameters, length);
        printf(", ");
        parameters += length;
        parameters += strspn(parameters, ", ");
    }
    printf(")),\n");
}

#define FUNCTION(result, name, ...)                                                                \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), result(__VA_ARGS__)),            \
                   #name " has other parameters");                                                 \
    function(#result, #name, #__VA_ARGS__);

static void print_functions(void)
{
    printf("\nSignature = tuple[Any, tuple[Any, ...]]  # Result, parameters.\n"
           "\nFUNCTIONS: dict[str, Signature] = {\n");
    CISTERN_FUNCTIONS(FUNCTION)
    printf("}\n\nCUDA_FUNCTIONS: dict[str, Signature] = {\n");
    CUDA_FUNCTIONS(FUNCTION)
    printf("}\n");
}

static const char *const heading =
    "# SPDX-License-Identifier: Apache-2.0\n"
    "\"\"\"What the C headers say, for ctypes. client/python/abi.c prints this module; do not edit "
    "it.\"\"\"\n\n"
    "from __future__ import annotations\n\n"
    "from ctypes import (\n    CFUNCTYPE,\n    POINTER,\n    Structure,\n    c_bool,\n    c_char,\n"
    "    c_char_p,\n    c_double,\n    c_float,\n    c_int,\n    c_int64,\n    c_size_t,\n"
    "    c_uint,\n    c_uint64,\n    c_void_p,\n)\n"
    "import os\n"
    "from enum import IntEnum\n"
    "from typing import Any, TypedDict\n\n";

int main(void)
{
    printf("%sVERSION = \"%s\"\n", heading, PACKAGE_VERSION);
    printf("DEFAULT_SOCKET = \"%s\"\n", CST_DEFAULT_SOCKET);
    printf("MAX_MICRO_BATCHES = %d\n", CST_MAX_MICRO_BATCHES);
    printf("MAX_PARAM_GROUPS = %d\n", CST_MAX_PARAM_GROUPS);
    printf("MAX_CONFIG_BYTES = %d\n", CST_MAX_CONFIG_BYTES);
    printf("DEVICE_UPDATE_AUTO = %llu\n", (unsigned long long)CST_DEVICE_UPDATE_AUTO);
    printf("DEVICE_UPDATE_LENT = %llu\n", (unsigned long long)CST_DEVICE_UPDATE_LENT);
    printf("GROUP_ALL = %d\n", CST_GROUP_ALL);
    printf("ALL_RANKS = %u\n", CST_ALL_RANKS);
    printf("LAUNCH_UNKNOWN = %u\n", CST_LAUNCH_UNKNOWN);
    print_enums();
    print_beta2();
    print_structs();
    print_job_options();
    print_functions();
    return fflush(stdout) != 0;
}
