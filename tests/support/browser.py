"""Controls a real headless Chromium over its pipe: evaluates expressions, clicks, takes screenshots."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.waiting import TIMEOUT_S, eventually


class Browser:
    """A browser with one page at a time."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        assert program, "no browser: apt-get install chromium"
        to_browser, self._say = os.pipe()
        self._hear, from_browser = os.pipe()

        def pipes() -> None:
            os.dup2(to_browser, 1000)  # first to free numbers, since one descriptor may be the target of the other
            os.dup2(from_browser, 1001)
            os.dup2(1000, 3)
            os.dup2(1001, 4)

        self._process = subprocess.Popen(
            [
                *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe"),
                f"--user-data-dir={folder}/browser",
            ],
            pass_fds=(3, 4),
            preexec_fn=pipes,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self.problems: list[str] = []
        """Exceptions and error messages of the page's scripts, and resources that could not be loaded."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._say)
        os.close(self._hear)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, session=self._session, **parameters)

    def open(self, url: str, width: int, height: int, *, dark: bool = False) -> None:
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Waits until the expression has a true value, and returns it."""
        seen = f"(() => {{ try {{ const v = {expression}; return v instanceof Node ? true : v }} catch {{}} }})()"
        return eventually(lambda: self.evaluate(seen), expression, pause_s=0.05)

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Clicks in the middle of the element, as a pointer does."""
        box = self.evaluate(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2] }})(document.querySelector({json.dumps(selector)}))"
        )
        self.press(*box)

    def press(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    # ---- the pipe --------------------------------------------------------------------------------

    def _call(self, method: str, *, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._say, json.dumps(message).encode() + b"\0")
        answer = eventually(lambda: self._answers.pop(number, None), method, TIMEOUT_S)
        assert "error" not in answer, (method, answer)
        return dict(answer["result"])

    def _read(self) -> None:
        for message in _messages(lambda: os.read(self._hear, 1 << 16)):
            if "id" in message:
                self._answers[message["id"]] = message
            elif message["method"] == "Runtime.exceptionThrown":
                details = message["params"]["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.problems.append(f"{message['params']['entry']['text']} {message['params']['entry'].get('url')}")


def _messages(read: Callable[[], bytes]) -> Iterator[dict[str, Any]]:
    buffered = b""
    with contextlib.suppress(OSError):
        while part := read():
            *whole, buffered = (buffered + part).split(b"\0")
            yield from map(json.loads, whole)
