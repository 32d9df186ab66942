#!/usr/bin/env python3
"""Somebody who watches the demo's dashboard in a browser while WiFi dies, and takes pictures.

watch_handover.py CHROMIUM URL FOLDER

Waits for what the page says, not for times, and ends with an error where it never says it. The pictures are
FOLDER/before.png, dead-light.png, dead-dark.png and dead-phone.png.
"""
import base64
import json
import os
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60


class Browser:
    """Chromium without a window, spoken to by its DevTools protocol: JSON over two pipes, a zero byte behind each."""

    def __init__(self, program, home):
        there, self.to = os.pipe()
        self.back, here = os.pipe()

        def place():
            # Chromium reads from 3 and writes to 4; the pipes may have just these numbers, the wrong way round.
            read, write = os.dup(there), os.dup(here)
            os.dup2(read, 3)
            os.dup2(write, 4)

        line = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--no-proxy-server",
                "--remote-debugging-pipe", f"--user-data-dir={home}", "about:blank"]
        self.process = subprocess.Popen(line, preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(there)
        os.close(here)
        self.last, self.left = 0, b""

    def ask(self, method, page=None, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if page is not None:
            message["sessionId"] = page
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.left:
                part = os.read(self.back, 1 << 16)
                if not part:
                    sys.exit("the browser has ended")
                self.left += part
            first, self.left = self.left.split(b"\0", 1)
            answer = json.loads(first)
            if answer.get("id") == self.last:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url):
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        page = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.look(page, 1100, "light")
        self.ask("Page.navigate", page, url=url)
        return page

    def look(self, page, width, scheme):
        self.ask("Emulation.setDeviceMetricsOverride", page, width=width, height=900, deviceScaleFactor=1,
                 mobile=width < 500)
        self.ask("Emulation.setEmulatedMedia", page, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def see(self, page, expression):
        return self.ask("Runtime.evaluate", page, expression=expression, returnByValue=True)["result"].get("value")

    def wait_for(self, page, expression):
        until = time.monotonic() + PATIENCE_S
        while self.see(page, expression) is not True:
            if time.monotonic() > until:
                sys.exit(f"never: {expression}\n{self.see(page, 'document.body.innerText')}")
            time.sleep(0.1)

    def shoot(self, page, file):
        picture = base64.b64decode(self.ask("Page.captureScreenshot", page, format="png")["data"])
        with open(file, "wb") as out:
            out.write(picture)
        if len(picture) < 20_000:
            sys.exit(f"{file}: {len(picture)} bytes are no picture of this page")


def path_is(path, state):
    return f"document.querySelector('tr[data-path={path}]')?.dataset.state === '{state}'"


def main():
    program, url, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    # The browser's own children outlive it by a moment and still write to its profile.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        browser = Browser(program, home)
        try:
            watch(browser, url, folder)
        finally:
            browser.process.kill()
            browser.process.wait()


def watch(browser, url, folder):
    page = browser.open(url)
    for path in ("WiFi", "LTE"):
        browser.wait_for(page, path_is(path, "usable"))
    browser.wait_for(page, "document.querySelectorAll('#charts canvas').length === 5")
    time.sleep(4)  # lines that one can see
    browser.shoot(page, f"{folder}/before.png")

    browser.wait_for(page, path_is("WiFi", "unreachable"))
    browser.wait_for(page, path_is("LTE", "usable"))
    print("the page says:", browser.see(page, "document.querySelector('#news').textContent"))
    time.sleep(2)
    for name, width, scheme in (("light", 1100, "light"), ("dark", 1100, "dark"), ("phone", 390, "light")):
        browser.look(page, width, scheme)
        time.sleep(0.5)
        browser.shoot(page, f"{folder}/dead-{name}.png")
    browser.look(page, 1100, "light")
    holes = browser.see(page, "document.querySelectorAll('#hole-rows tbody tr').length")
    print(f"holes of 100 ms and more: {holes}")


main()
