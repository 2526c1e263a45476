/* MFS_SERVICE_LEVELS: which service level a queue pair gets on InfiniBand, by the DSCP of its class.
 *
 *   46:5,34:4!,8:0
 *
 * If it is not set, nothing is changed. A level that the program has set itself (not 0) stays, unless "!"
 * says otherwise: only the operator of the subnet manager knows what the levels mean there. Used when a
 * queue pair is connected, not on the data path. */
#include "service_level.h"

#include "log.h"

#include <stdlib.h>
#include <string.h>

#define DSCPS 64
#define LEVELS 16

static struct {
	uint8_t level;
	bool known, over; /* over: replaces the program's own level, too */
} of_dscp[DSCPS];
static bool any;

/* Parses a whole number less than `below` at *text and moves *text behind it. Returns -1 if there is none. */
static int number(const char **text, int below)
{
	int value = 0;

	if (**text < '0' || **text > '9')
		return -1;
	for (; **text >= '0' && **text <= '9'; (*text)++) {
		value = 10 * value + (**text - '0');
		if (value >= below)
			return -1;
	}
	return value;
}

static bool entry_read(const char **text)
{
	int dscp = number(text, DSCPS), level;

	if (dscp < 0 || *(*text)++ != ':')
		return false;
	level = number(text, LEVELS);
	if (level < 0)
		return false;
	of_dscp[dscp].level = (uint8_t)level;
	of_dscp[dscp].known = true;
	of_dscp[dscp].over = **text == '!';
	*text += of_dscp[dscp].over;
	return **text == 0 || *(*text)++ == ',';
}

void shim_service_level_load(void)
{
	const char *variable = getenv("MFS_SERVICE_LEVELS"), *rest = variable;

	memset(of_dscp, 0, sizeof(of_dscp));
	any = false;
	while (rest && *rest)
		if (!entry_read(&rest)) {
			shim_log(
				SHIM_REASON_MODE,
				"MFS_SERVICE_LEVELS=%.128s cannot be read: no service level is set; write DSCP:LEVEL "
				"with commas, as 46:5,34:4, a ! behind those that go before the program's own",
				variable);
			return;
		}
	any = variable && *variable;
}

static bool infiniband(struct ibv_context *context, const struct shim_verbs *verbs, uint8_t port)
{
	struct verbs_context *v = verbs_get_ctx_op(context, query_port);
	struct ibv_port_attr attr;

	memset(&attr, 0, sizeof(attr));
	if (v ? v->query_port(context, port, &attr, sizeof(attr))
	      : !verbs->query_port || verbs->query_port(context, port, &attr))
		return false;
	return attr.link_layer == IBV_LINK_LAYER_INFINIBAND;
}

bool shim_service_level(struct ibv_context *context, const struct shim_verbs *verbs, uint8_t dscp,
			const struct ibv_ah_attr *given, uint8_t *level)
{
	if (!any || dscp >= DSCPS || !of_dscp[dscp].known || (given->sl && !of_dscp[dscp].over))
		return false;
	if (!infiniband(context, verbs, given->port_num))
		return false;
	*level = of_dscp[dscp].level;
	return true;
}
