/* The first and only program of a guest that works on a file system, or judges some. The kernel's command line says what:
 *
 *   work=KIND:OPTIONS:SEED:ABLE volume=START,SECTORS   mounts that part of /dev/vda, and works on it until the guest is killed
 *   judge=KIND:OPTIONS slices=COUNT,SECTORS            mounts COUNT parts of /dev/vda, each of SECTORS, one after the other, prints
 *                                                      all that each shows, and powers off
 *
 * Lines of the result begin with "| ", so that they are told from the kernel's. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dm-ioctl.h>
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
#include <sys/xattr.h>
#include <unistd.h>

#include "guest-init.h"

#define NAMES 200
#define FOLDERS 7
#define WORKERS 3

/* A device that is a part of /dev/vda; /dev/dm-0, since there is one at a time. */
static void map(unsigned long long start, unsigned long long sectors)
{
	static struct {
		struct dm_ioctl head;
		struct dm_target_spec target;
		char parameters[64];
	} call;
	int control = open("/dev/mapper/control", O_RDWR);
	const unsigned long calls[] = { DM_DEV_CREATE, DM_TABLE_LOAD, DM_DEV_SUSPEND };
	for (size_t index = 0; index < 3; index++) {
		memset(&call, 0, sizeof call);
		call.head.version[0] = DM_VERSION_MAJOR;
		call.head.data_size = sizeof call;
		call.head.data_start = sizeof call.head;
		strcpy(call.head.name, "volume");
		if (calls[index] == DM_TABLE_LOAD) {
			call.head.target_count = 1;
			call.target.length = sectors;
			strcpy(call.target.target_type, "linear");
			snprintf(call.parameters, sizeof call.parameters, "/dev/vda %llu", start);
		}
		if (control < 0 || ioctl(control, calls[index], &call))
			stop("map", "/dev/vda");
	}
	close(control);
	for (int tries = 0; access("/dev/dm-0", F_OK) && tries < 500; tries++)
		usleep(10000);
}

static void unmap(void)
{
	struct dm_ioctl call = { .version = { DM_VERSION_MAJOR }, .data_size = sizeof call, .name = "volume" };
	int control = open("/dev/mapper/control", O_RDWR);
	for (int tries = 0; ioctl(control, DM_DEV_REMOVE, &call); tries++) {
		if (tries == 500)
			stop("unmap", "/dev/dm-0");
		usleep(10000);
	}
	close(control);
}

/* Options of the file system, and `ro`, which is the kernel's own. */
static void mount_volume(const char *kind, const char *options)
{
	unsigned long flags = MS_NOATIME;
	if (!strncmp(options, "ro", 2) && (!options[2] || options[2] == ',')) {
		flags |= MS_RDONLY;
		options += options[2] ? 3 : 2;
	}
	if (mount("/dev/dm-0", "/m", kind, flags, options))
		stop("mount", options);
	if (chdir("/m"))
		stop("enter", "/m");
}

/* ---- who judges ---- */

static unsigned char buffer[1 << 18];

static uint64_t hash(uint64_t sum, const unsigned char *bytes, size_t len)
{
	/* FNV-1a, but of words of 64 bits. */
	for (; len >= 8; bytes += 8, len -= 8) {
		uint64_t word;
		memcpy(&word, bytes, 8);
		sum = (sum ^ word) * 0x100000001b3ULL;
		sum ^= sum >> 29;
	}
	for (; len; bytes++, len--)
		sum = (sum ^ *bytes) * 0x100000001b3ULL;
	return sum;
}
#define HASH_START 0xcbf29ce484222325ULL

static void print_name(const char *name)
{
	for (; *name; name++)
		if (*name > ' ' && *name < 127 && *name != '\\')
			putchar(*name);
		else
			printf("\\x%02x", (unsigned char)*name);
}

static void print_contents(const char *path)
{
	uint64_t sum = HASH_START;
	ssize_t len = -1;
	int file = open(path, O_RDONLY);
	while (file >= 0 && (len = read(file, buffer, sizeof buffer)) > 0)
		sum = hash(sum, buffer, len);
	/* Without recovery some cannot be read. */
	if (len < 0)
		printf(" %s", strerror(errno));
	else
		printf(" %016llx", (unsigned long long)sum);
	if (file >= 0)
		close(file);
}

static void print_attributes(const char *path)
{
	char names[1 << 12];
	ssize_t len = llistxattr(path, names, sizeof names);
	for (ssize_t at = 0; at < len; at += strlen(names + at) + 1) {
		ssize_t size = lgetxattr(path, names + at, buffer, sizeof buffer);
		printf(" %s=", names + at);
		if (size < 0)
			printf("%s", strerror(errno));
		else
			printf("%016llx", (unsigned long long)hash(HASH_START, buffer, size));
	}
}

static void walk(const char *path)
{
	struct stat about;
	printf("| ");
	print_name(path);
	if (lstat(path, &about)) {
		printf(" %s\n", strerror(errno));
		return;
	}
	printf(" %llu %o %u:%u", (unsigned long long)about.st_ino, about.st_mode, about.st_uid, about.st_gid);
	if (!S_ISDIR(about.st_mode))
		printf(" %llu %lld", (unsigned long long)about.st_nlink, (long long)about.st_size);
	print_attributes(path);
	if (S_ISREG(about.st_mode))
		print_contents(path);
	struct dirent **entries = NULL;
	int count = S_ISDIR(about.st_mode) ? scandir(path, &entries, NULL, alphasort) : 0;
	printf(count < 0 ? " %s\n" : "\n", strerror(errno));
	for (int i = 0; i < count; i++) {
		const char *name = entries[i]->d_name;
		if (strcmp(name, ".") && strcmp(name, "..")) {
			char *below;
			if (asprintf(&below, "%s/%s", path, name) < 0)
				stop("memory", path);
			walk(below);
			free(below);
		}
		free(entries[i]);
	}
	free(entries);
}

static void judge(const char *kind, const char *options, unsigned count, unsigned long long sectors)
{
	for (unsigned index = 0; index < count; index++) {
		map(index * sectors, sectors);
		mount_volume(kind, options);
		printf("| == %u\n", index);
		walk(".");
		if (chdir("/") || umount("/m"))
			stop("unmount", "/m");
		unmap();
	}
	printf("| DONE\n");
	end();
}

/* ---- who works ---- */

static uint64_t state;

static uint64_t below(uint64_t limit)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 33) % limit;
}

static const char *some_name(void)
{
	static char names[4][64];
	static int next;
	char *name = names[next++ % 4];
	unsigned number = below(NAMES);
	snprintf(name, sizeof names[0], "%u/file %u", number % FOLDERS, number);
	return name;
}

/* Of so many bits, any number of bits fewer as likely. */
static size_t some_len(int bits)
{
	return below(1ULL << below(bits)) + 1;
}

static void put(const char *name, int flags, off_t at, size_t len)
{
	/* Another word in each write, and in each of its blocks. */
	uint64_t word = below(UINT32_MAX) << 32 | below(UINT32_MAX);
	for (size_t index = 0; index + 8 <= sizeof buffer && index < len + 8; index += 8) {
		uint64_t here = word + index / 512;
		memcpy(buffer + index, &here, 8);
	}
	int file = open(name, O_WRONLY | flags, 0644);
	if (file < 0)
		return;
	if (pwrite(file, buffer, len, at) > 0 && below(10) < 3)
		fsync(file);
	close(file);
}

static off_t size_of(const char *name)
{
	struct stat about;
	return stat(name, &about) ? 0 : about.st_size;
}

static void step(int can_share)
{
	const char *name = some_name(), *other = some_name();
	int file, from;
	switch (below(can_share ? 31 : 27)) {
	case 0 ... 7:
		put(name, O_CREAT | O_TRUNC, 0, some_len(18));
		break;
	case 8 ... 15:
		put(name, 0, below(size_of(name) + 1), some_len(16));
		break;
	case 16:
		(void)!truncate(name, below(2 * size_of(name) + 1));
		break;
	case 17: case 18:
		rename(name, other);
		break;
	case 19: case 20:
		unlink(name);
		break;
	case 21:
		if ((file = open(name, O_WRONLY)) >= 0) {
			(void)!fallocate(file, 0, below(1 << 18), below(1 << 18) + 1);
			close(file);
		}
		break;
	case 22:
		(void)!link(name, other);
		break;
	case 23: case 24:
		memset(buffer, below(256), 2000);
		if (below(4))
			setxattr(name, "user.some", buffer, below(2000) + 1, 0);
		else
			removexattr(name, "user.some");
		break;
	case 25:
		if (!symlink(buffer[0] & 1 ? name : other, "link"))
			break;
		unlink("link");
		break;
	case 26:
		if (!below(20))
			sync();
		else if (mkdir("folder", 0755))
			rmdir("folder");
		break;
	default:
		from = open(name, O_RDONLY);
		file = open(other, O_WRONLY | O_CREAT, 0644);
		if (from >= 0 && file >= 0)
			ioctl(file, FICLONE, from);
		close(from);
		close(file);
	}
}

static void work(const char *kind, const char *options, uint64_t seed, int can_share)
{
	mount_volume(kind, options);
	for (int folder = 0; folder < FOLDERS; folder++) {
		char name[8];
		snprintf(name, sizeof name, "%d", folder);
		mkdir(name, 0755);
	}
	/* What is there without recovery. */
	state = seed;
	for (int done = 0; done < 400; done++)
		step(can_share);
	if (chdir("/") || umount("/m"))
		stop("unmount", "/m");
	mount_volume(kind, options);
	printf("| WORKING\n");
	fflush(stdout);
	for (int worker = 1; worker < WORKERS; worker++) {
		if (fork() == 0) {
			seed += worker;
			break;
		}
	}
	state = seed;
	for (unsigned long long done = 0;; done++) {
		step(can_share);
		/* Where nothing is left. */
		if (done % 50 == 0 && below(10) == 0)
			unlink(some_name());
	}
}

int main(void)
{
	static char line[4096], kind[16], options[256], able[32];
	unsigned count;
	unsigned long long start, sectors, seed;
	mkdir("/dev", 0755);
	mkdir("/proc", 0755);
	mkdir("/m", 0755);
	if (mount("none", "/dev", "devtmpfs", 0, "") || mount("none", "/proc", "proc", 0, ""))
		return 1;
	if (!freopen("/dev/ttyS0", "w", stdout))
		return 1;
	load_modules();
	for (int tries = 0; access("/dev/vda", F_OK) && tries < 500; tries++)
		usleep(20000);
	FILE *file = fopen("/proc/cmdline", "r");
	if (!file || !fgets(line, sizeof line, file))
		stop("read", "/proc/cmdline");
	const char *working = strstr(line, " work="), *judging = strstr(line, " judge=");
	const char *volume = strstr(line, " volume="), *slices = strstr(line, " slices=");
	if (working && volume && sscanf(volume, " volume=%llu,%llu", &start, &sectors) == 2 &&
	    sscanf(working, " work=%15[^:]:%255[^:]:%llu:%31s", kind, options, &seed, able) == 4) {
		map(start, sectors);
		work(kind, options, seed, !strcmp(able, "reflink"));
	}
	if (judging && slices && sscanf(slices, " slices=%u,%llu", &count, &sectors) == 2 &&
	    sscanf(judging, " judge=%15[^:]:%255s", kind, options) == 2)
		judge(kind, options, count, sectors);
	stop("understand", line);
	return 1;
}
