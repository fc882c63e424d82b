/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/span.h"

#include "daemon/job/ended_parts.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/span.h"
#include "daemon/settings/settings.h"
#include "offload/layout/digest.h"
#include "proto/engine.pb-c.h"
#include "proto/span.pb-c.h"
#include "tests/fuzz/fake_links.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

const char fuzz_name[] = "span";

enum { MESSAGE_BYTES = 1 << 17, SCRIPT_BYTES = 1 << 13 };

static uint8_t message[MESSAGE_BYTES];
static size_t n_message;

static void adjust(struct cstd_settings *config)
{
    fuzz_must(setenv("CISTERN_ENGINE_NET", "/proc/self/exe", 1) == 0, "setenv");
    (void)strcpy(config->node.name, "me");
    (void)strcpy(config->node.listen, "127.0.0.1:7433");
    config->node.network = CSTD_NETWORK_TRUSTED;
}

/* -- messages ------------------------------------------------------------------------------- */

static void append(const void *bytes, size_t n)
{
    fuzz_must(n <= sizeof message - n_message, "room for a message");
    if (n > 0) {
        memcpy(message + n_message, bytes, n);
    }
    n_message += n;
}

/* Fields in front of others of the same message replace them, or are merged with them. */
static void append_fields(const ProtobufCMessage *fields)
{
    fuzz_must(protobuf_c_message_get_packed_size(fields) <= sizeof message - n_message,
              "room for fields");
    n_message += protobuf_c_message_pack(fields, message + n_message);
}

static struct cstd_job *find_job(void)
{
    struct cstd_job *job = TAILQ_FIRST(&rig_daemon.jobs->living);

    return job != NULL && job->span != NULL ? job : NULL;
}

static uint64_t life_of(const struct cstd_job *job, unsigned node, unsigned how)
{
    return how & SPAN_MINE ? job->span->life : 100 + node + (how & SPAN_LATER ? 10 : 0);
}

static void put_here(const struct cstd_job *job, unsigned node, Span__Key *key)
{
    const struct fake_sent *mine = fake_links_sent(node, SPAN__MSG_TYPE__SPAN_HERE);
    Span__Here here = SPAN__HERE__INIT, *last = span__here__unpack(NULL, mine->n, mine->body);

    here.from = key;
    here.first_rank = node == 0 && job->spec.nodes.first_rank > 0 ? 0 : node + 1;
    here.world = 1;
    here.all_ranks = cst_job_all_ranks(&job->spec);
    here.digest = cst_model_digest(&job->model, 1);
    here.has_heard = 1;
    here.heard = job->span->life;
    if (last != NULL) {
        here.options = last->options;
    }
    append_fields(&here.base);
    span__here__free_unpacked(last, NULL);
}

static void put_net(const struct cstd_job *job, Span__Key *key)
{
    Engine__NetEnd end = ENGINE__NET_END__INIT;
    Span__Segment segments[2] = {SPAN__SEGMENT__INIT, SPAN__SEGMENT__INIT},
                  *served[2] = {&segments[0], &segments[1]};
    Span__Net net = SPAN__NET__INIT;
    uint8_t packed[128];

    end.transport = (char *)(uintptr_t) "tcp";
    end.version = (char *)(uintptr_t) "1";
    end.address = (char *)(uintptr_t) "127.0.0.1:1";
    net.from = key;
    net.end.data = packed;
    net.end.len = engine__net_end__pack(&end, packed);
    net.n_chunks = job->layout.n_chunks;
    net.n_served = 2;
    net.n_segments = 2;
    net.served = served;
    for (uint32_t i = 0; i < 2; i++) {
        segments[i].id = i + 1;
        segments[i].bytes = 1 << 20;
    }
    append_fields(&net.base);
}

static void put_chunks(const struct cstd_job *job, Span__Key *key)
{
    Span__Chunks chunks = SPAN__CHUNKS__INIT;
    uint64_t elems[CST_LAYOUT_MAX_CLASSES] = {job->spec.planning.chunk_elems};
    uint8_t token[CSTD_SPAN_TOKEN_BYTES] = {0};

    chunks.from = key;
    chunks.class_elems = elems;
    chunks.n_class_elems = CST_LAYOUT_MAX_CLASSES;
    chunks.token.data = token;
    chunks.token.len = sizeof token;
    append_fields(&chunks.base);
}

static void put_state(const struct cstd_job *job, Span__Key *key)
{
    Span__State state = SPAN__STATE__INIT;

    state.from = key;
    state.step = state.adam_step = 3;
    state.n_all = job->spec.updates.unused == CST_UNUSED_SKIP ? job->model.n_tensors : 0;
    append_fields(&state.base);
}

/* A node that waits to be added to the job, or the first node, which has added this one. */
static void put_members(const struct cstd_job *job, Span__Key *key)
{
    Span__Members members = SPAN__MEMBERS__INIT;
    Span__Epoch epoch = SPAN__EPOCH__INIT;
    uint64_t lives[] = {key->life, job->span->life};

    if (job->spec.nodes.first_rank > 0) {
        epoch.number = 2;
        epoch.lives = lives;
        epoch.n_lives = 2;
        members.round = 1;
    }
    members.from = key;
    members.kind = CST_MEMBERS_TELL;
    members.life = key->life;
    members.epoch = &epoch;
    append_fields(&members.base);
}

static uint64_t step_of(const struct cstd_job *job)
{
    struct cst_core_stats stats = {0};

    if (job->core != NULL) {
        cst_core_stats(job->core, &stats);
    }
    return stats.step;
}

/* A message of the present epoch with all that one can have. */
static void put_core(const struct cstd_job *job, unsigned how, Span__Key *key)
{
    Span__Core core = SPAN__CORE__INIT;
    Span__Place place = SPAN__PLACE__INIT;
    Span__Decision decision = SPAN__DECISION__INIT;
    Span__Hyper hyper = SPAN__HYPER__INIT;
    double squares[] = {1}, losses[] = {2};

    hyper.lr = hyper.grad_scale = 1;
    hyper.eps = 1e-8f;
    decision.hyper = &hyper;
    decision.step = decision.adam_step = decision.attempt = step_of(job) + 1;
    place.segment = 1;
    core.from = key;
    core.epoch = job->span->epoch;
    core.attempt = 1;
    core.place = &place;
    core.squares = squares;
    core.n_squares = core.all_squares = 1;
    core.has_all_squares = 1;
    core.losses = losses;
    core.n_losses = 1;
    core.has_rank_blocks = 1;
    core.rank_blocks = job->spec.nodes.first_rank == 0 ? 2 : 1;
    core.decision = how & SPAN_DECIDES ? &decision : NULL;
    append_fields(&core.base);
}

/* Read a row that all have. */
static void put_ask(const struct cstd_job *job, Span__Key *key)
{
    Span__RowAsk ask = SPAN__ROW_ASK__INIT;

    ask.from = key;
    ask.number = 1;
    ask.row = CST_ROW_MASTER;
    ask.n_elems = 16;
    ask.step = step_of(job);
    append_fields(&ask.base);
}

/* A row that was asked for, the first one unless another number follows. */
static void put_row(Span__Key *key)
{
    Span__RowHere here = SPAN__ROW_HERE__INIT;

    here.from = key;
    here.number = 1;
    append_fields(&here.base);
}

/* What a node that works well says. Types without a case say nothing but the job. */
static void put_valid(const struct cstd_job *job, unsigned node, unsigned type, unsigned how,
                      Span__Key *key)
{
    switch (type) {
    case SPAN__MSG_TYPE__SPAN_HERE:
        put_here(job, node, key);
        break;
    case SPAN__MSG_TYPE__SPAN_NET:
        put_net(job, key);
        break;
    case SPAN__MSG_TYPE__SPAN_CHUNKS:
        put_chunks(job, key);
        break;
    case SPAN__MSG_TYPE__SPAN_STATE:
        put_state(job, key);
        break;
    case SPAN__MSG_TYPE__SPAN_MEMBERS:
        put_members(job, key);
        break;
    case SPAN__MSG_TYPE__SPAN_CORE:
        put_core(job, how, key);
        break;
    case SPAN__MSG_TYPE__SPAN_ROW_HERE:
        put_row(key);
        break;
    case SPAN__MSG_TYPE__SPAN_ROW_ASK:
        put_ask(job, key);
        break;
    default:
        break;
    }
}

/* Name the job: all messages have the key in the same field, which Gone-Seen has alone. */
static void put_key(const struct cstd_job *job, unsigned node, unsigned type, unsigned how)
{
    Span__GoneSeen fields = SPAN__GONE_SEEN__INIT;
    Span__Key key = SPAN__KEY__INIT;

    key.uid = job->uid;
    key.name = (char *)(uintptr_t)job->name;
    key.life = life_of(job, node, how);
    if (how & SPAN_VALID) {
        put_valid(job, node, type, how, &key);
    }
    fields.from = &key;
    append_fields(&fields.base);
    if (type == SPAN__MSG_TYPE__SPAN_MEMBERS) {
        uint8_t life[9] = {3 << 3 | 1}; /* Field 3, fixed64. */

        memcpy(life + 1, &key.life, sizeof key.life);
        append(life, sizeof life);
    }
}

static void tell(struct rig_input *in)
{
    const unsigned node = rig_take_byte(in) % FAKE_NODES;
    const unsigned type = FAKE_FIRST_TYPE + rig_take_byte(in) % FAKE_TYPES;
    const unsigned how = rig_take_byte(in);
    const struct fake_sent *mirror = fake_links_sent(node, type);
    const struct cstd_job *job = find_job();
    const uint8_t *bytes;
    uint8_t *exact;
    size_t n;

    n_message = 0;
    if (how & SPAN_MIRROR && (how & SPAN_VALID) == 0) {
        append(mirror->body, mirror->n);
    }
    if (job != NULL && how & (SPAN_VALID | SPAN_KEY)) {
        put_key(job, node, type, how);
    }
    bytes = rig_take_bytes(in, &n);
    append(bytes, n);
    exact = malloc(n_message + 1);
    fuzz_must(exact != NULL, "memory for a message");
    memcpy(exact, message, n_message);
    fake_links_tell(node, type, exact, n_message);
    free(exact);
}

/* -- steps ---------------------------------------------------------------------------------- */

static void drop(unsigned node)
{
    struct cstd_machine *machine = fake_links_node(node);
    struct cstd_job *job, *next;
    char name[CST_JOB_NAME_BYTES];

    if (machine == NULL) {
        fake_links_add(node);
        return;
    }
    memcpy(name, machine->entry.name, sizeof name);
    fake_links_drop(node);
    for (job = TAILQ_FIRST(&rig_daemon.jobs->living); job != NULL; job = next) {
        next = TAILQ_NEXT(job, link);
        (void)cstd_span_drop_node(job, name);
    }
}

static void take_step(struct rig_input *in)
{
    const unsigned op = rig_take_byte(in) % SPAN_OPS;
    unsigned node;

    switch (op) {
    case SPAN_LINK:
        node = rig_take_byte(in) % FAKE_NODES;
        fake_links_set(node, rig_take_byte(in) % 2 != 0);
        break;
    case SPAN_TELL:
        tell(in);
        break;
    case SPAN_DROP:
        drop(rig_take_byte(in) % FAKE_NODES);
        break;
    default:
        rig_step((enum rig_op)op, in);
        return;
    }
    rig_turn();
}

static void do_steps(const uint8_t *bytes, size_t n)
{
    struct rig_input in = {.at = bytes, .end = bytes + n};

    while (in.at < in.end) {
        take_step(&in);
    }
}

static void do_script(unsigned world)
{
    static uint8_t script[SCRIPT_BYTES];

    do_steps(script, span_script(world, script, sizeof script));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool started;

    if (!started) {
        rig_start(adjust);
        started = true;
    }
    for (unsigned i = 0; i < RIG_SESSIONS; i++) {
        rig_open(i);
    }
    fake_links_reset();
    rig_settle();
    do_script(n > 0 ? data[0] % SPAN_WORLDS : SPAN_NONE);
    do_steps(data + (n > 0), n > 0 ? n - 1 : 0);
    rig_end();
    for (unsigned i = 0; i < FAKE_NODES; i++) {
        const struct cstd_machine *node = fake_links_node(i);

        fuzz_must(node == NULL || node->n_holds == 0, "no node is held");
    }
    cstd_ended_parts_close(&rig_daemon); /* Otherwise later inputs depend on this one. */
    return 0;
}
