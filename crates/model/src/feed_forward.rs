//! The feed-forward part of a layer: one gated product for all tokens, or that of several experts
//! of which each token uses some.
//!
//! What experts make of a token is added up in the order of their numbers, so a token's result does
//! not depend on what else is in the batch (Fedus et al., Switch Transformers, section 2; no expert
//! has a capacity here that others could use up).

use crate::config::ModelConfig;
use crate::expert_routing::ExpertRouting;
use crate::lora::{Projection, StepAdapters};
use crate::ops::{Ops, RowTargets};

/// The weights of a layer's feed-forward part on a device.
pub(crate) enum FeedForwardWeights<O: Ops> {
    /// For all tokens.
    Dense(GatedWeights<O>),
    /// Of experts.
    Routed {
        /// What gives each token a logit for every expert, `[count, hidden_size]`.
        router: O::Matrix,
        /// The experts in order.
        experts: Vec<GatedWeights<O>>,
    },
}

/// The weights of a gated product.
pub(crate) struct GatedWeights<O: Ops> {
    /// Gate and up projections as one matrix, `[2 * intermediate_size, hidden_size]`.
    pub(crate) gate_up: O::Matrix,
    /// `[hidden_size, intermediate_size]`
    pub(crate) down: O::Matrix,
}

/// Computes feed-forward parts, and keeps the memory for that from one to the next.
pub(crate) struct FeedForward<O: Ops> {
    /// Gate and up projections, `[rows, 2 * intermediate_size]`.
    gate_up: O::Buffer,
    /// Gated activations, `[rows, intermediate_size]`.
    gated: O::Buffer,
    /// The rows that an expert computes, `[rows, hidden_size]`.
    expert_input: O::Buffer,
    /// What it makes of them, `[rows, hidden_size]`.
    expert_output: O::Buffer,
    /// `[num_tokens, count]`
    router_logits: Vec<f32>,
    routing: ExpertRouting,
}

impl<O: Ops> FeedForward<O> {
    pub(crate) fn new(ops: &O) -> Self {
        Self {
            gate_up: ops.buffer(),
            gated: ops.buffer(),
            expert_input: ops.buffer(),
            expert_output: ops.buffer(),
            router_logits: Vec::new(),
            routing: ExpertRouting::default(),
        }
    }

    /// Writes what the part makes of `x`, `[num_tokens, hidden_size]`, to `out`. Adapters change
    /// what is for all tokens, not experts.
    ///
    /// # Panics
    /// When the weights are those of experts and the configuration has none.
    pub(crate) fn compute(
        &mut self,
        ops: &O,
        weights: &FeedForwardWeights<O>,
        config: &ModelConfig,
        adapters: &mut StepAdapters<'_, O>,
        x: &O::Buffer,
        out: &mut O::Buffer,
    ) {
        let Self { gate_up, gated, expert_input, expert_output, router_logits, routing } = self;
        let (router, experts) = match weights {
            FeedForwardWeights::Dense(weights) => {
                ops.matmul(x, &weights.gate_up, gate_up);
                adapters.add(Projection::GATE_UP, x, gate_up);
                ops.gated_activation(gate_up, config.activation, gated);
                ops.matmul(gated, &weights.down, out);
                return adapters.add(&[Projection::Down], gated, out);
            }
            FeedForwardWeights::Routed { router, experts } => (router, experts),
        };
        ops.matmul_to_host(x, router, router_logits);
        routing.route(router_logits, config.experts.expect("weights were loaded as it says"));
        ops.zeros_like(x, out);
        for (number, tokens) in routing.used_experts() {
            ops.gather_rows(x, &tokens.rows, expert_input);
            let expert = &experts[number];
            ops.matmul(expert_input, &expert.gate_up, gate_up);
            ops.gated_activation(gate_up, config.activation, gated);
            ops.matmul(gated, &expert.down, expert_output);
            let (rows, factors) = (&tokens.rows, Some(&tokens.factors[..]));
            ops.add_rows(expert_output, RowTargets { rows, factors, first_column: 0 }, out);
        }
    }
}
