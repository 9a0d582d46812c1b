//! Text in and out of the model: tokenizers, chat templates, detokenizer, stop strings, parsers.
//!
//! Owns the way from a client's messages to token ids ([`ChatTemplate`], then
//! [`Tokenizer::encode_chat`]) and from token ids back to text ([`Detokenizer`], then
//! [`StopStrings`]) and to what the text holds ([`OutputParser`]). Ids equal the reference tokenizer's, and special tokens inside a client's text
//! stay text. Vocabularies, templates and messages are untrusted: what is wrong with them is an
//! error with data, never a panic.
//!
//! Deliberately absent: opening files, HTTP, and the clock; the caller passes bytes and the time.
#![forbid(unsafe_code)]

mod byte_level;
mod chat_template;
mod detokenizer;
mod gguf_vocabulary;
mod guard;
mod infill;
mod output_parser;
mod pre_tokenizer;
mod prompt_prefix;
mod rendered_prompt;
mod sentence_piece;
mod settled_values;
mod stop_strings;
mod template_bindings;
mod template_functions;
mod template_limits;
mod template_tags;
mod text_growth;
mod token_matcher;
mod tokenizer;
mod tokenizer_config;
mod tokenizer_error;
mod tokenizer_json;
mod vocabulary;

pub use chat_template::{ChatTemplate, GenerationPrompt, RenderOptions, TemplateError};
pub use detokenizer::{ControlTokens, Detokenizer, OutputStart};
pub use gguf_vocabulary::GgufVocabulary;
pub use infill::NamedInfillTokens;
pub use output_parser::{
    CallableTool, OutputEvent, OutputFormat, OutputHead, OutputParser, ReasoningFormat,
    ReasoningStart, ToolFormat,
};
pub use rendered_prompt::RenderedPrompt;
pub use stop_strings::{EmptyStopString, StopStatus, StopStrings, StopText};
pub use tokenizer::Tokenizer;
pub use tokenizer_config::TokenizerConfig;
pub use tokenizer_error::{EncodeError, TokenizerError};
