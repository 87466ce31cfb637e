/* leancopy SOURCE TARGET [/Fast]
 *
 * Copies what the guest of a virtual machine's disk uses. The target's extension says its format: raw, vhd, vhdx, vmdk, qcow2, vdi.
 * /Fast leaves old data on a block device where nothing is copied. Ends with the statuses of the program leandisk.
 */
#include <inttypes.h>
#include <leandisk.h>
#include <signal.h>
#include <stdio.h>
#include <strings.h>

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
    (void)signal;
    stopped = 1;
}

/* Comes from the library's threads, one call at a time. */
static int show_progress(void *context, const char *phase, uint64_t done, uint64_t total)
{
    (void)context;
    if (total > 0)
        fprintf(stderr, "\r%s: %" PRIu64 " of %" PRIu64 " MiB", phase, done >> 20, total >> 20);
    return stopped;
}

static void show_note(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "\n%s\n", text);
}

/* Says what went wrong, and answers the exit status. */
static int end(leandisk_error *error)
{
    int status = leandisk_error_kind(error);
    if (error) {
        const char *hint = leandisk_error_hint(error);
        fprintf(stderr, "leancopy: %s\n%s%s", leandisk_error_message(error), hint ? hint : "", hint ? "\n" : "");
    }
    leandisk_error_free(error);
    return status;
}

int main(int argc, char **argv)
{
    int fast = argc == 4 && strcasecmp(argv[3], "/Fast") == 0;
    if (argc != 3 && !fast) {
        fprintf(stderr, "usage: leancopy SOURCE TARGET [/Fast]\n");
        return LEANDISK_KIND_INVALID;
    }
    signal(SIGINT, stop);
    leandisk_copy_options options;
    leandisk_copy_options_init(&options);
    options.source = argv[1];
    options.target = argv[2];
    options.fast = fast;
    leandisk_observer observer;
    leandisk_observer_init(&observer);
    observer.progress = show_progress;
    observer.note = show_note;

    char *document = NULL;
    leandisk_error *error = leandisk_copy(&options, &observer, &document);
    fputc('\n', stderr);
    if (!error)
        puts(document);
    leandisk_string_free(document);
    return end(error);
}
