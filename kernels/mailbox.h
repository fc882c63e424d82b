/* SPDX-License-Identifier: Apache-2.0 */
/* From crew threads to the loop: mails that the loop delivers on its own thread, and a pollable fd
 * that tells of them. */
#ifndef CST_MAILBOX_H
#define CST_MAILBOX_H

#include "cistern/status.h"

#include <pthread.h>

struct cst_mail;

/* Called on the loop thread; @arg is the deliverer's. The mail may be freed or posted again in it.
 */
typedef void (*cst_mail_fn)(struct cst_mail *mail, void *arg);

/* Embedded in what it is about. */
struct cst_mail {
    cst_mail_fn deliver;   /* set by the owner */
    struct cst_mail *next; /* the mailbox's */
};

struct cst_mailbox {
    pthread_mutex_t mutex; /* guards head and tail */
    struct cst_mail *head; /* oldest */
    struct cst_mail *tail; /* youngest */
    int fd;                /* eventfd; readable: there is mail, or somebody knocked */
};

/* CST_ENOMEM: the system gives no more fds. */
int cst_mailbox_open(struct cst_mailbox *box, struct cst_err *err);

/* Mails in it are forgotten. */
void cst_mailbox_close(struct cst_mailbox *box);

/* Put @mail in. Any thread; never fails. A mail is in one box once. */
void cst_mailbox_post(struct cst_mailbox *box, struct cst_mail *mail);

/* Make the fd readable without a mail. Any thread. */
void cst_mailbox_knock(struct cst_mailbox *box);

/* Deliver all mails that are there now, in the order in which they were posted. The loop thread. */
void cst_mailbox_deliver(struct cst_mailbox *box, void *arg);

#endif
