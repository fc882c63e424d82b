/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/copier.h"

#include <signal.h>
#include <string.h>

/* Wait for the next copy. NULL: the thread is to end. Called with the lock. */
static struct cstc_copy *next_copy(struct cstc_copier *copier)
{
    while (copier->first == NULL && !copier->stops) {
        (void)pthread_cond_wait(&copier->work, &copier->lock);
    }
    return copier->first;
}

static void *copy_all(void *arg)
{
    struct cstc_copier *copier = arg;
    struct cstc_copy *copy;

    (void)pthread_mutex_lock(&copier->lock);
    while ((copy = next_copy(copier)) != NULL) {
        (void)pthread_mutex_unlock(&copier->lock);
        memcpy(copy->to, copy->from, copy->bytes);
        (void)pthread_mutex_lock(&copier->lock);
        copier->first = copy->next;
        if (copier->first == NULL) {
            copier->end = &copier->first;
        }
        copy->under_way = false;
        (void)pthread_cond_broadcast(&copier->done);
    }
    (void)pthread_mutex_unlock(&copier->lock);
    return NULL;
}

/* Start the thread with all signals blocked: they belong to the worker's own threads. */
static int run(struct cstc_copier *copier, struct cst_err *err)
{
    sigset_t all, before;
    int rc;

    *copier = (struct cstc_copier){.lock = PTHREAD_MUTEX_INITIALIZER,
                                   .work = PTHREAD_COND_INITIALIZER,
                                   .done = PTHREAD_COND_INITIALIZER};
    copier->end = &copier->first;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&copier->thread, NULL, copy_all, copier);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        return cst_err_errno(err, CST_ENOMEM, rc, "starting the thread that copies arrays");
    }
    copier->runs = true;
    return CST_OK;
}

int cstc_copier_start(struct cstc_copier *copier, struct cstc_copy *copy, struct cst_err *err)
{
    int rc = copier->runs ? CST_OK : run(copier, err);

    if (rc != CST_OK) {
        return rc;
    }
    copy->next = NULL;
    (void)pthread_mutex_lock(&copier->lock);
    copy->under_way = true;
    *copier->end = copy;
    copier->end = &copy->next;
    (void)pthread_cond_signal(&copier->work);
    (void)pthread_mutex_unlock(&copier->lock);
    return CST_OK;
}

void cstc_copier_wait(struct cstc_copier *copier, struct cstc_copy *copy)
{
    if (!copier->runs) {
        return;
    }
    (void)pthread_mutex_lock(&copier->lock);
    while (copy->under_way) {
        (void)pthread_cond_wait(&copier->done, &copier->lock);
    }
    (void)pthread_mutex_unlock(&copier->lock);
}

void cstc_copier_close(struct cstc_copier *copier)
{
    if (!copier->runs) {
        return;
    }
    (void)pthread_mutex_lock(&copier->lock);
    copier->stops = true;
    (void)pthread_cond_signal(&copier->work);
    (void)pthread_mutex_unlock(&copier->lock);
    (void)pthread_join(copier->thread, NULL);
    (void)pthread_mutex_destroy(&copier->lock);
    (void)pthread_cond_destroy(&copier->work);
    (void)pthread_cond_destroy(&copier->done);
    copier->runs = false;
}
