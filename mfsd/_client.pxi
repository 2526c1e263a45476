# ---- client ----------------------------------------------------------------------------------------------------------

DemandInfo = namedtuple("DemandInfo", "bytes peer layer stage nic direction", defaults=(b"", 0, MFS_STAGE_P2D, 0, 0))
RequestInfo = namedtuple(
    "RequestInfo", "request_id program_id deadline_ns budget_ns value flags demands rank tokens_left",
    defaults=(0, 0, 0, 0, 0, (), 0, 0),
)


cdef int demand_read(mfs_demand_info *to, info) except -1:
    if len(info.peer) not in (0, 16):
        raise ValueError(f"demand.peer: {len(info.peer)} bytes, a GID has 16")
    memset(to, 0, sizeof(mfs_demand_info))
    to.bytes = info.bytes
    memcpy(to.peer, <const char *><bytes>info.peer, len(info.peer))
    to.layer = info.layer
    to.stage = info.stage
    to.nic = info.nic
    to.direction = info.direction
    return 0


cdef class Told:
    """Requests and their demands in the layout that the native client reads."""
    cdef mfs_request_info *requests
    cdef mfs_demand_info *demands
    cdef uint32_t count

    def __init__(self, requests):
        cdef size_t d = 0
        self.count = len(requests)
        self.requests = <mfs_request_info *>calloc(len(requests) + 1, sizeof(mfs_request_info))
        self.demands = <mfs_demand_info *>calloc(sum(len(r.demands) for r in requests) + 1, sizeof(mfs_demand_info))
        if self.requests is NULL or self.demands is NULL:
            raise MemoryError
        for i, info in enumerate(requests):
            self.requests[i].request_id = info.request_id
            self.requests[i].program_id = info.program_id
            self.requests[i].deadline_ns = info.deadline_ns
            self.requests[i].budget_ns = info.budget_ns
            self.requests[i].value = info.value
            self.requests[i].flags = info.flags
            self.requests[i].rank = info.rank
            self.requests[i].tokens_left = info.tokens_left
            self.requests[i].demands = self.demands + d
            self.requests[i].demands_count = len(info.demands)
            for demand in info.demands:
                demand_read(&self.demands[d], demand)
                d += 1

    def __dealloc__(self):
        free(self.requests)
        free(self.demands)


def peer_hash(bytes gid):
    if len(gid) != 16:
        raise ValueError(f"gid: {len(gid)} bytes, a GID has 16")
    return mfs_peer_hash(<const uint8_t *><const char *>gid)


class Open(IntEnum):
    OVERFLOW = MFS_OPEN_OVERFLOW
    HOLD = MFS_OPEN_HOLD
    STALE = MFS_OPEN_STALE


# Fills a native task from a mfsd.transfer.Transfer. The caller has looked up the client's numbers of its NIC, batch and
# peer.
cdef int task_of(mfs_task *task, transfer, uint8_t nic, batch, uint32_t peer) except -1:
    cdef tuple fields
    if not isinstance(transfer, tuple) or len(transfer) != 11:
        raise TypeError(f"{type(transfer).__name__} is no Transfer")
    fields = <tuple>transfer  # (size_bytes, stage, nic, request_id, deadline_ns, batch, layer, peer, class_marked, incoming, left_bytes)
    memset(task, 0, sizeof(mfs_task))
    task.bytes = fields[0]
    task.stage = fields[1]
    task.nic = nic
    task.request_id = fields[3]
    task.deadline_ns = fields[4]
    task.batch = MFS_NONE_U32 if batch is None else batch
    task.layer = fields[6]
    task.peer = peer
    task.class_marked = fields[8]
    task.incoming = fields[9]
    task.bytes_left = fields[10]
    return 0


cdef class Client:
    cdef mfs_client *client
    cdef readonly bint borrowed

    def __init__(self):
        raise TypeError("use Client.attach")

    @staticmethod
    def attach(socket_path=None, *, process=None, mode=MFS_MODE_ENFORCE, timeout_ms=0):
        cdef Client self = Client.__new__(Client)
        cdef mfs_client_options options
        cdef const char *why = NULL
        cdef int rc
        memset(&options, 0, sizeof(options))
        path = None if socket_path is None else os.fsencode(socket_path)
        name = None if process is None else process.encode()
        if path is not None:
            options.socket_path = path
        if name is not None:
            options.process = name
        options.mode = <mfs_mode><int>mode
        options.timeout_ms = timeout_ms
        with nogil:
            rc = mfs_client_attach(&options, &self.client, &why)
        if rc < 0:
            raise OSError(-rc, why.decode() if why is not NULL else os.strerror(-rc))
        return self

    @staticmethod
    def borrow(size_t address):
        cdef Client self = Client.__new__(Client)
        self.client = <mfs_client *>address
        self.borrowed = True
        return self

    def __dealloc__(self):
        if self.client is not NULL and not self.borrowed:
            mfs_client_detach(self.client)

    cdef mfs_client *here(self) except NULL:
        if self.client is NULL:
            raise OSError(ESHUTDOWN, "the client is detached")
        return self.client

    def detach(self):
        if self.client is not NULL and not self.borrowed:
            mfs_client_detach(self.client)
        self.client = NULL

    def forget(self):
        if self.client is not NULL and not self.borrowed:
            mfs_client_forget(self.client)
        self.client = NULL

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.detach()

    @property
    def client_id(self):
        return mfs_client_segment(self.here()).header.client_id

    @property
    def minor(self):
        return mfs_client_minor(self.here())

    @property
    def epoch(self):
        return mfs_client_segment(self.here()).header.epoch

    def alive(self):
        return bool(mfs_client_alive(self.here(), mfs_native_now_ns()))

    def detached(self):
        return mfs_load_u32(&mfs_client_segment(self.here()).header.state) == MFS_SEGMENT_DETACHED

    def nic_name(self, uint32_t nic):
        cdef mfs_segment *segment = mfs_client_segment(self.here())
        if nic < MFS_NICS_FIRST:
            return name_read(segment.nic[nic].name, 32)
        return name_read(segment.nic_tables[nic - MFS_NICS_FIRST].nic.name, 32) if nic < self.nics() else ""

    cdef int nics(self):
        """NICs of the segment that is mapped. A daemon of a lower minor version gives a shorter segment."""
        return MFS_NICS_FIRST if mfs_client_minor(self.here()) < MFS_NICS_MINOR else MFS_NICS_MAX

    def hung_up(self):
        return bool(mfs_client_hung_up(self.here()))

    def mode(self):
        return mfs_load_u32(&mfs_client_segment(self.here()).header.mode)

    @property
    def classes(self):
        return mfs_client_segment(self.here()).header.classes

    @property
    def max_hold_ns(self):
        return mfs_client_segment(self.here()).header.max_hold_ns

    def dscp(self):
        cdef mfs_segment *segment = mfs_client_segment(self.here())
        return [None if d == MFS_DSCP_KEEP else d for d in [mfs_dscp(segment, i) for i in range(MFS_CLASSES_MAX)]]

    @property
    def apart(self):
        return mfs_apart(mfs_client_segment(self.here()))

    def gate(self, nic):
        cdef mfs_segment *segment = mfs_client_segment(self.here())
        cdef int most = self.nics()
        if not 0 <= nic < most:
            raise IndexError(f"nic: {nic}, allowed 0..{most - 1}")
        if nic < MFS_NICS_FIRST:
            return mfs_load_u32(&segment.gate[<int>nic].word)
        return mfs_load_u32(&segment.nic_tables[<int>nic - MFS_NICS_FIRST].gate.word)

    def nic(self, name, uint64_t guid=0, uint64_t rate_bytes_per_s=0):
        cdef char text[32]
        cdef mfs_client *client = self.here()
        cdef int rc
        name_copy(text, sizeof(text), name, "nic name")
        with nogil:
            rc = mfs_client_nic(client, text, guid, rate_bytes_per_s)
        return check(rc)

    def submit(self, uint64_t size_bytes, *, uint8_t stage, uint8_t nic=0, uint64_t request_id=0,
               uint64_t deadline_ns=0, batch=None, uint16_t layer=0, uint8_t role=0, bint asked=False, bint class_marked=False,
               bint incoming=False, uint32_t peer=0, uint32_t queue=0, uint64_t left_bytes=0):
        cdef mfs_task task
        cdef uint64_t task_id = 0
        memset(&task, 0, sizeof(task))
        task.bytes = size_bytes
        task.request_id = request_id
        task.deadline_ns = deadline_ns
        task.batch = MFS_NONE_U32 if batch is None else batch
        task.layer = layer
        task.stage = stage
        task.nic = nic
        task.role = role
        task.class_marked = class_marked
        task.incoming = incoming
        task.at_once = asked
        task.peer = peer
        task.queue = queue
        task.bytes_left = left_bytes
        check(mfs_client_submit(self.here(), &task, MFS_COOKIE_NONE if asked else NULL, &task_id))
        return task_id

    def submit_transfer(self, transfer, uint8_t nic, batch, uint32_t peer):
        cdef mfs_task task
        cdef uint64_t task_id = 0
        task_of(&task, transfer, nic, batch, peer)
        task.at_once = True
        check(mfs_client_submit(self.here(), &task, MFS_COOKIE_NONE, &task_id))
        return task_id

    def ask(self, transfer, uint8_t nic, batch, uint32_t peer, uint64_t timeout_ns, int otherwise):
        cdef Permit permit = Permit.__new__(Permit)
        cdef int wire_class
        task_of(&permit.task, transfer, nic, batch, peer)
        wire_class = client_ask(self, &permit.task, mfs_native_now_ns(), timeout_ns, otherwise, &permit.task_id)
        if wire_class < 0:
            return None
        permit.client = self
        permit.wire_class = wire_class
        return permit

    def take(self, transfer, uint8_t nic, batch, uint32_t peer):
        cdef Permit permit = Permit.__new__(Permit)
        self.here()
        task_of(&permit.task, transfer, nic, batch, peer)
        return permit if client_take(self, permit) else None

    def permits(self, int n=64):
        cdef mfs_permit permits[64]
        cdef mfs_client *client = self.here()
        cdef int got
        taken = []
        while n > 0:
            got = mfs_client_permits(client, permits, n if n < 64 else 64)
            if got == -EBUSY:
                continue
            check(got)
            if got == 0:
                break
            taken += [(permits[i].task_id, permits[i].wire_class) for i in range(got)]
            n -= got
        return taken

    def wait(self, uint64_t timeout_ns):
        cdef mfs_client *client = self.here()
        cdef int rc
        with nogil:
            rc = mfs_client_wait(client, timeout_ns)
        return rc == 0

    def permit(self, uint64_t task_id):
        cdef int rc = mfs_client_permit(self.here(), task_id)
        if rc == -EAGAIN:
            return None
        return check(rc)

    def permit_wait(self, uint64_t task_id, uint64_t timeout_ns):
        cdef mfs_client *client = self.here()
        cdef int rc
        with nogil:
            rc = mfs_client_permit_wait(client, task_id, timeout_ns)
        return None if rc == -ETIMEDOUT else check(rc)

    def complete(self, uint64_t task_id):
        mfs_client_complete(self.here(), task_id)

    def cancel(self, uint64_t task_id, bint bypassed=False):
        mfs_client_cancel(self.here(), task_id, bypassed)

    def count_posted(self, unsigned nic, unsigned stage, uint64_t size_bytes):
        mfs_client_count_posted(self.here(), nic, stage, size_bytes)

    def count_completed(self, unsigned nic, unsigned stage, uint64_t size_bytes):
        mfs_client_count_completed(self.here(), nic, stage, size_bytes)

    def count_open(self, int why):
        mfs_client_count_open(self.here(), <mfs_open>why)

    def batch_begin(self, uint64_t batch_id, uint32_t layers, uint64_t deadline_ns=0, uint64_t compute_ns=0):
        return self.batch_begin_with(batch_id, layers, (), deadline_ns, compute_ns)[0]

    def batch_begin_with(self, uint64_t batch_id, uint32_t layers, requests, uint64_t deadline_ns=0,
                         uint64_t compute_ns=0):
        cdef mfs_client *client = self.here()
        cdef mfs_batch_info info
        cdef uint32_t slots[MFS_REQUESTS_MAX]
        cdef Told read
        if len(requests) > MFS_REQUESTS_MAX:
            raise OSError(ENOSPC, f"{len(requests)} requests, at most {MFS_REQUESTS_MAX} of a process are known at once")
        read = Told(requests)
        memset(&info, 0, sizeof(info))
        info.batch_id = batch_id
        info.layers = layers
        info.deadline_ns = deadline_ns
        info.compute_ns = compute_ns
        info.requests = read.requests
        info.requests_count = read.count
        info.request_slots = slots
        slot = check(mfs_client_batch_begin_with(client, &info))
        return slot, [slots[i] for i in range(read.count)]

    def request_begin(self, request, batch=None):
        cdef Told read = Told((request,))
        return check(mfs_client_request_begin(self.here(), read.requests, MFS_NONE_U32 if batch is None else batch))

    def request_end(self, uint32_t request):
        check(mfs_client_request_end(self.here(), request))

    def request_judgement(self, uint32_t request):
        return mfs_client_request_judgement(self.here(), request)

    def batch_layer(self, uint32_t batch, uint32_t layer_current):
        check(mfs_client_batch_layer(self.here(), batch, layer_current))

    def batch_end(self, uint32_t batch):
        check(mfs_client_batch_end(self.here(), batch))

    def outlook(self):
        cdef mfs_outlook *copy = <mfs_outlook *>aligned_alloc(64, sizeof(mfs_outlook))
        if copy is NULL:
            raise MemoryError
        try:
            if mfs_client_outlook(self.here(), mfs_native_now_ns(), copy) < 0:
                return None
            return page_write(copy)
        finally:
            free(copy)

    def outlook_port(self, unsigned nic, unsigned direction):
        cdef mfs_port_outlook port
        if mfs_client_outlook_port(self.here(), nic, <mfs_direction>direction, mfs_native_now_ns(), &port) < 0:
            return None
        return port_outlook_write(&port)

    def outlook_far(self, bytes peer, unsigned direction):
        cdef mfs_far_outlook far
        if len(peer) != 16:
            raise ValueError(f"peer: {len(peer)} bytes, a GID has 16")
        if mfs_client_outlook_far(self.here(), peer_of(peer), <mfs_direction>direction, mfs_native_now_ns(), &far) < 0:
            return None
        return OutlookFar(peer, direction, far.rate_bytes_per_s, owed_write(far.owed_ns), far.achieved_bytes_per_s)

    def request_pruned(self, uint64_t request_id):
        cdef int rc = mfs_client_pruned(self.here(), request_id, mfs_native_now_ns())
        return None if rc < 0 else bool(rc)

    def fetch_ns(self, unsigned nic, uint64_t size_bytes, bytes peer=b"", uint64_t deadline_ns=0,
                 uint64_t announced_bytes=0, far_bytes=None):
        cdef mfs_fetch fetch = fetch_of(size_bytes, far_bytes, announced_bytes)
        cdef uint64_t ns
        if mfs_client_fetch_ns(self.here(), nic, &fetch, peer_of(peer), deadline_ns, &ns) < 0:
            return None
        return ns

    def rules(self):
        cdef uint32_t version = 0
        cdef mfs_rule *table = <mfs_rule *>calloc(MFS_RULES_MAX, sizeof(mfs_rule))
        if table is NULL:
            raise MemoryError
        try:
            n = check(mfs_client_rules(self.here(), table, MFS_RULES_MAX, &version))
            return [rule_write(&table[i]) for i in range(n)]
        finally:
            free(table)


cdef int client_ask(Client asker, mfs_task *task, uint64_t now_ns, uint64_t timeout_ns, int otherwise,
                    uint64_t *task_id) except -1:
    """Waits until the task may be sent, and counts it as posted. Returns its class; `otherwise` if it goes without a
    permit; -ENOTCONN if nothing is scheduled, and then nothing was asked or counted. LookupError: no such NIC."""
    cdef mfs_client *client = asker.here()
    cdef uint64_t hold_ns = mfs_client_segment(client).header.max_hold_ns
    cdef int rc
    if (mfs_load_u32(&mfs_client_segment(client).header.mode) != MFS_MODE_ENFORCE or
            not mfs_client_alive(client, now_ns)):
        return -ENOTCONN
    if timeout_ns > hold_ns:
        timeout_ns = hold_ns
    with nogil:
        rc = mfs_client_ask(client, task, timeout_ns, task_id)
    if rc == -ENODEV:
        raise LookupError(task.nic)
    if rc < 0:
        if rc == -EAGAIN:  # no free slot: to wait for one would let tasks that do not end hold up this one
            mfs_client_count_open(client, MFS_OPEN_OVERFLOW)
        elif rc == -ETIMEDOUT:
            mfs_client_count_open(client, MFS_OPEN_HOLD)
        elif rc != -EALREADY:  # -EALREADY: this stage needs no permit on this NIC
            mfs_client_count_open(client, MFS_OPEN_STALE)
        if task_id[0] != 0:
            mfs_client_cancel(client, task_id[0], True)
            task_id[0] = 0
        rc = otherwise
    if not asker.borrowed:
        mfs_client_count_posted(client, task.nic, task.stage, task.bytes)
    return rc


cdef bint client_asked(Client asker, Permit permit) except -1:
    """Returns whether the permit that was asked for has come. If so, its task is counted as posted."""
    cdef mfs_client *client = asker.here()
    cdef int wire_class = mfs_client_permit(client, permit.task_id)
    if wire_class < 0:
        return False
    permit.client = asker
    permit.wire_class = wire_class
    if not asker.borrowed:
        mfs_client_count_posted(client, permit.task.nic, permit.task.stage, permit.task.bytes)
    return True


cdef bint client_take(Client asker, Permit permit) except -1:
    """Submits the task. Returns whether it got its permit at once, on credit. If so, it is counted as posted."""
    cdef mfs_client *client = asker.here()
    permit.task.at_once = permit.task.on_credit = True
    if mfs_client_submit(client, &permit.task, MFS_COOKIE_NONE, &permit.task_id) != 1:
        return False
    return client_asked(asker, permit)


cdef void client_done(Client asker, const mfs_task *task, uint64_t task_id, bint complete) noexcept:
    """Reports the end of a task that client_ask has let go. `task_id` 0: it went without a permit."""
    cdef mfs_client *client = asker.client
    if client is NULL:
        return
    if task_id != 0:
        if complete:
            mfs_client_complete(client, task_id)
        else:
            mfs_client_cancel(client, task_id, False)
    if not asker.borrowed:
        mfs_client_count_completed(client, task.nic, task.stage, task.bytes)


@cython.no_gc_clear
@cython.freelist(64)
cdef class Permit:
    cdef Client client
    cdef mfs_task task
    cdef uint64_t task_id
    cdef readonly int wire_class

    def __init__(self):
        raise TypeError("use Client.ask")

    cdef void finish(self, bint complete) noexcept:
        cdef Client client = self.client
        if client is None:
            return
        self.client = None
        client_done(client, &self.task, self.task_id, complete)

    def ready(self):
        return True

    def wait(self, timeout_s=None):
        return self.wire_class

    def complete(self):
        self.finish(True)

    def cancel(self):
        self.finish(False)

    def __dealloc__(self):
        self.finish(False)
