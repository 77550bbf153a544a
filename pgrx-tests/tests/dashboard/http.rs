//! Raw HTTP requests, so that a test can send what a browser would not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }
}

/// Sends a request and reads the response. A Host among the headers replaces the address.
pub fn send(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let host = headers.iter().any(|(name, _)| *name == "Host");
    let host = if host { String::new() } else { format!("Host: {address}\r\n") };
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    (&stream).write_all(request.as_bytes()).expect("send");
    let mut reader = BufReader::new(&stream);
    let mut headers = String::new();
    while reader.read_line(&mut headers).expect("an answer") > 2 {}
    let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let length = headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.expect("a length")];
    reader.read_exact(&mut body).expect("the whole answer");
    Answer { status, headers, body: String::from_utf8(body).expect("text") }
}
