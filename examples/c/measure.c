/*
 * Latency and rate of messages over BMI: a server and a client, both of which poll.
 *
 *   measure server ADDRESS
 *   measure client ADDRESS
 *
 * For 8 bytes, 4 KiB and 64 KiB the client prints half the time of a round, and the messages per
 * second of a stream to the server with 16 of them in flight: the median of nine runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <bmi.h>

enum
{
    RUNS = 9,
    DEPTH = 16,
    LONGEST = 65536
};

static const int sizes[] = {8, 4096, 65536};
static bmi_context_id context;
static BMI_addr_t peer;
static char *in, *out;

static void check(int ret)
{
    if (ret < 0)
    {
        fprintf(stderr, "%s\n", bmi_status_string(ret));
        exit(1);
    }
}

/* Posts a receive or a send. Returns 1 if it has to be told of. */
static int post(int sends, int bytes, int tag, intptr_t user)
{
    bmi_op_id_t id;
    bmi_size_t size;
    int ret = sends ? BMI_post_send(&id, peer, out, bytes, BMI_PRE_ALLOC, tag, (void *)user, context, NULL)
                    : BMI_post_recv(&id, peer, in + user * LONGEST, bytes, &size, BMI_PRE_ALLOC, tag, (void *)user,
                                    context, NULL);

    check(ret);
    return ret == 0;
}

/* Returns how many operations have ended, and their users. */
static int told(void **users)
{
    bmi_op_id_t ids[DEPTH];
    bmi_error_code_t errors[DEPTH];
    bmi_size_t lengths[DEPTH];
    int count = 0;

    check(BMI_testcontext(DEPTH, ids, &count, errors, lengths, users, 0, context));
    for (int at = 0; at < count; at++)
    {
        check(errors[at]);
    }
    return count;
}

static void finish(int pending)
{
    void *users[DEPTH];

    while (pending > 0)
    {
        pending -= told(users);
    }
}

/* Round trips. Two receives are posted ahead, so that none is on the way of an answer. */
static void rounds(int count, int bytes, int begins)
{
    void *users[DEPTH];
    int sent = 0, pending = post(0, bytes, 1, 0) + post(0, bytes, 1, 1), came = 2 - pending;

    while (sent < count || came < count || pending > 0)
    {
        if (sent < count && (begins ? sent == came : sent < came))
        {
            pending += post(1, bytes, 1, DEPTH);
            sent++;
            if (sent > 1 && sent < count)
            {
                int waits = post(0, bytes, 1, sent % 2);
                pending += waits;
                came += !waits;
            }
        }
        for (int at = 0, got = told(users); at < got; at++)
        {
            came += (intptr_t)users[at] != DEPTH;
            pending--;
        }
    }
}

/* Receives into a buffer until it has to wait for a message. */
static void receive_next(int count, int bytes, int buffer, int *posted, int *pending, int *ended)
{
    int waits = 0;

    while (!waits && *posted < count)
    {
        waits = post(0, bytes, 2, buffer);
        *pending += waits;
        *ended += !waits;
        (*posted)++;
    }
}

/* A stream to the server: it says when it is ready, and answers the last message. */
static void stream(int count, int bytes, int sends)
{
    void *users[DEPTH];
    int posted = 0, pending = 0, ended = 0;

    if (sends)
    {
        finish(post(0, 1, 3, 0));
    }
    else
    {
        for (int at = 0; at < DEPTH; at++)
        {
            receive_next(count, bytes, at, &posted, &pending, &ended);
        }
        pending += post(1, 1, 3, DEPTH);
    }
    while (ended < count)
    {
        while (sends && posted < count && pending < DEPTH)
        {
            int waits = post(1, bytes, 2, 0);
            pending += waits;
            ended += !waits;
            posted++;
        }
        for (int at = 0, got = told(users); at < got; at++)
        {
            intptr_t user = (intptr_t)users[at];
            pending--;
            if (user == DEPTH)
            {
                continue;
            }
            ended++;
            if (!sends)
            {
                receive_next(count, bytes, user, &posted, &pending, &ended);
            }
        }
    }
    finish(pending);
    finish(post(!sends, 1, 3, 0));
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(void (*run)(int, int, int), int count, int bytes, int is_client)
{
    double times[RUNS];

    run(count / 10, bytes, is_client);
    for (int at = 0; at < RUNS; at++)
    {
        double start = now();
        run(count, bytes, is_client);
        times[at] = (now() - start) / count;
    }
    qsort(times, RUNS, sizeof *times, compare);
    return times[RUNS / 2];
}

int main(int argc, char **argv)
{
    int is_client = argc == 3 && strcmp(argv[1], "client") == 0, count = 0;

    if (argc != 3 || (!is_client && strcmp(argv[1], "server") != 0))
    {
        fprintf(stderr, "usage: measure server|client ADDRESS\n");
        return 2;
    }
    if (is_client)
    {
        bmi_op_id_t id;
        check(BMI_initialize(NULL, NULL, 0, NULL));
        check(BMI_open_context(&context));
        check(BMI_addr_lookup(&peer, argv[2], NULL));
        finish(BMI_post_sendunexpected(&id, peer, "", 1, BMI_EXT_ALLOC, 0, NULL, context, NULL) == 0);
    }
    else
    {
        char method[16];
        struct BMI_unexpected_info info;
        snprintf(method, sizeof method, "bmi_%.*s", (int)strcspn(argv[2], ":"), argv[2]);
        check(BMI_initialize(method, argv[2], BMI_INIT_SERVER, NULL));
        check(BMI_open_context(&context));
        while (count == 0)
        {
            check(BMI_testunexpected(1, &count, &info, 1000));
        }
        peer = info.addr;
        check(BMI_unexpected_free(peer, info.buffer));
    }
    in = BMI_memalloc(peer, DEPTH * LONGEST, BMI_RECV);
    out = BMI_memalloc(peer, LONGEST, BMI_SEND);
    if (in == NULL || out == NULL)
    {
        return 1;
    }
    for (int at = 0; at < 3; at++)
    {
        int counts[2][3] = {{5000, 3000, 1000}, {30000, 6000, 1000}};
        double latency = median(rounds, counts[0][at], sizes[at], is_client) / 2;
        double each = median(stream, counts[1][at], sizes[at], is_client);
        if (is_client)
        {
            printf("%6d bytes: latency %8.2f us, rate %10.0f /s\n", sizes[at], latency * 1e6, 1 / each);
        }
    }
    BMI_close_context(context);
    return BMI_finalize() == 0 ? 0 : 1;
}
