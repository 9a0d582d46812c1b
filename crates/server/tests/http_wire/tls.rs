//! HTTPS.

use crate::harness::{PATIENCE, Setup, TestServer};
use mini_infer_server::{ServerConfig, TlsError, TlsFiles, TlsIdentity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn files(certificate: &str, key: &str) -> TlsFiles {
    TlsFiles { certificates: data(certificate), key: data(key) }
}

fn start(identity: TlsIdentity) -> TestServer {
    let config = ServerConfig { tls: Some(identity), ..ServerConfig::default() };
    TestServer::start(Setup { config, ..Setup::default() })
}

/// Sends a request to a server whose certificate must be the one in `trusted`, and returns the
/// whole answer.
fn exchange(address: SocketAddr, trusted: &str, request: &str) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data(trusted)).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn get(address: SocketAddr, trusted: &str, path: &str) -> io::Result<String> {
    let head = "host: localhost\r\nconnection: close\r\n\r\n";
    exchange(address, trusted, &format!("GET {path} HTTP/1.1\r\n{head}"))
}

#[test]
fn health_models_and_streams_are_served_over_tls() {
    let server = start(TlsIdentity::load(files("first.cert.pem", "first.key.pem")).unwrap());
    for path in ["/health", "/health/ready", "/health/live", "/v1/models"] {
        let answer = get(server.address, "first.cert.pem", path).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let body = r#"{"prompt": "x7", "max_tokens": 9, "stream": true}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(server.address, "first.cert.pem", &request).unwrap();
    assert!(answer.contains("\"text\":\"8\"") && answer.contains("data: [DONE]"), "{answer}");
}

#[test]
fn what_is_no_handshake_is_closed_and_harms_nobody() {
    let server = start(TlsIdentity::load(files("first.cert.pem", "first.key.pem")).unwrap());
    let mut plain = TcpStream::connect(server.address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // A reset ends the connection as well.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // A client that trusts another certificate does not go on.
    assert!(get(server.address, "second.cert.pem", "/health").is_err());
    assert!(get(server.address, "first.cert.pem", "/health").is_ok());
}

#[test]
fn a_renewed_certificate_is_used_from_the_next_handshake_on() {
    let folder = std::env::temp_dir().join(format!("mini-infer-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = TlsFiles { certificates: folder.join("cert.pem"), key: folder.join("key.pem") };
    let install = |certificate: &str, key: &str| {
        std::fs::copy(data(certificate), &files.certificates).unwrap();
        std::fs::copy(data(key), &files.key).unwrap();
    };
    install("first.cert.pem", "first.key.pem");
    let identity = TlsIdentity::load(files.clone()).unwrap();
    let server = start(identity.clone());
    assert!(get(server.address, "first.cert.pem", "/health").is_ok());
    // Half of a renewal changes nothing.
    install("second.cert.pem", "first.key.pem");
    assert!(matches!(identity.reload(), Err(TlsError::Pair { .. })));
    assert!(get(server.address, "first.cert.pem", "/health").is_ok());
    install("second.cert.pem", "second.key.pem");
    identity.reload().unwrap();
    assert!(get(server.address, "second.cert.pem", "/health").is_ok());
    assert!(get(server.address, "first.cert.pem", "/health").is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let check = |certificate: &str, key: &str, expected: &str| {
        let error = TlsIdentity::load(files(certificate, key)).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(expected), "{message}");
        let has_cause = error.source().is_some();
        assert!(has_cause || message.contains("no certificate"), "{message}");
    };
    check("missing.pem", "first.key.pem", "missing.pem cannot be read as certificates");
    check("first.key.pem", "first.key.pem", "first.key.pem holds no certificate");
    check("first.cert.pem", "missing.pem", "missing.pem cannot be read as a private key");
    check("first.cert.pem", "first.cert.pem", "cannot be read as a private key");
    check("first.cert.pem", "second.key.pem", "do not belong together");
    let script = "make_certificates.sh";
    check(script, "first.key.pem", "make_certificates.sh holds no certificate");
}
