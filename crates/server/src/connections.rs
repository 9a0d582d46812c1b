//! Connections from accept to close.
//!
//! A client that does not send, does not read or does not go away costs one connection for a
//! bounded time: its request's head must arrive, and what is written to it be taken, within the
//! client timeout. Beyond the most connections, new ones are answered with 503 and closed, so
//! that accepting goes on. Bodies are bounded in `body_read`.

use crate::client::PeerAddress;
use crate::patient_stream::PatientStream;
use crate::tls::TlsIdentity;
use crate::wire::error::ApiError;
use crate::wire::refusal::Refusal;
use axum::Router;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

/// Bytes of a request's head, and of what is buffered for a connection in each direction.
const MAX_BUFFER_BYTES: usize = 64 << 10;

/// How long accepting pauses when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How much clients may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Most connections that are open at once.
    pub(crate) max_connections: usize,
    /// How long a client may take to send a head, or to read any of what is written.
    pub(crate) client_timeout: Duration,
}

/// Serves the connections of a listener.
pub(crate) struct Connections {
    pub(crate) listener: TcpListener,
    pub(crate) router: Router,
    pub(crate) tls: Option<TlsIdentity>,
    pub(crate) limits: ConnectionLimits,
}

impl Connections {
    /// Serves until `stop` completes, then until all connections have sent what is written.
    /// Dropping this closes them at once.
    pub(crate) async fn serve(self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut open = JoinSet::new();
        let places = Arc::new(Semaphore::new(self.limits.max_connections));
        let (close, closing) = watch::channel(());
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                Some(ended) = open.join_next() => {
                    report(ended);
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            let Ok((stream, peer)) = accepted.inspect_err(note_accept_error) else {
                // Without a pause, an exhausted process would spin here.
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                self.turn_away(&stream);
                continue;
            };
            let connection = self.connection(stream, PeerAddress(peer), closing.clone());
            open.spawn(async move {
                connection.await;
                drop(place);
            });
        }
        drop((self, close, closing));
        while let Some(ended) = open.join_next().await {
            report(ended);
        }
    }

    /// Returns the conversation on `stream`.
    fn connection(
        &self,
        stream: TcpStream,
        peer: PeerAddress,
        closing: watch::Receiver<()>,
    ) -> impl Future<Output = ()> + use<> {
        // Chunks are small and each matters: without this, the kernel holds one back until the
        // client acknowledged the last.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let client_timeout = self.limits.client_timeout;
        let stream = PatientStream::new(stream, client_timeout);
        let service = PeerService { peer, router: TowerToHyperService::new(self.router.clone()) };
        let acceptor = self.tls.as_ref().map(TlsIdentity::acceptor);
        async move {
            let Some(acceptor) = acceptor else {
                return converse(stream, service, client_timeout, closing).await;
            };
            match timeout(client_timeout, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => converse(stream, service, client_timeout, closing).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake"),
                Err(_) => tracing::debug!("TLS handshake: the client did not go on in time"),
            }
        }
    }

    /// Tells a client that all places are taken, as far as that can be done without waiting.
    fn turn_away(&self, stream: &TcpStream) {
        let limit = self.limits.max_connections;
        tracing::warn!(limit, "connection refused: too many are open");
        if self.tls.is_some() {
            return;
        }
        let refusal = ApiError::from(Refusal::TooManyConnections { limit });
        let body = serde_json::to_string(&refusal.body()).unwrap_or_default();
        let response = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
             retry-after: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        // A client that is gone already needs no answer.
        let _ = stream.try_write(response.as_bytes());
    }
}

/// Answers the requests on a connection until it ends or, once `closing` says so, after the one
/// that is under way.
async fn converse<S>(
    stream: S,
    service: PeerService,
    client_timeout: Duration,
    mut closing: watch::Receiver<()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(client_timeout);
    builder.max_buf_size(MAX_BUFFER_BYTES);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Its sender is only ever dropped.
        _ = closing.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection");
    }
}

/// The routes, for requests from one peer.
struct PeerService {
    peer: PeerAddress,
    router: TowerToHyperService<Router>,
}

impl Service<hyper::Request<Incoming>> for PeerService {
    type Response = Response;
    type Error = Infallible;
    type Future = <TowerToHyperService<Router> as Service<hyper::Request<Incoming>>>::Future;

    fn call(&self, mut request: hyper::Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.router.call(request)
    }
}

fn note_accept_error(error: &io::Error) {
    tracing::error!(%error, "cannot accept connections");
}

/// A panic in a route ends its connection only; it is our fault, so it is told.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection ended with a panic");
    }
}
