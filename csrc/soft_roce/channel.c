/*
 * Completion channels and asynchronous events: pipes that carry what the kernel would write to its event
 * files.
 *
 * libibverbs creates a channel by writing a command to the device file, without asking the provider, and
 * takes the channel's descriptor from the answer. Our device file is /dev/null, so the provider puts itself
 * in the place of the write() that libibverbs imports, answers that one command, refuses the others and
 * passes every foreign descriptor on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <rdma/ib_user_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "channel.h"

#include "registry.h"

static void channel_free(struct mfs_channel *channel)
{
	LIST_REMOVE(channel, link);
	close(channel->write_fd);
	free(channel);
}

/* libibverbs closes its end of a channel without a word to the provider; only then does the writing end report an error. */
static void free_abandoned(struct mfs_context *context)
{
	struct mfs_channel *channel, *next;

	for (channel = LIST_FIRST(&context->channels); channel; channel = next) {
		struct pollfd reader = {.fd = channel->write_fd};

		next = LIST_NEXT(channel, link);
		if (poll(&reader, 1, 0) > 0 && (reader.revents & POLLERR))
			channel_free(channel);
	}
}

static int channel_create(struct mfs_context *context)
{
	struct mfs_channel *channel = malloc(sizeof(*channel));
	int ends[2];

	if (!channel)
		return -ENOMEM;
	if (pipe2(ends, O_CLOEXEC)) {
		free(channel);
		return -errno;
	}
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	channel->read_fd = ends[0];
	channel->write_fd = ends[1];
	mfs_context_lock(context);
	free_abandoned(context);
	LIST_INSERT_HEAD(&context->channels, channel, link);
	mfs_context_unlock(context);
	return channel->read_fd;
}

struct mfs_channel *mfs_channel_find(struct mfs_context *context, int read_fd)
{
	struct mfs_channel *channel;

	LIST_FOREACH (channel, &context->channels, link)
		if (channel->read_fd == read_fd)
			break;
	return channel;
}

void mfs_channel_close_all(struct mfs_context *context)
{
	while (!LIST_EMPTY(&context->channels))
		channel_free(LIST_FIRST(&context->channels));
}

static ssize_t command_write(int fd, const void *buffer, size_t size)
{
	const struct ib_uverbs_cmd_hdr *header = buffer;
	struct ib_uverbs_create_comp_channel command;
	struct ib_uverbs_create_comp_channel_resp *response;
	struct mfs_context *context = mfs_context_by_command_fd(fd);
	int channel;

	if (!context)
		return write(fd, buffer, size);
	if (size < sizeof(*header) + sizeof(command) ||
	    header->command != IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) {
		errno = EOPNOTSUPP;
		return -1;
	}
	memcpy(&command, header + 1, sizeof(command));
	response = (void *)(uintptr_t)command.response;
	channel = channel_create(context);
	if (channel < 0) {
		errno = -channel;
		return -1;
	}
	response->fd = (uint32_t)channel;
	return (ssize_t)size;
}

static int replace_import(ElfW(Addr) base, const ElfW(Rela) * relocations, size_t count,
			  const ElfW(Sym) * symbols, const char *names)
{
	uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
	int replaced = 0;
	size_t i;

	for (i = 0; i < count; i++) {
		void **slot = (void **)(base + relocations[i].r_offset);
		uintptr_t page = (uintptr_t)slot & ~(page_size - 1);

		if (strcmp(names + symbols[ELF64_R_SYM(relocations[i].r_info)].st_name, "write"))
			continue;
		if (mprotect((void *)page, page_size, PROT_READ | PROT_WRITE))
			return -errno;
		__atomic_store_n(slot, (void *)command_write, __ATOMIC_RELEASE);
		replaced++;
	}
	return replaced;
}

int mfs_channel_install(void *libibverbs)
{
	const ElfW(Rela) *plt = NULL, *data = NULL;
	size_t plt_size = 0, data_size = 0;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	const ElfW(Dyn) * entry;
	struct link_map *map;
	int in_plt, in_data;

	if (dlinfo(libibverbs, RTLD_DI_LINKMAP, &map))
		return -ENOENT;
	for (entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_SYMTAB)
			symbols = (const void *)entry->d_un.d_ptr;
		else if (entry->d_tag == DT_STRTAB)
			names = (const void *)entry->d_un.d_ptr;
		else if (entry->d_tag == DT_JMPREL)
			plt = (const void *)entry->d_un.d_ptr;
		else if (entry->d_tag == DT_PLTRELSZ)
			plt_size = entry->d_un.d_val;
		else if (entry->d_tag == DT_RELA)
			data = (const void *)entry->d_un.d_ptr;
		else if (entry->d_tag == DT_RELASZ)
			data_size = entry->d_un.d_val;
	}
	in_plt = replace_import(map->l_addr, plt, plt_size / sizeof(*plt), symbols, names);
	in_data = replace_import(map->l_addr, data, data_size / sizeof(*data), symbols, names);
	if (in_plt < 0 || in_data < 0 || in_plt + in_data == 0) {
		fprintf(stderr, "mfs soft RoCE: this libibverbs does not import write(), completion channels "
				"cannot work\n");
		return -ENOTSUP;
	}
	return 0;
}

void mfs_channel_notify(struct mfs_channel *channel, struct mfs_cq *cq)
{
	struct ib_uverbs_comp_event_desc event = {.cq_handle = (uintptr_t)&cq->verbs.cq};

	if (write(channel->write_fd, &event, sizeof(event)) == sizeof(event))
		cq->channel_events_written++;
}

struct events {
	int read_fd, write_fd;
	size_t size; /* of one */
};

/* Takes what a pipe holds, through one of the context's own: the user's descriptor may block, and may be blocking someone
 * now. Needs no new descriptor and no /proc. Returns the bytes, or -1. */
static ssize_t take_all(struct mfs_context *context, int read_fd, uint8_t *into)
{
	size_t taken = 0;
	ssize_t size;

	while (taken < MFS_RX_BUFFER_SIZE) {
		size = splice(read_fd, NULL, context->moving_write_fd, NULL, MFS_RX_BUFFER_SIZE - taken,
			      SPLICE_F_NONBLOCK);
		if (size <= 0)
			return taken || !size || errno == EAGAIN ? (ssize_t)taken : -1;
		size = read(context->moving_read_fd, into + taken, (size_t)size);
		if (size > 0)
			taken += (size_t)size;
	}
	return (ssize_t)taken;
}

/*
 * Takes the unread events of an object that goes away out of a pipe, keeping the others; with the context's lock held,
 * so nothing is written meanwhile. `written` becomes the number of those that the user has got and will acknowledge. It is
 * not the number `read` that libibverbs has told: a thread of the user's may be just between its read() and that.
 */
static void forget(struct mfs_context *context, struct events events, const void *element, uint32_t *written,
		   uint32_t read_before)
{
	static_assert(offsetof(struct ib_uverbs_async_event_desc, element) == 0 &&
			      offsetof(struct ib_uverbs_comp_event_desc, cq_handle) == 0,
		      "both events begin with the object");
	uint8_t *all = context->rx_buffer; /* as large as a pipe */
	size_t kept = 0;
	ssize_t size;
	uint64_t object;

	if (*written == read_before)
		return;
	size = take_all(context, events.read_fd, all);
	if (size < 0) {
		*written = read_before;
		return;
	}
	for (ssize_t at = 0; at < size; at += (ssize_t)events.size) {
		memcpy(&object, all + at, sizeof(object));
		if (object == (uintptr_t)element) {
			--*written;
			continue;
		}
		memmove(all + kept, all + at, events.size);
		kept += events.size;
	}
	if (kept && write(events.write_fd, all, kept) != (ssize_t)kept)
		fprintf(stderr, "mfs soft RoCE: events lost while an object was destroyed\n");
}

void mfs_channel_forget(struct mfs_context *context, struct mfs_cq *cq)
{
	struct events events = {cq->channel->read_fd, cq->channel->write_fd,
				sizeof(struct ib_uverbs_comp_event_desc)};

	forget(context, events, &cq->verbs.cq, &cq->channel_events_written,
	       atomic_load(&cq->channel_events_read));
}

/* Returns how many events it has written: one, or none. */
uint32_t mfs_async_raise(struct mfs_context *context, enum ibv_event_type type, void *element)
{
	struct ib_uverbs_async_event_desc event = {.element = (uintptr_t)element, .event_type = type};

	if (write(context->async_write_fd, &event, sizeof(event)) == sizeof(event))
		return 1;
	fprintf(stderr, "mfs soft RoCE: asynchronous event %s lost: the program does not read them\n",
		ibv_event_type_str(type));
	return 0;
}

void mfs_async_forget(struct mfs_context *context, const void *element, uint32_t *raised,
		      uint32_t read_before)
{
	struct events events = {context->verbs.context.async_fd, context->async_write_fd,
				sizeof(struct ib_uverbs_async_event_desc)};

	forget(context, events, element, raised, read_before);
}

/* libibverbs calls this when the user has fetched an event. */
void mfs_async_event(struct ibv_context *ibv, struct ibv_async_event *event)
{
	(void)ibv;
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		atomic_fetch_add(&mfs_cq_of(event->element.cq)->async_events_read, 1);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		atomic_fetch_add(&mfs_qp_of(event->element.qp)->async_events_read, 1);
		break;
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		atomic_fetch_add(&((struct mfs_srq *)event->element.srq)->async_events_read, 1);
		break;
	default:
		break;
	}
}
