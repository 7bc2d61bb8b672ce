/*
 * Messages back and forth over BMI: a server and a client.
 *
 *   pingpong server ADDRESS
 *   pingpong client ADDRESS [ROUNDS [BYTES]]
 *
 * An address is tcp://host:port, shm:///path or ib://host:port. The client sends a request, an
 * unexpected message with the number of rounds and of bytes, and then pings. It prints the mean
 * time of a round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <bmi.h>

#define IDLE_MS 1000

struct request
{
    int32_t rounds;
    int32_t bytes;
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

static void send_to(BMI_addr_t peer, const void *buffer, int bytes, int tag)
{
    bmi_op_id_t id;
    int ret = BMI_post_send(&id, peer, buffer, bytes, BMI_PRE_ALLOC, tag, NULL, context, NULL);

    finish(ret, id, NULL, "send");
}

static void receive_from(BMI_addr_t peer, void *buffer, int bytes, int tag)
{
    bmi_op_id_t id;
    bmi_size_t size = 0;
    int ret = BMI_post_recv(&id, peer, buffer, bytes, &size, BMI_PRE_ALLOC, tag, NULL, context, NULL);

    finish(ret, id, &size, "receive");
    if (size != bytes)
    {
        fprintf(stderr, "%d bytes expected, %lld came\n", bytes, (long long)size);
        exit(1);
    }
}

static void serve(void)
{
    struct BMI_unexpected_info info;
    struct request request;
    int count = 0;
    char *buffer;

    while (count == 0)
    {
        check(BMI_testunexpected(1, &count, &info, IDLE_MS), "request");
    }
    memcpy(&request, info.buffer, sizeof request);
    check(BMI_unexpected_free(info.addr, info.buffer), "free");
    buffer = BMI_memalloc(info.addr, request.bytes, BMI_RECV);
    if (buffer == NULL)
    {
        exit(1);
    }
    for (int round = 0; round < request.rounds; round++)
    {
        receive_from(info.addr, buffer, request.bytes, round);
        send_to(info.addr, buffer, request.bytes, round);
    }
    check(BMI_memfree(info.addr, buffer, request.bytes, BMI_RECV), "free");
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void ping(const char *address, struct request request)
{
    BMI_addr_t server;
    bmi_op_id_t id;
    char *out, *in;
    double start;
    int ret;

    check(BMI_addr_lookup(&server, address, NULL), "look-up");
    ret = BMI_post_sendunexpected(&id, server, &request, sizeof request, BMI_EXT_ALLOC, 0, NULL, context, NULL);
    finish(ret, id, NULL, "request");
    out = BMI_memalloc(server, request.bytes, BMI_SEND);
    in = BMI_memalloc(server, request.bytes, BMI_RECV);
    if (out == NULL || in == NULL)
    {
        exit(1);
    }
    start = now();
    for (int round = 0; round < request.rounds; round++)
    {
        memset(out, round, request.bytes);
        send_to(server, out, request.bytes, round);
        receive_from(server, in, request.bytes, round);
        if (memcmp(out, in, request.bytes) != 0)
        {
            fprintf(stderr, "round %d: other bytes came back\n", round);
            exit(1);
        }
    }
    printf("%d rounds of %d bytes: %.1f us each\n", request.rounds, request.bytes,
           (now() - start) / request.rounds * 1e6);
    check(BMI_memfree(server, out, request.bytes, BMI_SEND), "free");
    check(BMI_memfree(server, in, request.bytes, BMI_RECV), "free");
}

int main(int argc, char **argv)
{
    struct request request;
    int is_server = argc == 3 && strcmp(argv[1], "server") == 0;

    if (!is_server && (argc < 3 || strcmp(argv[1], "client") != 0))
    {
        fprintf(stderr, "usage: pingpong server ADDRESS | client ADDRESS [ROUNDS [BYTES]]\n");
        return 2;
    }
    request.rounds = argc > 3 ? atoi(argv[3]) : 1000;
    request.bytes = argc > 4 ? atoi(argv[4]) : 8;
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
        ping(argv[2], request);
    }
    BMI_close_context(context);
    check(BMI_finalize(), "finalise");
    return 0;
}
