/*
 * The transfer of a list over BMI: the tile of an array, row by row, into a buffer without gaps.
 *
 *   list server ADDRESS
 *   list client ADDRESS
 *
 * The server has an array of 4000 rows of 4000 bytes. The client asks for a tile of 1000 rows of
 * 1000 bytes. The server sends the rows as one message, without copying them together first.
 */
#include "example.h"

enum
{
    ROWS = 1000,
    COLUMNS = 1000,
    WIDTH = 4000,
    DATA = 1
};

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
    begin(is_server, argv[2]);
    if (is_server)
    {
        serve();
    }
    else
    {
        fetch(argv[2]);
    }
    end();
    return 0;
}
