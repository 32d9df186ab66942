//! Chromium without a window, controlled through a pair of pipes (its DevTools protocol: JSON, each message
//! followed by a zero byte), so that a test can query a page while it keeps running.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::Beside;

/// Time limit for an answer from the browser.
const PATIENCE: Duration = Duration::from_secs(90);

/// A browser that ends with the test.
pub(super) struct Browser {
    _process: Beside,
    to: File,
    answers: Receiver<Value>,
    last: u64,
    /// Errors reported by pages: exceptions, and violations of their security policy.
    complaints: Vec<String>,
}

/// A page of the browser.
#[derive(Clone, Debug)]
pub(super) struct Page(String);

impl Browser {
    /// Starts the browser with a home in `dir`.
    pub(super) fn start(program: &Path, dir: &Path) -> Browser {
        let pipe = |name: &str| -> PathBuf {
            let path = dir.join(name);
            assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
            path
        };
        let (to, from) = (pipe("to-browser"), pipe("from-browser"));
        let line = r#"exec "$0" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
            --disable-background-networking --disable-component-update --disable-sync --no-proxy-server \
            --remote-debugging-pipe --user-data-dir="$1" about:blank 3< "$2" 4> "$3""#;
        let mut command = Command::new("sh");
        command.args(["-c", line]).arg(program).arg(dir.join("browser")).arg(&to).arg(&from);
        command.stdout(Stdio::null());
        command.stderr(File::create(dir.join("browser.log")).expect("a file"));
        let process = Beside::start(&mut command);
        // Opening each pipe waits for the other end, in the shell's order.
        let to = OpenOptions::new().write(true).open(&to).expect("the pipe there");
        let from = File::open(&from).expect("the pipe back");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut message = Vec::new();
            while from.read_until(0, &mut message).is_ok_and(|count| count > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        Browser { _process: process, to, answers, last: 0, complaints: Vec::new() }
    }

    /// Sends a command and waits for the answer.
    fn ask(&mut self, page: Option<&Page>, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(Page(session)) = page {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).expect("JSON");
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut answer =
                self.answers.recv_timeout(left).unwrap_or_else(|_| panic!("{method}: no answer"));
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            let said = answer["method"].as_str().unwrap_or_default();
            if ["Runtime.exceptionThrown", "Log.entryAdded"].contains(&said) {
                self.complaints.push(answer["params"].to_string());
            }
        }
    }

    /// A new page with this width, light or dark.
    pub(super) fn open(&mut self, url: &str, width: u32, dark: bool) -> Page {
        let target = self.ask(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.ask(None, "Target.attachToTarget", attach)["sessionId"].take();
        let page = Page(session.as_str().expect("a session").to_owned());
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            self.ask(Some(&page), domain, json!({}));
        }
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.ask(Some(&page), "Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.ask(Some(&page), "Emulation.setEmulatedMedia", media);
        self.ask(Some(&page), "Page.navigate", json!({ "url": url }));
        page
    }

    /// Returns the value of an expression on a page, or `None` if it throws an error.
    fn try_to_see(&mut self, page: &Page, expression: &str) -> Option<Value> {
        let what = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut found = self.ask(Some(page), "Runtime.evaluate", what);
        found["exceptionDetails"].is_null().then(|| found["result"]["value"].take())
    }

    /// Returns the value of an expression on a page.
    pub(super) fn see(&mut self, page: &Page, expression: &str) -> Value {
        self.try_to_see(page, expression).unwrap_or_else(|| panic!("{expression} fails"))
    }

    /// Waits until an expression is true on a page, which may not exist yet.
    pub(super) fn wait_for(&mut self, page: &Page, expression: &str) {
        let until = Instant::now() + PATIENCE;
        while self.try_to_see(page, expression) != Some(json!(true)) {
            if Instant::now() > until {
                let text = self.see(page, "document.body ? document.body.innerText : ''");
                panic!("{expression} is not true: {text}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses a key.
    pub(super) fn press(&mut self, page: &Page, key: &str) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let what = json!({ "type": kind, "key": key, "code": key, "text": text,
                "windowsVirtualKeyCode": if key == "Enter" { 13 } else { 9 } });
            self.ask(Some(page), "Input.dispatchKeyEvent", what);
        }
    }

    /// Returns the accessibility tree of the page: role and name of each node.
    pub(super) fn read_aloud(&mut self, page: &Page) -> Vec<(String, String)> {
        self.ask(Some(page), "Accessibility.enable", json!({}));
        let tree = self.ask(Some(page), "Accessibility.getFullAXTree", json!({}));
        let word =
            |node: &Value, of: &str| node[of]["value"].as_str().unwrap_or_default().to_owned();
        let nodes = tree["nodes"].as_array().expect("nodes").iter();
        nodes
            .filter(|node| node["ignored"] != true)
            .map(|node| (word(node, "role"), word(node, "name")))
            .collect()
    }

    /// Returns the errors reported by pages so far.
    pub(super) fn complaints(&self) -> &[String] {
        &self.complaints
    }
}
