/* Eight threads on one context: nothing is lost, no order broken, whoever polls. */
#include "check.h"

enum
{
    THREADS = 8,
    MESSAGES = 150,
    LONGEST = 20000
};

static BMI_addr_t peer;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int told, expected_tells;

struct message
{
    int thread, number;
    char more[LONGEST];
};

/* An operation: what a thread has posted. Any thread may be told of it. */
struct operation
{
    struct message *buffer;
    int thread, number, ended;
};

static struct operation receives[THREADS][MESSAGES], sends[THREADS][MESSAGES];

static bmi_size_t length_of(int number)
{
    return sizeof(int) * 2 + (number % 7 == 0 ? LONGEST : number);
}

static void note(struct operation *operation, bmi_error_code_t error)
{
    IS(error, 0);
    pthread_mutex_lock(&lock);
    IS(operation->ended, 0);
    operation->ended = 1;
    told++;
    pthread_mutex_unlock(&lock);
}

/* Takes what has ended, whoever posted it. */
static void tell(int idle_ms)
{
    bmi_op_id_t ids[4];
    bmi_error_code_t errors[4];
    bmi_size_t sizes[4];
    void *users[4];
    int count = 0;
    int ret = BMI_testcontext(4, ids, &count, errors, sizes, users, idle_ms, context);

    IS(ret, count > 0);
    for (int at = 0; at < count; at++)
    {
        note(users[at], errors[at]);
    }
}

static int all_told(void)
{
    int all;

    pthread_mutex_lock(&lock);
    all = told == expected_tells;
    pthread_mutex_unlock(&lock);
    return all;
}

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument;

    for (int number = 0; number < MESSAGES; number++)
    {
        struct operation *receive = &receives[thread][number], *send = &sends[thread][number];
        bmi_op_id_t id;
        bmi_size_t size = 0;
        int posted;

        *receive = (struct operation){calloc(1, sizeof(struct message)), thread, number, 0};
        *send = (struct operation){calloc(1, sizeof(struct message)), thread, number, 0};
        send->buffer->thread = thread;
        send->buffer->number = number;
        posted = BMI_post_recv(&id, peer, receive->buffer, sizeof(struct message), &size, BMI_EXT_ALLOC, thread, receive,
                               context, NULL);
        CHECK(posted == 0 || posted == 1);
        if (posted == 1)
        {
            note(receive, 0);
        }
        posted = BMI_post_send(&id, peer, send->buffer, length_of(number), BMI_EXT_ALLOC, thread, send, context, NULL);
        CHECK(posted == 0 || posted == 1);
        if (posted == 1)
        {
            note(send, 0);
        }
        tell(thread % 2);
    }
    while (!all_told())
    {
        tell(thread > 0 ? 50 : 0);
    }
    for (int number = 0; number < MESSAGES; number++)
    {
        IS(receives[thread][number].buffer->thread, thread);
        IS(receives[thread][number].buffer->number, number);
        free(receives[thread][number].buffer);
        free(sends[thread][number].buffer);
    }
    return NULL;
}

static void run(void)
{
    pthread_t threads[THREADS];

    expected_tells = 2 * THREADS * MESSAGES;
    for (intptr_t thread = 0; thread < THREADS; thread++)
    {
        IS(pthread_create(&threads[thread], NULL, work, (void *)thread), 0);
    }
    for (int thread = 0; thread < THREADS; thread++)
    {
        IS(pthread_join(threads[thread], NULL), 0);
    }
    IS(told, expected_tells);
}

/* A thread that sleeps in a test must not hold up what another posts. */
static void *sleep_long(void *argument)
{
    bmi_op_id_t id;
    bmi_error_code_t error;
    bmi_size_t size;
    int count;

    (void)argument;
    /* Ends when the answer to the main thread's message comes, in 20 s at the latest. */
    IS(BMI_testcontext(1, &id, &count, &error, &size, NULL, IDLE_MS, context), 1);
    IS(error, 0);
    return NULL;
}

static void serve(void)
{
    struct BMI_unexpected_info info = unexpected();
    char byte;

    peer = info.addr;
    IS(BMI_unexpected_free(peer, info.buffer), 0);
    run();
    IS(received(peer, &byte, 1, 100), 1);
    IS(sent(peer, &byte, 1, 101), 0);
}

static void call(const char *address)
{
    pthread_t sleeper;
    bmi_op_id_t id;
    char byte = 0;
    bmi_size_t size;

    IS(LOOKUP(&peer, address), 0);
    IS(sent_unexpected(peer, &byte, 1, 0), 0);
    run();
    IS(BMI_post_recv(&id, peer, &byte, 1, &size, BMI_EXT_ALLOC, 101, NULL, context, NULL), 0);
    IS(pthread_create(&sleeper, NULL, sleep_long, NULL), 0);
    /* Until the thread sleeps, most likely: correct in any case. */
    usleep(20000);
    IS(BMI_post_send(&id, peer, &byte, 1, BMI_EXT_ALLOC, 100, NULL, context, NULL), 1);
    IS(pthread_join(sleeper, NULL), 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    pair(argv[1], serve, call);
    return 0;
}
