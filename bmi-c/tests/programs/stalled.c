/*
 * A peer of this host stops while it copies from the buffer of a send. The send is cancelled, and its
 * connection is cut. It does not end before the peer has finished its copy or is dead.
 */
#include "check.h"
#include <sys/mman.h>

enum
{
    LEN = 1 << 20,
    PAGE = 4096
};

static char *trap;
static int stalls;

/* The copy has come to a page that it may not write. */
static void stall(int signal)
{
    (void)signal;
    IS(write(stalls, "", 1), 1);
    raise(SIGSTOP);
    IS(mprotect(trap, PAGE, PROT_READ | PROT_WRITE), 0);
}

/* Receives a long message, and stops in the middle of its copy. */
static void serve(const char *address, int number, int ready)
{
    char *buffer = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct BMI_unexpected_info info;

    (void)number;
    stalls = ready;
    trap = buffer + LEN / 2;
    CHECK(buffer != MAP_FAILED && signal(SIGSEGV, stall) != SIG_ERR);
    begin_server(address);
    IS(write(ready, "", 1), 1);
    info = unexpected();
    IS(mprotect(trap, PAGE, PROT_NONE), 0);
    received(info.addr, buffer, LEN, 1);
    IS(write(ready, "", 1), 1);
    pause();
}

int main(int argc, char **argv)
{
    struct child servers[2];

    CHECK(argc == 2);
    servers[0] = start(serve, argv[1], 0);
    servers[1] = start(serve, argv[1], 1);
    begin_client();
    for (int at = 0; at < 2; at++)
    {
        struct child server = servers[at];
        BMI_addr_t addr;
        bmi_op_id_t send, receive;
        bmi_size_t size;
        int status, count = 0;
        bmi_error_code_t error = 0;
        char byte, *memory;

        begin(server);
        IS(BMI_addr_lookup(&addr, argv[1], NULL), 0);
        IS(sent_unexpected(addr, "", 1, 0), 0);
        memory = BMI_memalloc(addr, LEN, BMI_SEND);
        CHECK(memory != NULL);
        IS(BMI_post_recv(&receive, addr, &byte, 1, &size, BMI_EXT_ALLOC, 9, NULL, context, NULL), 0);
        IS(BMI_post_send(&send, addr, memory, LEN, BMI_PRE_ALLOC, 1, NULL, context, NULL), 0);
        /* The server copies without this process. */
        IS(BMI_test(send, &count, &error, NULL, NULL, 0, context), 0);
        IS(read(server.ready, &byte, 1), 1);
        IS(waitpid(server.pid, &status, WUNTRACED), server.pid);
        CHECK(WIFSTOPPED(status));

        IS(BMI_cancel(send, context), 0);
        /* What ends with its connection has ended. */
        CHECK(ended(0, receive, &size) < 0);
        IS(BMI_test(send, &count, &error, NULL, NULL, 50, context), 0);
        if (at == 0)
        {
            IS(kill(server.pid, SIGCONT), 0);
            IS(read(server.ready, &byte, 1), 1);
        }
        else
        {
            kill_it(server);
        }
        CHECK(ended(0, send, &size) < 0);
        IS(BMI_memfree(addr, memory, LEN, BMI_SEND), 0);
        if (at == 0)
        {
            kill_it(server);
        }
    }
    end();
    return 0;
}
