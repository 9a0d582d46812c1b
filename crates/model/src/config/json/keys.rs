//! The keys of a `config.json`, and which of them have been read.

use super::{MAX_DIMENSION, unsupported};
use crate::error::ModelError;
use crate::unique_map::UniqueMap;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Far above real files (a few kilobytes; tens with the labels of a multimodal model).
const MAX_BYTES: usize = 4 << 20;

/// Keys that change no number: what describes the file, what only training, generation or other
/// programs read, and the ids of special tokens, which belong to the tokenizer.
const INFORMATIVE_KEYS: &[&str] = &[
    // Of the file.
    "architectures",
    "dtype",
    "finetuning_task",
    "id2label",
    "is_llama_config",
    "label2id",
    "model_type",
    "name_or_path",
    "problem_type",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    // Of training.
    "attention_dropout",
    "embd_pdrop",
    "gradient_checkpointing",
    "hidden_dropout",
    "initializer_range",
    "neftune_noise_alpha",
    "pretraining_tp",
    "resid_pdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
    // Of how a program computes and what it returns.
    "attn_implementation",
    "cache_implementation",
    "chunk_size_feed_forward",
    "is_decoder",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "tf_legacy_loss",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    // Special tokens.
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    // Of generation, which requests decide.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// What the names of informative keys may begin with: private fields of transformers, and the notes
/// of a training program.
const INFORMATIVE_PREFIXES: &[&str] = &["_", "unsloth_"];

/// The keys of an object, and which of them have been read. A key whose value is `null` counts as
/// absent.
pub(super) struct Keys {
    values: BTreeMap<String, Value>,
    /// What precedes names in messages, such as `text_config.`.
    prefix: String,
    read: RefCell<BTreeSet<String>>,
}

impl Keys {
    /// Reads the object that a `config.json` is.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ModelError> {
        if bytes.len() > MAX_BYTES {
            let (got, limit) = (bytes.len() as u64, MAX_BYTES as u64);
            return Err(ModelError::TooMany { what: "bytes of configuration", got, limit });
        }
        let UniqueMap(values) = serde_json::from_slice(bytes)
            .map_err(|source| ModelError::Json { what: "the configuration", source })?;
        Ok(Self { values, prefix: String::new(), read: RefCell::default() })
    }

    /// Returns the object under a key.
    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(values)) => {
                let values = values.iter().map(|(key, value)| (key.clone(), value.clone()));
                let prefix = format!("{}{key}.", self.prefix);
                Ok(Some(Self { values: values.collect(), prefix, read: RefCell::default() }))
            }
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(key.to_owned());
        self.values.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, value, "a text"))
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let texts = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.wrong(key, value, "a list of texts"))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, value, "true or false"))
    }

    /// Returns a size, which is at least 1.
    pub(super) fn optional_dimension(&self, key: &str) -> Result<Option<usize>, ModelError> {
        match self.optional_count(key)? {
            Some(0) => Err(self.wrong(key, 0, format!("from 1 to {MAX_DIMENSION}"))),
            size => Ok(size),
        }
    }

    pub(super) fn optional_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        match count {
            Some(count) if count <= MAX_DIMENSION => Ok(Some(count)),
            _ => Err(self.wrong(key, value, format!("a whole number up to {MAX_DIMENSION}"))),
        }
    }

    /// Returns a size; `default` where the key is absent, if there is one.
    pub(super) fn dimension(&self, key: &str, default: Option<usize>) -> Result<usize, ModelError> {
        let size = self.optional_dimension(key)?.or(default);
        size.ok_or_else(|| self.missing(key))
    }

    pub(super) fn optional_positive(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
        let number = value.as_f64().map(|number| number as f32);
        match number {
            Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(self.wrong(key, value, "a positive finite number")),
        }
    }

    /// Returns a list of numbers as they are.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    pub(super) fn numbers(&self, key: &str) -> Result<Vec<f32>, ModelError> {
        let value = self.get(key).ok_or_else(|| self.missing(key))?;
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        let numbers = value.as_array().and_then(|list| list.iter().map(number).collect());
        numbers.ok_or_else(|| self.wrong(key, value, "a list of numbers"))
    }

    /// Returns a positive number; `default` where the key is absent, `None` where it is `null`.
    pub(super) fn positive_unless_null(
        &self,
        key: &str,
        default: f32,
    ) -> Result<Option<f32>, ModelError> {
        let is_null = self.values.get(key).is_some_and(Value::is_null);
        let number = self.optional_positive(key)?;
        Ok(number.or(Some(default).filter(|_| !is_null)))
    }

    /// Checks that a key, where it is there, has the only value that is implemented.
    pub(super) fn expect_count(&self, key: &str, expected: usize) -> Result<(), ModelError> {
        match self.optional_count(key)? {
            Some(count) if count != expected => {
                Err(unsupported(&self.full(key), &count.to_string(), &expected.to_string()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn positive(&self, key: &str) -> Result<f32, ModelError> {
        self.optional_positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// Checks that a feature which is not implemented is not used.
    pub(super) fn expect_unused(&self, key: &str) -> Result<(), ModelError> {
        match self.get(key) {
            Some(value) if !says_unused(value) => {
                Err(unsupported(&self.full(key), &value.to_string(), "false or null"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn wrong(
        &self,
        key: &str,
        got: impl ToString,
        expected: impl Into<String>,
    ) -> ModelError {
        let expected = expected.into();
        ModelError::MetadataValue { key: self.full(key), got: got.to_string(), expected }
    }

    pub(super) fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingMetadata { key: self.full(key) }
    }

    /// Refuses keys that nobody has read and that may change the numbers.
    pub(super) fn check_all_read(&self) -> Result<(), ModelError> {
        let read = self.read.borrow();
        let unread = self.values.iter().find(|(key, value)| {
            !says_unused(value)
                && !read.contains(*key)
                && !INFORMATIVE_KEYS.contains(&key.as_str())
                && !INFORMATIVE_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
        });
        let Some((key, value)) = unread else { return Ok(()) };
        let known: Vec<_> = read.iter().map(String::as_str).collect();
        let supported =
            format!("{} (if a key changes no number, remove it from the file)", known.join(", "));
        Err(unsupported(&format!("the key {}", self.full(key)), &value.to_string(), &supported))
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

/// Tells whether a value says that what its key is about is not used.
fn says_unused(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_used) => !is_used,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Number(_) | Value::String(_) => false,
    }
}
