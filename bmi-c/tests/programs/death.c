/* A peer dies with operations on it. Its address stays, and is used when it has come back. */
#include "check.h"

struct child
{
    pid_t pid;
    int go, ready;
};

/* Starts a child that waits for its turn. A process that has the library cannot fork one. */
static struct child start(void (*run)(const char *, int, int), const char *address, int number)
{
    int go[2], ready[2];
    struct child child;
    char byte;

    IS(pipe(go), 0);
    IS(pipe(ready), 0);
    child = (struct child){start_child(), go[1], ready[0]};
    if (child.pid == 0)
    {
        IS(read(go[0], &byte, 1), 1);
        run(address, number, ready[1]);
        _exit(0);
    }
    return child;
}

static void begin(struct child child)
{
    char byte;

    IS(write(child.go, "", 1), 1);
    IS(read(child.ready, &byte, 1), 1);
}

static void kill_it(struct child child)
{
    int status;

    IS(kill(child.pid, SIGKILL), 0);
    IS(waitpid(child.pid, &status, 0), child.pid);
}

/* Answers a request with a number, and waits to be killed. */
static void serve(const char *address, int number, int ready)
{
    char byte;

    begin_server(address);
    IS(write(ready, "", 1), 1);
    {
        struct BMI_unexpected_info info = unexpected();
        IS(sent(info.addr, &number, sizeof number, 1), 0);
        received(info.addr, &byte, 1, 2);
    }
}

/* Sends a request, and waits to be killed. */
static void call(const char *address, int number, int ready)
{
    BMI_addr_t server;
    char byte;

    begin_client();
    IS(BMI_addr_lookup(&server, address, NULL), 0);
    IS(write(ready, "", 1), 1);
    IS(sent_unexpected(server, &number, sizeof number, 0), 0);
    received(server, &byte, 1, 2);
}

int main(int argc, char **argv)
{
    struct child servers[2], client;
    struct BMI_unexpected_info info;
    BMI_addr_t addr;
    bmi_op_id_t id;
    bmi_size_t size;
    int number = 0;
    char byte = 0;

    CHECK(argc == 2);
    servers[0] = start(serve, argv[1], 1);
    servers[1] = start(serve, argv[1], 2);
    client = start(call, argv[1], 3);

    begin_client();
    IS(BMI_addr_lookup(&addr, argv[1], NULL), 0);
    for (int at = 0; at < 2; at++)
    {
        begin(servers[at]);
        IS(sent_unexpected(addr, "", 1, 0), 0);
        IS(received(addr, &number, sizeof number, 1), sizeof number);
        IS(number, at + 1);
        IS(BMI_post_recv(&id, addr, &byte, 1, &size, BMI_EXT_ALLOC, 9, NULL, context, NULL), 0);
        kill_it(servers[at]);
        CHECK(ended(0, id, &size) < 0);
        CHECK(strcmp(BMI_addr_rev_lookup(addr), argv[1]) == 0);
    }
    end();

    begin_server(argv[1]);
    begin(client);
    info = unexpected();
    IS(info.size, sizeof number);
    IS(BMI_post_recv(&id, info.addr, &byte, 1, &size, BMI_EXT_ALLOC, 9, NULL, context, NULL), 0);
    kill_it(client);
    CHECK(ended(0, id, &size) < 0);
    CHECK(BMI_addr_rev_lookup(info.addr) != NULL);
    IS(BMI_post_send(&id, info.addr, &byte, 1, BMI_EXT_ALLOC, 9, NULL, context, NULL), -BMI_ECONNRESET);
    IS(BMI_unexpected_free(info.addr, info.buffer), 0);
    end();
    return 0;
}
