//! Parts that chat and text completions share on the wire.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Sampling fields of both request bodies.
///
/// Absent and `null` mean the same. Numbers are checked in `validation`.
#[derive(Debug, Default)]
pub(crate) struct SamplingFields {
    pub(crate) n: Option<u32>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<StopField>,
    pub(crate) ignore_eos: Option<bool>,
}

/// One stop string or several.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum StopField {
    One(String),
    Many(Vec<String>),
}

/// Options of a stream.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct StreamOptions {
    /// Sends one more chunk with the usage before the end.
    pub(crate) include_usage: Option<bool>,
    #[serde(flatten)]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireFinishReason {
    /// A stop token or a stop string.
    Stop,
    /// The token limit or the end of the context.
    Length,
    /// The model called tools and awaits what they give.
    ToolCalls,
}
