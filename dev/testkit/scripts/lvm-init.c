/* The first program of a guest that makes logical volumes, or judges them: it runs the shell script that /dev/vda holds, and powers off.
 * The guest's disks are the ones behind it, /dev/vdb and so on.
 *
 * Lines of the result begin with "| ", so that they are told from the kernel's. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-init.h"

int main(void)
{
	if (mount("none", "/dev", "devtmpfs", 0, "") || mount("none", "/proc", "proc", 0, "") ||
	    mount("none", "/sys", "sysfs", 0, ""))
		return 1;
	int console = open("/dev/ttyS0", O_WRONLY);
	int nothing = open("/dev/null", O_RDONLY);
	if (console < 0 || dup2(nothing, 0) < 0 || dup2(console, 1) < 0 || dup2(console, 2) < 0)
		return 1;
	load_modules();
	for (int tries = 0; access("/dev/vda", F_OK) && tries < 500; tries++)
		usleep(20000);
	setenv("PATH", "/usr/bin", 1);
	setenv("LC_ALL", "C", 1);
	setenv("LVM_SUPPRESS_FD_WARNINGS", "1", 1);
	int status = -1;
	pid_t child = fork();
	if (child == 0) {
		execl("/usr/bin/sh", "sh", "-eu", "/dev/vda", (char *)NULL);
		_exit(127);
	}
	for (pid_t ended; (ended = wait(&status)) != child;)
		if (ended < 0 && errno != EINTR)
			break;
	puts(status ? "| FAILED" : "| DONE");
	end();
}
