//! A blocking HTTP client small enough to show every byte.

use crate::harness::PATIENCE;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A whole response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Header lines, lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Returns the events of a stream, `[DONE]` included.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.body.split_terminator("\n\n").collect()
    }

    /// Returns the chunks of a stream.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let data = self.events().into_iter().filter_map(|event| event.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }
}

/// A connection with a request on its way.
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    /// Sends these very bytes.
    pub(crate) fn send_raw(address: SocketAddr, request: &(impl AsRef<[u8]> + ?Sized)) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that refuses a body early may close before all of it was sent.
        let _ = stream.write_all(request.as_ref());
        Self { stream, received: Vec::new() }
    }

    /// Sends a request, `headers` as whole lines.
    pub(crate) fn send(address: SocketAddr, line: &str, headers: &str, body: &str) -> Self {
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\
             {headers}\r\n{body}"
        );
        Self::send_raw(address, &request)
    }

    /// Sends a JSON body.
    pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Self {
        Self::send(address, &format!("POST {path}"), "content-type: application/json\r\n", body)
    }

    /// Reads until `text` has come.
    pub(crate) fn read_until(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&self.received).contains(text) {
            let num_read = self.stream.read(&mut buffer).unwrap();
            assert!(num_read > 0, "closed before {text:?}");
            self.received.extend_from_slice(&buffer[..num_read]);
        }
    }

    /// Returns what has come so far.
    pub(crate) fn received(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }

    /// Reads the rest of the response.
    pub(crate) fn finish(mut self) -> Response {
        let mut buffer = [0; 4096];
        // A reset after an early answer loses nothing that was read before it.
        while let Ok(num_read @ 1..) = self.stream.read(&mut buffer) {
            self.received.extend_from_slice(&buffer[..num_read]);
        }
        let split = self.received.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&self.received[..split]).to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = self.received.split_off(split + 4);
        let is_chunked = head.contains("transfer-encoding: chunked");
        let body = if is_chunked { dechunk(&body) } else { body };
        Response { status, head, body: String::from_utf8(body).unwrap() }
    }
}

fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(line_end) = body.windows(2).position(|window| window == b"\r\n") {
        let length = std::str::from_utf8(&body[..line_end]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        let start = line_end + 2;
        whole.extend_from_slice(&body[start..start + length]);
        body = &body[start + length + 2..];
    }
    whole
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    Connection::send(address, &format!("GET {path}"), "", "").finish()
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Response {
    Connection::post(address, path, body).finish()
}
