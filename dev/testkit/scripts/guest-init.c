/* The first and only program of a guest that judges an NTFS volume with the kernel's ntfs3 driver: mounts /dev/vda
 * read-only and prints all that it shows of each file, then read-write, then read-only again, and powers off. Lines of
 * the result begin with "| ", so that they are told from the kernel's. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static void stop(const char *what, const char *path)
{
	printf("| FAILED %s %s: %s\n", what, path, strerror(errno));
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

/* FNV-1a, 64 bits. */
static uint64_t hash(uint64_t sum, const unsigned char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		sum = (sum ^ bytes[i]) * 0x100000001b3ULL;
	return sum;
}
#define HASH_START 0xcbf29ce484222325ULL

static unsigned char buffer[1 << 18];

static void print_name(const char *name)
{
	for (; *name; name++)
		if (*name > ' ' && *name < 127 && *name != '\\')
			putchar(*name);
		else
			printf("\\x%02x", (unsigned char)*name);
}

static void print_attribute(const char *path, const char *name)
{
	ssize_t len = lgetxattr(path, name, buffer, sizeof buffer);
	if (len >= 0)
		printf(" %s=%016llx", name, (unsigned long long)hash(HASH_START, buffer, len));
	/* No such entry: a descriptor that is in the file's own record, of which the driver knows nothing. */
	else if (errno != ENODATA && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOENT)
		stop(name, path);
}

static uint64_t contents(const char *path)
{
	uint64_t sum = HASH_START;
	ssize_t len;
	int file = open(path, O_RDONLY | O_NOATIME);
	if (file < 0)
		stop("open", path);
	while ((len = read(file, buffer, sizeof buffer)) > 0)
		sum = hash(sum, buffer, len);
	/* Encrypted contents are not read by this driver. */
	if (len < 0 && errno != EOPNOTSUPP)
		stop("read", path);
	close(file);
	return sum;
}

static int by_name(const struct dirent **one, const struct dirent **other)
{
	return strcmp((*one)->d_name, (*other)->d_name);
}

static void walk(const char *path)
{
	struct stat about;
	if (lstat(path, &about))
		stop("stat", path);
	printf("| ");
	print_name(path);
	printf(" %llu %o %u:%u %llu %lld %lld.%09ld %lld.%09ld", (unsigned long long)about.st_ino, about.st_mode,
	       about.st_uid, about.st_gid, (unsigned long long)about.st_nlink, (long long)about.st_size,
	       (long long)about.st_mtim.tv_sec, about.st_mtim.tv_nsec, (long long)about.st_ctim.tv_sec,
	       about.st_ctim.tv_nsec);
	print_attribute(path, "system.ntfs_attrib");
	print_attribute(path, "system.ntfs_security");
	char names[1 << 16];
	ssize_t len = llistxattr(path, names, sizeof names);
	for (ssize_t at = 0; at < len; at += strlen(names + at) + 1)
		if (strncmp(names + at, "system.", 7))
			print_attribute(path, names + at);
	if (S_ISREG(about.st_mode)) {
		printf(" %016llx", (unsigned long long)contents(path));
	} else if (S_ISLNK(about.st_mode)) {
		len = readlink(path, (char *)buffer, sizeof buffer - 1);
		/* A link of a kind that this driver does not know. */
		if (len < 0 && errno == EINVAL)
			len = 0;
		if (len < 0)
			stop("readlink", path);
		buffer[len] = 0;
		printf(" -> ");
		print_name((char *)buffer);
	}
	printf("\n");
	if (!S_ISDIR(about.st_mode))
		return;
	struct dirent **entries;
	int count = scandir(path, &entries, NULL, (int (*)(const struct dirent **, const struct dirent **))by_name);
	if (count < 0)
		stop("list", path);
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

static void load(const char *module)
{
	int file = open(module, O_RDONLY);
	if (file < 0 || syscall(SYS_finit_module, file, "", 0))
		stop("load", module);
	close(file);
}

static void mount_volume(unsigned long flags)
{
	if (mount("/dev/vda", "/m", "ntfs3", flags, "sys_immutable"))
		stop("mount", flags & MS_RDONLY ? "read-only" : "read-write");
}

static void unmount_volume(void)
{
	if (chdir("/") || umount("/m"))
		stop("unmount", "/m");
}

int main(void)
{
	mkdir("/dev", 0755);
	mkdir("/m", 0755);
	if (mount("none", "/dev", "devtmpfs", 0, ""))
		return 1;
	if (!freopen("/dev/ttyS0", "w", stdout))
		return 1;
	load("/virtio_blk.ko");
	load("/ntfs3.ko");
	for (int i = 0; access("/dev/vda", F_OK) && i < 500; i++)
		usleep(20000);
	for (int i = 0; i < 2; i++) {
		mount_volume(MS_RDONLY | MS_NOATIME);
		if (chdir("/m"))
			stop("enter", "/m");
		printf("| == %d\n", i);
		walk(".");
		unmount_volume();
		if (!i) {
			mount_volume(MS_NOATIME);
			unmount_volume();
		}
	}
	printf("| DONE\n");
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	return 0;
}
