//! OpenAI's Responses API on the wire.
//!
//! A request becomes the [`ChatRequest`](super::chat::ChatRequest) that asks for the same thing, so
//! that both APIs have one meaning and one set of checks. What is said and answered are
//! [`item`]s, which chat has as messages.

pub(crate) mod conversation;
pub(crate) mod event;
pub(crate) mod item;
pub(crate) mod item_reading;
pub(crate) mod query;
pub(crate) mod refusal;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod schemas;
pub(crate) mod settings;
pub(crate) mod tools;
