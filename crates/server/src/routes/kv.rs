//! `GET /v1/kv`: what the KV memory holds, block by block.
//!
//! The engine thread makes a snapshot between two steps; it becomes JSON here. The answer waits
//! for the step that runs, and nothing waits for the answer. Blocks are listed where sequences hold
//! them, so the size of the answer follows use and not the pool.

use crate::generation;
use crate::ratio::Ratio;
use crate::state::AppState;
use crate::tiers::KvDetails;
use crate::wire::error::ApiError;
use crate::wire::kv::{
    BlockCounts, KvMap, KvSequence, PrefixCache, SharedBlock, Waste, WastedSlots,
};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use mini_infer_engine::{KvSnapshot, SequenceSnapshot, SequenceState};

/// Answers with the state of the KV memory.
pub(super) async fn show(State(state): State<AppState>) -> Result<Response, ApiError> {
    let serving = state.served().ok_or(ApiError::Loading)?;
    let snapshot = serving.engine.kv_snapshot().await.map_err(generation::refusal)?;
    // Long block tables take a while to write out.
    let body = tokio::task::spawn_blocking(move || {
        let map = map(&snapshot, &serving.kv);
        serde_json::to_vec(&map).expect("wire types have string keys only")
    });
    let body = body.await.map_err(|error| ApiError::Engine { message: error.to_string() })?;
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

fn map(snapshot: &KvSnapshot, details: &KvDetails) -> KvMap {
    let (kv, counters) = (&snapshot.stats.kv, &snapshot.stats.counters);
    let wasted = |part| WastedSlots::new(Ratio { part, whole: kv.num_allocated_slots });
    let waste = &kv.waste;
    let hits = Ratio { part: counters.num_hit_tokens, whole: counters.num_queried_tokens };
    KvMap {
        object: "kv",
        block_size: snapshot.block_size,
        block_bytes: details.block_bytes,
        capacity_bytes: details.block_bytes.map(|bytes| bytes * u64::from(kv.num_blocks)),
        blocks: BlockCounts {
            total: kv.num_blocks,
            free: kv.num_free_blocks,
            active: kv.num_active_blocks,
            cached: kv.num_cached_blocks,
            shared: kv.num_shared_blocks,
            window_parts: kv.num_window_parts,
        },
        allocated_slots: kv.num_allocated_slots,
        live_tokens: kv.num_live_tokens,
        shared_tokens: kv.num_shared_tokens,
        waste: Waste {
            reserved: wasted(waste.reserved_slots),
            internal: wasted(waste.internal_slots),
            external: wasted(waste.external_slots),
            total: wasted(waste.reserved_slots + waste.internal_slots + waste.external_slots),
        },
        sequences: snapshot.sequences.iter().map(sequence).collect(),
        shared_blocks: snapshot.shared_blocks.iter().map(shared_block).collect(),
        prefix_cache: PrefixCache {
            queried_tokens: hits.whole,
            hit_tokens: hits.part,
            hit_rate: hits.value(),
            restored_tokens: counters.num_restored_tokens,
            copied_blocks: kv.num_copied_blocks,
            evicted_blocks: kv.num_evicted_blocks,
        },
        forks: counters.num_forks,
        preemptions: counters.num_preemptions,
        tiers: details.tier_reports(),
    }
}

fn sequence(sequence: &SequenceSnapshot) -> KvSequence {
    KvSequence {
        id: sequence.id.to_string(),
        state: match sequence.state {
            SequenceState::Running => "running",
            SequenceState::Waiting => "waiting",
        },
        known_tokens: sequence.num_known_tokens,
        computed_tokens: sequence.num_computed_tokens,
        hit_tokens: sequence.num_hit_tokens,
        block_table: sequence.block_table.iter().map(|block| block.0).collect(),
    }
}

fn shared_block(shared: &mini_infer_engine::SharedBlock) -> SharedBlock {
    SharedBlock { block: shared.block.0, ref_count: shared.ref_count, tokens: shared.num_tokens }
}
