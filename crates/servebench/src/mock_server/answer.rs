//! Pieces on their way to a connection.

use super::clockwork::Handle;
use super::script::{Content, Piece};
use super::service::{Accepted, RequestNumber};
use axum::body::{Body, Bytes};
use futures_util::stream;
use std::io;
use tokio::sync::mpsc::UnboundedReceiver;

/// The answer to one request; dropping it early aborts the request.
#[derive(Debug)]
pub(super) struct Answer {
    handle: Handle,
    number: RequestNumber,
    pieces: UnboundedReceiver<Piece>,
}

impl Answer {
    pub(super) fn new(handle: Handle, accepted: Accepted) -> Self {
        Self { handle, number: accepted.number, pieces: accepted.pieces }
    }

    /// Returns a body that begins with `opening` and ends with the last piece.
    pub(super) fn into_stream(self, opening: String) -> Body {
        let opening = (!opening.is_empty()).then(|| Bytes::from(opening));
        Body::from_stream(stream::unfold((opening, self), |(opening, mut answer)| async move {
            if let Some(opening) = opening {
                return Some((Ok(opening), (None, answer)));
            }
            let bytes = answer.next().await?;
            Some((bytes, (None, answer)))
        }))
    }

    /// Waits for the last piece.
    ///
    /// # Errors
    /// When the connection is to be broken.
    pub(super) async fn wait(mut self) -> io::Result<()> {
        while let Some(bytes) = self.next().await {
            bytes?;
        }
        Ok(())
    }

    /// Returns the next bytes, or that the connection is to be broken; `None` at the end.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let piece = self.pieces.recv().await?;
        self.handle.add_written(piece.due);
        Some(match piece.content {
            Content::Bytes(bytes) => Ok(bytes),
            Content::Break => Err(io::Error::other("the mock server breaks this connection")),
        })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.handle.abort(self.number);
    }
}
