#!/usr/bin/env python3
"""Opens a page in headless Chromium and does with it what a person would.

drive.py PAGE < STEPS > RESULTS: steps are a JSON list of lists, a name and its arguments (the functions below);
the results are `answers`, one a step, `complaints` of the console and the page, and the addresses that were
`requested`. Speaks the DevTools protocol over a pipe, so that no port is open and nothing but Python is needed.
"""
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DEADLINE = time.monotonic() + 120


def browser():
    for name in BROWSERS:
        if shutil.which(name):
            return name
    sys.exit(f"none of {', '.join(BROWSERS)} is here; `make test` installs one")


class Browser:
    def __init__(self, profile):
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()

        def hand_over():
            # The browser reads commands at 3 and writes answers at 4. The ends are moved away first, so that
            # none is in the way of the other.
            reading, writing = os.dup(to_read), os.dup(from_write)
            high_read, high_write = 200, 201
            os.dup2(reading, high_read)
            os.dup2(writing, high_write)
            os.dup2(high_read, 3)
            os.dup2(high_write, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-extensions", "--hide-scrollbars", "--window-size=1400,1000", "--remote-debugging-pipe",
                 f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen([browser(), *flags], preexec_fn=hand_over, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        os.set_blocking(self.from_read, False)
        self.buffer, self.count, self.session = b"", 0, None
        self.complaints, self.requested, self.loaded = [], [], False
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self):
        while b"\0" not in self.buffer:
            if time.monotonic() > DEADLINE:
                raise TimeoutError("the browser does not answer")
            if self.process.poll() is not None:
                raise RuntimeError(f"the browser ended: {self.process.returncode}")
            try:
                self.buffer += os.read(self.from_read, 1 << 20)
            except BlockingIOError:
                time.sleep(0.002)
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"][:300])
        elif method == "Page.loadEventFired":
            self.loaded = True

    # ---- steps

    def open(self, page):
        self.call("Page.navigate", url=pathlib.Path(page).resolve().as_uri())
        while not self.loaded:
            self.receive()

    def eval(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        while not self.eval(expression):
            if time.monotonic() > DEADLINE:
                raise TimeoutError(expression)
            time.sleep(0.01)

    def frames(self, count=2):
        for _ in range(count):
            self.eval("new Promise((done) => requestAnimationFrame(() => done(1)))")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.frames()

    def click(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.frames()

    def drag(self, x, y, to_x, to_y):
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        for part in range(1, 11):
            self.mouse("mouseMoved", x + (to_x - x) * part / 10, y + (to_y - y) * part / 10, button="left", buttons=1)
        self.mouse("mouseReleased", to_x, to_y, button="left", clickCount=1)
        self.frames()

    def wheel(self, x, y, turn):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=turn)
        self.frames(3)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, key, code=0):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.frames()

    def dark(self, is_dark):
        value = "dark" if is_dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])
        self.frames(3)

    def medium(self, name):
        self.call("Emulation.setEmulatedMedia", media=name)
        self.frames(3)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.frames(4)

    def picture(self, path, is_full=False):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_full)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def print(self, path):
        printed = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        pathlib.Path(path).write_bytes(base64.b64decode(printed["data"]))


def main():
    steps = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            browser.open(sys.argv[1])
            answers = [getattr(browser, name)(*arguments) for name, *arguments in steps]
        finally:
            browser.process.terminate()
            browser.process.wait(20)
    json.dump({"answers": answers, "complaints": browser.complaints, "requested": browser.requested}, sys.stdout)


main()
