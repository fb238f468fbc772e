"""A headless Chromium for tests of pages, with helpers to query them."""
import json
import os
import sys
import time

SKIP = "CLEAVE_NO_BROWSER"


def required():
    """Ends the test if there is no browser: as skipped if CLEAVE_NO_BROWSER=1, otherwise as failed."""
    if os.environ.get(SKIP) == "1":
        print(f"skipped: {SKIP}=1")
        sys.exit(77)
    try:
        import selenium  # noqa: F401
    except ImportError:
        missing = "python3-selenium"
    else:
        missing = ", ".join(name for name, path in (("chromium", "/usr/bin/chromium"), ("chromium-driver", "/usr/bin/chromedriver"))
                            if not os.path.exists(path))  # fmt: skip
    if missing:
        sys.exit(f"there is no browser to test with: ./scripts/setup.sh installs {missing}; {SKIP}=1 skips these tests")


class Browser:
    def __init__(self):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)

    def close(self):
        self.driver.quit()

    def size(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})  # fmt: skip

    def dark(self, on):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, url):
        self.driver.get(str(url) if "://" in str(url) else f"file://{url}")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, condition, what, seconds=30):
        """Waits for `condition`, because a page may handle an event after the call that triggered it has returned."""
        deadline = time.time() + seconds
        while not condition():
            if time.time() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}")
            time.sleep(0.05)

    def complaints(self):
        """The console messages of the page since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def panels(self):
        """For each chart: its rows as stored in dygraphs, and its lines."""
        return {panel["id"]: panel for panel in json.loads(self.run("""
            return JSON.stringify(cleaveReport.panels().map((panel) => ({
              id: panel.spec.id, title: panel.spec.title, labels: panel.graph ? panel.graph.getLabels().slice(1) : [],
              rows: panel.graph ? panel.graph.file_ : [], text: panel.card.textContent,
              range: panel.graph ? panel.graph.xAxisRange() : null, csv: panel.graph ? panel.csv() : null,
            })))"""))}  # fmt: skip

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def is_drawn(self, chart):
        """Returns whether a chart's canvas shows more than the background."""
        return self.run("""
            const canvas = document.querySelector('#chart-' + arguments[0] + ' canvas');
            const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            let drawn = 0;
            for (let i = 3; i < pixels.length; i += 4) drawn += pixels[i] > 40;
            return drawn > 200""", chart)  # fmt: skip

    def screenshot(self, path, clip=None):
        import base64

        options = {"clip": clip} if clip else {}
        data = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        path.write_bytes(base64.b64decode(data))
