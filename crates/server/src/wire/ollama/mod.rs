//! Ollama's API on the wire.
//!
//! A request becomes the chat or text request of OpenAI's API that asks for the same thing, so that
//! all APIs have one meaning and one set of checks. What is refused is named as it is called here.

pub(crate) mod message;
pub(crate) mod models;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod request;
pub(crate) mod response;
