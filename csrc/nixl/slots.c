/* Whether an engine's virtual functions are those that abi.h declares, by the names that the loader has
 * for them. A C++ name contains the function and the types of all its arguments. So a function that was
 * moved, added or changed is noticed before it is called. */
#define _GNU_SOURCE
#include "slots.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define LISTS "ERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK" STRING
#define REQUEST "P15nixlBackendReqH"

/* Each function that is replaced: its slot, and the part of its name that follows the class. */
static const struct known {
	enum nixl_slot slot;
	const char *name;
} known[] = {
	{NIXL_SLOT_DELETE, "D0Ev"},
	{NIXL_SLOT_DISCONNECT, "10disconnectERK" STRING},
	{NIXL_SLOT_PREPARE, "8prepXfer" LISTS "R" REQUEST "PK23nixlBackendOptionalArgs"},
	{NIXL_SLOT_POST, "8postXfer" LISTS "R" REQUEST "PK23nixlBackendOptionalArgs"},
	{NIXL_SLOT_CHECK, "9checkXferE" REQUEST},
	{NIXL_SLOT_RELEASE, "11releaseReqHE" REQUEST},
	{NIXL_SLOT_ESTIMATE,
	 "16estimateXferCost" LISTS "RK" REQUEST
	 "RNSt6chrono8durationIlSt5ratioILl1ELl1000000EEEESP_R11nixl_cost_tPK21nixlAgentOptionalArgs"},
};

/* Returns what follows the class in the name of a function, for a class that is in no namespace. NULL: it
 * is another kind of name. */
static const char *behind_class(const char *name)
{
	size_t length = 0;

	if (strncmp(name, "_ZN", 3))
		return NULL;
	name += name[3] == 'K' ? 4 : 3;
	for (; *name >= '0' && *name <= '9' && length < 1000; name++)
		length = 10 * length + (size_t)(*name - '0');
	return length && strnlen(name, length) == length ? name + length : NULL;
}

size_t nixl_slots_known(const struct nixl_object *engine, char *why, size_t room)
{
	const ElfW(Sym) *symbol = NULL;
	const char *behind;
	Dl_info info;
	size_t words;

	if (!dladdr1(engine->table, &info, (void **)&symbol, RTLD_DL_SYMENT) || !info.dli_sname || !symbol ||
	    strncmp(info.dli_sname, "_ZTV", 4) || info.dli_saddr != engine->table - NIXL_TABLE_HEAD) {
		snprintf(why, room, "the names of its functions are not exported");
		return 0;
	}
	words = symbol->st_size / sizeof(void *);
	if (words < NIXL_TABLE_HEAD + NIXL_SLOTS_LEAST) {
		snprintf(why, room, "%s has %zu functions", info.dli_sname, words - NIXL_TABLE_HEAD);
		return 0;
	}
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (dladdr(engine->table[known[i].slot], &info) && info.dli_sname &&
		    (behind = behind_class(info.dli_sname)) && !strcmp(behind, known[i].name))
			continue;
		snprintf(why, room, "function %d is not %.24s", known[i].slot, known[i].name);
		return 0;
	}
	return words;
}
