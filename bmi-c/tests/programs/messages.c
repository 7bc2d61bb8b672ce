/* Messages of all kinds between a server and a client, in each form of the interface. */
#include "check.h"

enum
{
    LONGEST = 3 << 20,
    PIECES = 5,
    ROUNDS = 20,
    CANCELLED = 77
};

static const bmi_size_t lengths[] = {0, 1, 8, 4096, 8192, 65536, 70001, LONGEST};
static const int length_count = sizeof lengths / sizeof *lengths;

static unsigned char *filled(bmi_size_t size, int seed)
{
    unsigned char *buffer = malloc(size + 1);

    CHECK(buffer != NULL);
    for (bmi_size_t at = 0; at < size; at++)
    {
        buffer[at] = (unsigned char)(at * 7 + (at >> 9) + seed);
    }
    return buffer;
}

/* Each length there and back, into receives that are longer. Buffers are freed at once. */
static void echo_lengths(BMI_addr_t peer, int begins)
{
    for (int at = 0; at < length_count; at++)
    {
        unsigned char *out = filled(lengths[at], at);
        unsigned char *in = calloc(1, LONGEST + 1);

        if (begins)
        {
            IS(sent(peer, out, lengths[at], at), 0);
        }
        IS(received(peer, in, LONGEST + 1, at), lengths[at]);
        CHECK(memcmp(in, out, lengths[at]) == 0);
        IS(in[lengths[at]], 0);
        if (!begins)
        {
            IS(sent(peer, out, lengths[at], at), 0);
        }
        free(in);
        free(out);
    }
}

/* A list of pieces of an allocation that lie apart, gathered here and scattered there. */
static void move_list(BMI_addr_t peer, int sends)
{
    bmi_size_t sizes[PIECES] = {1, 100, 0, 5000, 300000}, total = 0, actual = 0;
    unsigned char *space = filled(4 * LONGEST, sends ? 3 : 4), *expected = filled(4 * LONGEST, 3);
    const void *from[PIECES];
    void *to[PIECES];
    bmi_op_id_t id;
    int posted;

    for (int at = 0; at < PIECES; at++)
    {
        to[at] = space + at * 700001;
        from[at] = to[at];
        total += sizes[at];
    }
    if (sends)
    {
        posted = BMI_post_send_list(&id, peer, from, sizes, PIECES, total, BMI_EXT_ALLOC, 9, NULL, context, NULL);
        IS(ended(posted, id, NULL), 0);
        return;
    }
    posted = BMI_post_recv_list(&id, peer, to, sizes, PIECES, total, &actual, BMI_EXT_ALLOC, 9, NULL, context, NULL);
    IS(ended(posted, id, &actual), 0);
    IS(actual, total);
    for (int at = 0; at < PIECES; at++)
    {
        CHECK(memcmp(to[at], expected + at * 700001, sizes[at]) == 0);
        CHECK(at == 0 || space[at * 700001 - 1] != expected[at * 700001 - 1]);
    }
    free(space);
    free(expected);
}

/* Several receives at a time, told of by BMI_testsome and BMI_testcontext, in the order of tags. */
static void take_many(BMI_addr_t peer)
{
    bmi_op_id_t ids[ROUNDS + 1], told[ROUNDS];
    int values[ROUNDS], indices[ROUNDS + 1], count, seen = 0;
    bmi_error_code_t errors[ROUNDS + 1];
    bmi_size_t sizes[ROUNDS + 1];
    void *users[ROUNDS + 1];

    ids[ROUNDS] = 0;
    for (int at = 0; at < ROUNDS; at++)
    {
        bmi_size_t size;
        IS(BMI_post_recv(&ids[at], peer, &values[at], sizeof *values, &size, BMI_EXT_ALLOC, 1000, &values[at], context,
                         NULL), 0);
    }
    IS(sent(peer, "go", 2, 1), 0);
    while (seen < ROUNDS / 2)
    {
        int ret = BMI_testsome(ROUNDS + 1, ids, &count, indices, errors, sizes, users, IDLE_MS, context);
        IS(ret, 1);
        for (int at = 0; at < count; at++)
        {
            int index = indices[at];
            IS(errors[at], 0);
            IS(sizes[at], sizeof *values);
            CHECK(users[at] == &values[index]);
            IS(values[index], index);
            ids[index] = 0;
            seen++;
        }
    }
    while (seen < ROUNDS)
    {
        IS(BMI_testcontext(3, told, &count, errors, sizes, users, IDLE_MS, context), 1);
        CHECK(count <= 3);
        for (int at = 0; at < count; at++)
        {
            int index = (int)((int *)users[at] - values);
            IS(told[at], ids[index]);
            IS(values[index], index);
            seen++;
        }
    }
    IS(BMI_testcontext(3, told, &count, errors, sizes, users, 0, context), 0);
    IS(count, 0);
}

static void give_many(BMI_addr_t peer)
{
    int values[ROUNDS], count = 0, pending = 0;
    bmi_op_id_t id, told[ROUNDS];
    bmi_error_code_t errors[ROUNDS];
    bmi_size_t sizes[ROUNDS];
    char go[2];

    IS(received(peer, go, 2, 1), 2);
    for (int at = 0; at < ROUNDS; at++)
    {
        int posted;
        values[at] = at;
        posted = BMI_post_send(&id, peer, &values[at], sizeof *values, BMI_EXT_ALLOC, 1000, NULL, context, NULL);
        CHECK(posted == 0 || posted == 1);
        IS(id != 0, posted == 0);
        pending += posted == 0;
    }
    while (pending > 0)
    {
        IS(BMI_testcontext(ROUNDS, told, &count, errors, sizes, NULL, IDLE_MS, context), 1);
        for (int at = 0; at < count; at++)
        {
            IS(errors[at], 0);
        }
        pending -= count;
    }
}

/* Another context tells of its operations only. */
static void use_contexts(BMI_addr_t peer)
{
    bmi_context_id other;
    bmi_op_id_t id, told;
    int value = 0, count = 0;
    bmi_error_code_t error = 0;
    bmi_size_t size = 0;

    IS(BMI_open_context(&other), 0);
    CHECK(other != context && other != 0);
    IS(BMI_post_recv(&id, peer, &value, sizeof value, &size, BMI_EXT_ALLOC, 5, &value, other, NULL), 0);
    IS(BMI_test(id, &count, &error, &size, NULL, 0, context), -BMI_EINVAL);
    IS(sent(peer, "go", 2, 6), 0);
    IS(BMI_testcontext(1, &told, &count, &error, &size, NULL, IDLE_MS, other), 1);
    IS(told, id);
    IS(value, 5);
    IS(BMI_test(id, &count, &error, &size, NULL, 0, other), -BMI_EINVAL);
    /* The close ends what is left. */
    IS(BMI_post_recv(&id, peer, &value, sizeof value, &size, BMI_EXT_ALLOC, 5, NULL, other, NULL), 0);
    BMI_close_context(other);
    IS(BMI_test(id, &count, &error, &size, NULL, 0, context), -BMI_EINVAL);
    IS(BMI_testcontext(1, &told, &count, &error, &size, NULL, 0, other), -BMI_EINVAL);
}

static void cancel_one(BMI_addr_t peer)
{
    bmi_op_id_t id;
    bmi_size_t size;
    char buffer[100];

    IS(BMI_post_recv(&id, peer, buffer, sizeof buffer, &size, BMI_EXT_ALLOC, CANCELLED, NULL, context, NULL), 0);
    IS(BMI_cancel(id, context), 0);
    IS(ended(0, id, &size), -BMI_ECANCEL);
    IS(BMI_cancel(id, context), -BMI_EINVAL);
}

/* Too long for its receive, and too long for an unexpected message. */
static void send_too_much(BMI_addr_t peer)
{
    int most = 0;
    bmi_op_id_t id;
    unsigned char *buffer = filled(LONGEST, 0);

    IS(BMI_get_info(peer, BMI_GET_UNEXP_SIZE, &most), 0);
    CHECK(most >= 8192 && most < LONGEST);
    IS(BMI_post_sendunexpected(&id, peer, buffer, LONGEST, BMI_EXT_ALLOC, 3, NULL, context, NULL), -BMI_EMSGSIZE);
    IS(id, 0);
    free(buffer);
}

static void serve(void)
{
    struct BMI_unexpected_info info = unexpected();
    char *pre, text[8];
    int count;
    bmi_error_code_t error;
    bmi_op_id_t id;

    IS(info.tag, -5);
    IS(info.size, 5);
    CHECK(memcmp(info.buffer, "hello", 5) == 0);
    CHECK(strncmp(BMI_addr_rev_lookup_unexpected(info.addr), "UNKNOWN", 7) != 0);
    CHECK(BMI_addr_rev_lookup(info.addr) != NULL);
    IS(BMI_unexpected_free(info.addr, info.buffer), 0);
    echo_lengths(info.addr, 0);
    move_list(info.addr, 1);
    give_many(info.addr);
    IS(received(info.addr, text, sizeof text, 6), 2);
    IS(sent(info.addr, &(int){5}, sizeof(int), 5), 0);
    IS(received(info.addr, text, 4, 8), -BMI_EMSGSIZE);
    /* Memory of the library, and a part of it. */
    pre = BMI_memalloc(info.addr, 1000, BMI_RECV);
    CHECK(pre != NULL && pre[999] == 0);
    {
        bmi_size_t size = 0;
        int posted = BMI_post_recv(&id, info.addr, pre + 10, 990, &size, BMI_PRE_ALLOC, 4, NULL, context, NULL);
        IS(ended(posted, id, &size), 0);
        IS(size, 990);
        IS(pre[9], 0);
        IS(pre[10], 1);
    }
    IS(BMI_memfree(info.addr, pre, 1000, BMI_RECV), 0);
    /* An unexpected message that waits ends the wait of a context, which has nothing to tell. */
    IS(BMI_testcontext(1, &id, &count, &error, &(bmi_size_t){0}, NULL, IDLE_MS, context), 0);
    IS(count, 0);
#if BMI_FORM == 3
    IS(BMI_testunexpected(1, &count, &info, 0), 0);
    IS(BMI_testunexpected_class(1, &count, &info, 6, 0), 0);
    IS(BMI_testunexpected_class(1, &count, &info, 7, IDLE_MS), 1);
#else
    info = unexpected();
#endif
    IS(info.tag, 2);
    free(info.buffer);
    IS(sent(info.addr, "bye", 3, 0), 0);
}

static void call(const char *address)
{
    BMI_addr_t server = 0, again = 0;
    char bye[3], pre[990];
    int posted;
    bmi_op_id_t id;

    IS(LOOKUP(&server, address), 0);
    IS(LOOKUP(&again, address), 0);
    IS(again, server);
    CHECK(strcmp(BMI_addr_rev_lookup(server), address) == 0);
    IS(sent_unexpected(server, "hello", 5, -5), 0);
    echo_lengths(server, 1);
    move_list(server, 0);
    take_many(server);
    use_contexts(server);
    cancel_one(server);
    send_too_much(server);
    IS(sent(server, "12345", 5, 8), 0);
    memset(pre, 1, sizeof pre);
    IS(sent(server, pre, sizeof pre, 4), 0);
#if BMI_FORM == 3
    posted = BMI_post_sendunexpected_class(&id, server, pre, 1, BMI_EXT_ALLOC, 2, 7, NULL, context, NULL);
#else
    {
        const void *buffers[2] = {pre, pre};
        bmi_size_t sizes[2] = {1, 0};
        posted = BMI_post_sendunexpected_list(&id, server, buffers, sizes, 2, 1, BMI_EXT_ALLOC, 2, NULL, context, NULL);
    }
#endif
    IS(ended(posted, id, NULL), 0);
    IS(received(server, bye, 3, 0), 3);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    pair(argv[1], serve, call);
    return 0;
}
