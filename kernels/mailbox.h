/* SPDX-License-Identifier: Apache-2.0 */
/* Mail from crew threads to the loop thread. The loop delivers mails on its own thread. A pollable
 * file descriptor says when there are mails. */
#ifndef CST_MAILBOX_H
#define CST_MAILBOX_H

#include "cistern/status.h"

#include <pthread.h>

struct cst_mail;

/* Deliver a mail. Called on the loop thread; @arg is the argument of cst_mailbox_deliver. The
 * function may free @mail or post it again. */
typedef void (*cst_mail_fn)(struct cst_mail *mail, void *arg);

/* A mail, embedded in the object that it reports on. */
struct cst_mail {
    cst_mail_fn deliver;   /* Delivery function; set by the owner. */
    struct cst_mail *next; /* Next mail in the mailbox; set by the mailbox. */
};

/* A mailbox: a list of mails and its file descriptor. */
struct cst_mailbox {
    pthread_mutex_t mutex; /* Guards head and tail. */
    struct cst_mail *head; /* Oldest mail. */
    struct cst_mail *tail; /* Youngest mail. */
    int fd;                /* eventfd, readable if there is mail or cst_mailbox_knock was called. */
};

/* Open a mailbox. CST_ENOMEM: the system gives no more file descriptors. */
int cst_mailbox_open(struct cst_mailbox *box, struct cst_err *err);

/* Close the mailbox. Mails in it are abandoned. */
void cst_mailbox_close(struct cst_mailbox *box);

/* Put @mail in the mailbox. Never fails. A mail is in at most one mailbox, and once. Any thread. */
void cst_mailbox_post(struct cst_mailbox *box, struct cst_mail *mail);

/* Make the fd readable without a mail. Any thread. */
void cst_mailbox_knock(struct cst_mailbox *box);

/* Deliver all mails that are in the mailbox now, in the order in which they were posted. Loop
 * thread. */
void cst_mailbox_deliver(struct cst_mailbox *box, void *arg);

#endif
