/* What the first programs of guests share: they load modules, say what fails, and power off.
 *
 * Lines of the result begin with "| ", so that they are told from the kernel's. */
#ifndef GUEST_INIT_H
#define GUEST_INIT_H
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

static void end(void)
{
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

static void stop(const char *what, const char *path)
{
	printf("| FAILED %s %s: %s\n", what, path, strerror(errno));
	end();
}

static void load_modules(void)
{
	char name[64];
	FILE *list = fopen("/modules", "r");
	while (list && fscanf(list, "%63s", name) == 1) {
		char path[80];
		snprintf(path, sizeof path, "/%s.ko", name);
		int file = open(path, O_RDONLY);
		/* One that is there already, or that this processor needs not. */
		if (file < 0 || (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST && errno != ENODEV))
			stop("load", name);
		close(file);
	}
}

#endif
