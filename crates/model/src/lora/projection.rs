//! The projections of a layer that an adapter can change.

use crate::config::ModelConfig;

/// A projection of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Projection {
    /// Hidden state to queries.
    Query,
    /// Hidden state to keys.
    Key,
    /// Hidden state to values.
    Value,
    /// Attended values to hidden state.
    AttentionOutput,
    /// Hidden state to the gate of the feed-forward part.
    Gate,
    /// Hidden state to what is gated.
    Up,
    /// Gated activations to hidden state.
    Down,
}

impl Projection {
    /// All of them, in order.
    pub const ALL: [Self; 7] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttentionOutput,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// Those that are computed as one product from the hidden state before attention.
    pub(crate) const QKV: &[Self] = &[Self::Query, Self::Key, Self::Value];
    /// Those that are computed as one product before the activation.
    pub(crate) const GATE_UP: &[Self] = &[Self::Gate, Self::Up];

    /// Returns the name of its module in a layer of transformers.
    #[must_use]
    pub const fn module(self) -> &'static str {
        match self {
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::AttentionOutput => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    /// Returns the number of output and of input features.
    #[must_use]
    pub fn features(self, config: &ModelConfig) -> (usize, usize) {
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.attention.query_width(), config.attention.kv_width());
        match self {
            Self::Query => (query, hidden),
            Self::Key | Self::Value => (kv, hidden),
            Self::AttentionOutput => (hidden, query),
            Self::Gate | Self::Up => (intermediate, hidden),
            Self::Down => (hidden, intermediate),
        }
    }

    /// Returns where its output begins in a row of the product that it is computed with: queries,
    /// keys and values are one product, and so are gate and up.
    pub(crate) fn first_column(self, config: &ModelConfig) -> usize {
        let (query, kv) = (config.attention.query_width(), config.attention.kv_width());
        match self {
            Self::Query | Self::AttentionOutput | Self::Gate | Self::Down => 0,
            Self::Key => query,
            Self::Value => query + kv,
            Self::Up => config.intermediate_size,
        }
    }
}
