# ---- socket messages -------------------------------------------------------------------------------------------------

Hello = namedtuple("Hello", "magic major minor kind pid mode process nic_name nic_guid nic_rate_bytes_per_s")
Welcome = namedtuple("Welcome", "magic major minor error segment_bytes client_id reason")
NicReply = namedtuple("NicReply", "magic error nic")


cdef int packet_read(void *to, size_t size, bytes data, what) except -1:
    if len(data) != size:
        raise ValueError(f"{what}: {len(data)} bytes, expected {size}")
    memcpy(to, <const char *>data, size)
    if (<uint64_t *>to)[0] != MFS_ABI_MAGIC:
        raise ValueError(f"{what}: magic {(<uint64_t *>to)[0]:#x}, expected {MFS_ABI_MAGIC:#x}")
    return 0


def hello_encode(
    uint32_t kind, *, pid=0, mode=MFS_MODE_ENFORCE, process="", nic_name="", nic_guid=0, nic_rate_bytes_per_s=0,
    magic=MFS_ABI_MAGIC, major=MFS_ABI_MAJOR, minor=MFS_ABI_MINOR,
):
    cdef mfs_hello hello
    memset(&hello, 0, sizeof(hello))
    hello.magic = magic
    hello.major = major
    hello.minor = minor
    hello.kind = kind
    hello.pid = pid
    hello.mode = mode
    hello.nic_guid = nic_guid
    hello.nic_rate_bytes_per_s = nic_rate_bytes_per_s
    name_copy(hello.process, 32, process, "process")
    name_copy(hello.nic_name, 32, nic_name, "nic_name")
    return (<const char *>&hello)[:sizeof(hello)]


def hello_decode(bytes data):
    cdef mfs_hello hello
    packet_read(&hello, sizeof(hello), data, "hello")
    return Hello(
        hello.magic, hello.major, hello.minor, hello.kind, hello.pid, hello.mode, name_read(hello.process, 32),
        name_read(hello.nic_name, 32), hello.nic_guid, hello.nic_rate_bytes_per_s,
    )


def hello_version_error(hello):
    if hello.major != MFS_ABI_MAJOR:
        return (
            f"the program speaks ABI {hello.major}.{hello.minor}, this daemon {MFS_ABI_MAJOR}.{MFS_ABI_MINOR}: "
            f"install one version"
        )
    return None


def welcome_encode(
    *, error=0, client_id=0, reason="", major=MFS_ABI_MAJOR, minor=MFS_ABI_MINOR, segment_bytes=sizeof(mfs_segment)
):
    cdef mfs_welcome welcome
    memset(&welcome, 0, sizeof(welcome))
    welcome.magic = MFS_ABI_MAGIC
    welcome.major = major
    welcome.minor = minor
    welcome.error = error
    welcome.segment_bytes = segment_bytes
    welcome.client_id = client_id
    cut = reason.encode()[:63]
    memcpy(welcome.reason, <const char *>cut, len(cut))
    return (<const char *>&welcome)[:sizeof(welcome)]


def welcome_decode(bytes data):
    cdef mfs_welcome welcome
    packet_read(&welcome, sizeof(welcome), data, "welcome")
    return Welcome(
        welcome.magic, welcome.major, welcome.minor, welcome.error, welcome.segment_bytes, welcome.client_id,
        name_read(welcome.reason, 64),
    )


def nic_reply_encode(*, error=0, nic=0):
    cdef mfs_nic_reply reply
    memset(&reply, 0, sizeof(reply))
    reply.magic = MFS_ABI_MAGIC
    reply.error = error
    reply.nic = nic
    return (<const char *>&reply)[:sizeof(reply)]


def nic_reply_decode(bytes data):
    cdef mfs_nic_reply reply
    packet_read(&reply, sizeof(reply), data, "nic reply")
    return NicReply(reply.magic, reply.error, reply.nic)
