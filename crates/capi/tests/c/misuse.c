/* misuse DISK: whatever is wrong with a call is an error, and nothing else happens. */
#include <leandisk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

/* Panics would do, but all that is wrong is of interest. */
static void expect(leandisk_kind kind, leandisk_error *error, const char *what, int line)
{
    leandisk_kind found = leandisk_error_kind(error);
    const char *message = leandisk_error_message(error);
    if (found != kind || !message || (error && !*message)) {
        fprintf(stderr, "line %d: %s: %d instead of %d: %s\n", line, what, found, kind, message);
        failures++;
    }
    if (!leandisk_error_free(error)) {
        fprintf(stderr, "line %d: %s: its error is not freed\n", line, what);
        failures++;
    }
}

#define EXPECT(kind, call) expect(LEANDISK_KIND_##kind, call, #call, __LINE__)
#define CHECK(truth) ((truth) ? (void)0 : (void)(fprintf(stderr, "line %d: %s\n", __LINE__, #truth), failures++))

static int count(void *context, const leandisk_extent *extent)
{
    (void)extent;
    ++*(int *)context;
    return 0;
}

static int stop_at_third(void *context, const leandisk_file_info *file)
{
    (void)file;
    return ++*(int *)context == 3;
}

static int stop_at_once(void *context, const char *phase, uint64_t done, uint64_t total)
{
    (void)context, (void)phase, (void)done, (void)total;
    return 1;
}

/* Wants to stop once bytes are copied. */
static int stop_copying(void *context, const char *phase, uint64_t done, uint64_t total)
{
    (void)context, (void)done;
    return total > 0 && strcmp(phase, "copy") == 0;
}

/* Structs of every size but the right one. */
static void sizes(const char *path)
{
    leandisk_info_options *large = calloc(1, 4096);
    char *document = NULL;
    leandisk_info_options_init(large);
    large->disk = path;
    EXPECT(NONE, leandisk_info(large, &document));
    CHECK(document && strstr(document, "leandisk.info/1"));
    CHECK(leandisk_string_free(document) && !leandisk_string_free(document));
    /* A program that was built with the first version of the struct: what is behind it is no part of it. */
    size_t first = offsetof(leandisk_info_options, with_disks);
    large->struct_size = first;
    large->with_disk_count = large->ntfs_log = 77;
    EXPECT(NONE, leandisk_info(large, &document));
    CHECK(leandisk_string_free(document));
    large->struct_size = sizeof *large;
    EXPECT(INVALID, leandisk_info(large, &document));
    const char *nowhere[] = {"/nowhere/other.raw"};
    large->with_disks = nowhere;
    large->with_disk_count = 1;
    EXPECT(INVALID, leandisk_info(large, &document));
    large->ntfs_log = LEANDISK_NTFS_LOG_JOIN;
    EXPECT(IO, leandisk_info(large, &document));
    large->with_disks = &path;
    EXPECT(NONE, leandisk_info(large, &document));
    CHECK(leandisk_string_free(document));
    size_t wrong[] = {0, 1, sizeof large->struct_size, first - 1, sizeof *large + 1, 4096, (size_t)-1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        large->struct_size = wrong[i];
        document = (char *)"stale";
        EXPECT(INVALID, leandisk_info(large, &document));
        CHECK(document == NULL);
    }
    free(large);
}

static void nulls(const char *path)
{
    char *document = NULL;
    leandisk_disk *disk = NULL;
    leandisk_copy_options copy;
    leandisk_copy_options_init(&copy);
    EXPECT(INVALID, leandisk_copy(NULL, NULL, &document));
    EXPECT(INVALID, leandisk_copy(&copy, NULL, NULL));
    copy.source = path;
    EXPECT(INVALID, leandisk_copy(&copy, NULL, &document));
    copy.target = "/nowhere/target.qcow2";
    copy.allow_path_count = 1;
    EXPECT(INVALID, leandisk_copy(&copy, NULL, &document));
    const char *none[] = {NULL};
    copy.allow_paths = none;
    EXPECT(INVALID, leandisk_copy(&copy, NULL, &document));
    copy.allow_path_count = 0;
    copy.target_format = "floppy";
    EXPECT(INVALID, leandisk_copy(&copy, NULL, &document));
    copy.target_format = "\xff";
    EXPECT(INVALID, leandisk_copy(&copy, NULL, &document));
    copy.target_format = NULL;
    copy.layout = 77;
    EXPECT(INVALID, leandisk_copy(&copy, NULL, &document));
    copy.layout = LEANDISK_LAYOUT_KEEP;
    copy.threads = 1 << 20;
    EXPECT(INVALID, leandisk_copy(&copy, NULL, &document));
    copy.threads = 0;
    EXPECT(IO, leandisk_copy(&copy, NULL, &document));
    EXPECT(INVALID, leandisk_disk_open(NULL, &disk));
    EXPECT(INVALID, leandisk_disk_open(NULL, NULL));
    leandisk_create_options create;
    leandisk_create_options_init(&create);
    create.disk = "/nowhere/new.qcow2";
    EXPECT(INVALID, leandisk_create(&create, NULL, NULL));
    create.size_bytes = 1000;
    EXPECT(INVALID, leandisk_create(&create, NULL, NULL));
    CHECK(document == NULL && disk == NULL);
    CHECK(leandisk_error_kind(NULL) == LEANDISK_KIND_NONE && leandisk_error_message(NULL));
    CHECK(!leandisk_error_hint(NULL) && leandisk_error_free(NULL) && leandisk_string_free(NULL));
}

/* Pointers that are no handles, or no longer: they lead nowhere, and nobody goes there. */
static void handles(const char *path)
{
    int extents = 0, files = 0;
    char *document = NULL, buffer[16];
    size_t len = 7;
    leandisk_disk *disk = NULL, *other = NULL;
    leandisk_file *file = NULL;
    uint64_t index = 0;
    leandisk_disk_options options;
    leandisk_disk_options_init(&options);
    options.disk = "/nowhere";
    EXPECT(IO, leandisk_disk_open(&options, &disk));
    options.disk = path;
    EXPECT(NONE, leandisk_disk_open(&options, &disk));
    EXPECT(INVALID, leandisk_disk_open(&options, NULL));
    EXPECT(INVALID, leandisk_disk_info(disk, NULL));
    EXPECT(INVALID, leandisk_disk_map(disk, 3, count, &extents));
    EXPECT(INVALID, leandisk_disk_map(disk, LEANDISK_LAYER_GUEST, NULL, NULL));
    EXPECT(INVALID, leandisk_disk_files(disk, 0, stop_at_third, &files));
    EXPECT(INVALID, leandisk_disk_files(disk, 99, stop_at_third, &files));
    EXPECT(INVALID, leandisk_disk_files(disk, (uint32_t)-1, stop_at_third, &files));
    EXPECT(INTERRUPTED, leandisk_disk_files(disk, 1, stop_at_third, &files));
    CHECK(files == 3 && extents == 0);
    EXPECT(INVALID, leandisk_file_find(disk, 1, NULL, &index));
    EXPECT(INVALID, leandisk_file_find(disk, 1, "/document.txt", NULL));
    EXPECT(INVALID, leandisk_file_find(disk, 1, "/no such file", &index));
    EXPECT(NONE, leandisk_file_find(disk, 1, "/document.txt", &index));
    EXPECT(INVALID, leandisk_file_open(disk, 1, (uint64_t)-1, &file));
    EXPECT(INVALID, leandisk_file_open(disk, 1, index, NULL));
    EXPECT(NONE, leandisk_file_open(disk, 1, index, &file));
    EXPECT(INVALID, leandisk_file_read(file, 0, NULL, 1, &len));
    EXPECT(INVALID, leandisk_file_read(file, 0, buffer, 1, NULL));
    EXPECT(NONE, leandisk_file_read(file, (uint64_t)-1, NULL, (size_t)-1, &len));
    CHECK(len == 0);
    /* A disk is no file, a file no error, and a number no handle. */
    EXPECT(INVALID, leandisk_file_read((leandisk_file *)disk, 0, buffer, 1, &len));
    EXPECT(INVALID, leandisk_disk_info((leandisk_disk *)file, &document));
    EXPECT(INVALID, leandisk_disk_close((leandisk_disk *)&options));
    EXPECT(INVALID, leandisk_disk_close((leandisk_disk *)(size_t)-1));
    CHECK(!leandisk_error_free((leandisk_error *)disk) && !leandisk_string_free(buffer));
    CHECK(leandisk_error_kind((leandisk_error *)buffer) == LEANDISK_KIND_INVALID);
    EXPECT(NONE, leandisk_disk_close(disk));
    EXPECT(INVALID, leandisk_disk_close(disk));
    /* The next one is another, also to who has the handle of the last. */
    EXPECT(NONE, leandisk_disk_open(&options, &other));
    CHECK(other != disk);
    EXPECT(INVALID, leandisk_disk_close(disk));
    EXPECT(INVALID, leandisk_disk_info(disk, &document));
    EXPECT(NONE, leandisk_disk_close(other));
    EXPECT(NONE, leandisk_disk_close(NULL));
    /* A file stays open without its disk. */
    EXPECT(NONE, leandisk_file_read(file, 0, buffer, sizeof buffer, &len));
    CHECK(len > 0);
    EXPECT(NONE, leandisk_file_close(file));
    EXPECT(INVALID, leandisk_file_close(file));
    EXPECT(INVALID, leandisk_file_read(file, 0, buffer, sizeof buffer, &len));
}

/* Nothing is under the target's name of a copy that was stopped. */
static void stopping(const char *path, const char *target)
{
    char *document = NULL;
    leandisk_copy_options options;
    leandisk_copy_options_init(&options);
    options.source = path;
    options.target = target;
    leandisk_observer observer;
    leandisk_observer_init(&observer);
    observer.progress = stop_at_once;
    EXPECT(INTERRUPTED, leandisk_copy(&options, &observer, &document));
    observer.progress = stop_copying;
    EXPECT(INTERRUPTED, leandisk_copy(&options, &observer, &document));
    observer.struct_size = 4;
    EXPECT(INVALID, leandisk_copy(&options, &observer, &document));
    CHECK(document == NULL && fopen(target, "r") == NULL);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    sizes(argv[1]);
    nulls(argv[1]);
    handles(argv[1]);
    stopping(argv[1], argv[2]);
    return failures != 0;
}
