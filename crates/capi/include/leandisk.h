/* libleandisk: Leandisk for programs in C. Made by cbindgen of crates/capi; docs/c-interface.md says how it is used.
 *
 * A call that answers a leandisk_error * answers null if all went well; the error is the caller's to free. So is a document, by
 * leandisk_string_free: it is JSON (docs/json.md). Use cases take null for a document that is not wanted, and for an observer.
 * Pointers to other memory lead to what is said of them. Texts end with a NUL; paths are bytes of any kind, all others are UTF-8.
 * A flag is set if it is not 0. */

#ifndef LEANDISK_H
#define LEANDISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* An error must not be lost, nor leak. */
#if defined(__GNUC__)
#define LEANDISK_MUST_USE __attribute__((warn_unused_result))
#else
#define LEANDISK_MUST_USE
#endif

// What went wrong, as far as a program may act on it. The numbers are the exit statuses of the program leandisk.
typedef enum {
    // Nothing.
    LEANDISK_KIND_NONE = 0,
    // The call makes no sense: a null pointer, an option out of range, a handle that was closed.
    LEANDISK_KIND_INVALID = 2,
    // Leandisk will not do it, since it is unsafe or not granted, or cannot. Nothing was changed.
    LEANDISK_KIND_REFUSED = 3,
    // The disk contradicts its format.
    LEANDISK_KIND_CORRUPT = 4,
    // The machine failed: a read, a write, no space left.
    LEANDISK_KIND_IO = 5,
    // A check of the result found a difference.
    LEANDISK_KIND_MISMATCH = 6,
    // A fault of the library itself. What it was doing is left as if the machine had stopped then.
    LEANDISK_KIND_INTERNAL = 101,
    // A callback asked to stop.
    LEANDISK_KIND_INTERRUPTED = 130,
} leandisk_kind;

// When a disk's storage is allocated: values of provision in options.
typedef enum {
    // When the guest first writes: the image starts small and grows.
    LEANDISK_PROVISION_THIN = 0,
    // All of it at once; the host zeroes each part when it is first written.
    LEANDISK_PROVISION_LAZY = 1,
    // All of it at once, and zeroed.
    LEANDISK_PROVISION_EAGER = 2,
} leandisk_provision;

// Where files lie in the target of a copy: values of layout in options.
typedef enum {
    // Every byte at the offset where it was.
    LEANDISK_LAYOUT_KEEP = 0,
    // Each file in one piece.
    LEANDISK_LAYOUT_PACKED = 1,
} leandisk_layout;

// Whether blocks move from the end of an image's file into gaps: values of moves in options.
typedef enum {
    // If the file becomes shorter by enough to be worth the writing.
    LEANDISK_MOVE_AUTO = 0,
    // Whenever the file becomes shorter by it.
    LEANDISK_MOVE_ALWAYS = 1,
    // Never.
    LEANDISK_MOVE_NEVER = 2,
} leandisk_move;

// What a disk is to look like: values of goal in options.
typedef enum {
    // Every file in one piece, with as little moved as possible.
    LEANDISK_GOAL_FILES = 0,
    // The free space in one piece as well.
    LEANDISK_GOAL_FREE = 1,
    // Everything sorted: directories, small files by directory, large files, then the free space.
    LEANDISK_GOAL_PACK = 2,
} leandisk_goal;

// A layer of an open disk.
typedef enum {
    // What the guest uses, by volumes' maps that were checked in full. Extents cover the disk, and have a use and a volume.
    LEANDISK_LAYER_GUEST = 0,
    // Where the image's files hold it. Extents cover the disk, and have a state; of data, a file and a place in it.
    LEANDISK_LAYER_IMAGE = 1,
    // Where it lies on the host's devices: one behind the other if there are several. Where the host does not tell, places are
    // those in the image's files. Holes have no extents.
    LEANDISK_LAYER_HOST = 2,
} leandisk_layer;

// What is at an extent, in the image and on the host.
typedef enum {
    // This layer does not tell.
    LEANDISK_EXTENT_STATE_UNTOLD = 0,
    // Not allocated: reads as zeros.
    LEANDISK_EXTENT_STATE_HOLE = 1,
    // Marked as zeros.
    LEANDISK_EXTENT_STATE_ZERO = 2,
    // Bytes as they are.
    LEANDISK_EXTENT_STATE_DATA = 3,
    // Bytes in another form: place and stored_bytes are those of all of the compressed unit.
    LEANDISK_EXTENT_STATE_COMPRESSED = 4,
} leandisk_extent_state;

// What an extent is to the guest.
typedef enum {
    // This layer does not tell.
    LEANDISK_EXTENT_USE_UNTOLD = 0,
    // In no volume: tables, boot code, gaps.
    LEANDISK_EXTENT_USE_OUTSIDE = 1,
    // In a volume whose use is not known, or not relied on.
    LEANDISK_EXTENT_USE_WHOLE = 2,
    // Used.
    LEANDISK_EXTENT_USE_USED = 3,
    // Free: its contents mean nothing.
    LEANDISK_EXTENT_USE_FREE = 4,
    // Contents of a page file or of swap space.
    LEANDISK_EXTENT_USE_SWAP = 5,
    // A log that was emptied: one byte throughout.
    LEANDISK_EXTENT_USE_EMPTY_LOG = 6,
} leandisk_extent_use;

// What a file is to its guest.
typedef enum {
    // A file with contents.
    LEANDISK_FILE_KIND_REGULAR = 1,
    // A directory, the root included.
    LEANDISK_FILE_KIND_DIRECTORY = 2,
    // A symbolic link.
    LEANDISK_FILE_KIND_SYMLINK = 3,
    // One that the file system keeps for itself.
    LEANDISK_FILE_KIND_METADATA = 4,
    // A device, a pipe, a socket.
    LEANDISK_FILE_KIND_OTHER = 5,
} leandisk_file_kind;

// What is done with an NTFS volume whose log is open.
typedef enum {
    // It is whole.
    LEANDISK_NTFS_LOG_REFUSE = 0,
    // What its log names counts as used, beside what its bitmap says. A log that is not understood leaves it whole.
    LEANDISK_NTFS_LOG_JOIN = 1,
} leandisk_ntfs_log;

// An open disk. Nothing of it is ever written. Threads may use it at once.
typedef struct leandisk_disk leandisk_disk;

// An error. Its texts are good until it is freed.
typedef struct leandisk_error leandisk_error;

// An open file of a guest, or another stream of it. Threads may use it at once.
typedef struct leandisk_file leandisk_file;

// Options of leandisk_compact.
typedef struct {
    // Set by leandisk_compact_options_init.
    size_t struct_size;
    // The disk: an image file or a block device that nobody else uses.
    const char *disk;
    // The format of its file; null to detect it.
    const char *format;
    // Files that the image may refer to, and folders with such files, besides the image's own folder.
    const char *const *allow_paths;
    // How many these are.
    size_t allow_path_count;
    // LEANDISK_MOVE_...
    uint32_t moves;
    // Whether files are first moved out of blocks of the image that are almost empty.
    int defrag;
    // Whether what only the shadow copies of Windows need is given back, too.
    int drop_shadow_copies;
    // Whether nothing is changed: everything is checked and planned as for the change.
    int dry_run;
    // Whether all files are read before and after, and compared.
    int verify;
    // Not used. 0.
    int reserved;
    // Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    const char *const *with_disks;
    // How many these are.
    size_t with_disk_count;
} leandisk_compact_options;

// Who watches a call. The functions are called from threads of the library, never two at once, and not after the call has returned.
// They may call this library, but must not leave by an exception or longjmp. Each may be null.
typedef struct {
    // Set by leandisk_observer_init.
    size_t struct_size;
    // Handed to the functions as it is.
    void *context;
    // How far the work is. `phase` is "copy", "verify", "move", "free", "zero" or "write"; or, with a total of 0, words for what
    // nobody knows the length of. Not called more than some 20 times a second. An answer other than 0 stops the work as soon
    // as that is safe: the call then ends with LEANDISK_KIND_INTERRUPTED.
    int (*progress)(void *context, const char *phase, uint64_t done_bytes, uint64_t total_bytes);
    // A sentence for people: a warning, or what was decided.
    void (*note)(void *context, const char *text);
} leandisk_observer;

// Options of leandisk_defrag.
typedef struct {
    // Set by leandisk_defrag_options_init.
    size_t struct_size;
    // The disk: an image file or a block device that nobody else uses.
    const char *disk;
    // The format of its file; null to detect it.
    const char *format;
    // Files that the image may refer to, and folders with such files, besides the image's own folder.
    const char *const *allow_paths;
    // How many these are.
    size_t allow_path_count;
    // Where the journal is written; null for beside the disk.
    const char *journal;
    // LEANDISK_GOAL_...
    uint32_t goal;
    // The only volume to change, counted from 1; 0 for all.
    uint32_t volume;
    // Whether nothing is changed: everything is checked and planned as for the change.
    int dry_run;
    // Whether all files are read before and after, and compared.
    int verify;
    // Whether $MFT of NTFS is made contiguous, too.
    int mft;
    // Not used. 0.
    int reserved;
    // Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    const char *const *with_disks;
    // How many these are.
    size_t with_disk_count;
} leandisk_defrag_options;

// Options of leandisk_recover.
typedef struct {
    // Set by leandisk_recover_options_init.
    size_t struct_size;
    // The disk: an image file or a block device that nobody else uses.
    const char *disk;
    // The format of its file; null to detect it.
    const char *format;
    // Files that the image may refer to, and folders with such files, besides the image's own folder.
    const char *const *allow_paths;
    // How many these are.
    size_t allow_path_count;
    // Where the journal is; null for beside the disk.
    const char *journal;
} leandisk_recover_options;

// Options of leandisk_disk_open.
typedef struct {
    // Set by leandisk_disk_options_init.
    size_t struct_size;
    // The disk: an image file or a block device.
    const char *disk;
    // The format of its file; null to detect it.
    const char *format;
    // Files that the image may refer to, and folders with such files, besides the image's own folder.
    const char *const *allow_paths;
    // How many these are.
    size_t allow_path_count;
    // Whether a disk is opened that another program writes to. What is read of it may not fit together.
    int in_use;
    // Not used. 0.
    int reserved;
    // Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    const char *const *with_disks;
    // How many these are.
    size_t with_disk_count;
    // LEANDISK_NTFS_LOG_...: what is done with an NTFS volume whose log is open.
    uint32_t ntfs_log;
    // Not used. 0.
    int reserved_too;
} leandisk_disk_options;

// A file of a guest, or another stream of it. A later version may have more fields at its end.
typedef struct {
    // By which leandisk_file_open knows it, as long as the disk is open.
    uint64_t index;
    // The file's number on its volume.
    uint64_t number;
    // Its path on its volume by its first name, from the root: "/folder/file". Of another stream than the main one with its name behind
    // a colon. Untrusted bytes, mostly UTF-8, with a NUL behind them; good until the function returns.
    const char *path;
    // How many bytes that are, without the NUL: names on a broken volume may have one in them, too.
    size_t path_len;
    // How long its contents are.
    uint64_t size_bytes;
    // How much of the volume it has.
    uint64_t allocated_bytes;
    // In how many pieces, as the file system keeps them.
    uint32_t extent_count;
    // LEANDISK_FILE_KIND_...
    uint32_t kind;
    // Whether it is what reading the file gives, and no other stream.
    int is_main;
    // Not used. 0.
    int reserved;
} leandisk_file_info;

// A part of the virtual disk. A later version may have more fields at its end.
typedef struct {
    // Where it begins on the virtual disk.
    uint64_t start_bytes;
    // How long it is.
    uint64_t len_bytes;
    // Where it begins in the file, or on the device.
    uint64_t place_bytes;
    // How many bytes it takes there.
    uint64_t stored_bytes;
    // LEANDISK_EXTENT_STATE_...
    uint32_t state;
    // LEANDISK_EXTENT_USE_...
    uint32_t usage;
    // The volume, counted from 1; 0 for none.
    uint32_t volume;
    // The image's file, counted from 0 in the order of images[].files[] in leandisk.info/1.
    uint32_t file;
} leandisk_extent;

// Options of leandisk_info.
typedef struct {
    // Set by leandisk_info_options_init.
    size_t struct_size;
    // The disk: an image file or a block device.
    const char *disk;
    // The format of its file: "raw", "vhd", "vhdx", "vmdk", "qcow2" or "vdi". Null to detect it.
    const char *format;
    // Files that the image may refer to, and folders with such files, besides the image's own folder.
    const char *const *allow_paths;
    // How many these are.
    size_t allow_path_count;
    // Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    const char *const *with_disks;
    // How many these are.
    size_t with_disk_count;
    // LEANDISK_NTFS_LOG_...: what is done with an NTFS volume whose log is open.
    uint32_t ntfs_log;
    // Not used. 0.
    int reserved_too;
} leandisk_info_options;

// Options of leandisk_analyze.
typedef struct {
    // Set by leandisk_analyze_options_init.
    size_t struct_size;
    // The disk: an image file or a block device.
    const char *disk;
    // The format of its file; null to detect it.
    const char *format;
    // Files that the image may refer to, and folders with such files, besides the image's own folder.
    const char *const *allow_paths;
    // How many these are.
    size_t allow_path_count;
    // A page to write with the whole report (.html), or null.
    const char *html;
    // A file to write with a line of JSON for each file, or null.
    const char *files;
    // The storage that advice is for: "hdd", "san", "sata-ssd", "nvme" or "measured". Null for what the host says of it.
    const char *device;
    // Requests whose cost is predicted as well: a recording, or text with an offset and a length a line. Null for none.
    const char *trace;
    // The size of the guest's read requests; 0 for 128 KiB.
    uint64_t request_bytes;
    // How many of the most fragmented files are listed; 0 for 10.
    uint32_t top;
    // Whether html and files replace files that are there.
    int force;
    // Whether all data in use is read, to count its zeros.
    int zeros;
    // Not used. 0.
    int reserved;
    // Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    const char *const *with_disks;
    // How many these are.
    size_t with_disk_count;
    // LEANDISK_NTFS_LOG_...: what is done with an NTFS volume whose log is open.
    uint32_t ntfs_log;
    // Not used. 0.
    int reserved_too;
} leandisk_analyze_options;

// Options of leandisk_copy.
typedef struct {
    // Set by leandisk_copy_options_init.
    size_t struct_size;
    // The disk to copy: an image file or a block device.
    const char *source;
    // The image file to create, or a block device.
    const char *target;
    // The format of the source's file; null to detect it.
    const char *format;
    // Files that the source may refer to, and folders with such files, besides its own folder.
    const char *const *allow_paths;
    // How many these are.
    size_t allow_path_count;
    // The target's format; null for what its extension says.
    const char *target_format;
    // Options of the target's format, such as "subformat=fixed".
    const char *const *target_options;
    // How many these are.
    size_t target_option_count;
    // LEANDISK_LAYOUT_...
    uint32_t layout;
    // LEANDISK_PROVISION_...
    uint32_t provision;
    // Worker threads, at most 65535; 0 for as many as keep the storage busy.
    uint32_t threads;
    // Whether the target is compressed: QCOW2 alone.
    int compress;
    // Whether free space is copied as well.
    int keep_free;
    // Whether the contents of page files and swap space are copied as well.
    int keep_swap;
    // Whether what only the shadow copies of Windows need is left out.
    int drop_shadow_copies;
    // Whether old data stay on a block device where nothing is copied.
    int fast;
    // Whether the target is read back and compared.
    int verify;
    // Whether nothing is written: everything is checked and planned as for the copy.
    int dry_run;
    // Whether a copy that was interrupted is continued.
    int resume;
    // Whether the target is replaced if it exists.
    int force;
    // Whether a disk is copied that another program writes to.
    int in_use;
    // Whether data is read and written through the page cache.
    int page_cache;
    // Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    const char *const *with_disks;
    // How many these are.
    size_t with_disk_count;
    // LEANDISK_NTFS_LOG_...: what is done with an NTFS volume whose log is open.
    uint32_t ntfs_log;
    // Not used. 0.
    int reserved_too;
} leandisk_copy_options;

// Options of leandisk_create.
typedef struct {
    // Set by leandisk_create_options_init.
    size_t struct_size;
    // The image file to create.
    const char *disk;
    // Bytes of the disk: a multiple of 512.
    uint64_t size_bytes;
    // The image's format; null for what the file's extension says.
    const char *format;
    // Options of the format, such as "subformat=fixed".
    const char *const *options;
    // How many these are.
    size_t option_count;
    // LEANDISK_PROVISION_...
    uint32_t provision;
    // Whether a file that is there is replaced.
    int force;
} leandisk_create_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Gives back what the guest does not use. A stop at any moment leaves every file whole. The document is leandisk.compact/1, which there
// may be beside an error.
LEANDISK_MUST_USE
leandisk_error *leandisk_compact(const leandisk_compact_options *options,
                                 const leandisk_observer *observer,
                                 char **document);

// Moves files until the disk is as the goal says. A stop at any moment leaves every file whole, if need be by leandisk_recover. The
// document is leandisk.defrag/1, which there may be beside an error.
LEANDISK_MUST_USE
leandisk_error *leandisk_defrag(const leandisk_defrag_options *options,
                                const leandisk_observer *observer,
                                char **document);

// Finishes or undoes a change of a disk that was interrupted. The document is leandisk.recover/1.
LEANDISK_MUST_USE leandisk_error *leandisk_recover(const leandisk_recover_options *options, char **document);

// Opens a disk, to be closed by leandisk_disk_close.
LEANDISK_MUST_USE
leandisk_error *leandisk_disk_open(const leandisk_disk_options *options,
                                   leandisk_disk **disk);

// What an open disk is. The document is leandisk.info/1; it is to be freed by leandisk_string_free.
LEANDISK_MUST_USE leandisk_error *leandisk_disk_info(const leandisk_disk *disk, char **document);

// Closes a disk. Null is fine; what was closed before is LEANDISK_KIND_INVALID. Calls that use it in other threads end as they would
// have, and files of it that are open stay so.
LEANDISK_MUST_USE
leandisk_error *leandisk_disk_close(leandisk_disk *disk);

// The kind of an error: LEANDISK_KIND_NONE of null, LEANDISK_KIND_INVALID of what is no error, or was freed.
leandisk_kind leandisk_error_kind(const leandisk_error *error);

// What went wrong, for people: UTF-8, never null.
const char *leandisk_error_message(const leandisk_error *error);

// What to do next, for people; null if there is nothing to say. Options have the names that they have on the command line.
const char *leandisk_error_hint(const leandisk_error *error);

// Frees an error. Null is fine. Answers whether there was nothing wrong with that: false if it is none, or was freed before.
bool leandisk_error_free(leandisk_error *error);

// Calls `each` with the files of a volume (counted from 1), and their further streams. An answer other than 0 ends that, with
// LEANDISK_KIND_INTERRUPTED. If some files are not understood, all others are shown before the call ends with
// LEANDISK_KIND_CORRUPT.
LEANDISK_MUST_USE
leandisk_error *leandisk_disk_files(const leandisk_disk *disk,
                                    uint32_t volume,
                                    int (*each)(void *context, const leandisk_file_info *file),
                                    void *context);

// Finds a file by the path that leandisk_disk_files shows, byte for byte; upper and lower case differ. One that is not there is
// LEANDISK_KIND_INVALID.
LEANDISK_MUST_USE
leandisk_error *leandisk_file_find(const leandisk_disk *disk,
                                   uint32_t volume,
                                   const char *path,
                                   uint64_t *index);

// Opens a file by its index, to be closed by leandisk_file_close. Files whose bytes are not what the guest reads (compressed,
// encrypted, kept elsewhere), and all files of a volume in doubt, are LEANDISK_KIND_REFUSED or LEANDISK_KIND_CORRUPT.
LEANDISK_MUST_USE
leandisk_error *leandisk_file_open(const leandisk_disk *disk,
                                   uint32_t volume,
                                   uint64_t index,
                                   leandisk_file **file);

// Reads from `offset` of a file into `buffer`. Less than `len` bytes come only at the file's end, and none behind it; how many came is put
// at `read_len`.
LEANDISK_MUST_USE
leandisk_error *leandisk_file_read(const leandisk_file *file,
                                   uint64_t offset,
                                   void *buffer,
                                   size_t len,
                                   size_t *read_len);

// Closes a file. Null is fine; what was closed before is LEANDISK_KIND_INVALID.
LEANDISK_MUST_USE leandisk_error *leandisk_file_close(leandisk_file *file);

// Calls `each` with the extents of a layer (LEANDISK_LAYER_...), in order of the virtual disk. An answer other than 0 ends that, with
// LEANDISK_KIND_INTERRUPTED. No data is read.
LEANDISK_MUST_USE
leandisk_error *leandisk_disk_map(const leandisk_disk *disk,
                                  uint32_t layer,
                                  int (*each)(void *context, const leandisk_extent *extent),
                                  void *context);

// The version of the library, such as "0.1.0". Not to be freed.
const char *leandisk_version(void);

// Gives back what the guest does not use. A stop at any moment leaves every file whole. The document is leandisk.compact/1, which there
// may be beside an error.
LEANDISK_MUST_USE
leandisk_error *leandisk_compact(const leandisk_compact_options *options,
                                 const leandisk_observer *observer,
                                 char **document);

// Moves files until the disk is as the goal says. A stop at any moment leaves every file whole, if need be by leandisk_recover. The
// document is leandisk.defrag/1, which there may be beside an error.
LEANDISK_MUST_USE
leandisk_error *leandisk_defrag(const leandisk_defrag_options *options,
                                const leandisk_observer *observer,
                                char **document);

// Finishes or undoes a change of a disk that was interrupted. The document is leandisk.recover/1.
LEANDISK_MUST_USE leandisk_error *leandisk_recover(const leandisk_recover_options *options, char **document);

// Opens a disk, to be closed by leandisk_disk_close.
LEANDISK_MUST_USE
leandisk_error *leandisk_disk_open(const leandisk_disk_options *options,
                                   leandisk_disk **disk);

// What an open disk is. The document is leandisk.info/1; it is to be freed by leandisk_string_free.
LEANDISK_MUST_USE leandisk_error *leandisk_disk_info(const leandisk_disk *disk, char **document);

// Closes a disk. Null is fine; what was closed before is LEANDISK_KIND_INVALID. Calls that use it in other threads end as they would
// have, and files of it that are open stay so.
LEANDISK_MUST_USE
leandisk_error *leandisk_disk_close(leandisk_disk *disk);

// The kind of an error: LEANDISK_KIND_NONE of null, LEANDISK_KIND_INVALID of what is no error, or was freed.
leandisk_kind leandisk_error_kind(const leandisk_error *error);

// What went wrong, for people: UTF-8, never null.
const char *leandisk_error_message(const leandisk_error *error);

// What to do next, for people; null if there is nothing to say. Options have the names that they have on the command line.
const char *leandisk_error_hint(const leandisk_error *error);

// Frees an error. Null is fine. Answers whether there was nothing wrong with that: false if it is none, or was freed before.
bool leandisk_error_free(leandisk_error *error);

// Calls `each` with the files of a volume (counted from 1), and their further streams. An answer other than 0 ends that, with
// LEANDISK_KIND_INTERRUPTED. If some files are not understood, all others are shown before the call ends with
// LEANDISK_KIND_CORRUPT.
LEANDISK_MUST_USE
leandisk_error *leandisk_disk_files(const leandisk_disk *disk,
                                    uint32_t volume,
                                    int (*each)(void *context, const leandisk_file_info *file),
                                    void *context);

// Finds a file by the path that leandisk_disk_files shows, byte for byte; upper and lower case differ. One that is not there is
// LEANDISK_KIND_INVALID.
LEANDISK_MUST_USE
leandisk_error *leandisk_file_find(const leandisk_disk *disk,
                                   uint32_t volume,
                                   const char *path,
                                   uint64_t *index);

// Opens a file by its index, to be closed by leandisk_file_close. Files whose bytes are not what the guest reads (compressed,
// encrypted, kept elsewhere), and all files of a volume in doubt, are LEANDISK_KIND_REFUSED or LEANDISK_KIND_CORRUPT.
LEANDISK_MUST_USE
leandisk_error *leandisk_file_open(const leandisk_disk *disk,
                                   uint32_t volume,
                                   uint64_t index,
                                   leandisk_file **file);

// Reads from `offset` of a file into `buffer`. Less than `len` bytes come only at the file's end, and none behind it; how many came is put
// at `read_len`.
LEANDISK_MUST_USE
leandisk_error *leandisk_file_read(const leandisk_file *file,
                                   uint64_t offset,
                                   void *buffer,
                                   size_t len,
                                   size_t *read_len);

// Closes a file. Null is fine; what was closed before is LEANDISK_KIND_INVALID.
LEANDISK_MUST_USE leandisk_error *leandisk_file_close(leandisk_file *file);

// Calls `each` with the extents of a layer (LEANDISK_LAYER_...), in order of the virtual disk. An answer other than 0 ends that, with
// LEANDISK_KIND_INTERRUPTED. No data is read.
LEANDISK_MUST_USE
leandisk_error *leandisk_disk_map(const leandisk_disk *disk,
                                  uint32_t layer,
                                  int (*each)(void *context, const leandisk_extent *extent),
                                  void *context);

// What a disk is: its images, partitions and file systems, and who uses it. The document is leandisk.info/1.
LEANDISK_MUST_USE leandisk_error *leandisk_info(const leandisk_info_options *options, char **document);

// What of a disk is fragmented or wasted, what that costs, and what is worth doing about it. The document is leandisk.analyze/1.
LEANDISK_MUST_USE
leandisk_error *leandisk_analyze(const leandisk_analyze_options *options,
                                 const leandisk_observer *observer,
                                 char **document);

// Copies what a disk's guest uses. Nothing is under the target's name before it is complete. The document is leandisk.copy/1.
LEANDISK_MUST_USE
leandisk_error *leandisk_copy(const leandisk_copy_options *options,
                              const leandisk_observer *observer,
                              char **document);

// Makes a new, empty disk. Nothing is under its name before it is complete. The document is leandisk.create/1.
LEANDISK_MUST_USE
leandisk_error *leandisk_create(const leandisk_create_options *options,
                                const leandisk_observer *observer,
                                char **document);

// Frees a string that a function of this library gave out. Null is fine. Answers whether there was nothing wrong with that: false if
// the string is not, or no longer, one of this library's.
bool leandisk_string_free(char *string);

// What a disk is: its images, partitions and file systems, and who uses it. The document is leandisk.info/1.
LEANDISK_MUST_USE leandisk_error *leandisk_info(const leandisk_info_options *options, char **document);

// What of a disk is fragmented or wasted, what that costs, and what is worth doing about it. The document is leandisk.analyze/1.
LEANDISK_MUST_USE
leandisk_error *leandisk_analyze(const leandisk_analyze_options *options,
                                 const leandisk_observer *observer,
                                 char **document);

// Copies what a disk's guest uses. Nothing is under the target's name before it is complete. The document is leandisk.copy/1.
LEANDISK_MUST_USE
leandisk_error *leandisk_copy(const leandisk_copy_options *options,
                              const leandisk_observer *observer,
                              char **document);

// Makes a new, empty disk. Nothing is under its name before it is complete. The document is leandisk.create/1.
LEANDISK_MUST_USE
leandisk_error *leandisk_create(const leandisk_create_options *options,
                                const leandisk_observer *observer,
                                char **document);

// Frees a string that a function of this library gave out. Null is fine. Answers whether there was nothing wrong with that: false if
// the string is not, or no longer, one of this library's.
bool leandisk_string_free(char *string);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LEANDISK_H */

/* Structs that a program fills begin with their size as it knew it, and are to be filled with zeros, which mean what is usual. These
 * functions do both. They are the program's own, so that the size is that of the header it was built with. */
#define LEANDISK_INIT(name) \
    static inline void name##_init(name *it) { memset(it, 0, sizeof *it); it->struct_size = sizeof *it; }
LEANDISK_INIT(leandisk_observer)
LEANDISK_INIT(leandisk_info_options)
LEANDISK_INIT(leandisk_analyze_options)
LEANDISK_INIT(leandisk_copy_options)
LEANDISK_INIT(leandisk_create_options)
LEANDISK_INIT(leandisk_compact_options)
LEANDISK_INIT(leandisk_defrag_options)
LEANDISK_INIT(leandisk_recover_options)
LEANDISK_INIT(leandisk_disk_options)
#undef LEANDISK_INIT
