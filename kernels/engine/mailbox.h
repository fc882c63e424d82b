/* SPDX-License-Identifier: Apache-2.0 */
/* Mail from pool threads to the loop thread. The loop delivers mails on its own thread. A pollable
 * file descriptor says when there are mails. */
#ifndef CST_MAILBOX_H
#define CST_MAILBOX_H

#include "cistern/status.h"

#include <pthread.h>

struct cste_mail;

/* Deliver a mail. Called on the loop thread; @arg is the argument of cste_mailbox_deliver. The
 * function may free @mail or post it again. */
typedef void (*cste_mail_fn)(struct cste_mail *mail, void *arg);

/* A mail, embedded in the object that it reports on. */
struct cste_mail {
    cste_mail_fn deliver;   /* Delivery function; set by the owner. */
    struct cste_mail *next; /* Next mail in the mailbox; set by the mailbox. */
};

/* A mailbox: a list of mails and its file descriptor. */
struct cste_mailbox {
    pthread_mutex_t mutex;  /* Guards head and tail. */
    struct cste_mail *head; /* Oldest mail. */
    struct cste_mail *tail; /* Youngest mail. */
    int fd; /* eventfd, readable if there is mail or cste_mailbox_knock was called. */
};

/* Open a mailbox. CST_ENOMEM: the system gives no more file descriptors. */
int cste_mailbox_open(struct cste_mailbox *box, struct cst_err *err);

/* Close the mailbox. Mails in it are abandoned. */
void cste_mailbox_close(struct cste_mailbox *box);

/* Put @mail in the mailbox. Never fails. A mail is in at most one mailbox, and once. Any thread. */
void cste_mailbox_post(struct cste_mailbox *box, struct cste_mail *mail);

/* Make the fd readable without a mail. Any thread. */
void cste_mailbox_knock(struct cste_mailbox *box);

/* Deliver all mails that are in the mailbox now, in the order in which they were posted. Loop
 * thread. */
void cste_mailbox_deliver(struct cste_mailbox *box, void *arg);

#endif
