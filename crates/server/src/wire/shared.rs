//! Parts that chat and text completions share on the wire.

use super::field_rules;
use crate::validation::MAX_STOP_STRINGS;
use schemars::{JsonSchema, Schema, SchemaGenerator};
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
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum StopField {
    /// One string.
    One(#[schemars(length(min = 1))] String),
    /// Several.
    Many(#[schemars(length(max = MAX_STOP_STRINGS), inner(length(min = 1)))] Vec<String>),
}

/// Options of a stream.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// Sends one more chunk with the usage before the end.
    pub(crate) include_usage: Option<bool>,
    #[serde(flatten)]
    #[schemars(schema_with = "stream_options_extra_schema")]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// Describes the fields that are judged out of the options' `extra`.
fn stream_options_extra_schema(_: &mut SchemaGenerator) -> Schema {
    field_rules::schema(field_rules::STREAM_OPTIONS)
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireFinishReason {
    /// A stop token or a stop string.
    Stop,
    /// The token limit or the end of the context.
    Length,
    /// The model called tools and awaits what they give.
    ToolCalls,
}
