/* libpvfs: the file system for programs in C and C++. Made by cbindgen of the sources.

 A function returns 0 or a number of things, or a negative error number of Linux. pvfs_error() then
 has the text. The last argument of most functions says whether they wait: see pvfs_async.

 Memory may be freed when the operation that it came with has ended. Texts are UTF-8, and paths
 begin with '/'. Handles are closed once, by their own function, and not used any more then. */

#ifndef PVFS_H
#define PVFS_H

#include <stddef.h>
#include <stdint.h>

/*
 A file.
 */
#define PVFS_FILE 1

/*
 A directory.
 */
#define PVFS_DIR 2

/*
 A symbolic link.
 */
#define PVFS_SYMLINK 3

/*
 Create the file if it does not exist.
 */
#define PVFS_CREATE 1

/*
 With `PVFS_CREATE`: an existing file is an error.
 */
#define PVFS_EXCLUSIVE 2

/*
 Cut the file off.
 */
#define PVFS_TRUNCATE 4

/*
 Create a file without a name. Nobody else sees it until `pvfs_publish` gives it its name, and
 replaces what is there in one step. Without that it is removed, when it is closed or later.
 */
#define PVFS_DRAFT 8

/*
 The last index of an array is the fastest: rows.
 */
#define PVFS_ORDER_C 0

/*
 The first index of an array is the fastest: columns.
 */
#define PVFS_ORDER_FORTRAN 1

/*
 A client of a cluster. Any thread may use it and what was opened with it, and several at the
 same time. It is of no use in a process that was forked from this one.
 */
typedef struct pvfs_client pvfs_client;

/*
 A directory that is being listed.
 */
typedef struct pvfs_dir pvfs_dir;

/*
 An open file.
 */
typedef struct pvfs_file pvfs_file;

/*
 A queue of completions. Any thread may use it, and several at the same time.
 */
typedef struct pvfs_queue pvfs_queue;

/*
 A datatype. It never changes, and what was made of it does not need it any more.
 */
typedef struct pvfs_type pvfs_type;

/*
 A view of a file.
 */
typedef struct pvfs_view pvfs_view;

/*
 The completion of an operation.
 */
typedef struct pvfs_done {
  /*
   What was given when it was posted.
   */
  void *user;
  /*
   What the call would have returned, had it waited.
   */
  int64_t result;
  /*
   The text of the error, until this thread calls `pvfs_complete` again. NULL if it succeeded.
   */
  const char *error;
} pvfs_done;

/*
 Attributes. Times are in nanoseconds since 1970.
 */
typedef struct pvfs_attr {
  /*
   A number that no other object of the cluster has or will have.
   */
  uint64_t handle;
  /*
   The bytes of a file, or the entries of a directory.
   */
  uint64_t size;
  /*
   `PVFS_FILE`, `PVFS_DIR` or `PVFS_SYMLINK`.
   */
  uint32_t kind;
  /*
   Permission bits.
   */
  uint32_t mode;
  /*
   Owner.
   */
  uint32_t uid;
  /*
   Group.
   */
  uint32_t gid;
  /*
   Number of names.
   */
  uint32_t nlink;
  /*
   Number of I/O servers of a file.
   */
  uint32_t servers;
  /*
   Strip size of a file, in bytes.
   */
  uint64_t strip_size;
  /*
   Last access.
   */
  uint64_t atime_ns;
  /*
   Last change of the content.
   */
  uint64_t mtime_ns;
  /*
   Last change of the attributes.
   */
  uint64_t ctime_ns;
} pvfs_attr;

/*
 Where the completion of an operation goes. A function that is given NULL in its place waits, and
 returns the result. Otherwise it posts the operation, and returns 0, or the reason why it was
 not posted. Then the arguments must stay as they are until the completion, except for texts and
 for lists of pieces and regions.
 */
typedef struct pvfs_async {
  /*
   The queue. It belongs to any client.
   */
  const struct pvfs_queue *queue;
  /*
   Comes back with the completion.
   */
  void *user;
} pvfs_async;

/*
 An entry of a directory.
 */
typedef struct pvfs_entry {
  /*
   As in `pvfs_attr`.
   */
  uint64_t handle;
  /*
   `PVFS_FILE`, `PVFS_DIR` or `PVFS_SYMLINK`.
   */
  uint32_t kind;
  /*
   The name, with a NUL at its end.
   */
  char name[256];
} pvfs_entry;

/*
 How a new file is laid out.
 */
typedef struct pvfs_layout {
  /*
   Strip size in bytes; 0 for the default of the cluster.
   */
  uint64_t strip_size;
  /*
   Number of I/O servers; 0 for all that are up.
   */
  uint32_t servers;
} pvfs_layout;

/*
 A piece of memory.
 */
typedef struct pvfs_piece {
  /*
   Its first byte.
   */
  void *base;
  /*
   Its length in bytes.
   */
  size_t len;
} pvfs_piece;

/*
 A region of a file.
 */
typedef struct pvfs_region {
  /*
   Its first byte.
   */
  uint64_t offset;
  /*
   Its length in bytes.
   */
  uint64_t len;
} pvfs_region;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the text of the last error of a call of this thread. It stays until the next call fails.
 It never returns NULL.
 */
const char *pvfs_error(void);

/*
 Connects to the cluster whose manager listens at an address, such as `tcp://host:7000` or
 `shm:///path`. An operation ends after `timeout_ms` milliseconds for each of its requests at the
 latest, or after 30 s if that is 0. Waits.
 */
int pvfs_connect(const char *manager, uint32_t timeout_ms, struct pvfs_client **client);

/*
 Closes a client. Its connections end when its files, directories and queues are closed too. NULL
 is ignored.
 */
void pvfs_disconnect(struct pvfs_client *client);

/*
 Opens a queue.
 */
int pvfs_queue_open(const struct pvfs_client *client, struct pvfs_queue **queue);

/*
 Returns the descriptor of a queue. It becomes readable when `pvfs_complete` has something to do,
 and stays readable until it was called. Do not read it or close it.
 */
int pvfs_queue_fd(const struct pvfs_queue *queue);

/*
 Lets the operations of a queue go on, and takes up to `max` completions, in the order in which
 they ended. Never waits. Returns how many there are, which may be none although the descriptor
 was readable. If there are more, the descriptor is readable again.
 */
int64_t pvfs_complete(const struct pvfs_queue *queue, struct pvfs_done *done, size_t max);

/*
 Waits until all operations of a queue have ended, and closes it. Completions that were not taken
 are lost. NULL is ignored.
 */
void pvfs_queue_close(struct pvfs_queue *queue);

/*
 Returns the attributes of a path.
 */
int pvfs_stat(const struct pvfs_client *client,
              const char *path,
              struct pvfs_attr *attr,
              const struct pvfs_async *later);

/*
 Creates a directory. Its parent must exist.
 */
int pvfs_mkdir(const struct pvfs_client *client, const char *path, const struct pvfs_async *later);

/*
 Removes a name: `kind` is `PVFS_FILE` for anything but a directory, `PVFS_DIR` for an empty
 directory, or 0 for either.
 */
int pvfs_remove(const struct pvfs_client *client,
                const char *path,
                uint32_t kind,
                const struct pvfs_async *later);

/*
 Moves a name. A file or an empty directory at `to` is replaced.
 */
int pvfs_rename(const struct pvfs_client *client,
                const char *from,
                const char *to,
                const struct pvfs_async *later);

/*
 Begins to list a directory. Waits.
 */
int pvfs_opendir(const struct pvfs_client *client, const char *path, struct pvfs_dir **dir);

/*
 Takes the next entry, in the order of the names. Returns 1, or 0 at the end. Waits.
 */
int pvfs_readdir(const struct pvfs_dir *dir, struct pvfs_entry *entry);

/*
 Ends a listing. NULL is ignored.
 */
void pvfs_closedir(struct pvfs_dir *dir);

/*
 Opens a file. `flags` are some of `PVFS_CREATE`, `PVFS_EXCLUSIVE`, `PVFS_TRUNCATE` and
 `PVFS_DRAFT`. `mode` are the permission bits of a new file. `layout` is that of a new file, or
 NULL.
 */
int pvfs_open(const struct pvfs_client *client,
              const char *path,
              uint32_t flags,
              uint32_t mode,
              const struct pvfs_layout *layout,
              struct pvfs_file **file,
              const struct pvfs_async *later);

/*
 Gives a draft its name, with the size that it has, and replaces a file of that name. What must
 survive a crash is synced before.
 */
int pvfs_publish(const struct pvfs_file *file, const struct pvfs_async *later);

/*
 Closes a file. What was written is not synced. Operations that were posted go on. NULL is
 ignored.
 */
void pvfs_close(struct pvfs_file *file);

/*
 Reads `len` bytes from `offset` on. Returns how many were read: fewer only at the end of the
 file. The rest of the memory is set to zero.
 */
int64_t pvfs_read(const struct pvfs_file *file,
                  void *buffer,
                  size_t len,
                  uint64_t offset,
                  const struct pvfs_async *later);

/*
 Writes `len` bytes from `offset` on. Returns `len`. The bytes reach the disks with `pvfs_sync`.
 */
int64_t pvfs_write(const struct pvfs_file *file,
                   const void *buffer,
                   size_t len,
                   uint64_t offset,
                   const struct pvfs_async *later);

/*
 Reads regions of the file, in order, into pieces of memory, in order. Both have the same number
 of bytes, in any shape. Returns how many of them are before the end of the file.
 */
int64_t pvfs_read_list(const struct pvfs_file *file,
                       const struct pvfs_piece *pieces,
                       size_t piece_count,
                       const struct pvfs_region *regions,
                       size_t region_count,
                       const struct pvfs_async *later);

/*
 Writes pieces of memory, in order, to regions of the file, in order. Both have the same number
 of bytes, in any shape. Returns that number.
 */
int64_t pvfs_write_list(const struct pvfs_file *file,
                        const struct pvfs_piece *pieces,
                        size_t piece_count,
                        const struct pvfs_region *regions,
                        size_t region_count,
                        const struct pvfs_async *later);

/*
 Reads what a view shows of the file, from its element `offset` on, into `count` instances of a
 type in a buffer of `len` bytes. Returns how many bytes are before the end of the file.
 */
int64_t pvfs_read_view(const struct pvfs_file *file,
                       const struct pvfs_view *view,
                       uint64_t offset,
                       void *buffer,
                       size_t len,
                       const struct pvfs_type *memtype,
                       uint64_t count,
                       const struct pvfs_async *later);

/*
 Writes `count` instances of a type in a buffer of `len` bytes to what a view shows of the file,
 from its element `offset` on. Returns the number of bytes.
 */
int64_t pvfs_write_view(const struct pvfs_file *file,
                        const struct pvfs_view *view,
                        uint64_t offset,
                        const void *buffer,
                        size_t len,
                        const struct pvfs_type *memtype,
                        uint64_t count,
                        const struct pvfs_async *later);

/*
 Flushes what was written to the disks of all servers of the file. It then survives a crash.
 */
int pvfs_sync(const struct pvfs_file *file, const struct pvfs_async *later);

/*
 Sets the length of a file: cuts it off, or extends it with zeros.
 */
int pvfs_truncate(const struct pvfs_file *file, uint64_t size, const struct pvfs_async *later);

/*
 Returns the attributes of an open file.
 */
int pvfs_fstat(const struct pvfs_file *file,
               struct pvfs_attr *attr,
               const struct pvfs_async *later);

/*
 Makes a type of `len` contiguous bytes, such as 8 for a double.
 */
int pvfs_type_bytes(uint64_t len, struct pvfs_type **made);

/*
 Makes a type of `count` instances of another, one behind the other.
 */
int pvfs_type_contiguous(uint64_t count, const struct pvfs_type *old, struct pvfs_type **made);

/*
 Makes a type of `count` blocks of `blocklength` instances. A block begins `stride` extents
 behind the beginning of the one before.
 */
int pvfs_type_vector(uint64_t count,
                     uint64_t blocklength,
                     int64_t stride,
                     const struct pvfs_type *old,
                     struct pvfs_type **made);

/*
 As `pvfs_type_vector`, with the stride in bytes.
 */
int pvfs_type_hvector(uint64_t count,
                      uint64_t blocklength,
                      int64_t stride,
                      const struct pvfs_type *old,
                      struct pvfs_type **made);

/*
 Makes a type of `count` blocks, each with its number of instances and its displacement in
 extents.
 */
int pvfs_type_indexed(size_t count,
                      const uint64_t *blocklengths,
                      const int64_t *displacements,
                      const struct pvfs_type *old,
                      struct pvfs_type **made);

/*
 As `pvfs_type_indexed`, with the displacements in bytes.
 */
int pvfs_type_hindexed(size_t count,
                       const uint64_t *blocklengths,
                       const int64_t *displacements,
                       const struct pvfs_type *old,
                       struct pvfs_type **made);

/*
 Makes a type of `count` fields, each with its number of instances, its displacement in bytes and
 its type.
 */
int pvfs_type_struct(size_t count,
                     const uint64_t *blocklengths,
                     const int64_t *displacements,
                     const struct pvfs_type *const *types,
                     struct pvfs_type **made);

/*
 Makes a type of a box of an array: `subsizes` elements of `sizes` in each of `dimensions`
 dimensions, beginning with `starts`. `order` is `PVFS_ORDER_C` or `PVFS_ORDER_FORTRAN`.
 */
int pvfs_type_subarray(size_t dimensions,
                       const uint64_t *sizes,
                       const uint64_t *subsizes,
                       const uint64_t *starts,
                       uint32_t order,
                       const struct pvfs_type *old,
                       struct pvfs_type **made);

/*
 Makes a type with other bounds.
 */
int pvfs_type_resized(int64_t lower,
                      int64_t extent,
                      const struct pvfs_type *old,
                      struct pvfs_type **made);

/*
 Returns the number of bytes of a type.
 */
int64_t pvfs_type_size(const struct pvfs_type *of);

/*
 Returns how far the next instance of a type is, in bytes.
 */
int64_t pvfs_type_extent(const struct pvfs_type *of);

/*
 Frees a type. NULL is ignored.
 */
void pvfs_type_free(struct pvfs_type *of);

/*
 Makes a view: from byte `displacement` of the file on, instances of `filetype`, one behind the
 other, show the bytes of the view. Offsets in it count elements of `etype`.
 */
int pvfs_view_new(uint64_t displacement,
                  const struct pvfs_type *etype,
                  const struct pvfs_type *filetype,
                  struct pvfs_view **view);

/*
 Frees a view. NULL is ignored.
 */
void pvfs_view_free(struct pvfs_view *view);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PVFS_H */
