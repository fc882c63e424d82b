/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/wakeup.h"

#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cstc_wakeup *all;
static uintptr_t last;

void cstc_wakeup_open(struct cstc_wakeup *wakeup, struct cst_shared_head *head)
{
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
