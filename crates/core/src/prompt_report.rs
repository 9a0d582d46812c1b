//! What a request wants to know of its prompt, besides how it goes on.
//!
//! Either is read from the rows that the forward pass makes of the prompt's tokens, so that it costs
//! no other pass, and no token whose row is wanted can be taken from the prefix cache, which holds
//! no rows.

/// What a request wants to know of its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptReport {
    /// Nothing.
    #[default]
    Nothing,
    /// The log probability of each token but the first, and of the most likely ones in its place.
    Logprobs {
        /// How many of the most likely ones, `0..=20`.
        num_top: u32,
    },
    /// One vector that stands for all of it.
    Embedding(Pooling),
}

/// How the hidden states of a prompt's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the last token, the only one that has seen all others.
    Last,
}

/// What is read of a row that a batch keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowForm {
    /// The logits of the token that follows, `[vocab_size]`.
    Logits,
    /// The hidden state after the last norm, `[hidden_size]`.
    HiddenState,
}
