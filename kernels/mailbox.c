/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/mailbox.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

int cst_mailbox_open(struct cst_mailbox *box, struct cst_err *err)
{
    *box = (struct cst_mailbox){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (box->fd < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "eventfd");
    }
    (void)pthread_mutex_init(&box->mutex, NULL);
    return CST_OK;
}

void cst_mailbox_close(struct cst_mailbox *box)
{
    (void)pthread_mutex_destroy(&box->mutex);
    (void)close(box->fd);
}

void cst_mailbox_knock(struct cst_mailbox *box)
{
    uint64_t one = 1;
    ssize_t n;

    /* EAGAIN is not an error: the counter is then at its maximum, and the fd is readable. */
    do {
        n = write(box->fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
}

void cst_mailbox_post(struct cst_mailbox *box, struct cst_mail *mail)
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
        cst_mailbox_knock(box);
    }
}

void cst_mailbox_deliver(struct cst_mailbox *box, void *arg)
{
    struct cst_mail *mail;
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
        struct cst_mail *next = mail->next;

        mail->deliver(mail, arg);
        mail = next;
    }
}
