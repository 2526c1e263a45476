# ---- the adapter's fast path -----------------------------------------------------------------------------------------

from cpython.contextvars cimport get_value
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact

cdef enum:
    COURSES_MAX = 4096

cdef object UNTOUCHED = object()  # returned by a call that has done nothing; no library method returns it


@cython.final
@cython.auto_pickle(False)
cdef class Settled:
    cdef public Client client
    cdef public dict nics
    cdef public int open_class

    def __init__(self, int open_class):
        self.nics = {}
        self.open_class = open_class


# What applies to all calls to one peer.
@cython.final
@cython.auto_pickle(False)
cdef class Course:
    cdef int nic
    cdef bint class_marked_out
    cdef bint class_marked_in
    cdef dict lanes
    cdef uint32_t peer
    cdef uint64_t until_ns
    cdef uint64_t version


# Caches what `course` returns for each peer, for `course_ns` or until it changes.
@cython.final
@cython.auto_pickle(False)
cdef class Courses:
    cdef object course, peer_of
    cdef dict by_peer
    cdef uint64_t version, course_ns

    def __init__(self, course, peer_of, uint64_t course_ns):
        self.course = course
        self.peer_of = peer_of
        self.course_ns = course_ns
        self.by_peer = {}

    cdef Course to(self, peer, uint64_t now_ns):
        cdef Course course = <Course>self.by_peer.get(peer)
        cdef uint64_t version = self.version
        if course is None or course.version != version or now_ns >= course.until_ns:
            found = self.course(peer)
            if found is None:
                return None
            course = Course.__new__(Course)
            course.nic, course.class_marked_out, course.class_marked_in, course.lanes, name = found
            course.peer = self.peer_of(name)
            course.version = version
            course.until_ns = now_ns + self.course_ns
            if len(self.by_peer) >= COURSES_MAX:
                self.by_peer.clear()
            self.by_peer[peer] = course
        return course


cdef int batch_slot(mfs_task *task, batch, slot_of, Client client) except -1:
    task.batch = MFS_NONE_U32
    if batch is not None:
        slot = slot_of(batch, client)
        if slot is not None:
            task.batch = slot
    return 0


@cython.final
@cython.auto_pickle(False)
cdef class FastPath:
    cdef object __weakref__
    cdef Settled settled
    cdef Courses courses
    cdef object route, failed, slot_of
    cdef object context
    cdef list owned
    cdef uint64_t timeout_ns, give_up_ns
    cdef int64_t size_max_bytes

    def __init__(self, Settled settled, *, context, list owned, course, route, failed, slot_of, peer_of,
                 int64_t size_max_bytes, uint64_t timeout_ns, uint64_t give_up_ns, uint64_t course_ns):
        self.settled = settled
        self.courses = Courses(course, peer_of, course_ns)
        self.context = context
        self.owned = owned
        self.route = route
        self.failed = failed
        self.slot_of = slot_of
        self.size_max_bytes = size_max_bytes
        self.timeout_ns = timeout_ns
        self.give_up_ns = give_up_ns

    def changed(self):
        self.courses.version += 1

    cdef int tell(self, mfs_task *task, Client client, bint reading) except -1:
        found = get_value(self.context, None)
        task.stage = MFS_STAGE_REUSE if reading else MFS_STAGE_P2D
        task.batch = MFS_NONE_U32
        if found is None:
            return 0
        request_id, stage, layer, deadline_ns, batch = found
        task.request_id = request_id
        if stage is not None:
            task.stage = stage
        task.layer = layer
        task.deadline_ns = deadline_ns
        return batch_slot(task, batch, self.slot_of, client)

    cdef move(self, engine, method, bint reading, tuple arguments):
        """Returns what the method returned, or UNTOUCHED if nothing was done. Only arguments that are exactly str or
        int are read here: any other type would run code of its own."""
        cdef uint64_t now_ns, task_id = 0
        cdef int64_t size_bytes
        cdef int overflow = 0, wire_class
        cdef mfs_task task
        cdef Client client = self.settled.client
        cdef Course course
        if client is None or client.client is NULL or len(arguments) != 4:
            return UNTOUCHED
        peer, address, peer_address, length = arguments
        if not (PyUnicode_CheckExact(peer) and PyLong_CheckExact(address) and PyLong_CheckExact(peer_address) and
                PyLong_CheckExact(length)):
            return UNTOUCHED
        size_bytes = PyLong_AsLongLongAndOverflow(length, &overflow)
        if overflow != 0 or not 0 < size_bytes <= self.size_max_bytes:
            return UNTOUCHED
        for owner in self.owned:
            if len(owner) != 0:
                return UNTOUCHED
        now_ns = mfs_native_now_ns()
        try:
            course = self.courses.to(peer, now_ns)
            if course is None:
                return UNTOUCHED
            memset(&task, 0, sizeof(task))
            task.bytes = size_bytes
            task.class_marked = course.class_marked_in if reading else course.class_marked_out
            task.incoming = reading
            task.peer = course.peer
            self.tell(&task, client, reading)
            task.nic = self.settled.nics[course.nic]
            wire_class = client_ask(client, &task, now_ns, self.timeout_ns, self.settled.open_class, &task_id)
        except Exception:
            return UNTOUCHED  # the Python path reports what is wrong
        if wire_class < 0:
            return UNTOUCHED
        try:
            if course.version == self.courses.version and wire_class in course.lanes:  # they may change while it waits
                lane = course.lanes[wire_class]
            else:
                lane = self.route(peer, wire_class, peer_address)
            if lane is not None:
                result = method((<tuple>lane)[0], (<tuple>lane)[1], address, peer_address, length)
                if result == 0:
                    return result
                self.failed(peer)
                if mfs_native_now_ns() - now_ns >= self.give_up_ns:
                    return result  # by now the caller has given up the transfer
            return method(engine, peer, address, peer_address, length)
        finally:
            client_done(client, &task, task_id, True)


def one_buffer(original, otherwise, bint reading):
    def method(self, *arguments, **keywords):
        path = getattr(self, "_mfs_fast_path", None)
        if type(path) is FastPath and not keywords:
            result = (<FastPath>path).move(self, original, reading, arguments)
            if result is not UNTOUCHED:
                return result
        return otherwise(self, *arguments, **keywords)

    return method
