/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/wakeup.h"

#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cstc_wakeup *all;
static uintptr_t last;

/* A forked child has the communicators of its parent no more: its list is empty. */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    (void)pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    (void)pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    all = NULL;
    (void)pthread_mutex_unlock(&lock);
}

static void install(void)
{
    (void)pthread_atfork(before_fork, in_parent, in_child);
}

void cstc_wakeup_open(struct cstc_wakeup *wakeup, struct cst_shared_head *head)
{
    (void)pthread_once(&once, install);
    (void)pthread_mutex_lock(&lock);
    *wakeup = (struct cstc_wakeup){.next = all, .link = &all, .head = head, .number = ++last};
    if (all != NULL) {
        all->link = &wakeup->next;
    }
    all = wakeup;
    (void)pthread_mutex_unlock(&lock);
}

void cstc_wakeup_close(struct cstc_wakeup *wakeup)
{
    if (wakeup->link == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&lock);
    *wakeup->link = wakeup->next;
    if (wakeup->next != NULL) {
        wakeup->next->link = wakeup->link;
    }
    (void)pthread_mutex_unlock(&lock);
    wakeup->link = NULL;
}

void *cstc_wakeup_arg(const struct cstc_wakeup *wakeup)
{
    return (void *)wakeup->number;
}

void cstc_wakeup_call(void *arg)
{
    (void)pthread_mutex_lock(&lock);
    for (struct cstc_wakeup *each = all; each != NULL; each = each->next) {
        if (each->number == (uintptr_t)arg) {
            cst_shared_notify(each->head);
        }
    }
    (void)pthread_mutex_unlock(&lock);
}
