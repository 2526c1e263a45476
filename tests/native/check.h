/* Checks of native tests, which report what does not hold. */
#ifndef NATIVE_CHECK_H
#define NATIVE_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);          \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_EQUAL(a, b)                                                                                              \
	do {                                                                                                           \
		long long a_ = (long long)(a), b_ = (long long)(b);                                                    \
		if (a_ != b_) {                                                                                        \
			fprintf(stderr, "%s:%d: %s: %s is %lld, %s is %lld\n", __FILE__, __LINE__, __func__, #a, a_,   \
				#b, b_);                                                                               \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* Waits for a condition that another thread or process makes true, checking it every 200 us. The bound
 * only ends a test that fails. */
#define WAIT(condition)                                                                                                \
	do {                                                                                                           \
		time_t end_ = time(NULL) + 100;                                                                         \
		while (!(condition)) {                                                                                 \
			if (time(NULL) > end_) {                                                                       \
				fprintf(stderr, "%s:%d: %s: never came: %s\n", __FILE__, __LINE__, __func__,           \
					#condition);                                                                   \
				exit(1);                                                                               \
			}                                                                                              \
			usleep(200);                                                                                   \
		}                                                                                                      \
	} while (0)

#endif
