/*
 * Copies a file into a cluster, or out of it.
 *
 *   pvfs_cp [-n] tcp://host:7000 local pvfs:/remote
 *   pvfs_cp [-n] tcp://host:7000 pvfs:/remote local
 *
 * With -n the operations are posted, four at a time, and the program waits with poll.
 *
 *   cc -o pvfs_cp pvfs_cp.c $(pkg-config --cflags --libs pvfs)
 */
#define _XOPEN_SOURCE 700

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pvfs.h>

enum { BLOCK = 1 << 20, SLOTS = 4 };

/* A block on its way. */
struct slot {
    char *buffer;
    uint64_t offset;
    size_t len;
};

struct copy {
    pvfs_client *client;
    pvfs_file *remote;
    int local;
    int is_put;
    uint64_t size;
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "pvfs_cp: %s: %s\n", what, why);
    exit(1);
}

/* Fills or drains all of a block at the local side. */
static void move_local(const struct copy *copy, const struct slot *slot)
{
    size_t at = 0;
    while (at < slot->len) {
        char *from = slot->buffer + at;
        off_t offset = (off_t)(slot->offset + at);
        ssize_t moved = copy->is_put ? pread(copy->local, from, slot->len - at, offset)
                                     : pwrite(copy->local, from, slot->len - at, offset);
        if (moved <= 0)
            fail("local file", moved == 0 ? "it became shorter" : strerror(errno));
        at += (size_t)moved;
    }
}

/* Moves a block at the remote side: waits if `later` is NULL. */
static int64_t move_remote(const struct copy *copy, const struct slot *slot, const pvfs_async *later)
{
    if (copy->is_put)
        return pvfs_write(copy->remote, slot->buffer, slot->len, slot->offset, later);
    return pvfs_read(copy->remote, slot->buffer, slot->len, slot->offset, later);
}

/* Gives a slot its next block. Returns 0 at the end. */
static int next_block(const struct copy *copy, struct slot *slot, uint64_t *offset)
{
    slot->offset = *offset;
    slot->len = copy->size - *offset < BLOCK ? (size_t)(copy->size - *offset) : BLOCK;
    *offset += slot->len;
    return slot->len > 0;
}

static void copy_waiting(const struct copy *copy, struct slot *slot)
{
    uint64_t offset = 0;
    while (next_block(copy, slot, &offset)) {
        if (copy->is_put)
            move_local(copy, slot);
        int64_t moved = move_remote(copy, slot, NULL);
        if (moved != (int64_t)slot->len)
            fail("copy", moved < 0 ? pvfs_error() : "the file became shorter");
        if (!copy->is_put)
            move_local(copy, slot);
    }
}

static void post(const struct copy *copy, struct slot *slot, pvfs_queue *queue)
{
    pvfs_async later = {queue, slot};
    if (copy->is_put)
        move_local(copy, slot);
    if (move_remote(copy, slot, &later) < 0)
        fail("post", pvfs_error());
}

static void copy_posting(const struct copy *copy, struct slot *slots)
{
    pvfs_queue *queue;
    uint64_t offset = 0;
    int running = 0;
    if (pvfs_queue_open(copy->client, &queue) < 0)
        fail("queue", pvfs_error());
    for (int n = 0; n < SLOTS && next_block(copy, &slots[n], &offset); n++, running++)
        post(copy, &slots[n], queue);
    while (running > 0) {
        struct pollfd readable = {.fd = pvfs_queue_fd(queue), .events = POLLIN};
        if (poll(&readable, 1, -1) < 0)
            fail("poll", strerror(errno));
        pvfs_done done[SLOTS];
        int64_t count = pvfs_complete(queue, done, SLOTS);
        for (int64_t n = 0; n < count; n++) {
            struct slot *slot = done[n].user;
            if (done[n].result != (int64_t)slot->len)
                fail("copy", done[n].error ? done[n].error : "the file became shorter");
            if (!copy->is_put)
                move_local(copy, slot);
            if (next_block(copy, slot, &offset))
                post(copy, slot, queue);
            else
                running--;
        }
    }
    pvfs_queue_close(queue);
}

int main(int argc, char **argv)
{
    struct copy copy = {0};
    struct slot slots[SLOTS] = {{0}};
    pvfs_attr attr;
    int posts = argc == 5 && strcmp(argv[1], "-n") == 0;
    if (argc != 4 + posts)
        fail("usage", "pvfs_cp [-n] manager from to, one of them with pvfs: in front");
    char **names = argv + 1 + posts;
    copy.is_put = strncmp(names[2], "pvfs:", 5) == 0;
    const char *remote = (copy.is_put ? names[2] : names[1]) + 5;
    if (pvfs_connect(names[0], 0, &copy.client) < 0)
        fail(names[0], pvfs_error());

    copy.local = copy.is_put ? open(names[1], O_RDONLY) : open(names[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (copy.local < 0)
        fail("local file", strerror(errno));
    /* Others see the whole file, or none. */
    if (pvfs_open(copy.client, remote, copy.is_put ? PVFS_DRAFT : 0, 0644, NULL, &copy.remote, NULL) < 0)
        fail(remote, pvfs_error());
    if (copy.is_put) {
        copy.size = (uint64_t)lseek(copy.local, 0, SEEK_END);
    } else {
        if (pvfs_fstat(copy.remote, &attr, NULL) < 0)
            fail(remote, pvfs_error());
        copy.size = attr.size;
    }

    for (int n = 0; n < SLOTS; n++)
        if (!(slots[n].buffer = malloc(BLOCK)))
            fail("memory", strerror(errno));
    if (posts)
        copy_posting(&copy, slots);
    else
        copy_waiting(&copy, slots);
    for (int n = 0; n < SLOTS; n++)
        free(slots[n].buffer);

    if (copy.is_put && (pvfs_sync(copy.remote, NULL) < 0 || pvfs_publish(copy.remote, NULL) < 0))
        fail(remote, pvfs_error());
    if (close(copy.local) < 0)
        fail("local file", strerror(errno));
    pvfs_close(copy.remote);
    pvfs_disconnect(copy.client);
    return 0;
}
