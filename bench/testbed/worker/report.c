/* The worker's settings, its clock, and the line to the controller. */
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

struct settings settings = { .message_bytes = 128 << 10, .control_fd = 3 };

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void tell(const char *format, ...)
{
	static char packet[PACKET_BYTES];
	va_list arguments;
	int bytes;

	va_start(arguments, format);
	bytes = vsnprintf(packet, sizeof(packet), format, arguments);
	va_end(arguments);
	if (bytes >= (int)sizeof(packet) || send(settings.control_fd, packet, (size_t)bytes, MSG_NOSIGNAL) < 0)
		exit(1); /* the controller is gone, so there is nothing to report to */
}

void fail(const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "%s: %s\n", settings.name ? settings.name : "worker", text);
	tell("error %s", text);
	exit(1);
}
