//! A checkpoint's chat template: messages to one text, as transformers' `apply_chat_template`.
//!
//! Jinja as transformers sets it up (`trim_blocks`, `lstrip_blocks`, loop controls), its functions,
//! and Python's methods on strings, lists and dicts. Templates are strangers': their expressions,
//! and a render's loops, recursion, text and values are bounded, so that none can end the process.
//! Special tokens in a client's strings stay text: see [`RenderedPrompt`]. Compiled once; a render
//! costs about 0.1 ms for usual chats.

use crate::guard::{Guarded, MarkupGuard, choose_guard};
use crate::settled_values::{factor_value, namespace, settled_value, storable_value};
use crate::template_bindings::{self, FACTOR, SETTLED, STORABLE};
use crate::template_functions::{
    RaisedMessage, is_iterable, join, print, python_method, raise_exception, strftime_at, to_json,
    to_string,
};
use crate::template_limits::{self, Excess};
use crate::{RenderedPrompt, Tokenizer, TokenizerError};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::SystemTime;

/// Most bytes of a template; published ones have at most a tenth of that.
const MAX_SOURCE_BYTES: usize = 256 * 1024;

/// Work that one render may do: an instruction or 64 bytes of data cost 1. So a template's loops
/// end within about half a second and 256 MB; a chat of 1 MB takes about 100,000.
const RENDER_FUEL: u64 = 4_000_000;

/// Stack of a render: values are nested 1,500 deep at most, macros 125.
const RENDER_STACK_BYTES: usize = 64 << 20;

const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    guard: MarkupGuard,
    /// `bos_token` and its like, with their texts.
    token_texts: Vec<(&'static str, String)>,
}

/// Whether the text ends with the beginning of an assistant's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// The model is to answer next.
    Add,
    /// The text is the messages only.
    Omit,
    /// The last message is the beginning of an answer: the text ends with it, for the model to go
    /// on (transformers' `continue_final_message`).
    ContinueLast,
}

/// What a template sees beside the messages.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    /// Whether to begin the assistant's turn.
    pub generation_prompt: GenerationPrompt,
    /// Further variables, such as `tools` and `enable_thinking`; a client's, so guarded.
    pub variables: serde_json::Map<String, Json>,
    /// The time that `strftime_now` writes.
    pub now: SystemTime,
}

/// A chat that did not render, or a template that does not compile.
#[derive(Debug)]
pub enum TemplateError {
    /// The template is too long.
    TooLong {
        /// Its length in bytes.
        got: usize,
        /// The most bytes it may have.
        limit: usize,
    },
    /// The template has an expression or a chain of conditions that is too long.
    TooComplex {
        /// Its line, counted from 1.
        line: usize,
        /// The most words and signs, or conditions, that it may have.
        limit: usize,
    },
    /// The template is no Jinja.
    Syntax {
        /// What is wrong, with the line.
        source: minijinja::Error,
    },
    /// The template refuses the messages, in its own words.
    Raised {
        /// The words.
        message: String,
    },
    /// The template cannot handle the messages: a field is missing, or has another type.
    Failed {
        /// What went wrong, with the line.
        source: minijinja::Error,
    },
    /// The render was stopped: it took too much time or memory.
    TooExpensive,
    /// The last message is to be continued, and has no text or does not come out of the template.
    NothingToContinue,
    /// The messages use every character that could keep markup and text apart.
    NoGuardLeft,
    /// The special tokens could not be prepared.
    SpecialTokens {
        /// Why.
        source: TokenizerError,
    },
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { got, limit } => {
                write!(f, "the chat template has {got} bytes, more than {limit}")
            }
            Self::TooComplex { line, limit } => write!(
                f,
                "the chat template has more than {limit} parts in the expression or chain of \
                 conditions of line {line}"
            ),
            Self::Syntax { source } => write!(f, "the chat template does not compile: {source}"),
            Self::Raised { message } => f.write_str(message),
            Self::Failed { source } => {
                write!(f, "the chat template cannot render these messages: {source}")
            }
            Self::TooExpensive => {
                write!(f, "rendering the chat template takes too much time or memory")
            }
            Self::NothingToContinue => write!(
                f,
                "the last message cannot be continued: it has no text, or the chat template does \
                 not write it"
            ),
            Self::NoGuardLeft => {
                write!(f, "the messages use too many different private Unicode characters")
            }
            Self::SpecialTokens { source } => source.fmt(f),
        }
    }
}

impl Error for TemplateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Syntax { source } | Self::Failed { source } => Some(source),
            Self::SpecialTokens { source } => Some(source),
            Self::TooLong { .. }
            | Self::TooComplex { .. }
            | Self::Raised { .. }
            | Self::TooExpensive
            | Self::NothingToContinue
            | Self::NoGuardLeft => None,
        }
    }
}

impl ChatTemplate {
    /// Compiles a template for the special tokens of `tokenizer`.
    ///
    /// # Errors
    /// Returns [`TemplateError::TooLong`], [`TemplateError::TooComplex`] or
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::TooLong { got: source.len(), limit: MAX_SOURCE_BYTES });
        }
        template_limits::check(source)
            .map_err(|Excess { line, limit }| TemplateError::TooComplex { line, limit })?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|source| TemplateError::Syntax { source })?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(python_method);
        environment.set_fuel(Some(RENDER_FUEL));
        environment.add_function("raise_exception", raise_exception);
        environment.set_formatter(print);
        environment.add_filter("string", to_string);
        environment.add_filter("join", join);
        environment.add_filter("tojson", to_json);
        environment.add_test("iterable", is_iterable);
        environment.add_function("namespace", namespace);
        environment.add_filter(SETTLED, settled_value);
        environment.add_filter(STORABLE, storable_value);
        environment.add_filter(FACTOR, factor_value);
        environment
            .add_template_owned(NAME, template_bindings::with_checks(source))
            .map_err(|source| TemplateError::Syntax { source })?;
        let guard = MarkupGuard::new(tokenizer.markup_tokens(), |t| tokenizer.is_control(t.id))
            .map_err(|source| TemplateError::SpecialTokens { source })?;
        let token_texts = tokenizer.named_token_texts();
        Ok(Self { environment, source: source.to_owned(), guard, token_texts })
    }

    /// Returns the template's text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages`: objects with `role`, and `content` as the template expects it.
    ///
    /// # Errors
    /// Returns [`TemplateError`]; all but `TooExpensive` are the client's messages not fitting the
    /// template.
    pub fn render(
        &self,
        messages: &[Json],
        options: &RenderOptions,
    ) -> Result<RenderedPrompt, TemplateError> {
        let client_values: Vec<&Json> = messages.iter().chain(options.variables.values()).collect();
        let guard = choose_guard(&self.source, &client_values).ok_or(TemplateError::NoGuardLeft)?;
        let end = end_mark(guard);
        let continues = options.generation_prompt == GenerationPrompt::ContinueLast;
        let context = self.context(messages, options, guard, continues.then_some(&end))?;
        let mut text = self.render_text(&context)?;
        if continues {
            cut_at_mark(&mut text, &end).ok_or(TemplateError::NothingToContinue)?;
        }
        Ok(RenderedPrompt::new(text, Some(guard)))
    }

    /// Renders on a thread with a stack that suffices whatever the template does. Costs about 30 µs;
    /// only the pages in use take memory.
    fn render_text(&self, context: &Value) -> Result<String, TemplateError> {
        let render = || {
            let template = self.environment.get_template(NAME).map_err(render_error)?;
            template.render(context).map_err(render_error)
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(RENDER_STACK_BYTES);
            let rendering =
                thread.spawn_scoped(scope, render).map_err(|_| TemplateError::TooExpensive)?;
            rendering.join().unwrap_or(Err(TemplateError::TooExpensive))
        })
    }

    fn context(
        &self,
        messages: &[Json],
        options: &RenderOptions,
        guard: char,
        end_of_last: Option<&String>,
    ) -> Result<Value, TemplateError> {
        // Templates ask `tools is not none`, which is true for what is not defined.
        let absent = ["tools", "documents"].map(|name| (name.to_owned(), Value::from(())));
        let mut context = BTreeMap::from(absent);
        for (name, text) in &self.token_texts {
            context.insert((*name).to_owned(), Value::from(text.as_str()));
        }
        context.insert("strftime_now".to_owned(), strftime_at(options.now));
        for (name, value) in &options.variables {
            let mut value = value.clone();
            self.guard.apply(&mut value, Guarded::Markup, guard);
            context.insert(name.clone(), Value::from(Serde(&value)));
        }
        let mut messages = messages.to_vec();
        for message in &mut messages {
            let by_assistant = message.get("role").and_then(Json::as_str) == Some("assistant");
            let guarded = if by_assistant { Guarded::ControlOnly } else { Guarded::Markup };
            self.guard.apply(message, guarded, guard);
        }
        if let Some(mark) = end_of_last {
            let last = messages.last_mut().and_then(final_text);
            last.ok_or(TemplateError::NothingToContinue)?.push_str(mark);
        }
        context.insert("messages".to_owned(), Value::from(Serde(&messages)));
        let add = options.generation_prompt == GenerationPrompt::Add;
        context.insert("add_generation_prompt".to_owned(), Value::from(add));
        Ok(Value::from(context))
    }
}

/// Returns what marks the end of a message that is to be continued. Guards never come in pairs, and
/// the space shows whether the template trims what it writes.
fn end_mark(guard: char) -> String {
    format!("{guard}{guard} ")
}

/// Cuts `text` where the mark stands, and before it the white space that the template would trim.
fn cut_at_mark(text: &mut String, mark: &str) -> Option<()> {
    let start = text.rfind(mark.trim_end())?;
    let trimmed = !text[start..].starts_with(mark);
    text.truncate(start);
    if trimmed {
        text.truncate(text.trim_end().len());
    }
    Some(())
}

/// Returns a message's text, the last one if it has several parts.
fn final_text(message: &mut Json) -> Option<&mut String> {
    let content = message.get_mut("content")?;
    if content.is_string() {
        return as_text(content);
    }
    content.as_array_mut()?.iter_mut().rev().find_map(|part| as_text(part.get_mut("text")?))
}

fn as_text(value: &mut Json) -> Option<&mut String> {
    if let Json::String(text) = value { Some(text) } else { None }
}

fn render_error(error: minijinja::Error) -> TemplateError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(RaisedMessage(message)) = current.downcast_ref() {
            return TemplateError::Raised { message: message.clone() };
        }
        let kind = current.downcast_ref::<minijinja::Error>().map(minijinja::Error::kind);
        if kind == Some(ErrorKind::OutOfFuel) {
            return TemplateError::TooExpensive;
        }
        cause = current.source();
    }
    TemplateError::Failed { source: error }
}
