/*
 * The interface of BMI, the messaging library of OrangeFS. README.md says what this library serves
 * and where it differs.
 *
 * Three forms of the interface exist. A program chooses one before it includes this file:
 *
 *   BMI_FORM 1   BMI_initialize has four arguments, BMI_addr_lookup three; the default
 *   BMI_FORM 2   they have three and two
 *   BMI_FORM 3   as 2, and unexpected messages have classes, in functions that end in _class
 *
 * A function returns 0 or 1, or an error number below 0. A post that returns 1 has ended. One that
 * returns 0 has given a number, whose end a test tells, once.
 *
 * The memory of an operation belongs to the library from its post until the program is told of its
 * end. Then the program may free it. All functions may be called by several threads at a time, but
 * for BMI_initialize and BMI_finalize.
 */
#ifndef __BMI_H
#define __BMI_H

#include "bmi-types.h"

#ifndef BMI_FORM
#define BMI_FORM 1
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* An unexpected message. The program frees its buffer with BMI_unexpected_free. */
struct BMI_unexpected_info
{
    bmi_error_code_t error_code;
    BMI_addr_t addr;
    void *buffer;
    bmi_size_t size;
    bmi_msg_tag_t tag;
};

/*
 * Begin and end. method_list has names as "bmi_tcp,bmi_shm,bmi_ib", and listen_addr an address for
 * each, separated by commas. Both are null for a client. Further calls of BMI_initialize are
 * counted, and as many of BMI_finalize end the library, after what was posted has left, or two
 * seconds. options is ignored. After a fork, every function returns an error in the child.
 */
int BMI_initialize(const char *method_list, const char *listen_addr, int flags, char *options);
int BMI_finalize(void);

/* A context has operations and tells of their end. Closing one cancels the operations that it has,
 * and waits until they have ended. */
int BMI_open_context(bmi_context_id *context_id);
void BMI_close_context(bmi_context_id context_id);

/*
 * Posts. id gets the number of the operation, or 0 if there is nothing to test. A receive may be
 * longer than its message; actual_size gets the length if the receive has ended at once, and may
 * be null. An unexpected message needs no receive.
 */
int BMI_post_send(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer, bmi_size_t size,
                  enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                  bmi_context_id context_id, bmi_hint hints);
int BMI_post_sendunexpected(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer, bmi_size_t size,
                            enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                            bmi_context_id context_id, bmi_hint hints);
int BMI_post_recv(bmi_op_id_t *id, BMI_addr_t src, void *buffer, bmi_size_t expected_size,
                  bmi_size_t *actual_size, enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag,
                  void *user_ptr, bmi_context_id context_id, bmi_hint hints);

/* The same with lists of up to 4096 buffers. total_size is the sum of their sizes. */
int BMI_post_send_list(bmi_op_id_t *id, BMI_addr_t dest, const void *const *buffer_list,
                       const bmi_size_t *size_list, int list_count, bmi_size_t total_size,
                       enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                       bmi_context_id context_id, bmi_hint hints);
int BMI_post_recv_list(bmi_op_id_t *id, BMI_addr_t src, void *const *buffer_list,
                       const bmi_size_t *size_list, int list_count,
                       bmi_size_t total_expected_size, bmi_size_t *total_actual_size,
                       enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                       bmi_context_id context_id, bmi_hint hints);
int BMI_post_sendunexpected_list(bmi_op_id_t *id, BMI_addr_t dest, const void *const *buffer_list,
                                 const bmi_size_t *size_list, int list_count,
                                 bmi_size_t total_size, enum bmi_buffer_type buffer_type,
                                 bmi_msg_tag_t tag, void *user_ptr, bmi_context_id context_id,
                                 bmi_hint hints);

/*
 * Tests wait for max_idle_time_ms at most. They return 1 if they tell of something. user_ptr gets
 * what was passed to the post; it and actual_size may be null. A number of 0 in id_array is left
 * out. BMI_testcontext returns at once if an unexpected message waits.
 */
int BMI_test(bmi_op_id_t id, int *outcount, bmi_error_code_t *error_code, bmi_size_t *actual_size,
             void **user_ptr, int max_idle_time_ms, bmi_context_id context_id);
int BMI_testsome(int incount, bmi_op_id_t *id_array, int *outcount, int *index_array,
                 bmi_error_code_t *error_code_array, bmi_size_t *actual_size_array,
                 void **user_ptr_array, int max_idle_time_ms, bmi_context_id context_id);
int BMI_testcontext(int incount, bmi_op_id_t *out_id_array, int *outcount,
                    bmi_error_code_t *error_code_array, bmi_size_t *actual_size_array,
                    void **user_ptr_array, int max_idle_time_ms, bmi_context_id context_id);
int BMI_testunexpected(int incount, int *outcount, struct BMI_unexpected_info *info_array,
                       int max_idle_time_ms);
int BMI_unexpected_free(BMI_addr_t addr, void *buffer);

/* Unexpected messages of a class are found by a test of that class alone. Those of the functions
 * without a class have class 0. */
int BMI_post_sendunexpected_class(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer,
                                  bmi_size_t size, enum bmi_buffer_type buffer_type,
                                  bmi_msg_tag_t tag, uint8_t msg_class, void *user_ptr,
                                  bmi_context_id context_id, bmi_hint hints);
int BMI_post_sendunexpected_list_class(bmi_op_id_t *id, BMI_addr_t dest,
                                       const void *const *buffer_list,
                                       const bmi_size_t *size_list, int list_count,
                                       bmi_size_t total_size, enum bmi_buffer_type buffer_type,
                                       bmi_msg_tag_t tag, uint8_t msg_class, void *user_ptr,
                                       bmi_context_id context_id, bmi_hint hints);
int BMI_testunexpected_class(int incount, int *outcount, struct BMI_unexpected_info *info_array,
                             uint8_t msg_class, int max_idle_time_ms);

/* Asks an operation to end. It is told of like others: with -BMI_ECANCEL, or as it ended before. */
int BMI_cancel(bmi_op_id_t id, bmi_context_id context_id);

/* Memory that stays registered with the adapter until it is freed. It is zeroed. */
void *BMI_memalloc(BMI_addr_t addr, bmi_size_t size, enum bmi_op_type send_recv);
int BMI_memfree(BMI_addr_t addr, void *buffer, bmi_size_t size, enum bmi_op_type send_recv);

int BMI_set_info(BMI_addr_t addr, int option, void *inout_parameter);
int BMI_get_info(BMI_addr_t addr, int option, void *inout_parameter);

/*
 * Addresses: "tcp://host:port", "shm:///path", "ib://host:port" or "ib://device:port/host:port",
 * or several, separated by commas. A look-up does not connect; a post does. The texts of the
 * reverse look-ups are valid until the address is dropped.
 */
int BMI_addr_lookup(BMI_addr_t *new_addr, const char *id_string, char *bmi_opts);
const char *BMI_addr_rev_lookup(BMI_addr_t addr);
const char *BMI_addr_rev_lookup_unexpected(BMI_addr_t addr);
/* Returns 1 if the peer is in the range "tcp://10.1.*" with netmask -1, or "tcp://10.1.0.0" with
 * the number of bits of its mask; else 0. */
int BMI_query_addr_range(BMI_addr_t addr, const char *id_string, int netmask);

#if BMI_FORM != 1
static inline int bmi_initialize_3(const char *method_list, const char *listen_addr, int flags)
{
    return BMI_initialize(method_list, listen_addr, flags, NULL);
}
static inline int bmi_addr_lookup_2(BMI_addr_t *new_addr, const char *id_string)
{
    return BMI_addr_lookup(new_addr, id_string, NULL);
}
#define BMI_initialize bmi_initialize_3
#define BMI_addr_lookup bmi_addr_lookup_2
#endif

#ifdef __cplusplus
}
#endif

#endif /* __BMI_H */
