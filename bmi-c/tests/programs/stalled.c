/*
 * A peer of this host is stopped while it copies a message out of the memory of its sender. The
 * send is cancelled, and its connection is cut. It does not end before the peer goes on or is dead.
 *
 * The peer may also have got its bytes through the ring. Such a send ends with its connection. So
 * the sender writes to the memory meanwhile: if these bytes arrive, the peer was copying out of it.
 * An attempt without that shows nothing, and there is another one.
 */
#include "check.h"
#include <poll.h>
#include <sys/mman.h>

enum
{
    LEN = 1 << 20,
    PAGE = 4096,
    /* Where the copy stops, and a byte that is copied behind it in the same step. */
    TRAP = LEN / 2,
    BEHIND = TRAP + 8 * PAGE,
    /* Messages after which the peer usually has the memory mapped. */
    BEFORE = 4,
    OLD = 1,
    NEW = 2,
    ATTEMPTS = 10,
    SHOWS_NOTHING = 3
};

/* What came of the message at the peer. */
struct arrived
{
    bmi_size_t result;
    char byte;
};

static char *buffer;
static int stalls;

/* The copy has come to a page that it may not write. */
static void stall(int signal)
{
    (void)signal;
    IS(write(stalls, "", 1), 1);
    raise(SIGSTOP);
    IS(mprotect(buffer + TRAP, PAGE, PROT_READ | PROT_WRITE), 0);
}

static void serve(const char *address, int number, int ready)
{
    struct BMI_unexpected_info info;
    struct arrived arrived;
    char byte;

    (void)number;
    stalls = ready;
    buffer = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(buffer != MAP_FAILED && signal(SIGSEGV, stall) != SIG_ERR);
    begin_server(address);
    IS(write(ready, "", 1), 1);
    info = unexpected();
    for (int at = 0; at <= BEFORE; at++)
    {
        /* What is sent behind a message says that it was announced. So no receive waits for it that
           its sender could write to. */
        IS(received(info.addr, &byte, 1, 2), 1);
        IS(mprotect(buffer + TRAP, PAGE, at == BEFORE ? PROT_NONE : PROT_READ | PROT_WRITE), 0);
        arrived.result = received(info.addr, buffer, LEN, 1);
        CHECK(at == BEFORE || (arrived.result == LEN && buffer[BEHIND] == OLD));
    }
    arrived.byte = buffer[BEHIND];
    IS(write(ready, &arrived, sizeof arrived), sizeof arrived);
    pause();
}

/* Returns true if the peer was copying out of the memory. */
static int attempt(const char *address, int kills)
{
    struct child server = start(serve, address, 0);
    struct arrived arrived;
    BMI_addr_t addr;
    bmi_op_id_t send, receive;
    bmi_size_t size;
    int status, early = 0, shows;
    bmi_error_code_t error = 0;
    struct pollfd stalled = {server.ready, POLLIN, 0};
    char byte, *memory;

    begin_client();
    begin(server);
    IS(BMI_addr_lookup(&addr, address, NULL), 0);
    IS(sent_unexpected(addr, "", 1, 0), 0);
    memory = BMI_memalloc(addr, LEN, BMI_SEND);
    CHECK(memory != NULL);
    memset(memory, OLD, LEN);
    IS(BMI_post_recv(&receive, addr, &byte, 1, &size, BMI_EXT_ALLOC, 9, NULL, context, NULL), 0);
    for (int at = 0; at <= BEFORE; at++)
    {
        IS(BMI_post_send(&send, addr, memory, LEN, BMI_PRE_ALLOC, 1, NULL, context, NULL), 0);
        IS(sent(addr, "", 1, 2), 0);
        CHECK(at == BEFORE || ended(0, send, NULL) == 0);
    }
    /* A peer that gets its bytes through the ring waits for this side. */
    while (poll(&stalled, 1, 0) == 0)
    {
        IS(BMI_test(send, &early, &error, NULL, NULL, 1, context), 0);
    }
    IS(read(server.ready, &byte, 1), 1);
    IS(waitpid(server.pid, &status, WUNTRACED), server.pid);
    CHECK(WIFSTOPPED(status));

    IS(BMI_cancel(send, context), 0);
    /* What ends with its connection has ended. */
    CHECK(ended(0, receive, &size) < 0);
    CHECK(BMI_test(send, &early, &error, NULL, NULL, 50, context) >= 0);
    CHECK(!early || error < 0);
    memset(memory, NEW, LEN);
    if (kills)
    {
        kill_it(server);
        shows = !early;
    }
    else
    {
        IS(kill(server.pid, SIGCONT), 0);
        IS(read(server.ready, &arrived, sizeof arrived), sizeof arrived);
        CHECK(arrived.result < 0);
        shows = arrived.byte == NEW;
        CHECK(!(shows && early));
    }
    CHECK(early || ended(0, send, &size) < 0);
    IS(BMI_memfree(addr, memory, LEN, BMI_SEND), 0);
    if (!kills)
    {
        kill_it(server);
    }
    end();
    return shows;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    for (int kills = 0; kills < 2; kills++)
    {
        int status = -1, attempts = 0;

        while (status != 0)
        {
            pid_t child;

            CHECK(attempts++ < ATTEMPTS);
            child = start_child();
            if (child == 0)
            {
                _exit(attempt(argv[1], kills) ? 0 : SHOWS_NOTHING);
            }
            IS(waitpid(child, &status, 0), child);
            CHECK(status == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == SHOWS_NOTHING));
        }
        printf("%d attempts\n", attempts);
    }
    return 0;
}
