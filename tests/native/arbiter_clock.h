/* An arbiter under a clock of the test's own, `now_ns`, which the test moves. Nothing depends on how fast
 * this machine is.
 *
 * Includes arbiter.c and arbiter/command.c, so that the test can take turns and replace the clock. Linked
 * with all other files of csrc. For programs of one source file. */
#ifndef ARBITER_CLOCK_H
#define ARBITER_CLOCK_H

#define _GNU_SOURCE
#define arbiter_clock_ns arbiter_real_clock_ns
#include "../../csrc/arbiter/command.c"
#undef arbiter_clock_ns
uint64_t arbiter_clock_ns(void);
#undef _GNU_SOURCE
#include "../../csrc/arbiter/arbiter.c"

#include <stdio.h>

static uint64_t now_ns; /* begins a second after the real time, which commands use before the first turn */

uint64_t arbiter_clock_ns(void)
{
	return now_ns;
}

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "not so: %s\n", what);
	_exit(1);
}

#endif
