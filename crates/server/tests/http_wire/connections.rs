//! Connections that take too long, or are too many.

use crate::client::{Connection, get, post};
use crate::harness::{PATIENCE, Setup, TestServer, error_of, wait_until};
use mini_infer_server::ServerConfig;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";

fn impatient() -> TestServer {
    let client_timeout = Duration::from_millis(200);
    let config = ServerConfig { client_timeout, ..ServerConfig::default() };
    TestServer::start(Setup { config, ..Setup::default() })
}

fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads until the server closes the connection.
fn read_all(mut stream: &TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset ends the connection as well.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Sends `bytes` one at a time, over and over, and tells whether the server closed the connection
/// meanwhile. Slow machines only make it slower.
fn is_closed_while_dripping(mut stream: &TcpStream, bytes: &[u8]) -> bool {
    bytes.iter().cycle().take(2000).any(|byte| {
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(&[*byte]).is_err()
    })
}

#[test]
fn a_head_that_never_ends_is_given_up_on() {
    let server = impatient();
    let stream = connect(&server);
    (&stream).write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    assert!(is_closed_while_dripping(&stream, b"x: y\r\n"));
    server.check_alive();
}

#[test]
fn a_body_that_drips_is_refused_in_time() {
    let server = impatient();
    let stream = connect(&server);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 1000000\r\n\r\n{";
    (&stream).write_all(head.as_bytes()).unwrap();
    let writer = stream.try_clone().unwrap();
    let dripping = std::thread::spawn(move || is_closed_while_dripping(&writer, b" "));
    let answer = read_all(&stream);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("\"body_too_slow\""), "{answer}");
    drop(stream);
    assert!(dripping.join().unwrap());
    server.check_alive();
}

#[test]
fn a_client_that_reads_nothing_is_closed() {
    let server = impatient();
    let stream = connect(&server);
    // Requests whose answers together are more than the buffers of any system hold.
    let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(10_000);
    let started = Instant::now();
    let mut writer = &stream;
    while writer.write_all(request.as_bytes()).is_ok() {
        assert!(started.elapsed() < 6 * PATIENCE, "the server still reads");
    }
    server.check_alive();
}

#[test]
fn an_idle_connection_is_kept_for_the_next_request_and_not_for_ever() {
    let server = impatient();
    let stream = connect(&server);
    let request = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for _ in 0..2 {
        (&stream).write_all(request).unwrap();
        let mut buffer = [0; 4096];
        let num_read = (&stream).read(&mut buffer).unwrap();
        assert!(buffer[..num_read].starts_with(b"HTTP/1.1 200 "));
    }
    assert_eq!(read_all(&stream), "");
}

#[test]
fn beyond_the_most_connections_new_ones_are_turned_away_at_once() {
    let config = ServerConfig { max_connections: 2, ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, ..Setup::default() });
    let held = [connect(&server), connect(&server)];
    wait_until("both places are taken", || {
        let answer = connect(&server);
        (&answer)
            .write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .is_ok()
            && read_all(&answer).contains("\"too_many_connections\"")
    });
    drop(held);
    wait_until("a place is free", || {
        let answer = connect(&server);
        let request = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        (&answer).write_all(request).is_ok() && read_all(&answer).starts_with("HTTP/1.1 200 ")
    });
    server.check_alive();
}

#[test]
fn a_head_beyond_the_buffer_is_refused() {
    let server = TestServer::start(Setup::default());
    let request = format!("GET /version HTTP/1.1\r\nhost: localhost\r\nx: {}", "y".repeat(400_000));
    let response = Connection::send_raw(server.address, &(request + "\r\n\r\n")).finish();
    assert_eq!(response.status, 431);
    server.check_alive();
}

#[test]
fn a_chunked_body_beyond_the_limit_is_refused_before_its_end() {
    let config = ServerConfig { max_body_bytes: 1000, ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, ..Setup::default() });
    let chunk = format!("400\r\n{}\r\n", " ".repeat(0x400));
    let request = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"
    );
    let response = Connection::send_raw(server.address, &request).finish();
    assert_eq!((response.status, error_of(&response).1.as_str()), (413, "body_too_large"));
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    assert_eq!(post(server.address, COMPLETIONS, &body).status, 200);
    assert_eq!(get(server.address, "/health").status, 200);
}
