/* Writes 4 KiB here and there in the file, has each stored, and tells in microseconds how long that took, until something fails. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_BYTES 4096
#define BLOCK_COUNT 4096

static uint64_t micros(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

int main(int count, char **args)
{
	static char block[BLOCK_BYTES];
	int file = count == 2 ? open(args[1], O_RDWR | O_CREAT, 0644) : -1;
	if (file < 0)
		return 1;
	for (unsigned turn = 1;; turn++) {
		memset(block, turn, sizeof block);
		uint64_t began = micros();
		off_t at = (turn * 2654435761u) % BLOCK_COUNT * BLOCK_BYTES;
		if (pwrite(file, block, sizeof block, at) != BLOCK_BYTES || fdatasync(file))
			return 1;
		printf("%llu\n", (unsigned long long)(micros() - began));
		fflush(stdout);
		usleep(5000);
	}
}
