/* SPDX-License-Identifier: Apache-2.0 */
/* The network between the machines: messages arrive after a random delay, in their order. */
#include "tests/sim/machines.h"

#include <string.h>

static bool is_connected(const struct machines *sim, uint32_t a, uint32_t b)
{
    return sim->machines[a].core != NULL && sim->machines[b].core != NULL &&
           (sim->cut[a] >> b & 1) == 0;
}

/* Keep the bits that @message has borrowed. */
static void copy_bits(struct machines *sim, struct mmessage *message)
{
    struct cst_machine_message *m = &message->m;

    if (m->n_unused > sizeof message->bits) {
        machines_fail(sim, "%u bytes of bits for %u tensors", m->n_unused, sim->n_chunks);
    }
    if (m->n_unused > 0) {
        memcpy(message->bits, m->unused, m->n_unused);
    }
    m->unused = message->bits;
    sim->totals->unused += m->kind == CST_MESSAGE_UNUSED;
}

static void send_to(struct machines *sim, uint32_t from, uint32_t to,
                    const struct cst_machine_message *m)
{
    uint64_t at = sim->now + machines_delay(sim, 200000);
    uint32_t i = 0;
    struct mmessage *message;

    if (!is_connected(sim, from, to)) {
        return;
    }
    while (i < MACHINES_MESSAGES && sim->messages[i].used) {
        i++;
    }
    if (i == MACHINES_MESSAGES) {
        machines_fail(sim, "too many messages");
    }
    message = &sim->messages[i];
    *message = (struct mmessage){.used = true, .from = from, .to = to, .m = *m};
    message->link = sim->links[from][to];
    message->order = sim->n_sent++;
    for (uint32_t k = 0; k < m->n_squares + m->n_losses; k++) {
        message->numbers[k] = m->squares != NULL ? m->squares[k] : m->losses[k];
    }
    message->m.squares = message->m.losses = message->numbers;
    copy_bits(sim, message);
    at = at > sim->arrives[from][to] ? at : sim->arrives[from][to];
    sim->arrives[from][to] = at;
    moments_push(&sim->moments, (struct moment){.at = at, .kind = MOMENT_MESSAGE, .what = i});
    sim->totals->messages++;
}

void network_tell(struct machines *sim, uint32_t from, uint32_t to,
                  const struct cst_machine_message *m)
{
    for (uint32_t other = 0; other < sim->n; other++) {
        if (other != from && (to == other || to == CST_MACHINES_ALL)) {
            send_to(sim, from, other, m);
        }
    }
}

void network_deliver(struct machines *sim, uint32_t i)
{
    struct mmessage *message = &sim->messages[i];
    struct machine *to = &sim->machines[message->to];

    if (!is_connected(sim, message->from, message->to) ||
        message->link != sim->links[message->from][message->to] || message->m.epoch < to->epoch) {
        message->used = false;
        return;
    }
    message->held = message->m.epoch > to->epoch;
    if (!message->held) {
        machines_feed(sim, message->to,
                      (struct cst_event){
                          .kind = CST_EV_TOLD, .machine = message->from, .message = &message->m});
        message->used = false;
    }
}

/* The message for machine @m that is kept and was sent first; NULL: there is none. */
static struct mmessage *find_held(struct machines *sim, uint32_t m)
{
    struct mmessage *first = NULL;

    for (uint32_t i = 0; i < MACHINES_MESSAGES; i++) {
        struct mmessage *message = &sim->messages[i];

        if (message->used && message->held && message->to == m &&
            (first == NULL || message->order < first->order)) {
            first = message;
        }
    }
    return first;
}

void network_deliver_held(struct machines *sim, uint32_t m)
{
    struct mmessage *message;

    while ((message = find_held(sim, m)) != NULL) {
        network_deliver(sim, (uint32_t)(message - sim->messages));
    }
}
