"""A headless Chromium, driven over the pipe of its DevTools protocol (no socket, no further dependency)."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


def executable() -> str | None:
    """Path of a Chromium on this machine, or None."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Chromium:
    """One browser with one tab; use as a context manager.

    Attributes:
        requests: every address that the page asked for since `open`.
        messages: texts of uncaught exceptions and of the console's errors since `open`.
    """

    def __init__(self, profile: Path) -> None:
        path = executable()
        assert path is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The protocol's pipe is descriptors 3 and 4 of the child; these may be in use here, hence dup2 in the child.
        first, second = os.dup(to_browser), os.dup(from_browser)
        high = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]

        def place() -> None:
            a, b = os.dup(first), os.dup(second)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self._process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (to_browser, from_browser, first, second, *high):
            os.close(descriptor)
        self._ids, self._buffer, self._events = itertools.count(1), b"", []
        self.requests: list[str] = []
        self.messages: list[str] = []
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=False)["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=False)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("Browser.close", session=False)
        finally:
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            os.close(self._write)
            os.close(self._read)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium did not answer in time")
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise RuntimeError("Chromium closed its pipe")
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(text)
        self._note(found)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(str(details.get("exception", {}).get("description") or details.get("text")))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.messages.append(params["entry"]["text"])

    def _call(
        self, method: str, params: dict[str, Any] | None = None, *, session: bool = True, seconds: float = 60
    ) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = self._session
        payload = json.dumps(message).encode() + b"\0"
        while payload:
            payload = payload[os.write(self._write, payload) :]
        deadline = time.monotonic() + seconds
        while (answer := self._message(deadline)).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(
        self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Open a page at a size and colour scheme, and wait until its plots are drawn."""
        self.requests, self.messages = [], []
        phone = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self._call("Emulation.setDeviceMetricsOverride", metrics)
        self._call("Emulation.setTouchEmulationEnabled", {"enabled": phone})
        self.scheme(dark=dark)
        self._call("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        self._call("Page.navigate", {"url": page.resolve().as_uri()})
        deadline = time.monotonic() + 60
        done = "document.readyState === 'complete'"
        if scripts:
            done += " && document.documentElement.dataset.plots !== undefined"
        while not self.value(done):
            assert time.monotonic() < deadline, f"the page was not drawn in time: {self.messages}"
            time.sleep(0.05)

    def scheme(self, *, dark: bool) -> None:
        """Prefer light or dark from now on, in the page that is open too."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page (promises are awaited)."""
        answer = self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> Path:
        """A PNG of the whole page, as long as it is."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self._call("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        """The page printed on A4."""
        answer = self._call("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
        path.write_bytes(base64.b64decode(answer["data"]))
        return path
