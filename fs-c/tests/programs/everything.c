/* Calls what pvfs_cp does not: names, lists, types, views, errors, many operations on a queue. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pvfs.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, pvfs_error());                     \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

enum { SIDE = 64, OPERATIONS = 200 };

static pvfs_client *client;

static void names(void)
{
    pvfs_attr attr;
    pvfs_file *file;
    pvfs_dir *dir;
    pvfs_entry entry;
    pvfs_layout layout = {65536, 2};
    CHECK(pvfs_mkdir(client, "/d", NULL) == 0);
    CHECK(pvfs_mkdir(client, "/d", NULL) == -EEXIST && strstr(pvfs_error(), "/d"));
    CHECK(pvfs_open(client, "/d/a", PVFS_CREATE | PVFS_EXCLUSIVE, 0600, &layout, &file, NULL) == 0);
    CHECK(pvfs_write(file, "hello", 5, 3, NULL) == 5 && pvfs_sync(file, NULL) == 0);
    CHECK(pvfs_fstat(file, &attr, NULL) == 0 && attr.size == 8 && attr.mode == 0600 && attr.servers == 2);
    CHECK(attr.kind == PVFS_FILE && attr.strip_size == 65536 && attr.mtime_ns > 0);
    CHECK(pvfs_publish(file, NULL) == -EINVAL);
    CHECK(pvfs_truncate(file, 4, NULL) == 0);
    pvfs_close(file);
    CHECK(pvfs_open(client, "/d/a", PVFS_CREATE | PVFS_EXCLUSIVE, 0600, NULL, &file, NULL) == -EEXIST);
    CHECK(pvfs_open(client, "/d/x", 0, 0, NULL, &file, NULL) == -ENOENT);
    CHECK(pvfs_rename(client, "/d/a", "/d/b", NULL) == 0);
    CHECK(pvfs_stat(client, "/d/b", &attr, NULL) == 0 && attr.size == 4);
    CHECK(pvfs_stat(client, "/d", &attr, NULL) == 0 && attr.kind == PVFS_DIR && attr.size == 1);
    /* A draft that is closed is gone, and one that is published is there. */
    CHECK(pvfs_open(client, "/d/gone", PVFS_DRAFT, 0644, NULL, &file, NULL) == 0);
    pvfs_close(file);
    CHECK(pvfs_open(client, "/d/new", PVFS_DRAFT, 0644, NULL, &file, NULL) == 0);
    CHECK(pvfs_stat(client, "/d/new", &attr, NULL) == -ENOENT && pvfs_publish(file, NULL) == 0);
    pvfs_close(file);
    CHECK(pvfs_opendir(client, "/d", &dir) == 0);
    CHECK(pvfs_readdir(dir, &entry) == 1 && strcmp(entry.name, "b") == 0 && entry.kind == PVFS_FILE);
    CHECK(pvfs_readdir(dir, &entry) == 1 && strcmp(entry.name, "new") == 0);
    CHECK(pvfs_readdir(dir, &entry) == 0);
    pvfs_closedir(dir);
    CHECK(pvfs_remove(client, "/d", PVFS_DIR, NULL) == -ENOTEMPTY);
    CHECK(pvfs_remove(client, "/d/b", PVFS_FILE, NULL) == 0 && pvfs_remove(client, "/d/new", 0, NULL) == 0);
    CHECK(pvfs_remove(client, "/d", PVFS_DIR, NULL) == 0);
    CHECK(pvfs_mkdir(client, "relative", NULL) == -EINVAL && pvfs_mkdir(client, "/\xff", NULL) == -EILSEQ);
}

/* The columns of a matrix are written through a view, and read as rows by lists. */
static void types(void)
{
    static double matrix[SIDE][SIDE], column[SIDE][2];
    uint64_t sizes[2] = {SIDE, SIDE}, box[2] = {SIDE, 1}, starts[2] = {0, 0}, lengths[2] = {1, 1};
    int64_t places[2] = {0, 8};
    pvfs_type *number, *part, *padded, *pair;
    pvfs_view *view;
    pvfs_file *file;
    CHECK(pvfs_open(client, "/matrix", PVFS_CREATE, 0644, NULL, &file, NULL) == 0);
    CHECK(pvfs_type_bytes(8, &number) == 0 && pvfs_type_size(number) == 8);
    /* Only the first number of each row of `column` is written. */
    CHECK(pvfs_type_vector(SIDE, 1, 2, number, &padded) == 0 && pvfs_type_size(padded) == 8 * SIDE);
    for (int c = 0; c < SIDE; c++) {
        starts[1] = (uint64_t)c;
        for (int r = 0; r < SIDE; r++)
            column[r][0] = r * SIDE + c;
        CHECK(pvfs_type_subarray(2, sizes, box, starts, PVFS_ORDER_C, number, &part) == 0);
        CHECK(pvfs_view_new(0, number, part, &view) == 0);
        CHECK(pvfs_write_view(file, view, 0, column, sizeof column, padded, 1, NULL) == 8 * SIDE);
        pvfs_type_free(part);
        pvfs_view_free(view);
    }
    pvfs_piece pieces[2] = {{matrix, sizeof matrix / 2}, {matrix[SIDE / 2], sizeof matrix / 2}};
    pvfs_region region = {0, sizeof matrix};
    CHECK(pvfs_read_list(file, pieces, 2, &region, 1, NULL) == (int64_t)sizeof matrix);
    for (int n = 0; n < SIDE * SIDE; n++)
        CHECK(matrix[n / SIDE][n % SIDE] == n);
    CHECK(pvfs_read_list(file, pieces, 1, &region, 1, NULL) == -EINVAL);
    /* A struct of two numbers, with a hole behind them. */
    const pvfs_type *fields[2] = {number, number};
    CHECK(pvfs_type_struct(2, lengths, places, fields, &pair) == 0 && pvfs_type_extent(pair) == 16);
    CHECK(pvfs_type_resized(0, 24, pair, &part) == 0 && pvfs_view_new(8, number, part, &view) == 0);
    memset(column, 0, sizeof column);
    CHECK(pvfs_read_view(file, view, 2, column, sizeof column, number, 4, NULL) == 32);
    CHECK(column[0][0] == 4 && column[0][1] == 5 && column[1][0] == 7 && column[1][1] == 8);
    CHECK(pvfs_read_view(file, view, 0, column, 8, number, 2, NULL) == -EINVAL);
    pvfs_type_free(part);
    CHECK(pvfs_type_hindexed(2, lengths, places, number, &part) == 0 && pvfs_type_size(part) == 16);
    CHECK(pvfs_write_list(file, pieces, 2, &region, 1, NULL) == (int64_t)sizeof matrix);
    pvfs_type_free(part), pvfs_type_free(pair), pvfs_type_free(padded), pvfs_type_free(number);
    pvfs_view_free(view);
    pvfs_close(file);
}

/* Each buffer is freed as soon as its operation has ended. */
static void queue(void)
{
    pvfs_queue *queue;
    pvfs_file *file, *missing;
    pvfs_done done[7];
    int ended = 0, failed = 0;
    CHECK(pvfs_queue_open(client, &queue) == 0);
    CHECK(pvfs_open(client, "/many", PVFS_CREATE, 0644, NULL, &file, NULL) == 0);
    for (int n = 0; n < OPERATIONS; n++) {
        char *buffer = malloc(4096);
        memset(buffer, n, 4096);
        pvfs_async later = {queue, buffer};
        CHECK(pvfs_write(file, buffer, 4096, (uint64_t)n * 4096, &later) == 0);
    }
    pvfs_async nothing = {queue, NULL};
    CHECK(pvfs_open(client, "/missing", 0, 0, NULL, &missing, &nothing) == 0);
    while (ended < OPERATIONS + 1) {
        struct pollfd readable = {pvfs_queue_fd(queue), POLLIN, 0};
        CHECK(poll(&readable, 1, 60000) == 1);
        int64_t count = pvfs_complete(queue, done, 7);
        CHECK(count >= 0 && count <= 7);
        for (int64_t n = 0; n < count; n++, ended++) {
            if (done[n].result < 0) {
                CHECK(done[n].result == -ENOENT && !done[n].user && strstr(done[n].error, "/missing"));
                failed++;
            } else {
                CHECK(done[n].result == 4096 && !done[n].error);
                free(done[n].user);
            }
        }
    }
    CHECK(failed == 1);
    CHECK(pvfs_complete(queue, done, 7) == 0);
    struct pollfd readable = {pvfs_queue_fd(queue), POLLIN, 0};
    CHECK(poll(&readable, 1, 0) == 0);
    static char all[OPERATIONS * 4096];
    CHECK(pvfs_read(file, all, sizeof all, 0, NULL) == (int64_t)sizeof all);
    for (int n = 0; n < OPERATIONS * 4096; n++)
        CHECK(all[n] == (char)(n / 4096));
    /* Closing waits for what was posted. */
    static char last[4096];
    CHECK(pvfs_read(file, last, sizeof last, 4096, &nothing) == 0);
    pvfs_close(file);
    pvfs_queue_close(queue);
    CHECK(last[0] == 1 && last[4095] == 1);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && pvfs_connect(argv[1], 20000, &client) == 0);
    names();
    types();
    queue();
    pvfs_disconnect(client);
    puts("all of it");
    return 0;
}
