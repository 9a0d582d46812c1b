//! The model as the HTTP side knows it: names, texts and limits.

use crate::adapters::{Adapters, LoadedAdapter};
use crate::chat_rendering::ChatRendering;
use crate::model_details::ModelDetails;
use crate::request_record::RequestRecord;
use crate::sampler_options::ModelTokens;
use crate::wire::error::ApiError;
use mini_infer_core::{Pooling, TokenId};
use mini_infer_grammar::Grammars;
use mini_infer_text::{
    ChatTemplate, OutputFormat, ReasoningStart, RenderOptions, RenderedPrompt, Tokenizer,
};
use serde_json::Value;
use std::sync::Arc;
use std::time::SystemTime;

/// Everything about the served model that is not the engine.
pub struct ServedModel {
    /// Names that clients may ask for, at least one; the first one is the default.
    pub names: Vec<String>,
    /// Changes of the model, each with a name of its own.
    pub adapters: Adapters,
    /// Turns text into tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Turns a conversation into a prompt; without one, chat requests are refused.
    pub chat_template: Option<ChatTemplate>,
    /// Compiles what outputs must be.
    pub grammars: Arc<Grammars>,
    /// How outputs mark reasoning and calls of tools.
    pub output_format: OutputFormat,
    /// Longest prompt and output together, in tokens.
    pub max_model_len: u32,
    /// Number of logits in a row; token ids below it are valid prompts.
    pub vocab_size: usize,
    /// Tokens that end an output.
    pub stop_token_ids: Vec<TokenId>,
    /// What embeddings are made of.
    pub embeddings: EmbeddingShape,
    /// What else is known of it.
    pub details: ModelDetails,
}

/// What a model's embeddings are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingShape {
    /// How the hidden states of an input become one vector.
    pub pooling: Pooling,
    /// Dimensions of a hidden state.
    pub hidden_size: usize,
}

/// The model that a client asked for: the served one, or an adapter of it.
pub(crate) struct AskedModel {
    /// Its name.
    pub(crate) name: String,
    /// What changes the served model.
    pub(crate) adapter: Option<LoadedAdapter>,
}

/// A conversation as a prompt.
pub(crate) struct ChatPrompt {
    /// Its tokens, up to where the model's answer begins.
    pub(crate) tokens: Vec<TokenId>,
    /// Whether it ends inside reasoning.
    pub(crate) reasoning: ReasoningStart,
}

impl ServedModel {
    /// Returns the model of the name that a client asked for.
    ///
    /// # Errors
    /// Returns [`ApiError::ModelNotFound`] for names that are not served.
    pub(crate) fn resolve(&self, asked: Option<&str>) -> Result<AskedModel, ApiError> {
        let name = asked.unwrap_or(&self.names[0]);
        if self.names.iter().any(|known| known == name) {
            note_model(name);
            return Ok(AskedModel { name: name.to_owned(), adapter: None });
        }
        match self.adapters.get(name) {
            Some(adapter) => {
                note_model(name);
                Ok(AskedModel { name: name.to_owned(), adapter: Some(adapter) })
            }
            None => Err(ApiError::ModelNotFound { model: name.to_owned() }),
        }
    }

    /// Returns the tokens that a request can name.
    pub(crate) fn tokens(&self) -> ModelTokens<'_> {
        ModelTokens { vocab_size: self.vocab_size, tokenizer: &self.tokenizer }
    }

    /// Returns the tokens of a raw prompt.
    ///
    /// # Errors
    /// Refuses text that the tokenizer cannot take, naming `param`.
    pub(crate) fn encode_text(&self, param: &str, text: &str) -> Result<Vec<TokenId>, ApiError> {
        let tokens = self.tokenizer.encode_text(text);
        tokens.map_err(|error| ApiError::invalid(param, error.to_string()))
    }

    /// Returns the tokens of a prompt whose middle the model is to fill.
    ///
    /// # Errors
    /// Refuses models that cannot, and text that the tokenizer cannot take.
    pub(crate) fn encode_infill(
        &self,
        before: &str,
        after: &str,
    ) -> Result<Vec<TokenId>, ApiError> {
        let refuse = |message: String| ApiError::invalid("suffix", message);
        let ids = self.tokenizer.encode_infill(before, after);
        let ids = ids.map_err(|error| refuse(error.to_string()))?;
        ids.ok_or_else(|| refuse("this model has no tokens for filling in the middle".to_owned()))
    }

    /// Returns the prompt of a conversation in which the model may call `tools`.
    ///
    /// # Errors
    /// Refuses what [`Self::render_chat`] does, and text that the tokenizer cannot take.
    pub(crate) fn encode_chat(
        &self,
        messages: &[Value],
        tools: &[Value],
        rendering: ChatRendering,
    ) -> Result<ChatPrompt, ApiError> {
        let prompt = self.render_chat(messages, tools, rendering)?;
        let tokens = self.tokenizer.encode_chat(&prompt);
        let tokens = tokens.map_err(|error| ApiError::invalid("messages", error.to_string()))?;
        Ok(ChatPrompt { tokens, reasoning: self.output_format.reasoning_start(&prompt) })
    }

    /// Returns the text of that prompt.
    ///
    /// # Errors
    /// Refuses messages that the chat template does not take, with its own words, and tools that it
    /// would not show the model or whose calls could not be told from text.
    pub(crate) fn render_chat(
        &self,
        messages: &[Value],
        tools: &[Value],
        rendering: ChatRendering,
    ) -> Result<RenderedPrompt, ApiError> {
        let refuse = |message: String| ApiError::invalid("messages", message);
        let Some(template) = &self.chat_template else {
            return Err(refuse("this model has no chat template; use /v1/completions".to_owned()));
        };
        let mut options = RenderOptions {
            generation_prompt: rendering.generation_prompt,
            variables: rendering.variables,
            now: SystemTime::now(),
        };
        let render = |options: &RenderOptions| {
            template.render(messages, options).map_err(|error| refuse(error.to_string()))
        };
        if tools.is_empty() {
            return render(&options);
        }
        self.check_calls_are_read()?;
        let without_tools = render(&options).ok();
        options.variables.insert("tools".to_owned(), Value::from(tools));
        let prompt = render(&options)?;
        if without_tools.as_ref() == Some(&prompt) {
            return Err(unseen_tools());
        }
        Ok(prompt)
    }

    fn check_calls_are_read(&self) -> Result<(), ApiError> {
        if self.output_format.tools().is_some() {
            return Ok(());
        }
        let message = "this server cannot tell this model's tool calls from text; start it with \
                       --tool-call-parser if the model writes them in a form that it knows";
        Err(ApiError::invalid("tools", message))
    }
}

/// Notes which model the request that runs here asks for.
fn note_model(name: &str) {
    if let Some(record) = RequestRecord::current() {
        record.note_model(name);
    }
}

/// Refuses tools that make no difference to the prompt.
fn unseen_tools() -> ApiError {
    let message = "this model's chat template does not show tools to the model; start the server \
                   with a --chat-template that does";
    ApiError::invalid("tools", message)
}
