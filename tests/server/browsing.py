"""A real browser before a server, for tests of the page: what a reader does and sees."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,800",
)
PATIENCE_S = 30
EXPECTED = ("status of 400", "status of 401", "status of 429", "status of 502")


def why_not() -> str:
    """What is missing for a browser, or nothing."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed"
    return "" if find_spec("selenium") else "selenium is not installed"


@contextmanager
def browser(folder: Path) -> Iterator[Any]:
    """Chromium with an empty profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE_S)
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An application on a port of its own; gives where."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, "the server started")
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE_S)


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait for something; gives the first value that is not nothing."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < ends, f"never happened: {what}"
        time.sleep(0.04)


class Reader:
    """Somebody who reads and writes on the page."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url
        self.asked_for: list[str] = []

    def open(self, path: str = "/") -> None:
        """Open the page in a browser that has never seen it."""
        if not self.driver.current_url.startswith(self.url):
            self.driver.get(self.url + "/page/icon.svg")
        self.driver.execute_script("localStorage.clear(); sessionStorage.clear()")
        self.driver.get(self.url + path)
        until(lambda: not self.one("#model").get_property("disabled"), "the models are there")

    def reload(self) -> None:
        self.driver.refresh()
        until(lambda: not self.one("#model").get_property("disabled"), "the models are there")

    def all(self, css: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", css))

    def one(self, css: str) -> Any:
        return self.driver.find_element("css selector", css)

    def click(self, css: str) -> None:
        self.one(css).click()

    def text(self, css: str) -> str:
        return "\n".join(str(node.get_property("textContent")) for node in self.all(css))

    def js(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def module(self, body: str) -> Any:
        """Run the body of an async function in the page; it may import the page's modules."""
        script = (
            "const done = arguments[arguments.length - 1];"
            f"(async () => {{ {body} }})().then(done, (error) => done(`error: ${{error.stack}}`));"
        )
        return self.driver.execute_async_script(script)

    def press(self, *keys: str, css: str = "#message") -> None:
        self.one(css).send_keys(*keys)

    def send(self, text: str) -> None:
        self.press(text, "\ue007")  # Enter

    def wait_end(self) -> None:
        """Wait until the answer that was asked for is complete."""
        until(
            lambda: (
                self.all(".message.assistant .message-bar button")
                and not self.all(".message.running")
            ),
            "the answer ended",
        )

    def ask(self, text: str) -> str:
        """Send a message, and give the text of the answer when it is complete."""
        before = len(self.all(".message.assistant"))
        self.send(text)
        until(lambda: len(self.all(".message.assistant")) > before, "an answer began")
        self.wait_end()
        return str(self.all(".message.assistant > .markdown")[-1].get_property("textContent"))

    def wait(self, css: str, words: str) -> None:
        until(lambda: words in self.text(css), f"{words!r} in {css}")

    def check_quiet(self, *expected: str) -> None:
        """No error was logged but the expected ones, and nobody else was asked for anything."""
        own = urlsplit(self.url).netloc
        for entry in self.driver.get_log("browser"):
            is_expected = any(part in entry["message"] for part in expected)
            assert entry["level"] not in ("SEVERE", "WARNING") or is_expected, entry["message"]
            assert "Content Security Policy" not in entry["message"], entry["message"]
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                self.asked_for.append(event["params"]["request"]["url"])
        for address in self.asked_for:
            parts = urlsplit(address)
            is_inside = parts.scheme in ("data", "blob") or parts.scheme.startswith("chrome")
            assert is_inside or parts.netloc == own, address


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests of the page."""
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="session")
def page_app() -> Any:
    """The page before canned answers."""
    import canned_page

    return canned_page.make_app()


@pytest.fixture(scope="session")
def page_url(page_app: Any) -> Iterator[str]:
    with served(page_app) as one:
        yield one


@pytest.fixture
def reader(driver: Any, page_url: str) -> Iterator[Reader]:
    """A reader who opens the page for the first time; the page must be quiet at the end."""
    one = Reader(driver, page_url)
    one.open()
    yield one
    one.check_quiet(*EXPECTED)
