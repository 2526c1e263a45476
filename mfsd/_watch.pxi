# ---- what is observed: accounts of requests, events ------------------------------------------------------------------

EVENT_LAYOUT = MFS_EVENT_LAYOUT
EVENT_BYTES = sizeof(mfs_event)
EVENT_SLOTS_MAX = MFS_EVENT_SLOTS_MAX
LEDGER_REQUESTS = MFS_LEDGER_REQUESTS
LEDGER_REQUEST_CELLS = MFS_LEDGER_REQUEST_CELLS
LEDGER_LAYER_REST = MFS_LEDGER_LAYER_REST

AccountCell = namedtuple(
    "AccountCell",
    "stage layer tasks submitted_bytes completed_bytes bypassed_bytes dropped_bytes first_ns last_ns",
)
Account = namedtuple(
    "Account",
    "request_id client_id batch_id begin_ns end_ns done_ns deadline_ns open announced pruned verdict cells",
)
Finished = namedtuple(
    "Finished", "request_id client_id batch_id begin_ns end_ns done_ns deadline_ns size_bytes verdict pruned"
)


class Verdict(IntEnum):
    NONE = 0
    MET = 1
    MISSED = 2


cdef account_write(const mfs_account *a, const mfs_account_cell *c):
    cells = [
        AccountCell(
            c[i].stage, c[i].layer, c[i].tasks, c[i].submitted_bytes, c[i].completed_bytes, c[i].bypassed_bytes,
            c[i].dropped_bytes, c[i].first_ns, c[i].last_ns,
        ) for i in range(a.cells)
    ]
    return Account(
        a.request_id, a.client_id, a.batch_id, a.begin_ns, a.end_ns, a.done_ns, a.deadline_ns, a.open, bool(a.announced),
        bool(a.pruned), Verdict(a.verdict), tuple(sorted(cells)),
    )
