//! A headless Chromium, controlled by WebDriver.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::prelude::{BASE64_STANDARD, Engine};
use queue_ext_tests::cluster::{home, run_folder};
use queue_ext_tests::{SOON, eventually};
use serde_json::{Value, json};

use super::http;

/// The key of an element in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
const ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1440,900",
];

pub struct Browser {
    driver: Child,
    address: String,
    session: String,
    folder: PathBuf,
}

impl Browser {
    /// The browser that servers.py fetched, with a profile and fonts of its own.
    pub fn start(name: &str) -> Self {
        let installed = home().join("browser");
        assert!(installed.join(".done").exists(), "no browser: make {}/.done", installed.display());
        let folder = run_folder(format!("browser-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let fonts = folder.join("fonts.conf");
        let alias = |family: &str, font: &str| {
            format!(
                "<alias binding=\"same\"><family>{family}</family><prefer><family>{font}</family></prefer></alias>"
            )
        };
        let config = format!(
            "<?xml version=\"1.0\"?><fontconfig><dir>{}</dir><cachedir>{}</cachedir>{}{}</fontconfig>",
            installed.join("usr/share/fonts").display(),
            folder.join("fonts").display(),
            alias("system-ui", "Inter"),
            alias("monospace", "DejaVu Sans Mono"),
        );
        fs::write(&fonts, config).expect("write fonts.conf");
        let libraries =
            fs::read_dir(installed.join("usr/lib")).expect("libraries").flatten().map(|entry| entry.path());
        let libraries: Vec<String> = libraries
            .filter(|path| path.to_string_lossy().ends_with("-linux-gnu"))
            .flat_map(|path| [path.display().to_string(), path.join("pulseaudio").display().to_string()])
            .collect();
        let mut driver = Command::new(installed.join("usr/bin/chromedriver"))
            .arg("--port=0")
            .env("LD_LIBRARY_PATH", libraries.join(":"))
            .env("FONTCONFIG_FILE", fonts)
            .env("HOME", &folder)
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start chromedriver");
        let said = BufReader::new(driver.stdout.take().expect("its output"));
        let port = said
            .lines()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split_once("successfully on port ")
                    .map(|(_, port)| port.trim_end_matches('.').to_owned())
            })
            .expect("the port of chromedriver");
        let mut browser =
            Self { driver, address: format!("127.0.0.1:{port}"), session: String::new(), folder };
        let mut arguments: Vec<String> = ARGUMENTS.iter().map(|argument| argument.to_string()).collect();
        arguments.push(format!("--user-data-dir={}", browser.folder.join("profile").display()));
        let options = json!({"binary": installed.join("usr/lib/chromium/chromium"), "args": arguments});
        let wish = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}});
        let session = browser.call("POST", "", &wish).expect("a session");
        browser.session = format!("/{}", session["sessionId"].as_str().expect("the session's id"));
        browser
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let path = format!("/session{}{path}", self.session);
        let answer = http::send(&self.address, method, &path, &[("Content-Type", "application/json")], &body);
        let value = answer.json()["value"].take();
        if answer.status == 200 { Ok(value) } else { Err(format!("{path}: {value}")) }
    }

    /// Opens a page of the dashboard and waits for it, because a click on the page before could go astray.
    pub fn open(&self, address: &str) {
        self.call("POST", "/url", &json!({"url": address})).expect("open the page");
        let shown = "return document.querySelector('form.login') !== null
            || document.getElementById('main').dataset.shown === location.hash";
        self.eventually(&format!("{address} is shown"), || self.run(shown) == true);
    }

    /// The result of a script.
    pub fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({"script": script, "args": []}))
            .unwrap_or_else(|why| panic!("{script}: {why}"))
    }

    /// The visible text of the matching elements, or an empty string.
    pub fn text(&self, selector: &str) -> String {
        let script = format!(
            "return [...document.querySelectorAll({})].map((element) => element.innerText).join('\\n')",
            json!(selector)
        );
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    pub fn count(&self, selector: &str) -> u64 {
        self.run(&format!("return document.querySelectorAll({}).length", json!(selector)))
            .as_u64()
            .expect("a number")
    }

    /// Waits until the text of the matching elements contains this.
    pub fn sees(&self, selector: &str, text: &str) {
        self.eventually(&format!("{selector} says {text}"), || self.text(selector).contains(text));
    }

    pub fn sees_no(&self, selector: &str, text: &str) {
        self.eventually(&format!("{selector} no longer says {text}"), || !self.text(selector).contains(text));
    }

    /// Waits for a condition; prints the page if it does not hold.
    pub fn eventually(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(what, SOON, &mut condition);
        }));
        if outcome.is_err() {
            panic!("{what}; the page says:\n{}\n{:?}", self.text("body"), self.console());
        }
    }

    fn element(&self, selector: &str) -> Result<String, String> {
        let found = self.call("POST", "/element", &json!({"using": "css selector", "value": selector}))?;
        Ok(found[ELEMENT].as_str().expect("an element").to_owned())
    }

    /// Clicks the matching element as soon as possible.
    pub fn click(&self, selector: &str) {
        self.eventually(&format!("{selector} can be pressed"), || {
            self.element(selector)
                .and_then(|id| self.call("POST", &format!("/element/{id}/click"), &json!({})))
                .is_ok()
        });
    }

    /// Replaces the text of the matching field; "\u{e007}" is Enter.
    pub fn fill(&self, selector: &str, text: &str) {
        self.eventually(&format!("{selector} takes text"), || {
            self.element(selector)
                .and_then(|id| {
                    self.call("POST", &format!("/element/{id}/clear"), &json!({}))?;
                    self.call("POST", &format!("/element/{id}/value"), &json!({"text": text}))
                })
                .is_ok()
        });
    }

    /// Presses keys, wherever the focus is.
    pub fn press(&self, keys: &[&str]) {
        let press =
            |key: &&str| [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})];
        let actions: Vec<Value> = keys.iter().flat_map(press).collect();
        let wish = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.call("POST", "/actions", &wish).expect("press");
    }

    /// The messages of the console: errors in scripts, and violations of the policy.
    pub fn console(&self) -> Vec<String> {
        let lines = self.call("POST", "/se/log", &json!({"type": "browser"})).expect("the console");
        let lines = lines.as_array().into_iter().flatten();
        lines.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// A command of the browser's own protocol.
    pub fn command(&self, command: &str, parameters: Value) -> Value {
        self.call("POST", "/goog/cdp/execute", &json!({"cmd": command, "params": parameters})).expect(command)
    }

    /// A picture of the page, written as PNG.
    pub fn picture(&self, path: &Path) {
        let picture = self.call("GET", "/screenshot", &Value::Null).expect("a picture");
        let picture = BASE64_STANDARD.decode(picture.as_str().expect("base64")).expect("base64");
        fs::write(path, picture).expect("write the picture");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser; without it, the browser would stay.
        if !self.session.is_empty() {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.call("DELETE", "", &json!({}))
            }));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
