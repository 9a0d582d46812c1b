//! A socket that gives up on a peer that takes nothing.
//!
//! Reading is not bounded here, since a client that waits for its answer has nothing to send.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail when the peer takes nothing for too long.
pub(crate) struct PatientStream<S> {
    stream: S,
    patience: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> PatientStream<S> {
    /// Wraps `stream`; a write may wait for `patience`.
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, stalled: None }
    }

    /// Passes on what a write came to, or fails it when writes have waited for too long.
    fn bound<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PatientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PatientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bound(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bound(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bound(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().unwrap().block_on(work)
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up_on() {
        let (ours, _theirs) = duplex(4);
        let mut stream = PatientStream::new(ours, Duration::from_millis(10));
        let error = block_on(stream.write_all(&[0; 16])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_peer_that_takes_a_little_at_a_time_is_not() {
        let (ours, mut theirs) = duplex(1);
        let mut stream = PatientStream::new(ours, Duration::from_secs(60));
        let read = block_on(async {
            let mut read = vec![0; 64];
            let (written, taken) =
                tokio::join!(stream.write_all(&[7; 64]), theirs.read_exact(&mut read));
            written.and(taken).map(|_| read)
        });
        assert_eq!(read.unwrap(), [7; 64]);
    }
}
