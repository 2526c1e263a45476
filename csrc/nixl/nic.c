/* Which network card UCX takes, as far as that is known before it has connected; with several rails it is
 * the first. The rules are the same as in the adapter (mooncake_adapter/nixl/network.py). It runs when a
 * process makes its first engine, on the program's own thread, because it reads the environment. */
#define _GNU_SOURCE
#include "nic.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DEVICES "/sys/class/infiniband"

static const char *const rdma[] = {"rc", "dc", "ud", "ib", "srd", "all"};

static bool is_rdma(const char *transport)
{
	for (size_t i = 0; i < sizeof(rdma) / sizeof(rdma[0]); i++)
		if (!strncasecmp(transport, rdma[i], strlen(rdma[i])))
			return true;
	return false;
}

/* Copies the next entry of a comma-separated list, without blanks. Returns false at its end. */
static bool next_entry(const char **list, char *entry, size_t room)
{
	size_t n, skipped;

	if (!*list || !**list)
		return false;
	skipped = strspn(*list, " ");
	n = strcspn(*list + skipped, ",");
	snprintf(entry, room, "%.*s", (int)n, *list + skipped);
	for (size_t at = strlen(entry); at && entry[at - 1] == ' '; at--)
		entry[at - 1] = 0;
	*list += skipped + n;
	if (**list == ',')
		++*list;
	return true;
}

/* True if UCX_TLS permits RDMA. */
static bool rdma_allowed(void)
{
	const char *list = getenv("UCX_TLS");
	char entry[64];
	bool any = false;

	while (next_entry(&list, entry, sizeof(entry))) {
		if (*entry && is_rdma(entry))
			return true;
		any |= *entry != 0;
	}
	return !any;
}

/* Finds the first entry of UCX_NET_DEVICES that is an interface or, if `interface` is false, the first
 * that is none. *any: the variable names anything at all. */
static bool named(bool interface, char name[NIXL_NIC_NAME_BYTES], bool *any)
{
	const char *list = getenv("UCX_NET_DEVICES");
	char entry[64];

	while (next_entry(&list, entry, sizeof(entry))) {
		entry[strcspn(entry, ":")] = 0;
		if (!*entry || !strcmp(entry, "all"))
			continue;
		*any = true;
		if ((if_nametoindex(entry) != 0) == interface) {
			snprintf(name, NIXL_NIC_NAME_BYTES, "%.31s", entry);
			return true;
		}
	}
	return false;
}

/* Finds the first RDMA device of this host, sorted by name. */
static bool first_device(char name[NIXL_NIC_NAME_BYTES])
{
	DIR *folder = opendir(DEVICES);
	struct dirent *entry;

	*name = 0;
	if (!folder)
		return false;
	while ((entry = readdir(folder)))
		if (entry->d_name[0] != '.' && (!*name || strcmp(entry->d_name, name) < 0))
			snprintf(name, NIXL_NIC_NAME_BYTES, "%.31s", entry->d_name);
	closedir(folder);
	return *name != 0;
}

/* Returns a device's GUID in the form in which verbs return it: its bytes in memory order. */
static uint64_t guid_of(const char *device)
{
	char path[sizeof(DEVICES) + NIXL_NIC_NAME_BYTES + 16], text[32] = "";
	unsigned parts[4];
	uint64_t guid = 0;
	FILE *file;

	snprintf(path, sizeof(path), DEVICES "/%s/node_guid", device);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fgets(text, sizeof(text), file) &&
	    sscanf(text, "%4x:%4x:%4x:%4x", &parts[0], &parts[1], &parts[2], &parts[3]) == 4)
		for (unsigned i = 0; i < 4; i++) {
			uint16_t part = htons((uint16_t)parts[i]);

			memcpy((char *)&guid + 2 * i, &part, sizeof(part));
		}
	fclose(file);
	return guid;
}

/* Finds the interface with the address to which this host's own name resolves, otherwise the first one
 * that has an address. */
static void own_interface(char name[NIXL_NIC_NAME_BYTES])
{
	struct addrinfo hints = {.ai_family = AF_INET}, *found = NULL;
	struct in_addr wanted = {0};
	struct ifaddrs *all = NULL;
	char host[256] = "";

	*name = 0;
	if (!gethostname(host, sizeof(host) - 1) && !getaddrinfo(host, NULL, &hints, &found) && found) {
		wanted = ((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr;
		freeaddrinfo(found);
	}
	if (getifaddrs(&all))
		return;
	for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
		if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET)
			continue;

		struct in_addr address = ((const struct sockaddr_in *)(const void *)one->ifa_addr)->sin_addr;
		bool loopback = !strcmp(one->ifa_name, "lo") && ntohl(wanted.s_addr) >> 24 == 127;
		bool exact = loopback || address.s_addr == wanted.s_addr;

		if (exact || !*name)
			snprintf(name, NIXL_NIC_NAME_BYTES, "%.31s", one->ifa_name);
		if (exact)
			break;
	}
	freeifaddrs(all);
}

void nixl_nic_chosen(char name[NIXL_NIC_NAME_BYTES], uint64_t *guid)
{
	bool any = false;

	*guid = 0;
	if (rdma_allowed() && (named(false, name, &any) || (!any && first_device(name)))) {
		*guid = guid_of(name);
		return;
	}
	if (!named(true, name, &any))
		own_interface(name);
}
