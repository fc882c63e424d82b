/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/mailbox.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

int cste_mailbox_open(struct cste_mailbox *box, struct cst_err *err)
{
    *box = (struct cste_mailbox){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (box->fd < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "eventfd");
    }
    (void)pthread_mutex_init(&box->mutex, NULL);
    return CST_OK;
}

void cste_mailbox_close(struct cste_mailbox *box)
{
    (void)pthread_mutex_destroy(&box->mutex);
    (void)close(box->fd);
}

void cste_mailbox_knock(struct cste_mailbox *box)
{
    uint64_t one = 1;
    ssize_t n;

    /* EAGAIN is not an error: the counter is then at its maximum, and the fd is readable. */
    do {
        n = write(box->fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
}

void cste_mailbox_post(struct cste_mailbox *box, struct cste_mail *mail)
{
    bool first;

    mail->next = NULL;
    (void)pthread_mutex_lock(&box->mutex);
    first = box->head == NULL;
    if (first) {
        box->head = mail;
    } else {
        box->tail->next = mail;
    }
    box->tail = mail;
    (void)pthread_mutex_unlock(&box->mutex);
    /* The first mail knocks for all: the loop takes the whole list. */
    if (first) {
        cste_mailbox_knock(box);
    }
}

void cste_mailbox_deliver(struct cste_mailbox *box, void *arg)
{
    struct cste_mail *mail;
    uint64_t count;
    ssize_t n;

    /* The counter is cleared before the list is taken. A mail that is posted later knocks again. */
    do {
        n = read(box->fd, &count, sizeof count);
    } while (n < 0 && errno == EINTR);
    (void)pthread_mutex_lock(&box->mutex);
    mail = box->head;
    box->head = NULL;
    (void)pthread_mutex_unlock(&box->mutex);
    while (mail != NULL) {
        struct cste_mail *next = mail->next;

        mail->deliver(mail, arg);
        mail = next;
    }
}
