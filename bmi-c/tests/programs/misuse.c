/* Every function with every kind of bad argument: an error number, and the library goes on. */
#include "check.h"

#define BAD(call) IS(call, -BMI_EINVAL)
#define ANY(call) CHECK((call) < 0)

static void *const odd = (void *)1;

/* Functions before the first BMI_initialize, after the last BMI_finalize, or after a fork. */
static void refused(int expected, BMI_addr_t addr, bmi_context_id c, bmi_op_id_t op)
{
    bmi_op_id_t id = 1;
    int count = 1, index;
    bmi_error_code_t error;
    bmi_size_t size = 1;
    bmi_context_id opened;
    struct BMI_unexpected_info info;
    char byte = 0;
    const void *from[1] = {&byte};
    void *to[1] = {&byte};

    IS(BMI_finalize(), expected);
    IS(BMI_open_context(&opened), expected);
    BMI_close_context(c);
    IS(BMI_post_send(&id, addr, &byte, 1, BMI_EXT_ALLOC, 0, NULL, c, NULL), expected);
    IS(id, 0);
    IS(BMI_post_sendunexpected(&id, addr, &byte, 1, BMI_EXT_ALLOC, 0, NULL, c, NULL), expected);
    IS(BMI_post_sendunexpected_class(&id, addr, &byte, 1, BMI_EXT_ALLOC, 0, 1, NULL, c, NULL), expected);
    IS(BMI_post_recv(&id, addr, &byte, 1, &size, BMI_EXT_ALLOC, 0, NULL, c, NULL), expected);
    IS(BMI_post_send_list(&id, addr, from, &size, 1, 1, BMI_EXT_ALLOC, 0, NULL, c, NULL), expected);
    IS(BMI_post_sendunexpected_list(&id, addr, from, &size, 1, 1, BMI_EXT_ALLOC, 0, NULL, c, NULL), expected);
    IS(BMI_post_sendunexpected_list_class(&id, addr, from, &size, 1, 1, BMI_EXT_ALLOC, 0, 1, NULL, c, NULL), expected);
    IS(BMI_post_recv_list(&id, addr, to, &size, 1, 1, &size, BMI_EXT_ALLOC, 0, NULL, c, NULL), expected);
    IS(BMI_test(op, &count, &error, &size, NULL, 0, c), expected);
    IS(count, 0);
    IS(BMI_testsome(1, &op, &count, &index, &error, &size, NULL, 0, c), expected);
    IS(BMI_testcontext(1, &id, &count, &error, &size, NULL, 0, c), expected);
    IS(BMI_testunexpected(1, &count, &info, 0), expected);
    IS(BMI_testunexpected_class(1, &count, &info, 1, 0), expected);
    IS(BMI_unexpected_free(addr, &byte), expected);
    IS(BMI_cancel(op, c), expected);
    CHECK(BMI_memalloc(addr, 1, BMI_SEND) == NULL);
    IS(BMI_memfree(addr, &byte, 1, BMI_SEND), expected);
    IS(BMI_set_info(addr, BMI_INC_ADDR_REF, NULL), expected);
    IS(BMI_get_info(addr, BMI_CHECK_INIT, NULL), expected);
    IS(BMI_addr_lookup(&addr, "tcp://localhost:1", NULL), expected);
    CHECK(BMI_addr_rev_lookup(addr) == NULL);
    CHECK(strcmp(BMI_addr_rev_lookup_unexpected(addr), "UNKNOWN") == 0);
    IS(BMI_query_addr_range(addr, "tcp://*", -1), expected);
}

static void initialise_badly(const char *address, const char *method)
{
    BAD(BMI_initialize(NULL, NULL, BMI_INIT_SERVER, NULL));
    BAD(BMI_initialize(method, NULL, BMI_INIT_SERVER, NULL));
    BAD(BMI_initialize(NULL, address, BMI_INIT_SERVER, NULL));
    BAD(BMI_initialize(method, address, 0, NULL));
    BAD(BMI_initialize("tcp", address, BMI_INIT_SERVER, NULL));
    BAD(BMI_initialize("", address, BMI_INIT_SERVER, NULL));
    IS(BMI_initialize("bmi_gm", address, BMI_INIT_SERVER, NULL), -BMI_ENOPROTOOPT);
    BAD(BMI_initialize(method, "tcp", BMI_INIT_SERVER, NULL));
    BAD(BMI_initialize(method, "gm://there", BMI_INIT_SERVER, NULL));
    BAD(BMI_initialize("bmi_\xff", address, BMI_INIT_SERVER, NULL));
    BAD(BMI_initialize(method, "\xff", BMI_INIT_SERVER, NULL));
}

static void post_badly(BMI_addr_t addr, bmi_context_id c, bmi_context_id closed)
{
    bmi_op_id_t id;
    bmi_size_t size = 4, sizes[2] = {2, 2}, huge = INT64_MAX;
    char buffer[4] = "abc";
    const void *from[2] = {buffer, buffer + 2}, *with_null[2] = {buffer, NULL};
    void *to[2] = {buffer, buffer + 2};
    enum bmi_buffer_type none = (enum bmi_buffer_type)3;
    const BMI_addr_t addresses[] = {0, -1, 1, addr + 1, addr ^ ((BMI_addr_t)1 << 40), INT64_MAX, INT64_MIN};
    const bmi_context_id contexts[] = {0, -1, c + 1, c + 256, closed, INT64_MAX, INT64_MIN};
    size_t at;

    for (at = 0; at < sizeof addresses / sizeof *addresses; at++)
    {
        BMI_addr_t bad = addresses[at];
        id = 1;
        ANY(BMI_post_send(&id, bad, buffer, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
        IS(id, 0);
        ANY(BMI_post_sendunexpected(&id, bad, buffer, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
        ANY(BMI_post_recv(&id, bad, buffer, 4, &size, BMI_EXT_ALLOC, 0, NULL, c, NULL));
        ANY(BMI_post_send_list(&id, bad, from, sizes, 2, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
        ANY(BMI_post_recv_list(&id, bad, to, sizes, 2, 4, &size, BMI_EXT_ALLOC, 0, NULL, c, NULL));
        ANY(BMI_post_sendunexpected_list(&id, bad, from, sizes, 2, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
        CHECK(BMI_memalloc(bad, 1, BMI_SEND) == NULL);
        CHECK(BMI_addr_rev_lookup(bad) == NULL);
        CHECK(strcmp(BMI_addr_rev_lookup_unexpected(bad), "UNKNOWN") == 0);
        ANY(BMI_query_addr_range(bad, "tcp://10.*", -1));
        ANY(BMI_set_info(bad, BMI_INC_ADDR_REF, NULL));
        ANY(BMI_set_info(bad, BMI_DEC_ADDR_REF, NULL));
        ANY(BMI_set_info(bad, BMI_DROP_ADDR, NULL));
        ANY(BMI_get_info(bad, BMI_GET_UNEXP_SIZE, &size));
    }
    for (at = 0; at < sizeof contexts / sizeof *contexts; at++)
    {
        bmi_context_id bad = contexts[at];
        BAD(BMI_post_send(&id, addr, buffer, 4, BMI_EXT_ALLOC, 0, NULL, bad, NULL));
        BAD(BMI_post_recv(&id, addr, buffer, 4, &size, BMI_EXT_ALLOC, 0, NULL, bad, NULL));
        BAD(BMI_post_send_list(&id, addr, from, sizes, 2, 4, BMI_EXT_ALLOC, 0, NULL, bad, NULL));
        BMI_close_context(bad);
    }
    BAD(BMI_post_send(NULL, addr, buffer, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send(odd, addr, buffer, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send(&id, addr, NULL, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send(&id, addr, buffer, -1, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send(&id, addr, buffer, huge, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send(&id, addr, buffer, 4, none, 0, NULL, c, NULL));
    BAD(BMI_post_recv(&id, addr, NULL, 4, &size, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_recv(&id, addr, buffer, -1, &size, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_recv(&id, addr, buffer, 4, odd, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send_list(&id, addr, NULL, sizes, 2, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send_list(&id, addr, from, NULL, 2, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send_list(&id, addr, odd, sizes, 2, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send_list(&id, addr, with_null, sizes, 2, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send_list(&id, addr, from, sizes, 2, 5, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send_list(&id, addr, from, sizes, 0, 0, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    BAD(BMI_post_send_list(&id, addr, from, sizes, -1, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL));
    IS(BMI_post_send_list(&id, addr, from, sizes, 4097, 4, BMI_EXT_ALLOC, 0, NULL, c, NULL), -BMI_EMSGSIZE);
    sizes[0] = huge;
    BAD(BMI_post_recv_list(&id, addr, to, sizes, 2, huge, &size, BMI_EXT_ALLOC, 0, NULL, c, NULL));
}

static void test_badly(bmi_op_id_t op, bmi_context_id c, bmi_context_id closed)
{
    bmi_op_id_t ids[2] = {0, 0}, bad[] = {-1, 1, op + 1, op ^ ((bmi_op_id_t)1 << 40), INT64_MAX, INT64_MIN};
    int count = 1, indices[2];
    bmi_error_code_t errors[2];
    bmi_size_t sizes[2];
    struct BMI_unexpected_info info;

    for (size_t at = 0; at < sizeof bad / sizeof *bad; at++)
    {
        ANY(BMI_test(bad[at], &count, errors, sizes, NULL, 0, c));
        ANY(BMI_testsome(1, &bad[at], &count, indices, errors, sizes, NULL, 0, c));
        ANY(BMI_cancel(bad[at], c));
    }
    BAD(BMI_test(0, &count, errors, sizes, NULL, 0, c));
    BAD(BMI_cancel(0, c));
    BAD(BMI_cancel(op, closed));
    BAD(BMI_test(op, NULL, errors, sizes, NULL, 0, c));
    BAD(BMI_test(op, &count, NULL, sizes, NULL, 0, c));
    BAD(BMI_test(op, &count, errors, odd, NULL, 0, c));
    BAD(BMI_test(op, &count, errors, sizes, odd, 0, c));
    BAD(BMI_test(op, &count, errors, sizes, NULL, -1, c));
    BAD(BMI_test(op, &count, errors, sizes, NULL, 0, closed));
    BAD(BMI_testsome(0, ids, &count, indices, errors, sizes, NULL, 0, c));
    BAD(BMI_testsome(-1, ids, &count, indices, errors, sizes, NULL, 0, c));
    BAD(BMI_testsome(1, NULL, &count, indices, errors, sizes, NULL, 0, c));
    BAD(BMI_testsome(1, ids, NULL, indices, errors, sizes, NULL, 0, c));
    BAD(BMI_testsome(1, ids, &count, NULL, errors, sizes, NULL, 0, c));
    BAD(BMI_testsome(1, ids, &count, indices, NULL, sizes, NULL, 0, c));
    BAD(BMI_testsome(1, ids, &count, indices, errors, sizes, NULL, -1, c));
    BAD(BMI_testsome(1, ids, &count, indices, errors, sizes, NULL, 0, closed));
    IS(BMI_testsome(2, ids, &count, indices, errors, sizes, NULL, 0, c), 0);
    ids[0] = ids[1] = op;
    IS(BMI_testsome(2, ids, &count, indices, errors, NULL, NULL, 0, c), 0);
    BAD(BMI_testcontext(0, ids, &count, errors, sizes, NULL, 0, c));
    BAD(BMI_testcontext(1, NULL, &count, errors, sizes, NULL, 0, c));
    BAD(BMI_testcontext(1, ids, NULL, errors, sizes, NULL, 0, c));
    BAD(BMI_testcontext(1, ids, &count, NULL, sizes, NULL, 0, c));
    BAD(BMI_testcontext(1, ids, &count, errors, sizes, NULL, -1, c));
    BAD(BMI_testcontext(1, ids, &count, errors, sizes, NULL, 0, closed));
    BAD(BMI_testunexpected(0, &count, &info, 0));
    BAD(BMI_testunexpected(1, NULL, &info, 0));
    BAD(BMI_testunexpected(1, &count, NULL, 0));
    BAD(BMI_testunexpected(1, &count, &info, -1));
    BAD(BMI_testunexpected_class(1, &count, NULL, 1, 0));
    BAD(BMI_unexpected_free(0, NULL));
    BAD(BMI_unexpected_free(0, &info));
}

static void ask_badly(BMI_addr_t addr, const char *address)
{
    char long_text[BMI_MAX_ADDR_LEN + 1];
    BMI_addr_t found = 1;
    void *memory = BMI_memalloc(addr, 10, BMI_RECV);
    int value = 0;

    memset(long_text, 'a', BMI_MAX_ADDR_LEN);
    long_text[BMI_MAX_ADDR_LEN] = 0;
    BAD(BMI_addr_lookup(NULL, address, NULL));
    BAD(BMI_addr_lookup(odd, address, NULL));
    BAD(BMI_addr_lookup(&found, NULL, NULL));
    IS(found, 0);
    BAD(BMI_addr_lookup(&found, "", NULL));
    BAD(BMI_addr_lookup(&found, "nothing", NULL));
    BAD(BMI_addr_lookup(&found, "tcp://", NULL));
    BAD(BMI_addr_lookup(&found, "\xff", NULL));
    IS(BMI_addr_lookup(&found, "gm://there:1", NULL), -BMI_ENOPROTOOPT);
    IS(BMI_addr_lookup(&found, long_text, NULL), -BMI_ENAMETOOLONG);
    BAD(BMI_query_addr_range(addr, NULL, -1));
    BAD(BMI_query_addr_range(addr, "10.*", -1));
    IS(BMI_query_addr_range(addr, long_text, -1), -BMI_ENAMETOOLONG);
    IS(BMI_query_addr_range(addr, "gm://*", -1), -BMI_EPROTO);
    if (strncmp(address, "tcp", 3) == 0)
    {
        IS(BMI_query_addr_range(addr, "tcp://127.*", -1), 1);
        IS(BMI_query_addr_range(addr, "tcp://127.0.0.0", 8), 1);
        IS(BMI_query_addr_range(addr, "tcp://10.*", -1), 0);
        IS(BMI_query_addr_range(addr, "tcp://127.1.0.0", 16), 0);
        IS(BMI_query_addr_range(addr, "tcp://10.1.0.0", 0), 1);
        BAD(BMI_query_addr_range(addr, "tcp://127.x", -1));
        BAD(BMI_query_addr_range(addr, "tcp://1.2.3.4.5", -1));
        BAD(BMI_query_addr_range(addr, "tcp://127.0.0.0", 33));
        BAD(BMI_query_addr_range(addr, "tcp://127.0.0.0", -2));
    }
    CHECK(BMI_memalloc(addr, 0, BMI_SEND) == NULL);
    CHECK(BMI_memalloc(addr, -1, BMI_SEND) == NULL);
    CHECK(BMI_memalloc(addr, INT64_MAX, BMI_SEND) == NULL);
    CHECK(BMI_memalloc(addr, 1, (enum bmi_op_type)3) == NULL);
    CHECK(memory != NULL);
    BAD(BMI_memfree(addr, NULL, 10, BMI_RECV));
    BAD(BMI_memfree(addr, &value, 10, BMI_RECV));
    BAD(BMI_memfree(addr, (char *)memory + 1, 9, BMI_RECV));
    BAD(BMI_memfree(addr, memory, 9, BMI_RECV));
    BAD(BMI_memfree(addr, memory, 10, (enum bmi_op_type)0));
    IS(BMI_memfree(addr, memory, 10, BMI_RECV), 0);
    BAD(BMI_memfree(addr, memory, 10, BMI_RECV));
    IS(BMI_set_info(addr, 0, NULL), -BMI_ENOSYS);
    IS(BMI_set_info(addr, BMI_TRUSTED_CONNECTION, &value), -BMI_ENOSYS);
    BAD(BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, NULL));
    IS(BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, &value), 0);
    IS(BMI_set_info(0, BMI_FORCEFUL_CANCEL_MODE, NULL), 0);
    BAD(BMI_set_info(addr, BMI_DEC_ADDR_REF, NULL));
    IS(BMI_set_info(addr, BMI_INC_ADDR_REF, NULL), 0);
    IS(BMI_set_info(addr, BMI_DEC_ADDR_REF, NULL), 0);
    IS(BMI_get_info(addr, 0, &value), -BMI_ENOSYS);
    IS(BMI_get_info(addr, BMI_GET_METH_ADDR, &memory), -BMI_ENOSYS);
    BAD(BMI_get_info(addr, BMI_CHECK_MAXSIZE, NULL));
    BAD(BMI_get_info(addr, BMI_GET_UNEXP_SIZE, NULL));
    BAD(BMI_get_info(addr, BMI_TRANSPORT_METHODS_STRING, NULL));
    IS(BMI_get_info(0, BMI_CHECK_INIT, NULL), 0);
    IS(BMI_get_info(12345, BMI_CHECK_MAXSIZE, &value), 0);
    CHECK(value >= 16 << 20);
    IS(BMI_get_info(0, BMI_TRANSPORT_METHODS_STRING, &memory), 3);
    CHECK(strcmp(memory, "tcp,shm,ib,") == 0);
    free(memory);
}

static void after_fork(BMI_addr_t addr, bmi_context_id c, bmi_op_id_t op)
{
    int status;
    pid_t child = fork();

    if (child == 0)
    {
        refused(-BMI_EDEVINIT, addr, c, op);
        IS(BMI_initialize(NULL, NULL, 0, NULL), -BMI_EDEVINIT);
        exit(0);
    }
    IS(waitpid(child, &status, 0), child);
    IS(status, 0);
}

int main(int argc, char **argv)
{
    char method[16], byte = 0;
    bmi_context_id closed, many[64];
    BMI_addr_t addr, dropped;
    bmi_op_id_t op, stale;
    bmi_size_t size;
    int opened = 0;

    CHECK(argc == 2);
    snprintf(method, sizeof method, "bmi_%.*s", (int)strcspn(argv[1], ":"), argv[1]);
    refused(-BMI_ENETDOWN, 1, 1, 1);
    initialise_badly(argv[1], method);
    refused(-BMI_ENETDOWN, 1, 1, 1);
    begin_server(argv[1]);
    BAD(BMI_open_context(NULL));
    BAD(BMI_open_context(odd));
    IS(BMI_open_context(&closed), 0);
    BMI_close_context(closed);
    while (BMI_open_context(&many[opened]) == 0)
    {
        opened++;
    }
    IS(BMI_open_context(&many[0]), -BMI_EBUSY);
    IS(opened, 63);
    while (opened > 0)
    {
        BMI_close_context(many[--opened]);
    }
    /* This process is its own peer. */
    IS(BMI_addr_lookup(&addr, argv[1], NULL), 0);
    IS(BMI_post_recv(&op, addr, &byte, 1, &size, BMI_EXT_ALLOC, 99, NULL, context, NULL), 0);
    post_badly(addr, context, closed);
    test_badly(op, context, closed);
    ask_badly(addr, argv[1]);
    after_fork(addr, context, op);
    /* The library still works, and a dropped address ends its operations. */
    IS(sent_unexpected(addr, "x", 1, 7), 0);
    {
        struct BMI_unexpected_info info = unexpected();
        IS(info.tag, 7);
        IS(sent(info.addr, "y", 1, 99), 0);
        IS(ended(0, op, &size), 0);
        IS(byte, 'y');
        IS(BMI_unexpected_free(info.addr, info.buffer), 0);
        BAD(BMI_unexpected_free(info.addr, info.buffer));
    }
    stale = op;
    IS(BMI_post_recv(&op, addr, &byte, 1, &size, BMI_EXT_ALLOC, 99, NULL, context, NULL), 0);
    CHECK(op != stale);
    dropped = addr;
    IS(BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK(ended(0, op, &size) < 0);
    ANY(BMI_post_send(&op, dropped, &byte, 1, BMI_EXT_ALLOC, 99, NULL, context, NULL));
    /* The number of an earlier life is stale. */
    IS(BMI_addr_lookup(&addr, argv[1], NULL), 0);
    IS(BMI_post_recv(&op, addr, &byte, 1, &size, BMI_EXT_ALLOC, 99, NULL, context, NULL), 0);
    IS(BMI_initialize(NULL, NULL, 0, NULL), 0);
    IS(BMI_finalize(), 0);
    IS(BMI_get_info(0, BMI_CHECK_INIT, NULL), 0);
    IS(BMI_finalize(), 0);
    refused(-BMI_ENETDOWN, addr, context, op);
    closed = context;
    begin_client();
    CHECK(closed != context);
    IS(BMI_get_info(0, BMI_CHECK_INIT, NULL), -BMI_ENETDOWN);
    ANY(BMI_post_send(&stale, addr, &byte, 1, BMI_EXT_ALLOC, 0, NULL, context, NULL));
    IS(BMI_addr_lookup(&dropped, argv[1], NULL), 0);
    CHECK(dropped != addr);
    BAD(BMI_test(op, &opened, &opened, &size, NULL, 0, context));
    /* Nobody listens there. */
    CHECK(sent_unexpected(dropped, "x", 1, 7) == -BMI_ECONNREFUSED);
    end();
    IS(BMI_finalize(), -BMI_ENETDOWN);
    IS(bmi_errno_to_pvfs(-EINVAL), -BMI_EINVAL);
    IS(bmi_errno_to_pvfs(ECONNRESET), BMI_ECONNRESET);
    IS(bmi_errno_to_pvfs(0), 0);
    IS(bmi_errno_to_pvfs(-99999), -99999);
    CHECK(strcmp(bmi_status_string(-BMI_ECANCEL), "BMI_ECANCEL") == 0);
    CHECK(strcmp(bmi_status_string(12345), "(UNKNOWN)") == 0);
    CHECK(strcmp(bmi_status_string(INT32_MIN), "(UNKNOWN)") == 0);
    return 0;
}
