//! The modules of a layer that an adapter can change.

use crate::config::{ModelConfig, Projections};

/// A projection of a layer, or several that the family's own checkpoints keep as one module, which
/// an adapter then changes as one: by a common first matrix, and a second one of all their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Projection {
    /// Hidden state to queries.
    Query,
    /// Hidden state to keys.
    Key,
    /// Hidden state to values.
    Value,
    /// All three.
    QueryKeyValue,
    /// Attended values to hidden state.
    AttentionOutput,
    /// Hidden state to the gate of the feed-forward part.
    Gate,
    /// Hidden state to what is gated.
    Up,
    /// Both.
    GateUp,
    /// Gated activations to hidden state.
    Down,
}

impl Projection {
    /// All of them, in order.
    pub(super) const ALL: [Self; 9] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::QueryKeyValue,
        Self::AttentionOutput,
        Self::Gate,
        Self::Up,
        Self::GateUp,
        Self::Down,
    ];

    /// Those that are computed as one product from the hidden state before attention.
    pub(crate) const QKV: &[Self] = &[Self::Query, Self::Key, Self::Value, Self::QueryKeyValue];
    /// Those that are computed as one product before the activation.
    pub(crate) const GATE_UP: &[Self] = &[Self::Gate, Self::Up, Self::GateUp];

    /// Returns the name of its module in a layer of transformers.
    pub(super) const fn module(self) -> &'static str {
        match self {
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::QueryKeyValue => "self_attn.qkv_proj",
            Self::AttentionOutput => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::GateUp => "mlp.gate_up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    /// Tells whether the layers of a model have the module. What experts compute cannot be changed.
    pub(super) fn is_in(self, config: &ModelConfig) -> bool {
        let (projections, is_dense) = (config.projections, config.experts.is_none());
        match self {
            Self::Query | Self::Key | Self::Value => projections == Projections::Separate,
            Self::QueryKeyValue => projections == Projections::Fused,
            Self::AttentionOutput => true,
            Self::Gate | Self::Up => is_dense && projections == Projections::Separate,
            Self::GateUp => is_dense && projections == Projections::Fused,
            Self::Down => is_dense,
        }
    }

    /// Returns the number of output and of input features.
    pub(super) fn features(self, config: &ModelConfig) -> (usize, usize) {
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let attention = &config.attention;
        match self {
            Self::Query => (attention.query_width(), hidden),
            Self::Key | Self::Value => (attention.kv_width(), hidden),
            Self::QueryKeyValue => (attention.qkv_width(), hidden),
            Self::AttentionOutput => (hidden, attention.query_width()),
            Self::Gate | Self::Up => (intermediate, hidden),
            Self::GateUp => (2 * intermediate, hidden),
            Self::Down => (hidden, intermediate),
        }
    }

    /// Returns how many of the output features are of heads that are rotated; they are the first.
    pub(super) fn num_rotated_features(self, config: &ModelConfig) -> usize {
        let (query, kv) = (config.attention.query_width(), config.attention.kv_width());
        match self {
            Self::Query => query,
            Self::Key => kv,
            Self::QueryKeyValue => query + kv,
            Self::Value
            | Self::AttentionOutput
            | Self::Gate
            | Self::Up
            | Self::GateUp
            | Self::Down => 0,
        }
    }

    /// Returns where its output begins in a row of the product that it is computed with: queries,
    /// keys and values are one product in every model, and so are gate and up.
    pub(super) fn first_column(self, config: &ModelConfig) -> usize {
        let (query, kv) = (config.attention.query_width(), config.attention.kv_width());
        match self {
            Self::Key => query,
            Self::Value => query + kv,
            Self::Up => config.intermediate_size,
            Self::Query
            | Self::QueryKeyValue
            | Self::AttentionOutput
            | Self::Gate
            | Self::GateUp
            | Self::Down => 0,
        }
    }
}
