/* uses DISK FOLDER: every use case once, maps of every layer, and one disk in the hands of several threads. */
#include <leandisk.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, int line)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    exit(1);
}

#define CHECK(truth) ((truth) ? (void)0 : fail(#truth, __LINE__))

static void check_done(leandisk_error *error, int line)
{
    if (error)
        fail(leandisk_error_message(error), line);
}

#define DONE(call) check_done(call, __LINE__)

/* Each has a document of its kind, which is freed. */
static void check_document(char *document, const char *schema, int line)
{
    if (!document || !strstr(document, schema) || !leandisk_string_free(document))
        fail(schema, line);
}

#define DOCUMENT(schema) check_document(document, "\"schema\": \"leandisk." schema "/1\"", __LINE__)

static int calls;

static int count_calls(void *context, const char *phase, uint64_t done, uint64_t total)
{
    CHECK(context == &calls && *phase && (total == 0 || done <= total));
    calls++;
    return 0;
}

static void use(const char *source, const char *folder)
{
    char new_disk[4096], copied[4096], *document;
    snprintf(new_disk, sizeof new_disk, "%s/new.qcow2", folder);
    snprintf(copied, sizeof copied, "%s/copied.qcow2", folder);
    leandisk_observer observer;
    leandisk_observer_init(&observer);
    observer.context = &calls;
    observer.progress = count_calls;

    leandisk_create_options create;
    leandisk_create_options_init(&create);
    create.disk = new_disk;
    create.size_bytes = 1 << 20;
    const char *formatted[] = {"cluster_size=4096"};
    create.options = formatted;
    create.option_count = 1;
    DONE(leandisk_create(&create, NULL, &document));
    DOCUMENT("create");

    leandisk_info_options info;
    leandisk_info_options_init(&info);
    info.disk = new_disk;
    info.format = "qcow2";
    DONE(leandisk_info(&info, &document));
    DOCUMENT("info");

    leandisk_analyze_options analyze;
    leandisk_analyze_options_init(&analyze);
    analyze.disk = source;
    analyze.device = "nvme";
    DONE(leandisk_analyze(&analyze, &observer, &document));
    DOCUMENT("analyze");

    leandisk_copy_options copy;
    leandisk_copy_options_init(&copy);
    copy.source = source;
    copy.target = copied;
    copy.keep_free = copy.keep_swap = 1;
    DONE(leandisk_copy(&copy, &observer, NULL));

    leandisk_compact_options compact;
    leandisk_compact_options_init(&compact);
    compact.disk = copied;
    DONE(leandisk_compact(&compact, &observer, &document));
    DOCUMENT("compact");

    leandisk_defrag_options defrag;
    leandisk_defrag_options_init(&defrag);
    defrag.disk = copied;
    defrag.goal = LEANDISK_GOAL_PACK;
    DONE(leandisk_defrag(&defrag, &observer, &document));
    DOCUMENT("defrag");
    /* Of an empty disk nothing can be moved, which a document says, too. */
    defrag.disk = new_disk;
    leandisk_error *error = leandisk_defrag(&defrag, NULL, &document);
    CHECK(leandisk_error_kind(error) == LEANDISK_KIND_REFUSED && leandisk_error_free(error));
    DOCUMENT("defrag");

    leandisk_recover_options recover;
    leandisk_recover_options_init(&recover);
    recover.disk = copied;
    DONE(leandisk_recover(&recover, &document));
    DOCUMENT("recover");
    CHECK(calls > 5);
}

/* What a map adds up to. */
struct sum {
    uint64_t end, bytes, stored, used, freed;
};

static int add(void *context, const leandisk_extent *extent)
{
    struct sum *sum = context;
    CHECK(extent->start_bytes >= sum->end && extent->len_bytes > 0);
    sum->end = extent->start_bytes + extent->len_bytes;
    sum->bytes += extent->len_bytes;
    sum->stored += extent->stored_bytes;
    sum->used += extent->usage == LEANDISK_EXTENT_USE_USED ? extent->len_bytes : 0;
    sum->freed += extent->usage == LEANDISK_EXTENT_USE_FREE ? extent->len_bytes : 0;
    return 0;
}

static void map(const leandisk_disk *disk)
{
    struct sum guest = {0}, image = {0}, host = {0};
    DONE(leandisk_disk_map(disk, LEANDISK_LAYER_GUEST, add, &guest));
    DONE(leandisk_disk_map(disk, LEANDISK_LAYER_IMAGE, add, &image));
    DONE(leandisk_disk_map(disk, LEANDISK_LAYER_HOST, add, &host));
    CHECK(guest.end == 64 << 20 && guest.bytes == guest.end && guest.stored == 0);
    CHECK(guest.used > 0 && guest.freed > 0);
    CHECK(image.bytes == guest.bytes && image.used == 0);
    CHECK(image.stored > 0 && host.stored > 0 && host.stored <= image.stored);
}

static leandisk_disk *disk;

/* Ends when the disk is closed under it. */
static void *read_again(void *document)
{
    char bytes[4096];
    for (int round = 0;; round++) {
        uint64_t index;
        size_t len;
        leandisk_file *file;
        leandisk_error *error = leandisk_file_find(disk, 1, "/document.txt", &index);
        if (!error)
            error = leandisk_file_open(disk, 1, index, &file);
        if (error) {
            CHECK(leandisk_error_kind(error) == LEANDISK_KIND_INVALID && leandisk_error_free(error));
            return NULL;
        }
        DONE(leandisk_file_read(file, 1, bytes, sizeof bytes, &len));
        CHECK(len > 0 && memcmp(bytes, (char *)document + 1, len) == 0);
        DONE(leandisk_file_close(file));
        /* One of them is the first to close it. */
        if (round == 20)
            leandisk_error_free(leandisk_disk_close(disk));
    }
}

static void share(void)
{
    char document[4097] = {0};
    uint64_t index;
    size_t len;
    leandisk_file *file;
    pthread_t threads[3];
    DONE(leandisk_file_find(disk, 1, "/document.txt", &index));
    DONE(leandisk_file_open(disk, 1, index, &file));
    DONE(leandisk_file_read(file, 0, document, sizeof document, &len));
    CHECK(len > 1);
    DONE(leandisk_file_close(file));
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, read_again, document) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    CHECK(leandisk_version()[0] >= '0');
    use(argv[1], argv[2]);
    leandisk_disk_options options;
    leandisk_disk_options_init(&options);
    options.disk = argv[1];
    DONE(leandisk_disk_open(&options, &disk));
    map(disk);
    share();
    return 0;
}
