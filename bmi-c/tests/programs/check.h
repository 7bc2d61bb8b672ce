/*
 * What the test programs share. A program is a server and a client: two processes, or one that is
 * both. Whatever is not as expected ends it with the line.
 */
#ifndef CHECK_H
#define CHECK_H

#include <bmi.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is)                                                                                  \
    do                                                                                             \
    {                                                                                              \
        if (!(is))                                                                                 \
        {                                                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #is);                               \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#define IS(value, expected)                                                                        \
    do                                                                                             \
    {                                                                                              \
        long long value_ = (value), is_ = (expected);                                              \
        if (value_ != is_)                                                                         \
        {                                                                                          \
            fprintf(stderr, "%s:%d: %s is %lld (%s), not %s\n", __FILE__, __LINE__, #value, \
                    value_, bmi_status_string((int)value_), #expected);                            \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#define IDLE_MS 20000

#if BMI_FORM == 1
#define INITIALIZE(methods, listen, flags) BMI_initialize(methods, listen, flags, NULL)
#define LOOKUP(addr, text) BMI_addr_lookup(addr, text, NULL)
#else
#define INITIALIZE(methods, listen, flags) BMI_initialize(methods, listen, flags)
#define LOOKUP(addr, text) BMI_addr_lookup(addr, text)
#endif

static bmi_context_id context;

/* Initialises a server at an address. */
static inline void begin_server(const char *address)
{
    char method[16];

    snprintf(method, sizeof method, "bmi_%.*s", (int)strcspn(address, ":"), address);
    IS(INITIALIZE(method, address, BMI_INIT_SERVER), 0);
    IS(BMI_open_context(&context), 0);
}

static inline void begin_client(void)
{
    IS(INITIALIZE(NULL, NULL, 0), 0);
    IS(BMI_open_context(&context), 0);
}

static inline void end(void)
{
    BMI_close_context(context);
    IS(BMI_finalize(), 0);
}

/* Waits for the end of an operation. Returns its error code. */
static inline int ended(int posted, bmi_op_id_t id, bmi_size_t *size)
{
    int count = 0;
    bmi_error_code_t error = 0;

    if (posted == 1)
    {
        IS(id, 0);
        return 0;
    }
    IS(posted, 0);
    CHECK(id != 0);
    IS(BMI_test(id, &count, &error, size, NULL, IDLE_MS, context), 1);
    IS(count, 1);
    return error;
}

static inline int sent(BMI_addr_t to, const void *buffer, bmi_size_t size, int tag)
{
    bmi_op_id_t id;
    int posted = BMI_post_send(&id, to, buffer, size, BMI_EXT_ALLOC, tag, NULL, context, NULL);

    return ended(posted, id, NULL);
}

static inline int sent_unexpected(BMI_addr_t to, const void *buffer, bmi_size_t size, int tag)
{
    bmi_op_id_t id;
    int posted = BMI_post_sendunexpected(&id, to, buffer, size, BMI_EXT_ALLOC, tag, NULL, context, NULL);

    return ended(posted, id, NULL);
}

/* Receives a message. Returns its length, or its error code. */
static inline bmi_size_t received(BMI_addr_t from, void *buffer, bmi_size_t size, int tag)
{
    bmi_op_id_t id;
    bmi_size_t actual = -1;
    int posted = BMI_post_recv(&id, from, buffer, size, &actual, BMI_EXT_ALLOC, tag, NULL, context, NULL);
    int error = ended(posted, id, &actual);

    return error == 0 ? actual : error;
}

/* Returns the next unexpected message. */
static inline struct BMI_unexpected_info unexpected(void)
{
    struct BMI_unexpected_info info;
    int count = 0;

    IS(BMI_testunexpected(1, &count, &info, IDLE_MS), 1);
    IS(count, 1);
    IS(info.error_code, 0);
    return info;
}

/* Starts a child that ends with this process, and both after a minute. */
static inline pid_t start_child(void)
{
    pid_t child = fork();

    alarm(60);
    if (child == 0)
    {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return child;
}

/* Runs a server in this process and a client in a child, after the server listens. */
static inline void pair(const char *address, void (*serve)(void), void (*call)(const char *))
{
    int ready[2], status;
    char byte;
    pid_t client;

    IS(pipe(ready), 0);
    client = start_child();
    if (client == 0)
    {
        close(ready[1]);
        IS(read(ready[0], &byte, 1), 1);
        begin_client();
        call(address);
        end();
        exit(0);
    }
    close(ready[0]);
    begin_server(address);
    IS(write(ready[1], "", 1), 1);
    serve();
    end();
    IS(waitpid(client, &status, 0), client);
    IS(status, 0);
}

#endif
