/* Writes one line for each reason, once, to stderr. It is called when plugins are loaded and engines are
 * made, never on the path of a transfer. */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic uint32_t logged[NIXL_REASONS];
static bool quiet;

/* Runs when the plugin is loaded: later, one of our threads may log while the program changes its environment. */
__attribute__((constructor)) static void load(void)
{
	const char *wanted = getenv("MFS_LOG");

	quiet = wanted && !strcmp(wanted, "quiet");
}

void nixl_log(enum nixl_reason reason, const char *format, ...)
{
	char line[512] = "mfs: ";
	va_list arguments;
	int n;

	if (quiet || atomic_exchange(&logged[reason], 1))
		return;
	va_start(arguments, format);
	n = vsnprintf(line + 5, sizeof(line) - 6, format, arguments);
	va_end(arguments);
	if (n < 0)
		return;
	n = n > (int)sizeof(line) - 7 ? (int)sizeof(line) - 2 : n + 5;
	for (int i = 5; i < n; i++) /* text from the environment must not break the line */
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = '?';
	line[n] = '\n';
	if (write(STDERR_FILENO, line, (size_t)n + 1) < 0)
		return;
}
