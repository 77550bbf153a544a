//! An HTTP server that does to each request what the payload asks for.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// A request: the lines before the body in lower case, and the body.
#[derive(Clone)]
pub struct Request {
    pub head: String,
    pub body: Value,
}

pub struct Server {
    pub address: String,
    requests: Arc<Mutex<Vec<Request>>>,
    hung_up: Arc<Mutex<usize>>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let (requests, hung_up) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
        let (seen, left) = (Arc::clone(&requests), Arc::clone(&hung_up));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, left) = (Arc::clone(&seen), Arc::clone(&left));
                thread::spawn(move || serve(&stream, &seen, &left));
            }
        });
        Self { address, requests, hung_up }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hooks/mail?a=b", self.address)
    }

    /// The requests whose body asked for this.
    pub fn requests(&self, what: &str) -> Vec<Request> {
        let requests = self.requests.lock().expect("the requests");
        requests.iter().filter(|request| request.body["do"] == what).cloned().collect()
    }

    /// How many clients closed the connection while they waited for a response.
    pub fn hung_up(&self) -> usize {
        *self.hung_up.lock().expect("a number")
    }
}

fn serve(stream: &TcpStream, seen: &Mutex<Vec<Request>>, left: &Mutex<usize>) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = receive(&mut reader) {
        let what = request.body["do"].as_str().unwrap_or_default().to_owned();
        seen.lock().expect("the requests").push(request);
        let response = match what.as_str() {
            "ok" => response("200 OK", "", "{\"answer\": 42}"),
            "created" => response("201 Created", "", ""),
            "500" => response("500 Internal Server Error", "", "no disk left"),
            "422" => response("422 Unprocessable Entity", "", "no such address"),
            "302" => response("302 Found", "Location: /elsewhere\r\n", ""),
            "429 seconds" => response("429 Too Many Requests", "Retry-After: 3600\r\n", ""),
            "503 date" => {
                let later = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs() + 7200;
                response("503 Service Unavailable", &format!("Retry-After: {}\r\n", http_date(later)), "")
            }
            "not json" => response("200 OK", "", "<html>"),
            "huge" => response("200 OK", "", &format!("\"{}\"", "x".repeat(20_000_000))),
            "close" => return,
            "half" => {
                let _ = write!(&mut &*stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{{");
                return;
            }
            "hang" => {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
                if matches!(reader.read(&mut [0]), Ok(0)) {
                    *left.lock().expect("a number") += 1;
                }
                return;
            }
            _ => response("404 Not Found", "", ""),
        };
        if (&mut &*stream).write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

fn receive(reader: &mut impl BufRead) -> Option<Request> {
    let mut head = String::new();
    while reader.read_line(&mut head).ok()? > 2 {}
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { head, body: serde_json::from_slice(&body).ok()? })
}

fn response(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// A date of HTTP.
fn http_date(seconds: u64) -> String {
    let output = std::process::Command::new("date")
        .env("LC_ALL", "C")
        .args(["-u", "-d", &format!("@{seconds}"), "+%a, %d %b %Y %H:%M:%S GMT"])
        .output()
        .expect("run date");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
