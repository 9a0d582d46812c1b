//! `POST /v1/embeddings`.

use crate::embedding_run::EmbeddingRun;
use crate::json_body::{self, RawBody};
use crate::prefix_sharing::PrefixSharing;
use crate::served_model::{AskedModel, ServedModel};
use crate::state::AppState;
use crate::submission::Arrival;
use crate::unit_vector::unit_vector;
use crate::validation::{self, Prompt};
use crate::wire::embeddings::{EmbeddingRequest, EmbeddingResponse, EncodingFormat};
use crate::wire::error::ApiError;
use crate::wire::field_rules;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use mini_infer_core::TokenId;

/// What a validated body asks for.
struct EmbeddingPlan {
    asked: AskedModel,
    sharing: PrefixSharing,
    inputs: Vec<Vec<TokenId>>,
    num_dimensions: usize,
    format: EncodingFormat,
}

/// Answers with a vector of norm 1 for each input.
pub(super) async fn create(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(&state)?;
    let limit_bytes = state.config().max_body_bytes;
    let num_body_bytes = body.as_ref().map_or(0, |body| body.len());
    let serving = arrival.serving();
    let pooling = serving.model.embeddings.pooling;
    let plan = super::off_the_reactor(num_body_bytes, move || {
        plan(&serving.model, json_body::parse(&headers, body, limit_bytes)?)
    })
    .await?;
    let EmbeddingPlan { asked, sharing, inputs, num_dimensions, format } = plan;
    let adapter = asked.adapter.map(|loaded| loaded.adapter);
    let run = EmbeddingRun { arrival, pooling, adapter, sharing };
    let vectors = run.vectors(&inputs).await?;
    let num_prompt_tokens = inputs.iter().map(|input| input.len() as u64).sum();
    super::off_the_reactor(vectors.len() * num_dimensions * size_of::<f32>(), move || {
        let vectors = vectors.into_iter().map(|values| unit_vector(values, num_dimensions));
        let response =
            EmbeddingResponse::new(asked.name, vectors.collect(), format, num_prompt_tokens);
        Ok(Json(response).into_response())
    })
    .await
}

/// Validates a body and turns its inputs into tokens.
fn plan(model: &ServedModel, mut body: EmbeddingRequest) -> Result<EmbeddingPlan, ApiError> {
    field_rules::check("", &body.extra, field_rules::EMBEDDINGS)?;
    let asked = model.resolve(body.model.as_deref())?;
    let sharing = PrefixSharing::new(None, None)?.on(asked.adapter.as_ref());
    let num_dimensions = body.num_dimensions(model.embeddings.hidden_size)?;
    let inputs = validation::inputs(body.input.take(), model.vocab_size)?;
    let tokens = |input| match input {
        Prompt::Text(text) => model.encode_text("input", &text),
        Prompt::Tokens(tokens) => Ok(tokens),
    };
    let inputs = inputs.into_iter().map(tokens).collect::<Result<Vec<_>, _>>()?;
    let longest = inputs.iter().map(Vec::len).max().unwrap_or(0);
    validation::fit_context("input", longest, Some(0), None, model.max_model_len)?;
    let format = body.encoding_format.unwrap_or_default();
    Ok(EmbeddingPlan { asked, sharing, inputs, num_dimensions, format })
}
