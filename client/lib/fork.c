/* SPDX-License-Identifier: Apache-2.0 */
/* Handles fork(): in the child the clients become unusable, and its copies of their sockets are
 * closed. Otherwise the connection would stay open when the parent dies, and the daemon would not
 * notice the death at once. */
#include "client/lib/client.h"

#include <pthread.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct cst_client *clients;

static void before_fork(void)
{
    (void)pthread_mutex_lock(&mutex);
}

static void in_parent(void)
{
    (void)pthread_mutex_unlock(&mutex);
}

/* Another thread of the parent may have held any lock, so this function only closes descriptors
 * and unlocks the mutex that before_fork has taken. */
static void in_child(void)
{
    for (struct cst_client *client = clients; client != NULL; client = client->next) {
        client->forked = true;
        if (client->sock >= 0) {
            (void)close(client->sock);
            client->sock = -1;
        }
        cstc_wake_close(&client->wake);
    }
    (void)pthread_mutex_unlock(&mutex);
}

static void install(void)
{
    (void)pthread_atfork(before_fork, in_parent, in_child);
}

void cstc_fork_register(struct cst_client *client)
{
    (void)pthread_once(&once, install);
    (void)pthread_mutex_lock(&mutex);
    client->next = clients;
    client->link = &clients;
    if (clients != NULL) {
        clients->link = &client->next;
    }
    clients = client;
    (void)pthread_mutex_unlock(&mutex);
}

void cstc_fork_forget(struct cst_client *client)
{
    (void)pthread_mutex_lock(&mutex);
    *client->link = client->next;
    if (client->next != NULL) {
        client->next->link = client->link;
    }
    (void)pthread_mutex_unlock(&mutex);
}
