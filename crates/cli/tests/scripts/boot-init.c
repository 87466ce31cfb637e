/* The first and only program of a guest that uses a served disk: it formats the second partition, fills it, deletes and trims,
 * and reboots; when it comes again, it compares every file and has the volume checked. Lines of the result begin with "| ". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define VOLUME "/dev/vda2"
#define FILE_COUNT 300

static void end(const char *word, int how)
{
	printf("| %s\n", word);
	fflush(stdout);
	sync();
	sleep(1);
	reboot(how);
	for (;;)
		pause();
}

static void stop(const char *what, const char *path)
{
	printf("| FAILED %s %s: %s\n", what, path, strerror(errno));
	end("FAILED", RB_POWER_OFF);
}

static void load(const char *module)
{
	int file = open(module, O_RDONLY);
	/* One that is there already, or that this processor needs not. */
	if (file < 0 || (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST && errno != ENODEV))
		stop("load", module);
	close(file);
}

static void run(char *const arguments[])
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		execv(arguments[0], arguments);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0) {
		printf("| FAILED status %d\n", status);
		stop("run", arguments[0]);
	}
}

static unsigned char bytes[1 << 20];

static size_t contents(int number)
{
	uint32_t word = 2654435761u * (number + 1);
	size_t len = word % 200000 + (number % 50 == 0 ? 700000 : 0);
	for (size_t at = 0; at < len; at++) {
		word = word * 1664525 + 1013904223;
		bytes[at] = word >> 24;
	}
	return len;
}

static void write_file(int number)
{
	char name[64];
	size_t len = contents(number);
	snprintf(name, sizeof name, "/m/%d", number);
	int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (file < 0 || write(file, bytes, len) != (ssize_t)len || (number % 16 == 0 && fsync(file)) || close(file))
		stop("write", name);
}

static void check_file(int number)
{
	static unsigned char found[sizeof bytes + 1];
	char name[64];
	size_t len = contents(number);
	snprintf(name, sizeof name, "/m/%d", number);
	int file = open(name, O_RDONLY);
	if (file < 0)
		stop("open", name);
	size_t have = 0;
	for (ssize_t got; (got = read(file, found + have, sizeof found - have)) > 0;)
		have += got;
	if (have != len || memcmp(found, bytes, len))
		stop("compare", name);
	close(file);
}

static void trim(void)
{
	struct fstrim_range range = { .start = 0, .len = UINT64_MAX, .minlen = 0 };
	int folder = open("/m", O_RDONLY | O_DIRECTORY);
	if (folder < 0 || ioctl(folder, FITRIM, &range))
		stop("trim", "/m");
	close(folder);
	printf("| trimmed %llu\n", (unsigned long long)range.len);
}

static void fill(void)
{
	char name[64];
	run((char *const[]){ "/mke2fs", "-q", "-t", "ext4", VOLUME, NULL });
	if (mount(VOLUME, "/m", "ext4", 0, ""))
		stop("mount", VOLUME);
	for (int number = 0; number < FILE_COUNT; number++)
		write_file(number);
	sync();
	for (int number = 0; number < FILE_COUNT; number += 3) {
		snprintf(name, sizeof name, "/m/%d", number);
		if (unlink(name))
			stop("unlink", name);
	}
	sync();
	trim();
	for (int number = 0; number < FILE_COUNT; number += 6)
		write_file(number);
	if (umount("/m"))
		stop("unmount", "/m");
	end("WRITTEN", RB_AUTOBOOT);
}

static void check(void)
{
	for (int number = 0; number < FILE_COUNT; number++)
		if (number % 3 != 0 || number % 6 == 0)
			check_file(number);
	if (umount("/m"))
		stop("unmount", "/m");
	run((char *const[]){ "/e2fsck", "-fn", VOLUME, NULL });
	end("DONE", RB_POWER_OFF);
}

int main(void)
{
	mount("dev", "/dev", "devtmpfs", 0, "");
	mount("proc", "/proc", "proc", 0, "");
	int console = open("/dev/console", O_RDWR);
	dup2(console, 0);
	dup2(console, 1);
	dup2(console, 2);
	const char *modules[] = { "virtio_blk", "crc32c_generic", "crc16", "mbcache", "jbd2", "ext4" };
	for (size_t at = 0; at < sizeof modules / sizeof *modules; at++) {
		char name[64];
		snprintf(name, sizeof name, "/%s.ko", modules[at]);
		load(name);
	}
	for (int tries = 0; access(VOLUME, F_OK) && tries < 100; tries++)
		usleep(100000);
	if (mount(VOLUME, "/m", "ext4", 0, ""))
		fill();
	else
		check();
}
