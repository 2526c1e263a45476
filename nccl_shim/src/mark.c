/* Mode "mark": queue pairs get their DSCP from rules in the environment. No daemon is asked, nothing is
 * held or counted, and neither posts nor polls are patched.
 *
 * MFS_MARK is written by mfs-run (mfsd/policy/mark_text.py writes and reads it):
 *
 *   dscp=46,34,-,8;stages=...;sizes=...;rule=library:libnccl,role:nccl-data,dscp:46;rule=...
 *
 * "dscp" has one entry for each class on the wire, "-" for a class without a mark. "stages" and "sizes"
 * are for the adapters. In the values of a rule %XX stands for a byte. Nothing here allocates: the
 * environment may be read before libc is ready for that. */
#define _GNU_SOURCE
#include "mark.h"

#include "log.h"
#include "rules.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 16384

static _Atomic bool marking;
static struct mfs_rule mark_rule[MFS_RULES_MAX];
static uint8_t mark_dscp[MFS_CLASSES_MAX];
static int mark_rules;

static const struct {
	const char *name;
	uint8_t role;
} roles[] = {
	{"any", MFS_ROLE_UNKNOWN},
	{"nccl-data", MFS_ROLE_NCCL_DATA},
	{"nccl-cts", MFS_ROLE_NCCL_CTS},
	{"nccl-flush", MFS_ROLE_NCCL_FLUSH},
	{"kv", MFS_ROLE_KV},
	{"bulk", MFS_ROLE_BULK},
};

/* A part of the variable; it ends where the next one begins. */
struct span {
	const char *at, *end;
};

/* Removes the part before the separator from the front and returns it. */
static struct span cut(struct span *rest, char separator)
{
	struct span part = {rest->at, rest->at};

	while (part.end < rest->end && *part.end != separator)
		part.end++;
	rest->at = part.end < rest->end ? part.end + 1 : rest->end;
	return part;
}

static bool is(struct span part, const char *name)
{
	return (size_t)(part.end - part.at) == strlen(name) && !memcmp(part.at, name, strlen(name));
}

/* Parses a whole number up to `most`. Returns -1 for anything else. */
static int number(struct span part, int most)
{
	int value = 0;

	if (part.at == part.end)
		return -1;
	for (; part.at < part.end; part.at++) {
		if (*part.at < '0' || *part.at > '9')
			return -1;
		value = 10 * value + (*part.at - '0');
		if (value > most)
			return -1;
	}
	return value;
}

static int hexadecimal(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'A' && digit <= 'F')
		return digit - 'A' + 10;
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Writes the value with each %XX decoded, and a terminating zero. Returns false if it is empty, too long,
 * or contains a zero. */
static bool text(struct span part, char *out, size_t size)
{
	size_t used = 0;

	while (part.at < part.end && used + 1 < size) {
		char byte = *part.at++;

		if (byte == '%') {
			int high = part.end - part.at < 2 ? -1 : hexadecimal(part.at[0]);
			int low = part.end - part.at < 2 ? -1 : hexadecimal(part.at[1]);

			if (high < 0 || low < 0)
				return false;
			byte = (char)(high << 4 | low);
			part.at += 2;
		}
		if (!byte)
			return false;
		out[used++] = byte;
	}
	out[used] = 0;
	return used > 0 && part.at == part.end;
}

/* Parses ADDRESS/BITS; IPv4 as ::ffff:a.b.c.d. */
static bool network(struct span part, struct mfs_rule *rule)
{
	char name[64];
	struct span rest = part, address = cut(&rest, '/');
	int bits = number(rest, 128);

	if (bits < 0 || !text(address, name, sizeof(name)))
		return false;
	if (inet_pton(AF_INET6, name, rule->peer) != 1) {
		memset(rule->peer, 0, 10);
		memset(rule->peer + 10, 0xff, 2);
		if (bits > 32 || inet_pton(AF_INET, name, rule->peer + 12) != 1)
			return false;
		bits += 96;
	}
	rule->peer_prefix_bits = (uint8_t)bits;
	return true;
}

static bool role(struct span part, uint8_t *found)
{
	for (unsigned i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (is(part, roles[i].name)) {
			*found = roles[i].role;
			return true;
		}
	return false;
}

static bool rule_read(struct span part, struct mfs_rule *rule)
{
	*rule = (struct mfs_rule){.action = MFS_RULE_PASS,
				  .stage = MFS_STAGE_BACKGROUND,
				  .dscp = MFS_DSCP_KEEP};
	while (part.at < part.end) {
		struct span value = cut(&part, ','), key = cut(&value, ':');
		int dscp;

		if (is(key, "library")) {
			if (!text(value, rule->library, sizeof(rule->library)))
				return false;
		} else if (is(key, "process")) {
			if (!text(value, rule->process, sizeof(rule->process)))
				return false;
		} else if (is(key, "communicator")) {
			if (!text(value, rule->communicator, sizeof(rule->communicator)))
				return false;
		} else if (is(key, "peer")) {
			if (!network(value, rule))
				return false;
		} else if (is(key, "role")) {
			if (!role(value, &rule->role))
				return false;
		} else if (is(key, "dscp")) {
			dscp = number(value, 63);
			if (dscp < 0)
				return false;
			rule->dscp = (uint8_t)dscp;
		} else {
			return false;
		}
	}
	return true;
}

static bool classes_read(struct span part)
{
	int count = 0;

	while (part.at < part.end) {
		struct span one = cut(&part, ',');
		int dscp = is(one, "-") ? MFS_DSCP_KEEP : number(one, 63);

		if (dscp < 0 || count == MFS_CLASSES_MAX)
			return false;
		mark_dscp[count++] = (uint8_t)dscp;
	}
	return count > 0;
}

static bool part_read(struct span part)
{
	struct span value = part, key = cut(&value, '=');

	if (is(key, "dscp"))
		return classes_read(value);
	if (is(key, "stages") || is(key, "sizes"))
		return true;
	if (!is(key, "rule") || mark_rules == MFS_RULES_MAX || !rule_read(value, &mark_rule[mark_rules]))
		return false;
	mark_rules++;
	return true;
}

bool shim_mark_load(void)
{
	const char *variable = getenv("MFS_MARK");
	size_t size = variable ? strnlen(variable, TEXT_MAX) : 0;
	struct span rest = {variable, variable + size};

	mark_rules = 0;
	memset(mark_dscp, MFS_DSCP_KEEP, sizeof(mark_dscp));
	if (!size || size == TEXT_MAX) {
		shim_log(SHIM_REASON_MODE,
			 "MFS_MODE=mark: MFS_MARK is %s: nothing is marked; start the program with "
			 "mfs-run --mode mark",
			 size ? "too long" : "not set");
		return false;
	}
	while (rest.at < rest.end) {
		struct span part = cut(&rest, ';');

		if (!part_read(part)) {
			shim_log(SHIM_REASON_MODE,
				 "MFS_MODE=mark: MFS_MARK has \"%.*s\", which cannot be read: nothing is "
				 "marked; start the program with mfs-run --mode mark",
				 (int)(part.end - part.at), part.at);
			return false;
		}
	}
	shim_rules_set(mark_rule, mark_rules, mark_dscp);
	atomic_store(&marking, true);
	return true;
}

bool shim_marking(void)
{
	return atomic_load_explicit(&marking, memory_order_relaxed);
}
