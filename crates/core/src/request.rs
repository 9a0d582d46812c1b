//! What a client submitted, after validation.

use crate::{
    Adapter, ClientId, Namespace, OutputConstraint, PromptReport, RequestId, SamplingParams,
    TokenId,
};

/// Whether the KV of earlier requests is kept and matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixCaching {
    /// KV is indexed, and stays after its sequence ended until it is evicted.
    #[default]
    On,
    /// All tokens are computed, and nothing is kept for others.
    Off,
}

/// One validated request: a prompt and how to continue it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Unique id, chosen by whoever submits.
    pub id: RequestId,
    /// Prompt tokens, at least one.
    pub prompt: Vec<TokenId>,
    /// How tokens are chosen and when to stop.
    pub sampling: SamplingParams,
    /// What is told about the prompt; not together with a beam search.
    pub report: PromptReport,
    /// Who submits it: clients that wait get equal shares of the engine.
    pub client: ClientId,
    /// Priority among the requests of the client: lower runs first, 0 by default (as in vLLM's
    /// API).
    pub priority: i32,
    /// Requests share KV only inside one namespace.
    pub namespace: Namespace,
    /// What changes the model for this request. Its digest must be part of the namespace.
    pub adapter: Option<Adapter>,
    /// What the output must be; not together with a beam search.
    pub constraint: Option<OutputConstraint>,
    /// Whether this request uses and feeds the prefix cache, where the server has one.
    pub prefix_caching: PrefixCaching,
}

impl Request {
    /// Creates a request of ordinary priority in the common namespace, of the client that all
    /// share.
    #[must_use]
    pub fn new(id: RequestId, prompt: Vec<TokenId>, sampling: SamplingParams) -> Self {
        Self {
            id,
            prompt,
            sampling,
            report: PromptReport::Nothing,
            client: ClientId::default(),
            priority: 0,
            namespace: Namespace::default(),
            adapter: None,
            constraint: None,
            prefix_caching: PrefixCaching::On,
        }
    }
}
