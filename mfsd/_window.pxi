# ---- windows ---------------------------------------------------------------------------------------------------------

Passage = namedtuple("Passage", "entered_ns due_ns bytes destination")
DestinationWindow = namedtuple("DestinationWindow", "key window_bytes in_flight_bytes rate_bytes_per_s")

ROOM, ROOM_NIC_FULL, ROOM_DESTINATION_FULL = range(3)


cdef class Window:
    cdef mfs_window *window

    def __init__(self, uint64_t rate_bytes_per_s, *, uint64_t window_ns=200_000, uint64_t window_bytes_min=131_072):
        cdef mfs_window_config config
        if self.window is not NULL:
            raise RuntimeError("a Window is initialised once")
        config.rate_bytes_per_s = rate_bytes_per_s
        config.window_ns = window_ns
        config.window_bytes_min = window_bytes_min
        check(mfs_window_create(&config, &self.window))

    def __dealloc__(self):
        mfs_window_destroy(self.window)

    def set_rate(self, uint64_t rate_bytes_per_s, uint64_t now_ns):
        check(mfs_window_set_rate(self.window, rate_bytes_per_s, now_ns))

    def set_drain(self, double bytes_per_s, uint64_t now_ns):
        mfs_window_set_drain(self.window, bytes_per_s, now_ns)

    def destination(self, uint64_t key, uint64_t now_ns, uint64_t program=0):
        return mfs_window_destination(self.window, key ^ program << 32, key, now_ns)

    def take_waiting(self, uint16_t destination):
        cdef uint16_t waits = mfs_window_waiting_take(self.window, destination)
        return None if waits == MFS_DESTINATION_NONE else waits

    def give(self, uint16_t destination):
        mfs_window_destination_give(self.window, destination)

    def room(self, uint16_t destination, uint64_t size_bytes, uint64_t now_ns, uint8_t tier=MFS_TIER_CRITICAL):
        cdef uint64_t at_ns = 0
        if tier > MFS_TIER_SCAVENGER:
            raise ValueError(f"tier: {tier} is none; from 0 to {MFS_TIER_SCAVENGER}")
        cdef int room = mfs_window_room(self.window, destination, size_bytes, <mfs_tier>tier, now_ns, &at_ns)
        return room, at_ns

    def enter(self, uint16_t destination, uint64_t size_bytes, uint64_t now_ns):
        cdef mfs_passage passage
        mfs_window_enter(self.window, destination, size_bytes, now_ns, &passage)
        return Passage(passage.entered_ns, passage.due_ns, passage.bytes, passage.destination)

    cdef mfs_passage read(self, passage):
        cdef mfs_passage native
        native.entered_ns, native.due_ns, native.bytes, native.destination = passage
        return native

    def complete(self, passage, uint64_t now_ns):
        cdef mfs_passage native = self.read(passage)
        mfs_window_complete(self.window, &native, now_ns)

    def leave(self, passage, uint64_t now_ns, *, bint overdue=False):
        cdef mfs_passage native = self.read(passage)
        mfs_window_leave(self.window, &native, overdue, now_ns)

    @property
    def bytes(self):
        return mfs_window_bytes(self.window)

    @property
    def in_flight_bytes(self):
        return mfs_window_in_flight(self.window)

    def backlog(self, uint64_t now_ns):
        return mfs_window_backlog(self.window, now_ns)

    def snapshot(self, uint16_t destination):
        cdef mfs_destination_window found
        mfs_window_snapshot(self.window, destination, &found)
        return DestinationWindow(found.key, found.window_bytes, found.in_flight_bytes, found.rate_bytes_per_s)

    def rate_to(self, uint64_t key, uint64_t now_ns):
        return mfs_window_rate_to(self.window, key, now_ns)
