"""A process's connection to the daemon of its node. A thread makes and remakes it, so that no caller waits for it."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable

from mfsd._native import ABI_MINOR, Client, Mode, Settled
from mfsd.client.shim import Shim

log = logging.getLogger("mfsd.client")

RETRY_S = 0.5
"""Seconds between two attempts to reach a missing daemon, and between two checks of one that does not answer."""


class Attachment:
    """Holds the native client.

    A replaced client stays mapped for as long as something refers to it, so no call is ever cut off. `settled.client`
    is a shortcut of one load: what `client()` would return while the daemon lives, or None.
    """

    def __init__(
        self,
        socket_path: str | None,
        process: str | None,
        mode: Mode,
        settled: Settled,
        prepare: Callable[[Client], None],
        attached: Callable[[Client], None],
        shim: Shim | None,
    ) -> None:
        """`prepare` gets every new client before any other thread sees it; `attached` gets it right after that."""
        self._socket_path, self._process, self._mode = socket_path, process, mode
        self._prepare, self._attached = prepare, attached
        self._shim = shim
        self._client: Client | None = None
        self.settled = settled
        self._attempt_lock = threading.Lock()
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        self._logged: str | None = None

    def client(self) -> Client | None:
        """Returns the client while its daemon lives (two loads). Otherwise returns None and starts the search."""
        client = self._client
        if client is None or not client.alive():
            self._want()
            return None
        if self._shim is not None and not client.borrowed and self._shim.client() is not None:
            self._want()  # the shim has a session now: this process needs no second one
        return client

    def try_now(self) -> None:
        """Tries once to attach. Takes at most the native timeout (200 ms)."""
        with self._attempt_lock:
            self._attempt()
        if self._client is None:
            self._want()

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(timeout=2 * RETRY_S)
        self._client = self.settled.client = None

    def forked(self) -> None:
        """Drops the parent's client in a forked child. The child attaches for itself when it needs a client."""
        if self._client is not None:
            self._client.forget()
        self._client = self.settled.client = None
        self._attempt_lock = threading.Lock()
        self._wanted = threading.Event()
        if not self._closed.is_set():
            self._closed = threading.Event()
        self._keeper = None

    # ---- searching for a daemon ------------------------------------------------------------------

    def _want(self) -> None:
        if self._wanted.is_set() or self._closed.is_set():
            return
        self._wanted.set()
        with self._attempt_lock:
            if self._keeper is None and not self._closed.is_set():
                self._keeper = threading.Thread(target=self._keep, name="mfs-attach", daemon=True)
                self._keeper.start()

    def _keep(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait()
            if self._closed.is_set():
                return
            with self._attempt_lock:
                self._attempt()
            if self._client is not None and self._client.alive():
                self._wanted.clear()
            else:
                self._closed.wait(RETRY_S)

    def _attempt(self) -> None:
        client, shared = self._client, self._shim.client() if self._shim is not None else None
        if client is not None and not client.hung_up() and not client.detached():
            if client.borrowed or shared is None:
                return  # the heartbeat is back, or the daemon is only stopped: the session outlives that
        else:
            self._client = self.settled.client = None
        try:
            client = self._new_client(shared)
        except OSError as error:
            self._log_once(f"no daemon: {error.strerror}; transfers go unscheduled until there is one")
            return
        self._prepare(client)
        self._client = client
        self.settled.client = client if self._shim is None or client.borrowed else None
        self._attached(client)
        older = f" to a daemon of ABI minor {client.minor}, older than {ABI_MINOR}: used as far as it goes"
        self._log_once("attached" + (older if client.minor < ABI_MINOR else ""))

    def _new_client(self, shared: int | None) -> Client:
        """Borrows the shim's client once it has one: it attaches when the program opens its first RDMA device."""
        if shared is None:
            return Client.attach(self._socket_path, process=self._process, mode=self._mode)
        client = Client.borrow(shared)
        if not client.alive():
            raise OSError(errno.ENOTCONN, "the preloaded shim's does not answer")
        return client

    def _log_once(self, what: str) -> None:
        """Logs a message unless it repeats the last one."""
        if what != self._logged:
            log.info("%s", what)
        self._logged = what


class Unattached(Attachment):
    """For a process that asks no daemon: opens no socket and starts no thread."""

    def __init__(self) -> None: ...

    def client(self) -> Client | None:
        return None

    def try_now(self) -> None: ...

    def close(self) -> None: ...

    def forked(self) -> None: ...
