/* Writes one line for each reason, once, to stderr. */
#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic uint32_t logged[SHIM_REASON_MAX];
static bool quiet;

/* Called before the program's threads run: they may be changing the environment when a line is logged. */
void shim_log_load(void)
{
	const char *wanted = getenv("MFS_LOG");

	quiet = wanted && !strcmp(wanted, "quiet");
}

void shim_log(enum shim_reason reason, const char *format, ...)
{
	char line[512] = "mfs: ";
	va_list arguments;
	int n;

	if (atomic_exchange_explicit(&logged[reason], 1, memory_order_relaxed) || quiet)
		return;
	va_start(arguments, format);
	n = vsnprintf(line + 5, sizeof(line) - 6, format, arguments);
	va_end(arguments);
	if (n < 0)
		return;
	n = n > (int)sizeof(line) - 7 ? (int)sizeof(line) - 2 : n + 5;
	/* text from the environment must not break the line or send control characters to a terminal */
	for (int i = 5; i < n; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = '?';
	line[n] = '\n';
	int saved = errno;

	/* not write(): the data path must have no cancellation point */
	syscall(SYS_write, STDERR_FILENO, line, (size_t)n + 1);
	errno = saved;
}
