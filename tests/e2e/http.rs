//! A blocking HTTP client small enough to leave at any point.
//!
//! It speaks HTTP/1.0, so a body has no chunk framing and ends with its connection; HTTP/1.1 is
//! what the Python clients speak.

use crate::patience::PATIENCE;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A whole response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    /// Returns the body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Returns a header, its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the body of a response that must be a success.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Returns status, `code` and `param` of an error of OpenAI's shape.
    pub(crate) fn error(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
        assert!(!text("message").is_empty() && !text("type").is_empty(), "{}", self.body);
        (self.status, text("code"), text("param"))
    }
}

/// A request that was sent; dropping it closes the connection.
pub(crate) struct Exchange {
    reader: BufReader<TcpStream>,
}

impl Exchange {
    /// Sends a request, `headers` as whole lines.
    pub(crate) fn send(
        address: SocketAddr,
        method_and_path: &str,
        headers: &str,
        body: &str,
    ) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let request = format!(
            "{method_and_path} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {length}\r\n\
             {headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    /// Sends a JSON body.
    pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Self {
        let headers = "content-type: application/json\r\n";
        Self::send(address, &format!("POST {path}"), headers, body)
    }

    /// Reads the response to its end.
    pub(crate) fn response(mut self) -> Response {
        let (status, headers) = self.read_head();
        let mut body = String::new();
        self.reader.read_to_string(&mut body).unwrap();
        Response { status, headers, body }
    }

    /// Reads the head of a response that must be an event stream.
    pub(crate) fn events(mut self) -> EventStream {
        let (status, headers) = self.read_head();
        if status != 200 {
            panic!("status {status}: {}", read_rest(&mut self.reader));
        }
        let content_type = headers.iter().find(|(name, _)| name == "content-type");
        assert_eq!(content_type.unwrap().1, "text/event-stream");
        EventStream { reader: self.reader }
    }

    fn read_head(&mut self) -> (u16, Vec<(String, String)>) {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let status_line = lines.first().unwrap_or_else(|| panic!("closed without a response"));
        let status = status_line.split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines[1..].iter().filter_map(|line| line.split_once(':'));
        let headers =
            headers.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
        (status, headers)
    }
}

fn read_rest(reader: &mut BufReader<TcpStream>) -> String {
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    rest
}

/// Server-sent events as they come; dropping it closes the connection.
pub(crate) struct EventStream {
    reader: BufReader<TcpStream>,
}

impl EventStream {
    /// Returns the lines of all further events, comments left out, until the connection ends.
    pub(crate) fn raw_events(mut self) -> Vec<String> {
        let rest = read_rest(&mut self.reader);
        let events = rest.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
        events.map(str::to_owned).collect()
    }

    /// Returns the next chunk; `None` after `[DONE]`.
    ///
    /// # Panics
    /// When the stream ends without `[DONE]` or holds an error.
    pub(crate) fn next_chunk(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            let num_read = self.reader.read_line(&mut line).unwrap();
            assert!(num_read > 0, "the stream ended without [DONE]");
            match line.trim_end() {
                "" => {}
                comment if comment.starts_with(':') => {}
                "data: [DONE]" => {
                    let rest = read_rest(&mut self.reader);
                    assert_eq!(rest.trim(), "", "nothing comes after [DONE]");
                    return None;
                }
                line => {
                    let data = line.strip_prefix("data: ").unwrap_or_else(|| panic!("{line}"));
                    return Some(serde_json::from_str(data).unwrap());
                }
            }
        }
    }

    /// Returns all further chunks.
    pub(crate) fn chunks(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next_chunk()).collect()
    }
}
