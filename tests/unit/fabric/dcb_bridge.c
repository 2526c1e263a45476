/*
 * Lets an unmodified netlink program talk to a test instead of the kernel: AF_NETLINK sockets become unix sockets to
 * $DCB_BRIDGE. Preloaded into iproute2's dcb, because no network device without DCB hardware answers it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static int bridged = -1;

int socket(int domain, int type, int protocol)
{
	static int (*real)(int, int, int);
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (!real)
		real = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	if (domain != AF_NETLINK)
		return real(domain, type, protocol);
	strncpy(address.sun_path, getenv("DCB_BRIDGE"), sizeof(address.sun_path) - 1);
	bridged = real(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bridged >= 0 && connect(bridged, (struct sockaddr *)&address, sizeof(address)) != 0)
		return -1;
	return bridged;
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	static int (*real)(int, const struct sockaddr *, socklen_t);

	if (!real)
		real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
	return fd == bridged ? 0 : real(fd, address, length);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	static int (*real)(int, int, int, const void *, socklen_t);

	if (!real)
		real = (int (*)(int, int, int, const void *, socklen_t))dlsym(RTLD_NEXT, "setsockopt");
	return fd == bridged ? 0 : real(fd, level, name, value, length);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
	static int (*real)(int, struct sockaddr *, socklen_t *);

	if (!real)
		real = (int (*)(int, struct sockaddr *, socklen_t *))dlsym(RTLD_NEXT, "getsockname");
	if (fd != bridged)
		return real(fd, address, length);
	*(struct sockaddr_nl *)address = (struct sockaddr_nl){ .nl_family = AF_NETLINK, .nl_pid = 1 };
	*length = sizeof(struct sockaddr_nl);
	return 0;
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length)
{
	static ssize_t (*real)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);

	if (!real)
		real = (ssize_t (*)(int, const void *, size_t, int, const struct sockaddr *, socklen_t))
			dlsym(RTLD_NEXT, "sendto");
	return fd == bridged ? send(fd, data, size, flags) : real(fd, data, size, flags, to, length);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	static ssize_t (*real)(int, struct msghdr *, int);
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	ssize_t size;

	if (!real)
		real = (ssize_t (*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
	if (fd != bridged)
		return real(fd, message, flags);
	size = recv(fd, message->msg_iov[0].iov_base, message->msg_iov[0].iov_len, flags);
	if (message->msg_name)
		memcpy(message->msg_name, &kernel, sizeof(kernel));
	message->msg_namelen = sizeof(kernel);
	message->msg_controllen = 0;
	message->msg_flags = 0;
	return size;
}
