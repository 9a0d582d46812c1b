//! Anthropic's Messages API on the wire.
//!
//! A request becomes the [`ChatRequest`](super::chat::ChatRequest) that asks for the same thing, so
//! that both APIs have one meaning and one set of checks. What has no counterpart there is refused
//! here, under the name that it has here.

pub(crate) mod conversation;
pub(crate) mod error;
pub(crate) mod members;
pub(crate) mod models;
mod output_config;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod schemas;
pub(crate) mod tools;
