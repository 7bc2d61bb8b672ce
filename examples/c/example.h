/*
 * What the examples over BMI share. An error ends the program.
 */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bmi.h>

#define IDLE_MS 1000

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

/* Initialises a server, which listens at the address, or a client. */
static void begin(int is_server, const char *address)
{
    char method[16];

    snprintf(method, sizeof method, "bmi_%.*s", (int)strcspn(address, ":"), address);
    check(BMI_initialize(is_server ? method : NULL, is_server ? address : NULL, is_server ? BMI_INIT_SERVER : 0, NULL),
          "initialise");
    check(BMI_open_context(&context), "context");
    if (is_server)
    {
        printf("listening\n");
        fflush(stdout);
    }
}

static void end(void)
{
    BMI_close_context(context);
    check(BMI_finalize(), "finalise");
}

#endif
