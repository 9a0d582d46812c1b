//! One streaming request: sends it and notes when each piece of text arrives.
//!
//! HTTP/1.1 over connections that are kept open, or one connection per request. A moment is taken
//! when bytes arrive, before they are looked at, so that reading JSON adds nothing to a latency.
//! Nothing that a server sends is an error of this program: every failure becomes the `error` of a
//! [`RequestResult`](crate::results::RequestResult), whose text before the first colon is its kind.
//!
//! Deliberately absent: retries, which would hide failures, and redirects, which would measure two
//! servers.

mod chunk;
mod connections;
mod event_stream;
mod exchange;
mod failure;
mod http;
mod request_body;

pub(crate) use connections::is_local_host;
pub use connections::{Connections, KeepAlive};
pub use event_stream::{EventStream, StreamLine};
pub use exchange::{Exchange, ExchangeClock, send};
pub(crate) use http::{http_client, root_cause};
pub use request_body::{Message, RequestSpec, Role};
