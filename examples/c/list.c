/*
 * The transfer of a list over BMI: the tile of an array, row by row, into a buffer without gaps.
 *
 *   list server ADDRESS
 *   list client ADDRESS
 *
 * The server has an array of 4000 rows of 4000 bytes. The client asks for a tile of 1000 rows of
 * 1000 bytes. The server sends the rows as one message, without copying them together first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bmi.h>

enum
{
    ROWS = 1000,
    COLUMNS = 1000,
    WIDTH = 4000,
    DATA = 1,
    IDLE_MS = 1000
};

static bmi_context_id context;

static void check(int ret, const char *what)
{
    if (ret < 0)
    {
        fprintf(stderr, "%s: %s\n", what, bmi_status_string(ret));
        exit(1);
    }
}

/* Waits for the end of an operation, unless its post has returned 1. */
static void finish(int posted, bmi_op_id_t id, bmi_size_t *size, const char *what)
{
    int count = 0;
    bmi_error_code_t error = 0;

    check(posted, what);
    while (posted == 0 && count == 0)
    {
        check(BMI_test(id, &count, &error, size, NULL, IDLE_MS, context), what);
    }
    check(error, what);
}

static char byte_at(int row, int column)
{
    return (char)(row * 31 + column);
}

static void serve(void)
{
    struct BMI_unexpected_info info;
    char *array = malloc((size_t)WIDTH * WIDTH);
    const void *rows[ROWS];
    bmi_size_t sizes[ROWS];
    bmi_op_id_t id;
    int start[2], count = 0, ret;

    if (array == NULL)
    {
        exit(1);
    }
    for (int row = 0; row < WIDTH; row++)
    {
        for (int column = 0; column < WIDTH; column++)
        {
            array[(size_t)row * WIDTH + column] = byte_at(row, column);
        }
    }
    while (count == 0)
    {
        check(BMI_testunexpected(1, &count, &info, IDLE_MS), "request");
    }
    memcpy(start, info.buffer, sizeof start);
    check(BMI_unexpected_free(info.addr, info.buffer), "free");
    if (start[0] < 0 || start[0] > WIDTH - ROWS || start[1] < 0 || start[1] > WIDTH - COLUMNS)
    {
        fprintf(stderr, "the tile is not in the array\n");
        exit(1);
    }
    for (int row = 0; row < ROWS; row++)
    {
        rows[row] = array + (size_t)(start[0] + row) * WIDTH + start[1];
        sizes[row] = COLUMNS;
    }
    ret = BMI_post_send_list(&id, info.addr, rows, sizes, ROWS, (bmi_size_t)ROWS * COLUMNS, BMI_EXT_ALLOC, DATA,
                             NULL, context, NULL);
    finish(ret, id, NULL, "send");
    free(array);
}

static void fetch(const char *address)
{
    int start[2] = {1500, 300}, ret, sent;
    BMI_addr_t server;
    bmi_op_id_t receiving, sending;
    bmi_size_t size = 0;
    char *tile = malloc((size_t)ROWS * COLUMNS);

    if (tile == NULL)
    {
        exit(1);
    }
    check(BMI_addr_lookup(&server, address, NULL), "look-up");
    ret = BMI_post_recv(&receiving, server, tile, (bmi_size_t)ROWS * COLUMNS, &size, BMI_EXT_ALLOC, DATA, NULL,
                        context, NULL);
    check(ret, "receive");
    sent = BMI_post_sendunexpected(&sending, server, start, sizeof start, BMI_EXT_ALLOC, 0, NULL, context, NULL);
    finish(sent, sending, NULL, "request");
    finish(ret, receiving, &size, "receive");
    for (int row = 0; row < ROWS; row++)
    {
        for (int column = 0; column < COLUMNS; column++)
        {
            if (tile[row * COLUMNS + column] != byte_at(start[0] + row, start[1] + column))
            {
                fprintf(stderr, "row %d, column %d: another byte\n", row, column);
                exit(1);
            }
        }
    }
    printf("%d rows of %d bytes, in a message of %lld\n", ROWS, COLUMNS, (long long)size);
    free(tile);
}

int main(int argc, char **argv)
{
    int is_server = argc == 3 && strcmp(argv[1], "server") == 0;

    if (argc != 3 || (!is_server && strcmp(argv[1], "client") != 0))
    {
        fprintf(stderr, "usage: list server|client ADDRESS\n");
        return 2;
    }
    if (is_server)
    {
        char method[16];

        snprintf(method, sizeof method, "bmi_%.*s", (int)strcspn(argv[2], ":"), argv[2]);
        check(BMI_initialize(method, argv[2], BMI_INIT_SERVER, NULL), "initialise");
        printf("listening\n");
        fflush(stdout);
    }
    else
    {
        check(BMI_initialize(NULL, NULL, 0, NULL), "initialise");
    }
    check(BMI_open_context(&context), "context");
    if (is_server)
    {
        serve();
    }
    else
    {
        fetch(argv[2]);
    }
    BMI_close_context(context);
    check(BMI_finalize(), "finalise");
    return 0;
}
